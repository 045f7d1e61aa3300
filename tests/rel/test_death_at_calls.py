"""T2: the process dies at each of its system calls that change a file; every answer it gave before
is kept.

A script runs under strace, which kills it at the n-th call of one kind; for all n. One drives a
store: messages, a table, segments that roll and are removed. One is a broker: topics by hand and by
a send, groups, transactions that end either way, and a topic that is deleted. Needs strace, and the
right to trace a child.
"""

import asyncio
import json
import logging
import shutil
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ogive.broker import Broker, BrokerConfig
from ogive.store.verify import verify
from tests.figures import figures
from tests.raw_client import RawClient, messages
from tests.stores import Driver, small

pytestmark = [
    pytest.mark.rel,
    pytest.mark.result("T2"),
    pytest.mark.waits(40),
    pytest.mark.nightly,
]

CALLS = ("pwrite64", "fdatasync", "fsync", "rename", "ftruncate", "unlink", "mkdir")
SCRIPT = """
    import sys
    from pathlib import Path
    from ogive.store import JsonTable, OsFs
    from tests.stores import Driver, message, small
    root = Path(sys.argv[1])
    driver = Driver(small(root, segment_bytes=4096, checkpoint_bytes=6000, flush_bytes=2000))
    table = JsonTable(OsFs(), root / "config" / "topics.json")
    topics = {topic: {"topicName": topic} for topic in ("T0", "T1", "T2")}
    table.save({"topicConfigTable": topics})
    for n in range(30):
        key = f"UNIQ_KEY\\x01ID{n}\\x02".encode()
        result = driver.put(message(f"{n} " + "x" * 400, f"T{n % 3}", properties=key))[0]
        print(f"T{n % 3} {result.queue_offset} {n}", flush=True)
    table.save({"topicConfigTable": topics | {"T3": {}}})
    half = driver.put(message("half", "RMQ_SYS_TRANS_HALF_TOPIC"))[0]
    at = half.commitlog_offset
    end = driver.put(message("whole", "T0", sys_flag=8, prepared_transaction_offset=at))[0]
    print(f"T0 {end.queue_offset} whole", flush=True)
    table.save({"topicConfigTable": topics | {"T3": {}, "T4": {}}})
    for _ in driver.store.retention.expire(driver.store.retention.full_segments[2]):
        pass
    driver.put(message("last", "T1"))
    print("expired", flush=True)
    driver.close()
"""
BROKER_SCRIPT = """
    import asyncio, json, sys
    from pathlib import Path
    from ogive.broker import Broker, BrokerConfig
    from ogive.wire.codes import RequestCode, SysFlag
    from ogive.wire.message import parse_offset_message_id
    from tests.raw_client import RawClient, unique_key

    async def transaction(client, n, decision):
        own = {"UNIQ_KEY": unique_key(), "TRAN_MSG": "true", "PGROUP": "shop"}
        prepared = int(SysFlag.TRANSACTION_PREPARED)
        half = (await client.send(f"Auto{n}", b"paid %d" % n, own, f=prepared)).ext_fields
        print("half", n, flush=True)
        await client.ok(
            RequestCode.END_TRANSACTION,
            producerGroup="shop",
            tranStateTableOffset=half["queueOffset"],
            commitOrRollback=decision,
            commitLogOffset=parse_offset_message_id(half["msgId"])[1],
            msgId=half["transactionId"],
            transactionId=half["transactionId"],
        )
        print("committed" if decision == 8 else "rolled-back", n, flush=True)

    async def main():
        broker = Broker(BrokerConfig(data=Path(sys.argv[1]), port=0, segment_bytes=64 * 1024))
        await broker.start()
        made = {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "order": False}
        made["topicFilterType"] = "SINGLE_TAG"
        async with await RawClient.open(broker.address) as client:
            for n in range(3):
                await client.send(f"Auto{n}", b"first %d" % n)
                print("sent", n, flush=True)
                code = RequestCode.UPDATE_AND_CREATE_TOPIC
                await client.ok(code, topic=f"Made{n}", defaultTopic="TBW102", **made)
                print("topic", n, flush=True)
                group = {"groupName": f"G{n}", "retryMaxTimes": 7}
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await client.ok(code, json.dumps(group).encode())
                print("group", n, flush=True)
                await transaction(client, n, 12 if n % 2 else 8)
                await client.send(f"Made{n}", b"x" * 3_000)
                if n > 1:
                    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic=f"Made{n - 2}")
                    print("deleted", n - 2, flush=True)
        await broker.stop()
        print("stopped 0", flush=True)

    asyncio.run(main())
"""


opening = threading.Lock()
"""Between its fork and its exec a child holds the locks of the stores that are open here: no store
is open while one is started.
"""


