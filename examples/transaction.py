"""An order is stored in a database and announced as a message: both or neither, whatever dies in
between.

Run it with a broker at hand: ``ogive up &``, then ``python examples/transaction.py``.
"""

import argparse
import sqlite3
import tempfile
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import ogive

TOPIC = "PaidOrders"


@contextmanager
def database(folder: str) -> Generator[sqlite3.Connection, None, None]:
    """What happens in the block is committed at its end, and rolled back where the block fails."""
    with closing(sqlite3.connect(Path(folder, "orders.db"))) as connection, connection:
        yield connection


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        with database(folder) as orders:
            orders.execute("CREATE TABLE paid (number TEXT PRIMARY KEY)")

        def was_paid(message: ogive.MessageExt) -> bool | None:
            """The broker asks this when nobody told it how a transaction ended.

            Called in a thread: it opens a connection of its own.
            """
            with database(folder) as orders:
                found = orders.execute("SELECT 1 FROM paid WHERE number = ?", message.keys)
                if found.fetchone() is not None:
                    return True
            # another process may still be about to commit; after a minute none is
            age = datetime.now(UTC) - message.born_at
            return False if age > timedelta(minutes=1) else None

        with ogive.Producer(options.name_server, group="payments", check=was_paid) as producer:
            with (
                producer.transaction(
                    TOPIC, b"order 4711: 2 x espresso", keys="4711"
                ) as transaction,
                database(folder) as orders,
            ):
                orders.execute("INSERT INTO paid VALUES ('4711')")
            print(f"4711 is paid, and announced as {transaction.id}")

            try:
                with (
                    producer.transaction(TOPIC, b"order 4711 once more", keys="4711"),
                    database(folder) as orders,
                ):
                    orders.execute("INSERT INTO paid VALUES ('4711')")
            except sqlite3.IntegrityError as exc:
                print(f"not announced: {exc}")


if __name__ == "__main__":
    main()
