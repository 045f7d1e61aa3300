"""Runs Apache's C++ client (PyPI: rocketmq 0.4.4) as a program of its own; JSON lines on standard output.

    python cpp_client.py send    NAME_SERVER TOPIC COUNT sync|orderly|oneway|batch
    python cpp_client.py consume NAME_SERVER TOPIC GROUP DELIVERIES concurrent|orderly [FAILURES [TIMEOUT_S]]

Bodies are "message 0", "message 1", ...; tags alternate between even and odd; a delivery fails while reconsume_times is below FAILURES.
"""

import json
import os
import sys
import threading
import time

import rocketmq.client as cpp
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CConsumeStatus, dll

CONSUME_SUCCESS = _CConsumeStatus.CONSUME_SUCCESS.value
RECONSUME_LATER = _CConsumeStatus.RECONSUME_LATER.value


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
    producer = cpp.Producer("interop-cpp-producer", timeout=10_000)
    producer.set_namesrv_addr(name_server)
    producer.start()
    if mode == "batch":
        result = producer.send_batch([message(topic, index) for index in range(count)])
        show(index=0, status=result.status.name, id=result.msg_id, offset=result.offset)
    else:
        for index in range(count):
            if mode == "oneway":
                producer.send_oneway(message(topic, index))
                continue
            made = message(topic, index)
            result = producer.send_orderly(made, index % 4) if mode == "orderly" else producer.send_sync(made)
            show(index=index, status=result.status.name, id=result.msg_id, offset=result.offset)
    if mode == "oneway":
        time.sleep(1)  # nothing tells when a one-way request has left
    producer.shutdown()
    return True


def consume(name_server: str, topic: str, group: str, deliveries: int, mode: str, failures: int, timeout_s: float) -> bool:
    seen, all_came = 0, threading.Event()
    lock = threading.Lock()  # protects seen: the client calls from several threads

    def on_message(_consumer: int, handle: int) -> int:
        nonlocal seen
        received = cpp.RecvMessage(handle)
        fails = received.reconsume_times < failures
        show(
            topic=received.topic,
            queueId=received.queue_id,
            queueOffset=received.queue_offset,
            reconsumeTimes=received.reconsume_times,
            id=received.id,
            tags=received.tags.decode(),
            keys=received.keys.decode(),
            body=received.body.decode(),
            index=received["index"].decode(),
            outcome="later" if fails else "done",
        )
        with lock:
            seen += 1
            if seen >= deliveries:
                all_came.set()
        return RECONSUME_LATER if fails else CONSUME_SUCCESS

    consumer = cpp.PushConsumer(group, orderly=mode == "orderly")
    consumer.set_namesrv_addr(name_server)
    # Not consumer.subscribe(): what it calls on an exception raises again inside ctypes, which the library takes for success.
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(on_message)
    consumer.start()
    show(ready=True)
    done = all_came.wait(timeout_s)
    consumer.shutdown()
    return done


def main() -> bool:
    command, name_server, topic, *rest = sys.argv[1:]
    if command == "send":
        return send(name_server, topic, int(rest[0]), rest[1])
    group, deliveries, mode, *limits = rest
    failures, timeout_s = [*limits, *("0", "60")[len(limits) :]]
    return consume(name_server, topic, group, int(deliveries), mode, int(failures), float(timeout_s))


if __name__ == "__main__":
    succeeded = main()
    sys.stdout.flush()
    os._exit(0 if succeeded else 1)  # the library's threads do not always end
