"""T31: more is offered than a slow disk takes: what is accepted is kept, the rest is refused as
busy, and memory is bounded.
"""

import asyncio
import contextlib
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ogive.errors import ResponseCode
from tests.figures import figures, p99_ms
from tests.processes import free_port
from tests.raw_client import RawClient, messages

pytestmark = [pytest.mark.rel, pytest.mark.apart(22), pytest.mark.timeout(300)]

BODY = bytes(1000)
MEMORY_MIB = 512
_BROKER = """
import asyncio, sys, time
from pathlib import Path
from ogive.broker import Broker, BrokerConfig
from ogive.store.fs import OsFs

real = OsFs.fdatasync

def slow(self, handle):
    time.sleep(0.02)
    real(self, handle)

OsFs.fdatasync = slow

async def main():
    data, port, waiting = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    broker = Broker(BrokerConfig(data=data, port=port, max_sends_waiting=waiting))
    await broker.start()
    print(broker.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextlib.contextmanager
def on_a_slow_disk(folder: Path, most_waiting: int) -> Iterator[tuple[str, int]]:
    """A broker whose every sync takes 20 ms more: its address, and its process."""
    command = [
        sys.executable,
        "-c",
        _BROKER,
        str(folder / "store"),
        str(free_port()),
        str(most_waiting),
    ]
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL
        )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().decode().strip()
        assert address, (folder / "broker.log").read_text()[-2000:]
        yield address, process.pid
        assert process.poll() is None, "the broker ended by itself"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def peak_mib(pid: int) -> int:
    """What the process ever had resident."""
    [kib] = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) // 1024


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(),
    reason="the peak of a process's memory is read from /proc",
)
@pytest.mark.parametrize(
    ("clients", "at_once", "rounds", "most_waiting"),
    [
        pytest.param(4, 200, 2, 50, marks=pytest.mark.quick, id="quick"),
        pytest.param(40, 400, 10, 2_000, marks=pytest.mark.nightly, id="long"),
    ],
)
async def test_overload_is_refused_and_what_is_accepted_is_kept(
    tmp_path: Path, clients: int, at_once: int, rounds: int, most_waiting: int
) -> None:
    """Each client sends *at_once* messages without waiting, and again once all are answered."""
    took_s: dict[int, list[float]] = {ResponseCode.SUCCESS: [], ResponseCode.SYSTEM_BUSY: []}
    places: dict[int, bytes] = {}

    async def flood(address: str, number: int) -> None:
        async with await RawClient.open(address) as client:

            async def send(body: bytes) -> None:
                began = time.perf_counter()
                answer = await client.start_send("T", body)
                took_s[answer.code].append(time.perf_counter() - began)
                if answer.code == ResponseCode.SUCCESS:
                    assert places.setdefault(int(answer.ext_fields["queueOffset"]), body) == body

            for round_ in range(rounds):
                await asyncio.gather(
                    *(send(b"%d/%d/%d " % (number, round_, n) + BODY) for n in range(at_once))
                )

    with on_a_slow_disk(tmp_path, most_waiting) as (address, pid):
        async with await RawClient.open(address) as calm:
            places[0] = b"first"
            await calm.send("T", b"first")
            with figures("T31", nightly=rounds > 2, attempts=clients * at_once * rounds) as line:
                await asyncio.gather(*(flood(address, number) for number in range(clients)))
                # and all is well again
                places[int((await calm.send("T", b"last")).ext_fields["queueOffset"])] = b"last"
                received: dict[int, bytes] = {}
                while (
                    answer := await calm.pull("G", "T", len(received), count=4096)
                ).code == ResponseCode.SUCCESS:
                    received |= {message.queue_offset: message.body for message in messages(answer)}
                stored, refused = took_s.values()
                line.update(
                    acknowledged=len(stored),
                    received=len(received),
                    lost=len(places.keys() - received.keys()),
                )
                line.update(
                    stored_p99_ms=p99_ms(stored),
                    refused=len(refused),
                    refused_p99_ms=p99_ms(refused),
                )
                line["broker_resident_mib"] = peak_mib(pid)
    assert received == places
    assert line["broker_resident_mib"] <= MEMORY_MIB


async def offer(client: RawClient, workers: int, for_s: float) -> Counter[int]:
    """Each worker sends, and again once it has its answer, after a moment if that was a refusal.

    Returns the answers' codes.
    """
    loop, codes = asyncio.get_running_loop(), Counter[int]()
    ends_at = loop.time() + for_s

    async def work() -> None:
        while loop.time() < ends_at:
            code = (await client.start_send("T", BODY)).code
            codes[code] += 1
            if code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.02)

    await asyncio.gather(*(work() for _ in range(workers)))
    return codes


@pytest.mark.parametrize(
    ("for_s", "least"),
    [
        pytest.param(2.0, 0.5, marks=pytest.mark.quick),
        pytest.param(30.0, 0.7, marks=pytest.mark.nightly),
    ],
)
async def test_a_broker_that_refuses_stores_hardly_less_than_before(
    tmp_path: Path, for_s: float, least: float
) -> None:
    """Three times what it takes, for twice as long: most of the usual is stored, and afterwards
    nobody is refused.
    """
    most_waiting = 20
    with (
        on_a_slow_disk(tmp_path, most_waiting) as (address, _),
        figures("T31 goodput", nightly=for_s > 2.0) as line,
    ):
        async with await RawClient.open(address) as client:
            await client.send("T", b"first")
            usual = await offer(client, most_waiting, for_s)
            assert usual.keys() == {ResponseCode.SUCCESS}
            busy = await offer(client, 3 * most_waiting, 2 * for_s)
            assert busy.keys() == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY}
            assert (await offer(client, most_waiting, 1.0)).keys() == {ResponseCode.SUCCESS}
        stored, refused = busy[ResponseCode.SUCCESS], busy[ResponseCode.SYSTEM_BUSY]
        line.update(attempts=stored + refused, acknowledged=stored, refused=refused)
        line["stored_of_usual_percent"] = round(100 * stored / 2 / usual[ResponseCode.SUCCESS])
    assert refused > stored, "that was not much"
    assert stored / 2 >= least * usual[ResponseCode.SUCCESS]
