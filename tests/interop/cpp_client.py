"""Runs Apache's C++ client (PyPI: rocketmq 0.4.4) as a program of its own; JSON lines on standard output.

    python cpp_client.py send    NAME_SERVER TOPIC COUNT sync|orderly|oneway
    python cpp_client.py consume NAME_SERVER TOPIC GROUP DELIVERIES concurrent|orderly TIMEOUT_S

Bodies are "message 0", "message 1", ...; the tags even and odd alternate; "orderly" puts message N into queue N modulo 4.
The package can neither batch (the broker stores a batch as one message) nor fail a delivery (it reports an exception as success).
"""

import json
import os
import sys
import threading
import time

import rocketmq.client as cpp


def show(**line: object) -> None:
    print(json.dumps(line), flush=True)


def message(topic: str, index: int) -> cpp.Message:
    made = cpp.Message(topic)
    made.set_keys(f"key-{index}")
    made.set_tags("odd" if index % 2 else "even")
    made.set_body(f"message {index}")
    made.set_property("index", str(index))
    return made


def send(name_server: str, topic: str, count: int, mode: str) -> bool:
    producer = cpp.Producer("interop-cpp-producer", timeout=60_000)
    producer.set_namesrv_addr(name_server)
    producer.start()
    for index in range(count):
        if mode == "oneway":
            producer.send_oneway(message(topic, index))
            continue
        made = message(topic, index)
        result = producer.send_orderly(made, index % 4) if mode == "orderly" else producer.send_sync(made)
        show(index=index, status=result.status.name, id=result.msg_id, queueOffset=result.offset)
    if mode == "oneway":
        time.sleep(1)  # nothing tells when a one-way request has left
    producer.shutdown()
    return True


def consume(name_server: str, topic: str, group: str, deliveries: int, mode: str, timeout_s: float) -> bool:
    seen, all_came = 0, threading.Event()
    lock = threading.Lock()  # protects seen and standard output: the client calls from several threads

    def on_message(received: cpp.RecvMessage) -> None:
        nonlocal seen
        line = {
            "topic": received.topic,
            "queueId": received.queue_id,
            "queueOffset": received.queue_offset,
            "reconsumeTimes": received.reconsume_times,
            "id": received.id,
            "tags": received.tags.decode(),
            "keys": received.keys.decode(),
            "body": received.body.decode(),
            "index": int(received["index"]),
        }
        with lock:
            show(**line)
            seen += 1
            if seen >= deliveries:
                all_came.set()

    consumer = cpp.PushConsumer(group, orderly=mode == "orderly")
    consumer.set_namesrv_addr(name_server)
    consumer.subscribe(topic, on_message)
    consumer.start()
    done = all_came.wait(timeout_s)
    consumer.shutdown()
    return done


def main() -> bool:
    command, name_server, topic, *rest = sys.argv[1:]
    if command == "send":
        return send(name_server, topic, int(rest[0]), rest[1])
    return consume(name_server, topic, rest[0], int(rest[1]), rest[2], float(rest[3]))


if __name__ == "__main__":
    succeeded = main()
    sys.stdout.flush()
    os._exit(0 if succeeded else 1)  # the library's threads do not always end
