"""Messages on a lease: receive, acknowledge, keep one for longer, and let one come again.

ogive up & python examples/simple_consumer.py
"""

import argparse

import ogive

TOPIC = "LeaseExample"
GROUP = "lease-example"


def fill(name_server: str) -> None:
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(TOPIC, queues=4)
        producer.send_batch(TOPIC, [b"order %d" % i for i in range(10)])


def work(name_server: str) -> None:
    """Two workers with four queues: neither holds one, and both get messages."""
    done: list[ogive.MessageExt] = []

    def member() -> ogive.SimpleConsumer:
        return ogive.SimpleConsumer(TOPIC, group=GROUP, start="earliest", name_server=name_server)

    with member() as one, member() as two:
        last = one
        for worker in (one, two) * 20:
            messages = worker.receive(3, invisible_s=30, wait_s=0.5)
            for message in messages:
                if message.text == "order 7" and message.reconsume_times == 0:
                    # not now: to anybody, in a second
                    worker.change_invisible(message, 1)
                    continue
                if message.text == "order 3":
                    # this takes longer
                    worker.change_invisible(message, 60)
                print("one" if worker is one else "two", message.text, message.reconsume_times)
                worker.ack(message)
                done.append(message)
                last = worker
            if len(done) == 10:
                break
        try:
            # its lease is over
            last.ack(done[-1])
        except ogive.LeaseEnded as exc:
            print("twice:", exc)


def main() -> None:
    parser = argparse.ArgumentParser(description="receive messages on a lease")
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    options = parser.parse_args()
    fill(options.name_server)
    work(options.name_server)


if __name__ == "__main__":
    main()
