"""Messages of protobuf: ``python protobuf_orders.py`` beside ``ogive up``.

Struct stands for a class that protoc generated.
"""

import os
import threading
from typing import Final

from google.protobuf.struct_pb2 import Struct

import ogive

NAME_SERVER: Final = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
done = threading.Event()


@ogive.listener("ProtobufOrders", group="protobuf-billing", start="earliest", as_=Struct.FromString)
def bill(order: Struct) -> None:
    """Print an order."""
    print(f"{order['number']}: {order['amount']:.0f}")
    done.set()


if __name__ == "__main__":
    order = Struct()
    order.update({"number": "4711", "amount": 20})
    with ogive.Producer(NAME_SERVER, serializer=Struct.SerializeToString) as producer:
        producer.send("ProtobufOrders", order)
    with ogive.PushConsumer(bill, name_server=NAME_SERVER):
        done.wait(60)
