"""Listeners that come and go in one consumer, a wrapper around every call, and news of the queues
that are held.
"""

import argparse
import threading
from collections.abc import Generator
from contextlib import contextmanager

import ogive

done = threading.Semaphore(0)


@ogive.listener("ShopOrders", group="shop", start="earliest")
def bill(message: ogive.MessageExt) -> None:
    print(f"bill   {message.text}")
    done.release()


@ogive.listener("ShopReturns", group="shop", start="earliest")
def refund(message: ogive.MessageExt) -> None:
    print(f"refund {message.text}")
    done.release()


@contextmanager
def watched(call: ogive.ListenerCall) -> Generator[None, None, None]:
    yield
    print(f"       {call.listener} of {call.queue}: {call.outcome}")


def changed(taken: list[ogive.MessageQueue], given_up: list[ogive.MessageQueue]) -> None:
    print(f"       queues: +{len(taken)} -{len(given_up)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    name_server = parser.parse_args().name_server
    with ogive.Admin(name_server) as admin:
        for topic in ("ShopOrders", "ShopReturns"):
            admin.create_topic(topic, queues=2)
    config = ogive.ConsumerConfig(interceptors=(watched,))
    with (
        ogive.Producer(name_server) as producer,
        ogive.PushConsumer(
            bill, name_server=name_server, config=config, on_change=changed
        ) as consumer,
    ):
        producer.send("ShopOrders", b"4711: 2 x espresso")
        done.acquire()
        producer.send("ShopReturns", b"4711: 1 x espresso")
        consumer.subscribe(refund)
        done.acquire()
        consumer.unsubscribe(refund)
        producer.send("ShopOrders", b"4712: 1 x cortado")
        done.acquire()


if __name__ == "__main__":
    main()
