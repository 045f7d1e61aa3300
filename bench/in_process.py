"""What a send or a pull costs the broker: requests as Java's clients write them, fed to it in this
process, without sockets.

    python -m bench.in_process [LOAD] [--seconds S] [--flush sync] [--profile FILE]

Prints the CPU of this process in us for each message or transaction. LOAD is one of LOADS below. A
round is 20 single sends, which may have a delay level (delayed) or a delay in milliseconds (timed),
two batches of 16, or eight transactions, each of a half message and its commit, or a pull of 2 MiB
from each of two queues, as Spark's source makes them, of messages of 1 KiB or of 100 bytes that are
no longer in the broker's memory, or four pops of 32 messages from all queues and their four batch
acknowledgements; what clients compute does not count. Sixteen rounds make a block, in which
everything that the broker does now and then has its share. The fastest tenth of the blocks says the
most where others use the machine, too: compare two versions in turns, several times each.
--profile writes what cProfile saw, for pstats.
"""

import argparse
import asyncio
import cProfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ogive.broker import Broker, BrokerConfig
from ogive.native import build
from ogive.transport.server import ServerConnection
from ogive.wire.codes import (
    Decision,
    LanguageCode,
    PullSysFlag,
    RequestCode,
    SerializeType,
    SysFlag,
)
from ogive.wire.command import FrameDecoder, RemotingCommand, decode_command, encode_command
from ogive.wire.headers.codec import Header, encode_header
from ogive.wire.headers.pull import BatchAckMessageRequest, PopMessageRequest, PullMessageRequest
from ogive.wire.headers.send import EndTransactionRequest, SendMessageRequestV2
from ogive.wire.message import BatchItem, encode_batch
from ogive.wire.pop import (
    MAX_POP_MESSAGES,
    BatchAck,
    BatchAckBody,
    PoppedOffsets,
    read_offset_infos,
)

GROUP = "benchmark_producer"
BODY = bytes(range(256)) * 4
BATCH = 16
BLOCK, WARM = 16, 48  # rounds
# what pulls have: 400,000 messages of 100 bytes ...
LOG_BYTES = 112 * 1024 * 1024
# ... of which the broker keeps the newest part in memory, and some
HOT_SHARE = 0.4
Rounds = Iterator[list[RemotingCommand]]


class Wire(asyncio.Transport):
    """Keeps what is written to it, until it is closed."""

    def __init__(self, broker: Broker) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000)})
        self.written: list[bytes] = []
        self.wrote = asyncio.Event()
        self.connection = ServerConnection(broker._server)
        self.connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.written.append(data)
        self.wrote.set()

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    abort = close


class Client:
    """Asks the broker in rounds, and notes the CPU of each."""

    def __init__(self, broker: Broker) -> None:
        self._wire, self._decoder, self._opaques = Wire(broker), FrameDecoder(), count(1)
        self.spent: list[float] = []

    async def ask(self, commands: list[RemotingCommand]) -> list[RemotingCommand]:
        """The answers to requests that come with one read."""
        for command in commands:
            command.opaque = next(self._opaques)
        data = b"".join(map(encode_command, commands))
        answers: list[RemotingCommand] = []
        began = time.process_time()
        self._wire.connection.data_received(data)
        while len(answers) < len(commands):
            await self._wire.wrote.wait()
            self._wire.wrote.clear()
            self.spent.append(time.process_time() - began)
            written, self._wire.written = b"".join(self._wire.written), []
            answers += map(decode_command, self._decoder.feed(written)[0])
            began = time.process_time()
        return answers


def java(header: Header, body: bytes = b"") -> RemotingCommand:
    """A request with the binary header that Java's clients send when they are asked to; with one in
    JSON if its code does not fit, as those of popping.
    """
    fields = encode_header(header)
    return RemotingCommand(
        header.code,
        fields,
        body,
        language=LanguageCode.JAVA,
        version=453,
        serialize_type=(SerializeType.ROCKETMQ if header.code < 2**15 else SerializeType.JSON),
    )


