"""Runs Apache's C++ client (PyPI: rocketmq 0.4.4) as a program of its own; JSON lines on standard
output.

    python cpp_client.py send    NAME_SERVER TOPIC COUNT sync|async|orderly|oneway|delayed
    python cpp_client.py consume NAME_SERVER TOPIC GROUP DELIVERIES \
        concurrent|orderly|broadcasting TAGS TIMEOUT_S LATER
    python cpp_client.py pull    NAME_SERVER TOPIC GROUP DELIVERIES TAGS TIMEOUT_S

Bodies are "message 0", "message 1", ...; the tags even and odd alternate; "orderly" puts message N
into queue N modulo 4; "delayed" waits for a second, delay level 1. TAGS is what the broker selects
by, such as "even || odd" or "*". The first LATER deliveries are to come again. The package cannot
batch: the broker stores a batch as one message. Its own callback cannot fail a delivery, because it
reports an exception as success, so that another one is registered here.
"""

import functools
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import rocketmq.client as cpp
from rocketmq.exceptions import RocketMQException, ffi_check
from rocketmq.ffi import MSG_CALLBACK_FUNC, MessageModel, dll

# what a callback returns
DONE, LATER = 0, 1


def show(**line: object) -> None:
    print(json.dumps(line), flush=True)


def message(topic: str, index: int) -> cpp.Message:
    made = cpp.Message(topic)
    made.set_keys(f"key-{index}")
    made.set_tags("odd" if index % 2 else "even")
    made.set_body(f"message {index}")
    made.set_property("index", str(index))
    return made


def insist(call: Callable[[], cpp.SendResult]) -> cpp.SendResult:
    """Send again while there is no route: the client asks once, and waits 3 seconds for it."""
    give_up = time.monotonic() + 60
    while True:
        try:
            return call()
        except RocketMQException as exc:
            if "No route info" not in str(exc) or time.monotonic() > give_up:
                raise


def send(name_server: str, topic: str, count: int, mode: str) -> bool:
    producer = cpp.Producer("interop-cpp-producer", timeout=60_000)
    producer.set_namesrv_addr(name_server)
    producer.start()
    answers: queue.Queue[tuple[int, Any]] = queue.Queue()
    for index in range(count):
        made = message(topic, index)
        if mode == "oneway":
            producer.send_oneway(made)
            continue
        if mode == "async":
            answer = functools.partial(lambda number, said: answers.put((number, said)), index)
            producer.send_async(made, answer, answer)
            continue
        if mode == "delayed":
            made.set_delay_time_level(1)
        result = insist(
            functools.partial(producer.send_orderly, made, index % 4)
            if mode == "orderly"
            else functools.partial(producer.send_sync, made)
        )
        show(index=index, status=result.status.name, id=result.msg_id, queueOffset=result.offset)
    if mode == "oneway":
        # nothing tells when a one-way request has left, but its connection keeps their order
        insist(functools.partial(producer.send_sync, message(topic, count)))
    for _ in range(count if mode == "async" else 0):
        index, result = answers.get(timeout=60)
        if isinstance(result, Exception):
            raise result
        show(index=index, status=result.status.name, id=result.msg_id, queueOffset=result.offset)
    producer.shutdown()
    return True


def row(received: cpp.RecvMessage) -> dict[str, object]:
    return {
        "topic": received.topic,
        "queueId": received.queue_id,
        "queueOffset": received.queue_offset,
        "reconsumeTimes": received.reconsume_times,
        "id": received.id,
        "tags": received.tags.decode(),
        "keys": received.keys.decode(),
        "body": received.body.decode(),
        "index": int(received["index"]),
        "bornTimestamp": received.born_timestamp,
        "storeTimestamp": received.store_timestamp,
    }


def consume(
    name_server: str,
    topic: str,
    group: str,
    deliveries: int,
    mode: str,
    tags: str,
    timeout_s: float,
    later: int,
) -> bool:
    seen, all_came = 0, threading.Event()
    # protects seen and standard output: the client calls from several threads
    lock = threading.Lock()

    def on_message(_consumer: int, pointer: int) -> int:
        nonlocal seen
        with lock:
            show(**row(cpp.RecvMessage(pointer)))
            seen += 1
            if seen >= deliveries:
                all_came.set()
            return LATER if seen <= later else DONE

    model = MessageModel.BROADCASTING if mode == "broadcasting" else MessageModel.CLUSTERING
    consumer = cpp.PushConsumer(group, orderly=mode == "orderly", message_model=model)
    consumer.set_namesrv_addr(name_server)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), tags.encode()))
    register = (
        dll.RegisterMessageCallbackOrderly if mode == "orderly" else dll.RegisterMessageCallback
    )
    # kept while the client may call it
    callback = MSG_CALLBACK_FUNC(on_message)
    ffi_check(register(consumer._handle, callback))
    consumer.start()
    done = all_came.wait(timeout_s)
    consumer.shutdown()
    return done


def pull(
    name_server: str, topic: str, group: str, deliveries: int, tags: str, timeout_s: float
) -> bool:
    """Goes through all queues, from their first message, until it has so many or the time is
    over.
    """
    consumer = cpp.PullConsumer(group)
    consumer.set_namesrv_addr(name_server)
    consumer.start()
    seen, end = 0, time.monotonic() + timeout_s
    while seen < deliveries and time.monotonic() < end:
        for received in consumer.pull(topic, tags):
            show(**row(received))
            seen += 1
    consumer.shutdown()
    return seen >= deliveries


def main() -> bool:
    command, name_server, topic, *rest = sys.argv[1:]
    if command == "send":
        return send(name_server, topic, int(rest[0]), rest[1])
    if command == "pull":
        return pull(name_server, topic, rest[0], int(rest[1]), rest[2], float(rest[3]))
    return consume(
        name_server, topic, rest[0], int(rest[1]), rest[2], rest[3], float(rest[4]), int(rest[5])
    )


if __name__ == "__main__":
    succeeded = main()
    sys.stdout.flush()
    # the library's threads do not always end
    os._exit(0 if succeeded else 1)
