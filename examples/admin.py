"""Looking after a cluster: a topic, a group, its lag, and where it stands.

python examples/admin.py --name-server 127.0.0.1:9876
"""

import argparse
from datetime import UTC, datetime, timedelta

import ogive

TOPIC, GROUP = "ExampleOrders", "example-billing"


def main(name_server: str) -> None:
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(TOPIC, queues=2)
        admin.create_group(GROUP, max_retries=3)
        sent = [producer.send(TOPIC, b"order %d" % number, keys=f"{number}") for number in range(6)]

        for broker in admin.brokers():
            print(
                f"broker {broker.name} {broker.version} at {broker.address}: {broker.puts_today} "
                "messages today"
            )

        # The group has consumed nothing: put it an hour back, but look first at what that would
        # change.
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        for row in admin.reset_offsets(GROUP, TOPIC, an_hour_ago, dry_run=True):
            print(f"{row.queue}: {row.before} -> {row.after}")
        admin.reset_offsets(GROUP, TOPIC, an_hour_ago)
        print(f"{GROUP} is {sum(row.lag for row in admin.lag(GROUP))} messages behind")

        print(f"the last order: {admin.message(sent[-1].offset_id).text}")
        print(f"the first ones: {[message.text for message in admin.messages(TOPIC, limit=3)]}")

        admin.skip_backlog(GROUP, TOPIC)
        print(f"{GROUP} is {sum(row.lag for row in admin.lag(GROUP))} messages behind")
        admin.delete_group(GROUP, offsets=True)
        admin.delete_topic(TOPIC)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--name-server", default="127.0.0.1:9876", metavar="HOST:PORT")
    main(parser.parse_args().name_server)
