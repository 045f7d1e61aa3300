"""Every screen shows every price: a broadcasting group, in which each member gets every message and
keeps its own progress in a file.
"""

import argparse
import tempfile
import threading
from pathlib import Path

import ogive

PRICES = ("espresso 2.20", "flat white 3.40", "cortado 2.90")


def screen(
    name: str, name_server: str, folder: Path, shown: threading.Semaphore
) -> ogive.PushConsumer:
    """One member. Members on one machine need an instance name each: it names their file."""

    @ogive.listener("Prices", group="screens", broadcast=True, start="earliest")
    def show(message: ogive.MessageExt) -> None:
        print(f"{name}: {message.text}")
        shown.release()

    client = ogive.ClientConfig(name_server=name_server, instance_name=name)
    return ogive.PushConsumer(show, client=client, config=ogive.ConsumerConfig(offsets_dir=folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    name_server = parser.parse_args().name_server
    shown = threading.Semaphore(0)
    with ogive.Admin(name_server) as admin:
        admin.create_topic("Prices", queues=2)
    with ogive.Producer(name_server) as producer:
        for price in PRICES:
            producer.send("Prices", price.encode())
    with tempfile.TemporaryDirectory() as folder:
        with (
            screen("counter", name_server, Path(folder), shown),
            screen("window", name_server, Path(folder), shown),
        ):
            for _ in range(2 * len(PRICES)):
                shown.acquire()
        for file in sorted(Path(folder).rglob("offsets.json")):
            print(f"{file.relative_to(folder)}: {file.read_text()}")


if __name__ == "__main__":
    main()
