"""Groups whose members come and go over a backlog, and what that cost:

``python -m tests.hand_overs [--apache] [--whole] [--kinds KIND ...]`` prints a table.

The members are consumers of this process, the broker is one of its own. A row says how many
messages were delivered, how many of them twice, and for how long a queue that changed hands was
with nobody (without pull members).
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import ogive
from ogive import aio
from ogive.errors import NoRoute
from ogive.model import RETRY_PREFIX, MessageQueue
from ogive.testing import Broker

Kind = Literal["listener", "orderly", "iterated", "pull"]
KINDS: Final[tuple[Kind, ...]] = ("listener", "orderly", "iterated", "pull")
THREADS: Final = 20
QUEUES: Final = 8
WAIT_S: Final = 60.0
POLLED_S: Final = 1.0
"""Work that a poll of a pull member returns at most, unless a message alone takes longer."""
AFTER_S: Final = 1.5
"""Wait at the end for what may still come twice."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a scenario.

    *dead_early*: dead letters of messages that were not tried as often as they may be.
    """

    scenario: str
    sent: int
    delivered: int
    twice: int
    idle_s: tuple[float, ...] = ()
    """Time that each queue that changed hands was with nobody."""
    dead: int = 0
    dead_early: int = 0

    @property
    def idle_median_s(self) -> float:
        return statistics.median(self.idle_s) if self.idle_s else 0.0

    def __str__(self) -> str:
        row = {
            "scenario": self.scenario,
            "sent": self.sent,
            "delivered": self.delivered,
            "twice": self.twice,
            "hand_overs": len(self.idle_s),
        }
        row |= {
            "idle_median_s": round(self.idle_median_s, 2),
            "idle_max_s": round(max(self.idle_s, default=0.0), 2),
        }
        return json.dumps(row | {"dead": self.dead, "dead_early": self.dead_early})


class Member:
    """A consumer, and for a kind without a listener the task that works with it."""

    def __init__(
        self,
        consumer: aio.PushConsumer | aio.PullConsumer,
        work: Callable[["Member"], Coroutine[Any, Any, None]] | None,
    ) -> None:
        self.consumer = consumer
        self.ending = False
        self._work = work
        self._task: asyncio.Task[None] | None = None

    @property
    def held(self) -> list[MessageQueue]:
        """The queues that it has, without the retry topic's."""
        found = self.consumer.assignment
        queues = (
            found
            if isinstance(found, list)
            else [queue for queues in found.values() for queue in queues]
        )
        return [queue for queue in queues if not queue.topic.startswith(RETRY_PREFIX)]

    async def __aenter__(self) -> None:
        await self.consumer.start()
        if self._work is not None:
            self._task = asyncio.create_task(self._work(self))

    async def __aexit__(self, *_: object) -> None:
        self.ending = True
        if isinstance(self.consumer, aio.PullConsumer) and self._task is not None:
            # What its last poll returned counts as done at the close.
            await self._task
        await self.consumer.close()
        if self._task is not None:
            await self._task


