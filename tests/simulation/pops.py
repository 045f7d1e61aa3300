"""Stories about members that pop, with the verdict: at any time each message that was stored is
exactly one of not given out, leased, acknowledged and waiting in the retry topic.

A message may come a second time only if its lease has ended, if the answer to its acknowledgement
had not been sent, or if the broker died while it stored a copy.
"""

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from ogive import aio
from ogive.broker.services import Context
from ogive.client.config import ProducerConfig
from ogive.errors import IllegalStateError, LeaseEnded, OgiveError
from ogive.model import MessageExt, PropertyName
from ogive.store.types import GetStatus
from ogive.wire.codes import RequestCode
from ogive.wire.message import decode_stored
from ogive.wire.pop import RETRY_V1, PopHandle, read_topic
from tests.pop import open_offsets
from tests.simulation.cluster import CLIENT
from tests.simulation.loop import Node, VirtualLoop
from tests.simulation.network import Mischief
from tests.simulation.story import Member, Outcome, Shop, Story, carry_out

POPS: Final = "Pops"
GROUP: Final = "pops"
# of the topic and of its retry topic
TOPICS: Final = (POPS, read_topic(GROUP, POPS, RETRY_V1))
CHECK_S: Final = 0.05
REQUESTS: Final = frozenset(
    {
        int(RequestCode.POP_MESSAGE),
        int(RequestCode.ACK_MESSAGE),
        int(RequestCode.BATCH_ACK_MESSAGE),
        int(RequestCode.CHANGE_MESSAGE_INVISIBLETIME),
        int(RequestCode.NOTIFICATION),
    }
)


class Until(NamedTuple):
    """The end of a lease, and how often the clock had been set and the machine started then."""

    at_s: float
    clock_changes: int
    boots: int


@dataclass(slots=True)
class Ledger:
    """What members asked for, by message."""

    # the earliest end of the lease
    until: dict[bytes, Until] = field(default_factory=dict)
    # an acknowledgement was asked for
    asked: set[bytes] = field(default_factory=set)
    # and answered within the lease
    acknowledged: set[bytes] = field(default_factory=set)
    # a copy was being stored when the broker died
    copied: set[bytes] = field(default_factory=set)


