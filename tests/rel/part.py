"""A name server, a broker or an orderly member with short times, each a process of its own that may
be paused and killed.

``python -m tests.rel.part names PORT``, ``broker PORT NAME_SERVER DIRECTORY LEASE_S`` or ``member
NAME_SERVER TOPIC GROUP LEASE_S CALL_S FILE``. What serves prints ``ready HOST:PORT``.
"""

import asyncio
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import ogive
from ogive.broker import Broker, BrokerConfig
from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.namesrv import NameServer, NameServerConfig


def broker_config(port: int, name_server: str, data: Path, lease_s: float) -> BrokerConfig:
    return BrokerConfig(
        data=data,
        port=port,
        name_servers=(name_server,),
        flush="async",
        lock_lease_s=lease_s,
        client_scan_s=0.5,
        client_expiry_s=max(3.0, lease_s),
        register_period_s=0.5,
    )


async def serve(make: Callable[[], NameServer | Broker]) -> None:
    server = make()
    await server.start()
    print(f"ready {server.address}", flush=True)
    await asyncio.Event().wait()


def member(
    name_server: str, topic: str, group: str, lease_s: float, call_s: float, file: Path
) -> None:
    """Each call notes in *file* where it was, when (by the clock of all processes), and whether no
    other call of its queue was running.

    It knows from a lock on a file of the queue's beside *file*, which the kernel frees when a
    process dies.
    """
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    locks: dict[int, int] = {}

    @ogive.listener(topic, group=group, start="earliest", orderly=True, threads=4)
    def work(message: ogive.MessageExt) -> None:
        queue_id, begun = message.queue.queue_id, time.monotonic()
        lock = locks.get(queue_id)
        if lock is None:
            lock = locks[queue_id] = os.open(
                file.parent / f"queue-{queue_id}", os.O_RDWR | os.O_CREAT
            )
        alone = True
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            alone = False
        time.sleep(call_s)
        if alone:
            fcntl.flock(lock, fcntl.LOCK_UN)
        call = {
            "queue": queue_id,
            "offset": message.queue_offset,
            "body": message.text,
            "begun": begun,
            "ended": time.monotonic(),
        }
        os.write(out, json.dumps(call | {"alone": alone, "pid": os.getpid()}).encode() + b"\n")

    config = ConsumerConfig(
        rebalance_period_s=1.0,
        rebalance_pause_s=0.1,
        hand_over_pause_s=0.05,
        persist_period_s=0.2,
        pull_suspend_s=2.0,
        pull_retry_s=0.2,
        lock_renew_s=lease_s / 8,
        lock_lease_s=lease_s / 2,
    )
    client = ClientConfig(
        name_server=name_server,
        heartbeat_period_s=1.0,
        route_period_s=1.0,
        request_timeout_s=1.0,
        connect_timeout_s=1.0,
    )
    ogive.run(work, config=config, client=client)


def main(kind: str, *words: str) -> None:
    if kind == "names":
        asyncio.run(serve(lambda: NameServer(NameServerConfig(port=int(words[0])))))
    elif kind == "broker":
        asyncio.run(
            serve(
                lambda: Broker(
                    broker_config(int(words[0]), words[1], Path(words[2]), float(words[3]))
                )
            )
        )
    else:
        member(words[0], words[1], words[2], float(words[3]), float(words[4]), Path(words[5]))


if __name__ == "__main__":
    main(*sys.argv[1:])