def die_at(script: str, root: Path, call: str, nth: int) -> tuple[bool, list[str]]:
    """(whether it died there, the lines that it had printed)."""
    command = [
        "strace",
        "-f",
        "-qq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:signal=SIGKILL:when={nth}",
    ]
    with opening:
        process = subprocess.Popen(
            [*command, sys.executable, "-c", textwrap.dedent(script), str(root)],
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode != 0, [
        line for line in said.splitlines(keepends=True) if line.endswith("\n")
    ]


def judge_store(root: Path, lines: list[str]) -> None:
    """A start succeeds and finds every answer, unless old messages were being removed; and keeps
    it.
    """
    removing = sum(line.split()[0] in ("T0", "T1", "T2") for line in lines) == 31
    for _ in range(2):
        with Driver(small(root, segment_bytes=4096)) as driver:
            assert driver.store.stats().damaged == 0
            found = {
                (t, q): {m.queue_offset: m.body.split()[0] for m in driver.read_all(t, q)}
                for t, q in driver.store.queues
            }
            for line in lines:
                topic, offset, body = (*line.split(), "", "")[:3]
                if topic == "expired":
                    continue
                if removing and int(offset) < driver.store.min_offset(topic, 0):
                    continue
                assert found[topic, 0][int(offset)] == body.encode()
            for (topic, queue_id), messages in found.items():
                low, high = (
                    driver.store.min_offset(topic, queue_id),
                    driver.store.max_offset(topic, queue_id),
                )
                assert list(messages) == list(range(low, high)), "a hole"
    assert verify(root).problems == []


def judge_broker(root: Path, lines: list[str]) -> None:
    asyncio.run(_judge_broker(root, [(what, int(n)) for what, n in map(str.split, lines)]))
    assert verify(root).problems == []


async def _judge_broker(root: Path, said: list[tuple[str, int]]) -> None:
    """Two starts succeed and find every answer; half messages are in no topic, and what was
    committed is there once.
    """
    for _ in range(2):
        broker = Broker(BrokerConfig(data=root, port=0, segment_bytes=64 * 1024))
        await broker.start()
        ctx = broker.context
        try:
            async with await RawClient.open(broker.address) as client:
                bodies: dict[int, Counter[bytes]] = {}
                for n in range(3):
                    stored = f"Auto{n}" in ctx.topics and ctx.store.max_offset(f"Auto{n}", 0)
                    bodies[n] = (
                        Counter(
                            message.body
                            for message in messages(await client.pull("Looker", f"Auto{n}", 0))
                        )
                        if stored
                        else Counter()
                    )
            for what, n in said:
                match what:
                    case "sent":
                        assert bodies[n][b"first %d" % n] == 1
                    case "topic":
                        made = ctx.topics.get(f"Made{n}")
                        # whose topic may be deleted by then
                        assert (made is not None and made.read_queues == 3) or (
                            "half",
                            n + 2,
                        ) in said
                    case "group":
                        group = ctx.groups.get(f"G{n}")
                        assert group is not None
                        assert group.retry_max_times == 7
                    case "half":
                        assert bodies[n][b"paid %d" % n] <= (n % 2 == 0)
                    case "committed":
                        assert bodies[n][b"paid %d" % n] == 1
                    case "rolled-back":
                        assert bodies[n][b"paid %d" % n] == 0
                    case "deleted":
                        assert f"Made{n}" not in ctx.topics
                        assert ctx.store.max_offset(f"Made{n}", 0) == 0
        finally:
            await broker.stop()


@pytest.mark.parametrize(
    ("script", "judge"),
    [(SCRIPT, judge_store), (BROKER_SCRIPT, judge_broker)],
    ids=["store", "broker"],
)
def test_death_at_every_system_call_keeps_every_answer(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    script: str,
    judge: Callable[[Path, list[str]], None],
) -> None:
    caplog.set_level(logging.CRITICAL)
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed (Debian: apt-get install strace)")
    probe = subprocess.run(
        ["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"strace may not trace here: {probe.stderr.decode()[:200]}")
    with figures("T2", nightly=True) as line, ThreadPoolExecutor(2) as two:

        def all_of(call: str) -> tuple[int, int]:
            nth = 0
            answers = 0
            while True:
                nth += 1
                root = tmp_path / f"{call}-{nth}"
                died, lines = die_at(script, root, call, nth)
                answers += len(lines)
                if not died:
                    return nth - 1, answers
                with opening:
                    judge(root, lines)
                shutil.rmtree(root)

        counts = dict(zip(CALLS, two.map(all_of, CALLS), strict=True))
        line["deaths"] = {call: deaths for call, (deaths, _) in counts.items()}
        line["faults"] = sum(deaths for deaths, _ in counts.values())
        line["acknowledged"] = line["received"] = sum(answers for _, answers in counts.values())
        line["lost"] = 0
    print(json.dumps(counts))
    assert line["faults"] > 100