class PopStory(Story):
    """One topic, whose members receive on leases that mostly end too early or just in time."""

    groups: Mapping[str, str] = MappingProxyType({POPS: GROUP})
    # a send that is tried again may be stored twice
    producer_config = ProducerConfig(retries=0)

    def __init__(self, loop: VirtualLoop, seed: int, *, verbose: bool = False) -> None:
        super().__init__(loop, seed, verbose=verbose)
        self._changes = 0.05
        self._ledger = Ledger()
        # bodies of each queue as far as they were looked at, of the broker that runs
        self._bodies: dict[tuple[str, int], list[bytes]] = {}
        self._seen: Context | None = None
        self._settling = False
        self._work_of_all: list[asyncio.Task[None]] = []

    async def run(self, operations: int) -> None:
        checks = self.loop.create_task(self._check_again_and_again())
        try:
            await super().run(operations)
        finally:
            checks.cancel()
            for work in self._work_of_all:
                _abandon(work)

    def _begin_send(self, shop: Shop) -> None:
        self._number += 1
        body = f"{self._number:06d}".encode() * self.rng.randint(1, 60)
        self.book.attempted.add(body)
        task = self.loop.spawn(shop.node, self._send_one(shop.producer, body))
        shop.sends.add(task)
        task.add_done_callback(shop.sends.discard)

    async def _send_one(self, producer: aio.Producer, body: bytes) -> None:
        self._stored(POPS, body, await self._attempt(producer, POPS, body))

    # --- members ----------------------------------------------------------------------------------

    async def _join(self, topic: str) -> None:
        self._joined += 1
        node = Node(f"popper {self._joined}")
        member = Member(topic, node)
        self._members.append(member)

        async def start() -> None:
            while member.consumer is None:
                consumer = aio.SimpleConsumer(POPS, group=GROUP, start="earliest", client=CLIENT)
                try:
                    await consumer.start()
                except OgiveError as exc:
                    self.note(node.name, "cannot join", type(exc).__name__)
                    await asyncio.sleep(1.0)
                else:
                    member.consumer = consumer
                    work = self.loop.spawn(node, self._work(member, consumer))
                    self._work_of_all.append(work)

        await self.cluster.on(node, start)

    async def _work(self, member: Member, consumer: aio.SimpleConsumer) -> None:
        """Receive and decide until the member leaves."""
        while member in self._members:
            invisible_s = self.rng.choice((0.5, 2.0, 6.0))
            wait_s, began_s = self.rng.choice((0.0, 2.0)), self.loop.now
            try:
                messages = await consumer.receive(
                    self.rng.randint(1, 8), invisible_s=invisible_s, wait_s=wait_s
                )
            except OgiveError as exc:
                self.book.counts[f"receive: {type(exc).__name__}"] += 1
                await asyncio.sleep(0.5)
                continue
            for message in messages:
                self._given(message, began_s + invisible_s)
            for message in messages:
                await asyncio.sleep(self.rng.expovariate(20.0 if self._settling else 12.0))
                await self._decide(consumer, message)

    def _given(self, message: MessageExt, until_s: float) -> None:
        book, body = self.book, message.body
        handle = PopHandle.read(message.properties[PropertyName.POP_CK])
        self.note("given", body[:6], handle.flag, handle.queue_id, handle.offset)
        book.counts["received"] += 1
        book.counts["received again"] += body in book.received[POPS]
        book.received[POPS].add(body)
        if body not in book.attempted:
            book.faults.append(f"{body[:6]!r} was never sent")
        if not handle.flag:
            self._stands_at((POPS, handle.queue_id, handle.offset), body)
        if body not in self._ledger.copied:
            self._check_lease(body)
        self._ledger.until[body] = self._until(until_s)

    def _check_lease(self, body: bytes) -> None:
        if body in self._ledger.acknowledged:
            self.book.faults.append(f"{body[:6]!r} came again after it was acknowledged")
        until = self._ledger.until.get(body)
        if until is None or self.loop.now >= until.at_s - 0.001:
            return
        if until.boots == self.cluster.boots or until.clock_changes == self._clock_changes:
            left_s = until.at_s - self.loop.now
            self.book.faults.append(f"{body[:6]!r} came again {left_s:.3f} s too early")

    def _until(self, at_s: float) -> Until:
        return Until(at_s, self._clock_changes, self.cluster.boots)

    async def _decide(self, consumer: aio.SimpleConsumer, message: MessageExt) -> None:
        """Acknowledge a message, change its time, or leave it."""
        chance = 0.0 if self._settling else self.rng.random()
        try:
            if chance < 0.6:
                await self._acknowledge(consumer, message)
            elif chance < 0.8:
                await self._change(consumer, message)
        except LeaseEnded:
            self.book.counts["lease ended"] += 1
        except OgiveError as exc:
            self.book.counts[f"decide: {type(exc).__name__}"] += 1

    async def _acknowledge(self, consumer: aio.SimpleConsumer, message: MessageExt) -> None:
        body = message.body
        self._ledger.asked.add(body)
        await consumer.ack(message)
        self.book.counts["acknowledged"] += 1
        self.note("acknowledged", body[:6])
        if self.loop.now < self._ledger.until[body].at_s:
            self._ledger.acknowledged.add(body)

    async def _change(self, consumer: aio.SimpleConsumer, message: MessageExt) -> None:
        """A request without an answer may have been served, at any time since it was sent."""
        body, seconds = message.body, self.rng.choice((0.0, 0.5, 3.0))
        before, changed = self._ledger.until[body], self._until(self.loop.now + seconds)
        self._ledger.until[body] = min(before, changed)
        await consumer.change_invisible(message, seconds)
        self.book.counts["changed"] += 1
        if self._ledger.until[body] in (before, changed):
            self._ledger.until[body] = changed

    # --- faults -----------------------------------------------------------------------------------

    def _possible_faults(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        left_out = ("broker bit flipped", "producer killed")
        kills = [("broker killed", self._kill_broker)] * 4
        return kills + [one for one in super()._possible_faults() if one[0] not in left_out]

    async def _delay_requests(self) -> None:
        await self._make_mischief(Mischief(doubled=0.2, late_s=0.3, codes=REQUESTS))

    async def _lose_requests(self) -> None:
        await self._make_mischief(Mischief(lost=0.3, doubled=0.2, late_s=4.0, codes=REQUESTS))

    async def _kill_broker(self) -> None:
        self._note_copied()
        await super()._kill_broker()

    async def _stop_broker(self) -> None:
        self._note_copied()
        await super()._stop_broker()

    def _note_copied(self) -> None:
        """Messages whose copy is being stored may come twice after the broker's end."""
        if (ctx := self._running_broker()) is not None:
            self._ledger.copied.update(body for body, _ in self._leased(ctx, copied=True))

    # --- the verdict ------------------------------------------------------------------------------

    def _running_broker(self) -> Context | None:
        with suppress(IllegalStateError):
            return self.cluster.broker.context if self.cluster.broker is not None else None
        return None

    async def _check_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            if (ctx := self._running_broker()) is not None and ctx.store.failed is None:
                self._check_states(ctx)

    def _check_states(self, ctx: Context) -> None:
        """Each message that is owed is in one state."""
        ledger, faults = self._ledger, self.book.faults
        states = Counter(body for body, _ in self._leased(ctx))
        states.update(self._waiting(ctx))
        copied = {body for body, _ in self._leased(ctx, copied=True)} | ledger.copied
        known = {body for bodies in self._bodies.values() for body in bodies}
        self.book.counts["states checked"] += len(known)
        for body in known - copied:
            count = states[body]
            if count > 1:
                faults.append(f"{body[:6]!r} is in {count} states at {self.loop.now:.3f}")
            elif count and body in ledger.acknowledged:
                faults.append(f"{body[:6]!r} is acknowledged, and comes again")
            elif not count and body not in ledger.asked:
                faults.append(f"{body[:6]!r} is nowhere at {self.loop.now:.3f}")

    def _leased(self, ctx: Context, *, copied: bool = False) -> Iterator[tuple[bytes, float]]:
        """Yield messages that are leased, with the end of the lease; those whose copy is being
        stored if *copied*, and the others if not.
        """
        self._look(ctx)
        for lease in ctx.leases.all():
            is_copied = lease.reviving or lease.stored != 0
            bodies = self._bodies[lease.key.topic, lease.key.queue_id]
            for offset in open_offsets(lease) if is_copied == copied else ():
                yield bodies[offset], lease.due_s

    def _waiting(self, ctx: Context) -> Iterator[bytes]:
        """Yield messages that are not given out yet, in the topic or its retry topic."""
        for (topic, queue_id), bodies in self._bodies.items():
            yield from bodies[ctx.leases.position((GROUP, topic, queue_id)) or 0 :]

    def _look(self, ctx: Context) -> None:
        """Read what was stored since the last look, and all after a start of the broker."""
        if self._seen is not ctx:
            self._seen = ctx
            self._bodies.clear()
        for name in TOPICS:
            topic = ctx.topics.get(name)
            for queue_id in range(topic.read_queues if topic is not None else 0):
                bodies = self._bodies.setdefault((name, queue_id), [])
                while len(bodies) < ctx.store.max_offset(name, queue_id):
                    result = ctx.store.get(name, queue_id, len(bodies), 1, 1)
                    assert result.status is GetStatus.FOUND, result
                    bodies.append(decode_stored(result.parts[0]).body)

    async def _settle(self) -> None:
        """All members acknowledge whatever they get."""
        self._settling = True
        await super()._settle()


def _abandon(work: "asyncio.Task[None]") -> None:
    """Close what a member does, which may be of a dead node: it awaits its own tasks at the end,
    and does not get them.
    """
    coroutine = work.get_coro()
    assert inspect.iscoroutine(coroutine)
    while inspect.getcoroutinestate(coroutine) != inspect.CORO_CLOSED:
        with suppress(RuntimeError):
            coroutine.close()


def tell_of_pops(seed: int, operations: int, *, verbose: bool = False) -> Outcome:
    """One story about members that pop, see ``tell``."""
    return carry_out(partial(PopStory, verbose=verbose), seed, operations)
