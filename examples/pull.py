"""Reading on demand: poll a topic as a member of a group, go back by time, and look at single
messages.

ogive up & python examples/pull.py
"""

import argparse
from datetime import UTC, datetime

import ogive

TOPIC = "PullExample"


def fill(name_server: str) -> datetime:
    """Send two lots of messages; returns a moment between them."""
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(TOPIC, queues=2)
        producer.send_batch(TOPIC, [b"early %d" % i for i in range(10)])
        first_late = producer.send(TOPIC, b"late 0")
        producer.send_batch(TOPIC, [b"late %d" % i for i in range(1, 10)])
    # no topic, no group: it leaves no trace
    with ogive.PullConsumer(name_server=name_server) as reader:
        (message,) = reader.pull(first_late.queue, first_late.queue_offset, max_messages=1).messages
        print("one message:", message.queue, message.queue_offset, message.text)
    return message.stored_at


def work_through(name_server: str) -> None:
    """As a member of a group that commits what it has worked on; ends when nothing is left."""
    with ogive.PullConsumer(
        TOPIC, group="pull-example", start="earliest", auto_commit=False, name_server=name_server
    ) as consumer:
        while batch := consumer.poll(timeout_s=3.0, max_messages=8):
            print("batch of", len(batch), "up to", batch[-1].text)
            consumer.commit()


def replay(name_server: str, since: datetime) -> None:
    """Read all queues again from a point in time, without a group."""
    with ogive.PullConsumer(name_server=name_server) as reader:
        queues = reader.queues(TOPIC)
        reader.assign(queues)
        for queue in queues:
            reader.seek(queue, at=since)
        left = sum(reader.lag().values())
        for batch in reader.batches():
            left -= len(batch)
            print("since", since.astimezone(UTC).isoformat(), [message.text for message in batch])
            if left <= 0:
                break


def main() -> None:
    parser = argparse.ArgumentParser(description="pull from a topic")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    options = parser.parse_args()
    moment = fill(options.name_server)
    work_through(options.name_server)
    replay(options.name_server, moment)


if __name__ == "__main__":
    main()
