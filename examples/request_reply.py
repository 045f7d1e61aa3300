"""Ask for prices and get replies: python examples/request_reply.py --name-server 127.0.0.1:9876"""

import argparse

import ogive

PRICES = {"espresso": "2.20", "latte": "3.40"}


@ogive.listener("Quotes", group="bar", start="earliest")
def price(request: ogive.MessageExt) -> ogive.Reply:
    known = PRICES.get(request.text)
    return ogive.Reply((known or "not on the menu").encode(), tag="price" if known else "unknown")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-server", default="127.0.0.1:9876")
    name_server = parser.parse_args().name_server
    with ogive.Admin(name_server) as admin:
        admin.create_topic("Quotes")
    with (
        ogive.PushConsumer(price, name_server=name_server),
        ogive.Producer(name_server) as producer,
    ):
        for drink in ("espresso", "latte", "milk"):
            reply = producer.request("Quotes", drink.encode(), timeout_s=10.0)
            print(f"{drink}: {reply.text} ({reply.tag})")


if __name__ == "__main__":
    main()
