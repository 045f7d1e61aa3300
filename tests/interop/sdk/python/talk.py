"""Carry out the commands of sdks.py, one JSON object a line, with the official Python SDK."""

import hashlib
import json
import sys
import threading
import time
from collections import Counter
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.grpc_protocol import FilterType

Json = dict[str, Any]
clients: dict[str, Any] = {}
held: dict[str, Any] = {}
# deliveries to push consumers, by message
deliveries: Counter[str] = Counter()
printing = threading.Lock()


def write(line: Json) -> None:
    with printing:
        print(json.dumps(line), flush=True)


def view(message: Any) -> Json:
    return {
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body[:100].decode(),
        "size": len(message.body),
        "md5": hashlib.md5(message.body).hexdigest(),
        "tag": message.tag,
        "keys": list(message.keys or ()),
        "group": message.message_group,
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
    }


class Listener(MessageListener):  # type: ignore[misc]  # the SDK has no types
    """Fails as often as the message's property "fail" says."""

    def __init__(self, name: str) -> None:
        self.name = name

    def consume(self, message: Any) -> ConsumeResult:
        write({"event": "delivery", "name": self.name, **view(message)})
        deliveries[message.message_id] += 1
        fails = deliveries[message.message_id] <= int(message.properties.get("fail", 0))
        return ConsumeResult.FAILURE if fails else ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc]
    def __init__(self, answer: str) -> None:
        self.answer = TransactionResolution.Value(
            {"unknown": "TRANSACTION_RESOLUTION_UNSPECIFIED"}.get(answer, answer.upper())
        )

    def check(self, message: Any) -> Any:
        write({"event": "check", **view(message)})
        return self.answer


def configuration(command: Json) -> ClientConfiguration:
    credentials = Credentials(command.get("access_key"), command.get("secret_key"))
    return ClientConfiguration(command["endpoints"], credentials)


def subscription(command: Json) -> dict[str, FilterExpression]:
    if "sql" in command:
        return {command["topic"]: FilterExpression(command["sql"], FilterType.SQL)}
    return {command["topic"]: FilterExpression(command.get("tag", "*"))}


def send(producer: Any, command: Json) -> Json:
    message = Message()
    message.topic = command["topic"]
    body = command["body"].encode()
    if size := command.get("size"):
        body = (body * (size // len(body) + 1))[:size]
    message.body = body
    if "tag" in command:
        message.tag = command["tag"]
    if "key" in command:
        message.keys = command["key"]
    if "group" in command:
        message.message_group = command["group"]
    if "delay_s" in command:
        message.delivery_timestamp = int(time.time() + command["delay_s"])
    if "priority" in command:
        message.priority = command["priority"]
    for key, value in command.get("properties", {}).items():
        message.add_property(key, value)
    if "end" in command:
        transaction = producer.begin_transaction()
        receipt = producer.send(message, transaction)
        if command["end"] == "commit":
            transaction.commit()
        elif command["end"] == "rollback":
            transaction.rollback()
    else:
        receipt = producer.send(message)
    return {"message_id": receipt.message_id, "recall_handle": receipt.recall_handle}


def start(name: str, client: Any) -> None:
    client.startup()
    clients[name] = client


def carry_out(command: Json) -> Json:
    name, tls = command["name"], bool(command.get("tls"))
    match command["do"]:
        case "producer":
            checker = Checker(command["check"]) if "check" in command else None
            producer = Producer(configuration(command), tuple(command["topics"]), checker, tls)
            start(name, producer)
        case "simple":
            simple = SimpleConsumer(
                configuration(command),
                command["group"],
                subscription(command),
                await_duration=5,
                tls_enable=tls,
            )
            start(name, simple)
        case "push":
            push = PushConsumer(
                configuration(command),
                command["group"],
                Listener(name),
                subscription(command),
                tls_enable=tls,
            )
            start(name, push)
        case "send":
            return send(clients[name], command)
        case "recall":
            receipt = clients[name].recall_message(command["topic"], command["handle"])
            return {"message_id": getattr(receipt, "message_id", receipt)}
        case "receive":
            seen = []
            for message in clients[name].receive(command["max"], command["invisible_s"]) or ():
                key = f"m{len(held)}"
                held[key] = message
                seen.append({"message": key, **view(message)})
            return {"messages": seen}
        case "ack":
            clients[name].ack(held[command["message"]])
        case "change":
            clients[name].change_invisible_duration(
                held[command["message"]], command["invisible_s"]
            )
        case "close":
            clients.pop(name).shutdown()
        case _:
            raise ValueError(command)
    return {}


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = carry_out(command)
        # whatever the SDK raises is for the test to judge
        except Exception as error:  # noqa: BLE001
            answer = {"error": f"{type(error).__name__}: {error}"}
        write({"id": command["id"], **answer})


main()
