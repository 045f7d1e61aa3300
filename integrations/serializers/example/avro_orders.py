"""Orders in Avro, without a schema registry: ``python avro_orders.py`` beside ``ogive up``.

Readers must know the writer's schema: give a changed schema a topic or a property of its own.
"""

import io
import os
import threading
from typing import Any, Final

import fastavro

import ogive

NAME_SERVER: Final = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
SCHEMA: Final = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "number", "type": "string"}, {"name": "amount", "type": "int"}],
    }
)
done = threading.Event()


def write(order: dict[str, Any]) -> bytes:
    """Return an order as bytes."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, SCHEMA, order)
    return body.getvalue()


def read(body: bytes) -> dict[str, Any]:
    """Return the order in *body*."""
    order: Any = fastavro.schemaless_reader(io.BytesIO(body), SCHEMA, None)
    return dict(order)


@ogive.listener("AvroOrders", group="avro-billing", start="earliest", as_=read)
def bill(order: dict[str, Any]) -> None:
    """Print an order."""
    print(f"{order['number']}: {order['amount']}")
    done.set()


if __name__ == "__main__":
    with ogive.Producer(NAME_SERVER, serializer=write) as producer:
        producer.send("AvroOrders", {"number": "4711", "amount": 20})
    with ogive.PushConsumer(bill, name_server=NAME_SERVER):
        done.wait(60)