def send(key: str, body: bytes = BODY, more: str = "", **changes: Any) -> RemotingCommand:
    fields: dict[str, Any] = {
        "producer_group": GROUP,
        "topic": "BenchmarkTest",
        "queue_id": 1,
        "born_timestamp": int(time.time() * 1000),
        "properties": f"UNIQ_KEY\x01{key}\x02WAIT\x01true{more}",
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
        "broker_name": "broker-a",
    }
    return java(SendMessageRequestV2(**(fields | changes)), body)


KEYS = (f"2A0104F80C2C6A1A00000000000000011F7E4AA298D2{number:012X}" for number in count())
"""Of a host that has only an IPv6 address: 56 characters."""


async def singles(client: Client) -> int:
    await client.ask([send(next(KEYS)) for _ in range(20)])
    return 20


async def delayed(client: Client) -> int:
    await client.ask([send(next(KEYS), more="\x02DELAY\x0118\x02") for _ in range(20)])
    return 20


async def timed(client: Client) -> int:
    more = "\x02TIMER_DELAY_MS\x013600000\x02"
    await client.ask([send(next(KEYS), more=more) for _ in range(20)])
    return 20


async def batches(client: Client) -> int:
    def batch() -> RemotingCommand:
        keys = [next(KEYS) for _ in range(BATCH)]
        items = [
            BatchItem(0, BODY, f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02".encode()) for key in keys
        ]
        command = send(",".join(keys), encode_batch(items), batch=True)
        command.code = RequestCode.SEND_BATCH_MESSAGE
        return command

    await client.ask([batch(), batch()])
    return 2 * BATCH


async def transactions(client: Client) -> int:
    keys = [next(KEYS) for _ in range(8)]
    half = f"\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
    opened = await client.ask(
        [send(key, more=half, sys_flag=int(SysFlag.TRANSACTION_PREPARED)) for key in keys]
    )
    await client.ask(
        [java(commit(key, answer.ext_fields)) for key, answer in zip(keys, opened, strict=True)]
    )
    return 8


def commit(key: str, half: dict[str, str]) -> EndTransactionRequest:
    return EndTransactionRequest(
        producer_group=GROUP,
        tran_state_table_offset=int(half["queueOffset"]),
        commit_log_offset=int(half["msgId"][-16:], 16),
        commit_or_rollback=Decision.COMMIT,
        msg_id=key,
        transaction_id=key,
        topic="BenchmarkTest",
        broker_name="broker-a",
    )


class Pulls:
    """Two queues that are read again and again, up to what is still in memory.

    The first round fills them.
    """

    def __init__(self, body_bytes: int) -> None:
        self._body = b"x" * body_bytes
        self._at, self._end = [0, 0], 0

    async def __call__(self, client: Client) -> int:
        if not self._end:
            await self._fill(client)
        answers = await client.ask([java(self._pull(queue_id)) for queue_id in range(2)])
        after = [int(answer.ext_fields["nextBeginOffset"]) for answer in answers]
        messages = sum(after) - sum(self._at)
        self._at = [0 if offset >= self._end else offset for offset in after]
        return messages

    async def _fill(self, client: Client) -> None:
        """Batches of 1,000, one in each queue by turns."""
        for _ in range(LOG_BYTES // (2 * 1000 * (len(self._body) + 190))):
            commands = []
            for queue_id in range(2):
                items = [
                    BatchItem(
                        0, self._body, f"UNIQ_KEY\x01{next(KEYS)}\x02WAIT\x01true\x02".encode()
                    )
                    for _ in range(1000)
                ]
                commands.append(send("", encode_batch(items), batch=True, queue_id=queue_id))
                commands[-1].code = RequestCode.SEND_BATCH_MESSAGE
            await client.ask(commands)
            self._end += 1000
        self._end = int(self._end * (1 - HOT_SHARE))

    def _pull(self, queue_id: int) -> PullMessageRequest:
        return PullMessageRequest(
            consumer_group=GROUP,
            topic="BenchmarkTest",
            queue_id=queue_id,
            queue_offset=self._at[queue_id],
            max_msg_nums=4096,
            max_msg_bytes=2 * 1024 * 1024,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            commit_offset=0,
            subscription="*",
        )


POPPED = "Popped"


class Pops:
    """A backlog in four queues, which is filled again when it is used up."""

    def __init__(self) -> None:
        self._left = 0

    async def __call__(self, client: Client) -> int:
        if not self._left:
            await self._fill(client)
            client.spent.clear()
        answers = await client.ask([java(_POP) for _ in range(4)])
        popped = [dict(answer.ext_fields) for answer in answers]
        infos = [
            read_offset_infos(fields["startOffsetInfo"], fields["msgOffsetInfo"])
            for fields in popped
        ]
        await client.ask([self._ack(*each) for each in zip(popped, infos, strict=True)])
        messages = sum(len(one.offsets) for found in infos for one in found)
        self._left -= messages
        return messages

    async def _fill(self, client: Client) -> None:
        """160 pops for each queue: none of them finds less than 32."""
        for _ in range(40):
            commands = []
            for queue_id in range(4):
                items = [
                    BatchItem(0, BODY, f"UNIQ_KEY\x01{next(KEYS)}\x02WAIT\x01true\x02".encode())
                    for _ in range(128)
                ]
                commands.append(
                    send(
                        "", encode_batch(items), batch=True, queue_id=queue_id, topic=POPPED,
                        default_topic="TBW102", default_topic_queue_nums=4,
                    )
                )  # fmt: skip
                commands[-1].code = RequestCode.SEND_BATCH_MESSAGE
            await client.ask(commands)
        self._left = 40 * 4 * 128

    @staticmethod
    def _ack(fields: dict[str, str], infos: Sequence[PoppedOffsets]) -> RemotingCommand:
        acks = tuple(
            BatchAck(
                group=GROUP,
                topic=POPPED,
                retry=str(one.flag),
                start=one.start,
                queue_id=one.queue_id,
                revive_queue=int(fields["reviveQid"]),
                pop_time_ms=int(fields["popTime"]),
                invisible_ms=int(fields["invisibleTime"]),
                bits=sum(1 << offset - one.start for offset in one.offsets),
            )
            for one in infos
        )
        body = BatchAckBody(broker_name="broker-a", acks=acks).encode()
        return java(BatchAckMessageRequest(broker_name="broker-a"), body)


_POP = PopMessageRequest(
    consumer_group=GROUP,
    topic=POPPED,
    queue_id=-1,
    max_msg_nums=MAX_POP_MESSAGES,
    invisible_time_ms=30_000,
    poll_time_ms=0,
    born_time_ms=0,
    init_mode=0,
    expression_type="TAG",
    expression="*",
)
LOADS: dict[str, Callable[[Client], Any]] = {
    "single": singles,
    "delayed": delayed,
    "timed": timed,
    "batch": batches,
    "transaction": transactions,
    "pull": Pulls(1024),
    "pull-100": Pulls(100),
    "pop": Pops(),
}


async def measure(
    load: str, seconds: float, flush: Literal["sync", "async"], profile: cProfile.Profile | None
) -> str:
    with tempfile.TemporaryDirectory(prefix="ogive-bench-") as data:
        broker = Broker(BrokerConfig(data=Path(data), port=0, flush=flush))
        await broker.start()
        client = Client(broker)
        rounds: list[float] = []
        await LOADS[load](client)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if len(rounds) == WARM and profile is not None:
                profile.enable()
            client.spent.clear()
            messages = await LOADS[load](client)
            rounds.append(sum(client.spent) / messages * 1e6)
        if profile is not None:
            profile.disable()
        await broker.stop()
    blocks = sorted(
        fmean(rounds[at : at + BLOCK]) for at in range(WARM, len(rounds) - BLOCK + 1, BLOCK)
    )
    fastest = blocks[: max(1, len(blocks) // 10)]
    return (
        f"{load:12} {fmean(fastest):7.2f} us in the fastest tenth, {fmean(blocks):7.2f} us in "
        f"all of {len(blocks)} blocks"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.in_process", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("load", nargs="?", choices=[*LOADS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--flush", choices=("sync", "async"), default="async")
    parser.add_argument("--profile", type=Path)
    chosen = parser.parse_args()
    profile = cProfile.Profile(time.process_time) if chosen.profile else None
    print(f"ogive {build}")
    for load in LOADS if chosen.load == "all" else [chosen.load]:
        print(asyncio.run(measure(load, chosen.seconds, chosen.flush, profile)), flush=True)
    if profile is not None:
        profile.dump_stats(chosen.profile)


if __name__ == "__main__":
    main()