@dataclass(slots=True, eq=False)
class Scene:
    """One topic, one group of it, and the book of what its members got."""

    server: str
    listener_s: float = 0.0
    kind: Kind = "listener"
    fails: Callable[[int], bool] = lambda _: False
    settings: dict[str, Any] = field(default_factory=dict)
    topic: str = field(default_factory=lambda: f"Hand-{uuid.uuid4().hex[:8]}")
    group: str = field(default_factory=lambda: f"hand-{uuid.uuid4().hex[:8]}")
    sent: int = 0
    calls: Counter[tuple[int, int]] = field(default_factory=Counter)  # message, try
    _free_since: dict[MessageQueue, float] = field(default_factory=dict)
    _idle_s: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # --- members ----------------------------------------------------------------------------------

    def member(self) -> Member:
        if self.kind == "pull":
            # It hears of what it has lost at its next poll, later than others of what they have
            # taken.
            pull = aio.PullConsumer(
                self.topic, group=self.group, start="earliest", name_server=self.server
            )
            return Member(pull, self._poll)
        if self.kind == "iterated":
            push = aio.PushConsumer(
                self.topic,
                group=self.group,
                start="earliest",
                name_server=self.server,
                on_change=self._note_change,
            )
            return Member(push, self._iterate)
        orderly = self.kind == "orderly"

        @ogive.listener(
            self.topic,
            group=self.group,
            start="earliest",
            threads=THREADS,
            orderly=orderly,
            **self.settings,
        )
        def work(message: ogive.MessageExt) -> Any:
            time.sleep(self.listener_s)
            number = self._got(message)
            return ogive.later(1) if self.fails(number) else None

        return Member(
            aio.PushConsumer(work, name_server=self.server, on_change=self._note_change), None
        )

    async def _iterate(self, member: Member) -> None:
        assert isinstance(member.consumer, aio.PushConsumer)
        async for message in member.consumer:
            async with message.process():
                await asyncio.sleep(self.listener_s)
                self._got(message)

    async def _poll(self, member: Member) -> None:
        assert isinstance(member.consumer, aio.PullConsumer)
        at_once = max(1, int(POLLED_S / self.listener_s)) if self.listener_s else 1000
        while not member.ending:
            for message in await member.consumer.poll(0.1, max_messages=at_once):
                await asyncio.sleep(self.listener_s)
                self._got(message)

    def _got(self, message: ogive.MessageExt) -> int:
        number = int(message.body)
        with self._lock:
            self.calls[number, message.reconsume_times] += 1
        return number

    def _note_change(self, taken: list[MessageQueue], given_up: list[MessageQueue]) -> None:
        now = time.monotonic()
        with self._lock:
            self._free_since |= dict.fromkeys(given_up, now)
            self._idle_s += [
                now - self._free_since.pop(queue) for queue in taken if queue in self._free_since
            ]

    async def close(self, member: Member) -> None:
        held = member.held
        await member.__aexit__()
        self._note_change([], held)

    # --- messages ---------------------------------------------------------------------------------

    async def create(self) -> None:
        async with aio.Admin(self.server) as admin:
            await admin.create_topic(self.topic, queues=QUEUES)

    async def fill(self, count: int) -> None:
        async with aio.Producer(self.server) as producer:
            while count > 0:
                part = range(self.sent, self.sent + min(count, 500))
                await asyncio.gather(
                    *(
                        producer.send(self.topic, b"%d" % number, timeout_s=WAIT_S)
                        for number in part
                    )
                )
                self.sent += len(part)
                count -= len(part)

    async def flow(self, seconds: float, rate: float) -> None:
        async with aio.Producer(self.server) as producer:
            begun = time.monotonic()
            for i in range(int(seconds * rate)):
                await producer.send(self.topic, b"%d" % self.sent, timeout_s=WAIT_S)
                self.sent += 1
                await asyncio.sleep(max(0.0, begun + i / rate - time.monotonic()))

    async def delivered(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Until so many messages have come, or the time is up."""
        deadline = time.monotonic() + timeout_s
        while (
            time.monotonic() < deadline and len({number for number, _ in list(self.calls)}) < count
        ):
            await asyncio.sleep(0.1)

    async def tried(self, messages: Iterable[int], times: int) -> None:
        deadline, last = time.monotonic() + WAIT_S, {(number, times - 1) for number in messages}
        while time.monotonic() < deadline and not last <= self.calls.keys():
            await asyncio.sleep(0.1)

    def outcome(self, name: str) -> Outcome:
        delivered = len({number for number, _ in self.calls})
        return Outcome(
            name, self.sent, delivered, self.calls.total() - len(self.calls), tuple(self._idle_s)
        )

    async def dead_letters(self) -> list[int]:
        async with aio.PullConsumer(name_server=self.server, start="earliest") as reader:
            try:
                await reader.assign(await reader.queues(f"%DLQ%{self.group}"))
            except NoRoute:
                return []
            found: list[int] = []
            while batch := await reader.poll(2.0):
                found += [int(message.body) for message in batch]
            return found


async def start(stack: AsyncExitStack, members: Sequence[Member], apart_s: float) -> None:
    async def one(index: int, member: Member) -> None:
        await asyncio.sleep(index * apart_s)
        await stack.enter_async_context(member)

    await asyncio.gather(*(one(index, member) for index, member in enumerate(members)))


# --- scenarios ------------------------------------------------------------------------------------


async def together(
    server: str,
    *,
    members: int,
    messages: int,
    listener_s: float,
    apart_s: float,
    made_by_message: bool = False,
    kind: Kind = "listener",
) -> Outcome:
    """Members are started over a backlog, each *apart_s* after the one before; or the first message
    makes the topic meanwhile.
    """
    scene = Scene(server, listener_s, kind)
    if not made_by_message:
        await scene.create()
        await scene.fill(messages)
    async with AsyncExitStack() as stack:
        filling = asyncio.create_task(scene.fill(messages if made_by_message else 0))
        await start(stack, [scene.member() for _ in range(members)], apart_s)
        await filling
        await scene.delivered(
            messages, WAIT_S if listener_s < 1 or kind != "listener" else 4 * listener_s
        )
        await asyncio.sleep(AFTER_S)
    made = ", first message" if made_by_message else ""
    return scene.outcome(
        f"{kind}: {members} together, {listener_s * 1000:g} ms, {apart_s * 1000:g} ms apart{made}"
    )


def slow_enough(kind: Kind, listener_s: float, quick: float, slow: float) -> float:
    """Messages a second that two members of the kind can work off."""
    if listener_s < 1:
        return quick
    # Others than listeners work on one message at a time, or on one of each queue.
    return slow if kind == "listener" else 0.5


async def join_and_leave(server: str, *, listener_s: float, kind: Kind = "listener") -> Outcome:
    """Two members work under a steady flow, a third comes and goes."""
    scene, rate = Scene(server, listener_s, kind), slow_enough(kind, listener_s, 200.0, 6.0)
    await scene.create()
    async with AsyncExitStack() as stack:
        await start(stack, [scene.member(), scene.member()], 0.0)
        flowing = asyncio.create_task(scene.flow(10.0, rate))
        await asyncio.sleep(2.0)
        third = scene.member()
        await third.__aenter__()
        await asyncio.sleep(4.0)
        await scene.close(third)
        await flowing
        await scene.delivered(scene.sent)
        await asyncio.sleep(AFTER_S)
    return scene.outcome(f"{kind}: join and leave, {listener_s * 1000:g} ms")


async def rolling(server: str, *, listener_s: float, kind: Kind = "listener") -> Outcome:
    """Four members under a steady flow are restarted, one each two seconds."""
    scene, rate = Scene(server, listener_s, kind), slow_enough(kind, listener_s, 200.0, 10.0)
    await scene.create()
    members = [scene.member() for _ in range(4)]
    for member in members:
        await member.__aenter__()

    async def restart(index: int) -> None:
        await asyncio.sleep(2.0 * index)
        await scene.close(members[index])
        members[index] = scene.member()
        await members[index].__aenter__()

    await asyncio.gather(scene.flow(10.0, rate), *map(restart, range(4)))
    await scene.delivered(scene.sent)
    await asyncio.sleep(AFTER_S)
    for member in members:
        await member.__aexit__()
    return scene.outcome(f"{kind}: rolling restart, {listener_s * 1000:g} ms")


async def failing(server: str, *, messages: int, retries: int = 2) -> Outcome:
    """One of five messages fails always, while four members start together, and one of them
    leaves.
    """
    scene = Scene(
        server, 0.002, fails=lambda number: number % 5 == 0, settings={"max_retries": retries}
    )
    await scene.create()
    await scene.fill(messages)
    bad = range(0, messages, 5)
    async with AsyncExitStack() as stack:
        first = scene.member()
        await first.__aenter__()
        await start(stack, [scene.member() for _ in range(3)], 0.1)
        await asyncio.sleep(1.0)
        await scene.close(first)
        await scene.tried(bad, 1 + retries)
        await asyncio.sleep(AFTER_S)
    letters = await scene.dead_letters()
    early = (
        sum((number, retries) not in scene.calls for number in letters)
        + len(letters)
        - len(set(letters))
    )
    row = scene.outcome("failing listener")
    return Outcome(
        row.scenario, row.sent, row.delivered, row.twice, row.idle_s, len(letters), early
    )


Run = partial[Coroutine[Any, Any, Outcome]]


def scenarios(*, whole: bool, kinds: Sequence[str] = KINDS) -> list[Run]:
    runs: list[Run] = []
    for members in (2, 4, 8):
        for listener_s, messages in ((0.0, 20_000), (0.002, 20_000), (3.0, 400)):
            apart = (0.0, 0.01, 0.05, 0.1, 0.3, 0.5, 1.0) if whole else (0.0, 0.1)
            runs += [
                partial(
                    together, members=members, messages=messages, listener_s=listener_s, apart_s=s
                )
                for s in apart
            ]
            runs += [
                partial(
                    together,
                    members=members,
                    messages=messages,
                    listener_s=listener_s,
                    apart_s=s,
                    made_by_message=True,
                )
                for s in ((0.0, 0.1, 0.5, 1.0) if whole else (0.1,))
            ]
    runs += [partial(join_and_leave, listener_s=listener_s) for listener_s in (0.0, 0.002, 3.0)]
    runs += [partial(rolling, listener_s=listener_s) for listener_s in (0.0, 0.002, 3.0)]
    runs.append(partial(failing, messages=1000))
    for kind in KINDS[1:]:
        for listener_s, messages in ((0.0, 20_000), (0.002, 4_000), (3.0, 12)):
            runs.append(
                partial(
                    together,
                    members=4,
                    messages=messages,
                    listener_s=listener_s,
                    apart_s=0.1,
                    kind=kind,
                )
            )
            runs.append(partial(join_and_leave, listener_s=listener_s, kind=kind))
            runs.append(partial(rolling, listener_s=listener_s, kind=kind))
    return [run for run in runs if run.keywords.get("kind", "listener") in kinds]


async def table(server: str, runs: Iterable[Run]) -> None:
    for run in runs:
        print(await run(server), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hand_overs", description=__doc__)
    parser.add_argument("--apache", action="store_true", help="on Apache's broker")
    parser.add_argument("--whole", action="store_true", help="more distances between the starts")
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="only these kinds of members"
    )
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.apache:
            from tests.interop import apache

            server = stack.enter_context(
                apache.Apache(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            ).name_server
        else:
            server = stack.enter_context(Broker(flush="async")).name_server
        asyncio.run(table(server, scenarios(whole=options.whole, kinds=options.kinds)))


if __name__ == "__main__":
    main()
