"""Producers, consumers and faults by chance, and the verdict: what was acknowledged came, in order,
never early, and nothing else did.
"""

import asyncio
import hashlib
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import ogive
from ogive import aio
from ogive.client.config import ProducerConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.errors import NoRoute, OgiveError
from ogive.model import MessageExt, SendResult
from ogive.wire.codes import RequestCode
from tests.simulation.cluster import CLIENT, DELAYS_S, Cluster
from tests.simulation.loop import Node, VirtualLoop, virtual_world
from tests.simulation.network import Mischief

WORK, LINE = "Work", "Line"
GROUPS: Final = {WORK: "work", LINE: "line"}
PRODUCERS: Final = 3
# of each producer
MAX_IN_FLIGHT: Final = 15
SETTLE_S: Final = 900.0
REST_S: Final = 150.0
"""End of a story about members: the lease of a lock and the expiry of a paused member are over by
then."""
RETRIES: Final = 2
"""In a story about members, in which one of twenty messages always fails."""
IN_HAND: Final = 100
"""Messages of one member: pulled ones, and those that it did since its last commit."""
UNSAVED_S: Final = 6.0
"""Age of the progress that a killed broker had saved, with a second of its members' commits."""
CALM: Final = frozenset(
    {
        "member left",
        "member joined",
        "member restarted",
        "name-server restarted",
        "wire slow",
        "requests late or doubled",
    }
)
"""Faults that cost no message a second delivery."""
COMMITS: Final = frozenset({int(RequestCode.UPDATE_CONSUMER_OFFSET)})
ROUGH: Final = CALM | {
    "member killed",
    "wire cut",
    "node paused",
    "broker stopped",
    "broker killed",
    "requests lost",
}
_CONSUMER: Final = ConsumerConfig(
    rebalance_period_s=5.0,
    lock_renew_s=5.0,
    lock_lease_s=10.0,
    send_back_retry_s=1.0,
    await_termination_s=5.0,
)


class RolledBack(Exception):
    pass


@dataclass(slots=True)
class Shop:
    """A producer process."""

    node: Node
    producer: aio.Producer
    sends: set[asyncio.Task[None]] = field(default_factory=set)


@dataclass(slots=True)
class Member:
    """A consumer process of one group."""

    topic: str
    node: Node
    consumer: aio.PushConsumer | aio.SimpleConsumer | None = None


@dataclass(slots=True)
class Book:
    """What happened. Bodies name messages."""

    attempted: set[bytes] = field(default_factory=set)
    owed: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    rolled_back: set[bytes] = field(default_factory=set)
    # a record that held it was damaged on the disk: it may come, and need not
    spoiled: set[bytes] = field(default_factory=set)
    # of a transaction: body -> (queue id, offset)
    ends: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    received: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    # body -> (earliest time, clock changes until then)
    due: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    # (topic, queue id, offset) -> body
    places: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    # of the ordered topic: queue id -> highest offset handled
    high: dict[int, int] = field(default_factory=dict)
    # of the ordered topic: queue id -> who is at it
    handled_by: dict[int, Node] = field(default_factory=dict)
    done: defaultdict[str, set[bytes]] = field(default_factory=lambda: defaultdict(set))
    """Messages of which a call has ended well."""
    tries: defaultdict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Numbers of the tries that came, by message."""
    faults: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Outcome:
    """*faults* is empty when all is well. *trace* is equal for equal stories."""

    seed: int
    faults: tuple[str, ...]
    counts: dict[str, int]
    trace: str
    virtual_s: float


def tell(seed: int, operations: int, *, members: bool = False, verbose: bool = False) -> Outcome:
    """One story from its beginning to its verdict.

    *members*: see ``Story``. *verbose* prints every event.
    """
    return carry_out(partial(Story, members=members, verbose=verbose), seed, operations)


def carry_out(make: "Callable[[VirtualLoop, int], Story]", seed: int, operations: int) -> Outcome:
    """Return what comes of the story that *make* returns for a loop and a seed."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with virtual_world(seed) as loop:
            asyncio.set_event_loop(loop)
            try:
                story = make(loop, seed)
                loop.run_until_complete(story.run(operations))
                return story.outcome()
            finally:
                asyncio.set_event_loop(None)
    finally:
        logging.disable(disabled)


class Story:
    """See the module. Everything here runs outside the nodes.

    *groups*: the groups, by their topics. A story about *members* has more changes of the groups,
    and no damage to disks. One of three is calm: there nothing is delivered twice.
    """

    groups: Mapping[str, str] = GROUPS
    producer_config = ProducerConfig()

    def __init__(
        self, loop: VirtualLoop, seed: int, *, members: bool = False, verbose: bool = False
    ) -> None:
        self._print = verbose
        self._about_members = members
        self._calm = members and seed % 3 == 0
        self._changes = 0.06 if members else 0.015
        self.loop, self.rng, self.seed = loop, random.Random(seed * 31 + 7), seed
        self.cluster = Cluster(loop, "async" if seed % 4 == 3 else "sync")
        self.book = Book()
        self._shops: list[Shop] = []
        self._members: list[Member] = []
        self._clock_changes = 0
        self._number = self._joined = self._opened = 0
        # when a call began, and how many had begun since progress was saved, at kills of the broker
        self._begun_at: list[float] = []
        self._unsaved = 0
        # what a fault is working on
        self._busy: set[str] = set()
        self._faults: set[asyncio.Task[None]] = set()
        self._trace = hashlib.sha256()

    def note(self, *words: object) -> None:
        line = f"{self.loop.now:.6f} {' '.join(map(str, words))}"
        self._trace.update(line.encode())
        if self._print:
            print(line)

    def outcome(self) -> Outcome:
        faults = [*self.book.faults, *(f"nobody caught {fault!r}" for fault in self.loop.faults)]
        return Outcome(
            self.seed,
            tuple(faults),
            dict(sorted(self.book.counts.items())),
            self._trace.hexdigest()[:16],
            self.loop.now - 1000.0,
        )

    # --- the story --------------------------------------------------------------------------------

    async def run(self, operations: int) -> None:
        await self.cluster.start_name_server()
        await self.cluster.start_broker()
        for topic in self.groups:
            async with aio.Admin(client=CLIENT) as admin:
                await admin.create_topic(topic, queues=4)
        for _ in range(PRODUCERS):
            await self._start_producer()
        for topic in self.groups:
            for _ in range(2):
                await self._join(topic)
        for _ in range(operations):
            self._one_operation()
            await asyncio.sleep(self.rng.expovariate(50.0))
        await self._settle()

    def _one_operation(self) -> None:
        chance = self.rng.random()
        if chance < 1 - self._changes:
            shop = self.rng.choice(self._shops) if self._shops else None
            if shop is not None and len(shop.sends) < MAX_IN_FLIGHT:
                self._begin_send(shop)
            return
        faults = self._possible_faults()
        if self._about_members:
            faults = [fault for fault in faults if fault[0] in (CALM if self._calm else ROUGH)]
        name, fault = self.rng.choice(faults)
        part = name.split()[0]
        if part in self._busy:
            return
        self._busy.add(part)
        self.book.counts[f"fault: {name}"] += 1
        self.note("fault", name)
        task = self.loop.create_task(self._carry_out(part, fault))
        self._faults.add(task)
        task.add_done_callback(self._faults.discard)

    async def _carry_out(self, part: str, fault: Callable[[], Awaitable[None]]) -> None:
        try:
            await fault()
        finally:
            self._busy.discard(part)

    # --- sends ------------------------------------------------------------------------------------

    def _begin_send(self, shop: Shop) -> None:
        self._number += 1
        body = f"{self._number:06d}".encode() * self.rng.randint(1, 60)
        self.book.attempted.add(body)
        kinds = (
            self._send_ordered,
            self._send,
            self._send_delayed,
            self._send_timed,
            self._send_in_transaction,
        )
        [send] = self.rng.choices(kinds, (0.4, 0.4, 0.05, 0.05, 0.1))
        task = self.loop.spawn(shop.node, send(shop.producer, body))
        shop.sends.add(task)
        task.add_done_callback(shop.sends.discard)

    async def _send(self, producer: aio.Producer, body: bytes) -> None:
        self._stored(WORK, body, await self._attempt(producer, WORK, body))

    async def _send_ordered(self, producer: aio.Producer, body: bytes) -> None:
        self._stored(
            LINE,
            body,
            await self._attempt(producer, LINE, body, sharding_key=f"key {self.rng.randrange(12)}"),
        )

    async def _send_delayed(self, producer: aio.Producer, body: bytes) -> None:
        level = self.rng.randint(1, len(DELAYS_S))
        await self._send_later(producer, body, DELAYS_S[level - 1], delay_level=level)

    async def _send_timed(self, producer: aio.Producer, body: bytes) -> None:
        delay_s = self.rng.randint(1, 20_000) / 1000
        if self.rng.random() < 0.5:
            await self._send_later(producer, body, delay_s, delay_s=delay_s)
        else:
            await self._send_later(
                producer,
                body,
                delay_s,
                deliver_at=datetime.fromtimestamp(time.time() + delay_s, UTC),
            )

    async def _send_later(
        self, producer: aio.Producer, body: bytes, wait_s: float, **options: Any
    ) -> None:
        self.book.due[body] = self.loop.now + wait_s, self._clock_changes
        if await self._attempt(producer, WORK, body, **options) is not None:
            self.book.owed[WORK].add(body)

    async def _attempt(
        self, producer: aio.Producer, topic: str, body: bytes, **options: Any
    ) -> SendResult | None:
        try:
            result = await producer.send(topic, body, **options)
        except OgiveError as exc:
            self.note("send", body[:6], type(exc).__name__)
            self.book.counts[f"send: {type(exc).__name__}"] += 1
            return None
        self.note("sent", body[:6], result.queue_offset)
        self.book.counts["sent"] += 1
        return result

    def _stored(self, topic: str, body: bytes, result: SendResult | None) -> None:
        if result is not None:
            self.book.owed[topic].add(body)
            self._stands_at((topic, result.queue.queue_id, result.queue_offset), body)

    def _stands_at(self, place: tuple[str, int, int], body: bytes) -> None:
        known = self.book.places.setdefault(place, body)
        if known != body:
            self.book.faults.append(f"{place} was shown as {known[:6]!r} and as {body[:6]!r}")

    async def _send_in_transaction(self, producer: aio.Producer, body: bytes) -> None:
        end = self.rng.choice(("commit", "commit", "roll back", "leave open"))
        entered = False
        if end == "roll back":
            # from here on whoever asks is told so
            self.book.rolled_back.add(body)
        try:
            async with producer.transaction(WORK, body) as transaction:
                entered = True
                if end != "roll back":
                    # the decision: what happens to its message from now on must not change it
                    self.book.owed[WORK].add(body)
                if end == "leave open":
                    transaction.leave_open()
                elif end == "roll back":
                    raise RolledBack
        except RolledBack:
            pass
        except OgiveError as exc:
            self.book.counts[f"transaction: {type(exc).__name__}"] += 1
        self.note("transaction", body[:6], end, entered)
        self.book.counts[f"transaction: {end}"] += entered

    async def _check(self, message: MessageExt) -> bool | None:
        self.book.counts["transaction: asked"] += 1
        if message.body in self.book.owed[WORK]:
            return True
        # without either, the block has not begun, perhaps in a producer that stands still
        return False if message.body in self.book.rolled_back else None

    # --- clients ----------------------------------------------------------------------------------

    async def _start_producer(self) -> None:
        self._opened += 1
        node = Node(f"shop {self._opened}")

        async def start() -> None:
            producer = aio.Producer(
                group="shop", check=self._check, client=CLIENT, config=self.producer_config
            )
            await producer.start()
            self._shops.append(Shop(node, producer))

        await self.cluster.on(node, start)

    async def _join(self, topic: str) -> None:
        self._joined += 1
        node = Node(f"{GROUPS[topic]} {self._joined}")
        member = Member(topic, node)
        self._members.append(member)

        async def start() -> None:
            listener = self._worker(node) if topic == WORK else self._liner(node)
            while member.consumer is None:
                consumer = aio.PushConsumer(listener, client=CLIENT, config=_CONSUMER)
                try:
                    await consumer.start()
                except OgiveError as exc:
                    self.note(node.name, "cannot join", type(exc).__name__)
                    await asyncio.sleep(1.0)
                else:
                    member.consumer = consumer

        await self.cluster.on(node, start)

    def _worker(self, node: Node) -> Any:
        retries = RETRIES if self._about_members else None

        @ogive.listener(WORK, group=GROUPS[WORK], start="earliest", threads=8, max_retries=retries)
        async def work(message: MessageExt) -> None:
            self._begins(WORK, message)
            await asyncio.sleep(self.rng.expovariate(200.0))
            if self._always_fails(message.body):
                raise ValueError("the listener does not like this one")
            self._received(WORK, message)
            if self.rng.random() < 0.03 and not self._about_members:
                raise ValueError("the listener fails now and then")
            self.book.done[WORK].add(message.body)

        return work

    def _liner(self, node: Node) -> Any:
        @ogive.listener(LINE, group=GROUPS[LINE], start="earliest", orderly=True, suspend_s=0.2)
        async def line(message: MessageExt) -> None:
            queue_id, offset, book = message.queue.queue_id, message.queue_offset, self.book
            if self._calm and message.body in book.done[LINE]:
                book.faults.append(f"{message.body[:6]!r} was delivered twice, in order")
            other = book.handled_by.get(queue_id)
            if other is not None and other is not node and not other.dead:
                book.faults.append(f"{node.name} and {other.name} are both at queue {queue_id}")
            book.handled_by[queue_id] = node
            passed = range(book.high.get(queue_id, -1) + 1, offset)
            if any(
                book.places.get((LINE, queue_id, place)) not in book.spoiled for place in passed
            ):
                book.faults.append(
                    f"queue {queue_id}: {offset} came behind {book.high.get(queue_id, -1)}"
                )
            await asyncio.sleep(self.rng.expovariate(200.0))
            if book.handled_by.get(queue_id) is node:
                del book.handled_by[queue_id]
            if self.rng.random() < 0.03:
                raise ValueError("the listener fails now and then")
            book.high[queue_id] = max(offset, book.high.get(queue_id, -1))
            self._received(LINE, message)
            book.done[LINE].add(message.body)

        return line

    def _always_fails(self, body: bytes) -> bool:
        return self._about_members and int(body[:6]) % 20 == 0

    def _begins(self, topic: str, message: MessageExt) -> None:
        book, body, tries = self.book, message.body, message.reconsume_times
        twice = body in book.done[topic] or tries in book.tries[body]
        book.tries[body].add(tries)
        self._begun_at.append(self.loop.now)
        book.counts["twice"] += twice
        if twice:
            self.note("twice", topic, body[:6], tries)
            if self._calm:
                book.faults.append(f"{body[:6]!r} was delivered twice, as try {tries}")

    def _received(self, topic: str, message: MessageExt) -> None:
        book, body = self.book, message.body
        self.note("received", topic, body[:6], message.queue_offset)
        book.counts["received"] += 1
        book.counts["received again"] += body in book.received[topic]
        book.received[topic].add(body)
        if body in book.rolled_back:
            book.faults.append(f"{body[:6]!r} was rolled back and delivered")
        if body not in book.attempted:
            book.faults.append(f"{body[:6]!r} was never sent")
        if message.reconsume_times == 0:
            self._stands_at((topic, message.queue.queue_id, message.queue_offset), body)
            here = message.queue.queue_id, message.queue_offset
            if message.prepared_transaction_offset and book.ends.setdefault(body, here) != here:
                book.faults.append(f"{body[:6]!r} was committed at {book.ends[body]} and at {here}")
        due = book.due.get(body)
        if due is not None and due[1] == self._clock_changes and self.loop.now < due[0] - 0.001:
            book.faults.append(f"{body[:6]!r} came {due[0] - self.loop.now:.3f} s early")

    # --- faults -----------------------------------------------------------------------------------

    def _possible_faults(self) -> list[tuple[str, Callable[[], Awaitable[None]]]]:
        return [
            ("broker killed", self._kill_broker),
            ("broker killed", self._kill_broker),
            ("broker stopped", self._stop_broker),
            ("broker disk", self._break_disk),
            ("broker disk full", self._fill_disk),
            ("broker bit flipped", self._flip_bit),
            ("name-server restarted", self._restart_name_server),
            ("producer killed", self._kill_producer),
            ("member killed", self._kill_member),
            ("member left", self._leave),
            ("member joined", self._join_one),
            ("member restarted", self._restart_member),
            ("requests late or doubled", self._delay_requests),
            ("requests lost", self._lose_requests),
            ("wire cut", self._cut),
            ("wire slow", self._slow),
            ("node paused", self._pause),
            ("clock set", self._set_clock),
        ]

    async def _kill_broker(self) -> None:
        self._unsaved += sum(at > self.loop.now - UNSAVED_S for at in self._begun_at)
        self.cluster.kill_broker(power_cut=self.cluster.flush == "sync" and self.rng.random() < 0.5)
        await asyncio.sleep(self.rng.expovariate(0.5))
        await self.cluster.start_broker()

    async def _stop_broker(self) -> None:
        await self.cluster.stop_broker()
        await asyncio.sleep(self.rng.expovariate(0.5))
        await self.cluster.start_broker()

    async def _break_disk(self) -> None:
        self.cluster.break_disk()
        for _ in range(100):
            if self.cluster.broker_failed:
                break
            await asyncio.sleep(0.1)
        await self._kill_broker()

    async def _fill_disk(self) -> None:
        """Until space is found; a kill in between finds some, too."""
        self.cluster.fill_disk(full=True)
        await asyncio.sleep(self.rng.expovariate(0.2))
        self.cluster.fill_disk(full=False)

    async def _flip_bit(self) -> None:
        """In a message that was acknowledged, or one of its retries."""
        self.cluster.kill_broker(power_cut=False)
        if places := list(self.book.places.values()):
            body = self.rng.choice(places)
            if self.cluster.flip_bit(body):
                self.note("spoiled", body[:6])
                self.book.spoiled.add(body)
        await self.cluster.start_broker()

    async def _restart_name_server(self) -> None:
        await self.cluster.restart_name_server(self.rng.expovariate(0.2))

    async def _kill_producer(self) -> None:
        shop = self.rng.choice(self._shops)
        self._shops.remove(shop)
        self.cluster.kill(shop.node)
        await asyncio.sleep(self.rng.random())
        await self._start_producer()

    async def _kill_member(self) -> None:
        member = self.rng.choice(self._members)
        self._members.remove(member)
        self.cluster.kill(member.node)
        await asyncio.sleep(self.rng.random() * 3)
        await self._join(member.topic)

    async def _leave(self) -> None:
        member = self.rng.choice(self._members)
        if (
            member.consumer is not None
            and sum(other.topic == member.topic for other in self._members) > 1
        ):
            self._members.remove(member)
            await self.cluster.on(member.node, member.consumer.close)

    async def _join_one(self) -> None:
        if len(self._members) < 6:
            await self._join(self.rng.choice(list(self.groups)))

    async def _restart_member(self) -> None:
        """As a rolling restart does it."""
        member = self.rng.choice(self._members)
        if member.consumer is not None:
            self._members.remove(member)
            await self.cluster.on(member.node, member.consumer.close)
            await self._join(member.topic)

    async def _delay_requests(self) -> None:
        # No commit is doubled: an old one that overtakes a newer one takes progress back. Clients
        # do
        # not do that, they repeat only the newest.
        await self._make_mischief(Mischief(doubled=0.2, late_s=0.3, once=COMMITS))

    async def _lose_requests(self) -> None:
        await self._make_mischief(Mischief(lost=0.3, doubled=0.2, late_s=4.0))

    async def _make_mischief(self, mischief: Mischief) -> None:
        self.cluster.network.mischief = mischief
        await asyncio.sleep(self.rng.random() * 5)
        self.cluster.network.mischief = None

    async def _cut(self) -> None:
        self.note("cut", self.cluster.network.cut_one())

    async def _slow(self) -> None:
        self.cluster.network.slow_s = self.rng.random() * 0.5
        await asyncio.sleep(self.rng.random() * 5)
        self.cluster.network.slow_s = 0.0

    async def _pause(self) -> None:
        node = self.rng.choice(
            [
                *self.cluster.nodes,
                *(shop.node for shop in self._shops),
                *(member.node for member in self._members),
            ]
        )
        if not node.dead:
            node.paused = True
            await asyncio.sleep(self.rng.random() * 6)
            self.loop.resume(node)

    async def _set_clock(self) -> None:
        self._clock_changes += 1
        self.loop.wall_offset_s += self.rng.uniform(-60.0, 60.0)

    # --- the verdict ------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """All faults end; then everything owed must arrive, and all progress reach the end of its
        queue.
        """
        while self._faults:
            await asyncio.wait(set(self._faults))
        if self.cluster.broker_failed:
            await self._kill_broker()
        until = self.loop.now + (REST_S if self._about_members else SETTLE_S)
        while self.loop.now < until and (
            self._missing() or any(shop.sends for shop in self._shops)
        ):
            await asyncio.sleep(1.0)
        for topic, bodies in self._missing().items():
            self.book.faults.append(
                f"{len(bodies)} messages of {topic} did not arrive, the first is "
                f"{min(bodies)[:6]!r}"
            )
        await asyncio.sleep(10.0)
        if not self.book.faults:
            await self._check_progress(until)
        if self._about_members:
            await self._check_dead_letters()
            rough = sum(
                count
                for name, count in self.book.counts.items()
                if name.startswith("fault: ") and name[7:] not in CALM
            )
            if self.book.counts["twice"] > rough * IN_HAND + self._unsaved:
                self.book.faults.append(
                    f"{self.book.counts['twice']} deliveries too many after {rough} faults that "
                    "cost some"
                )

    def _missing(self) -> dict[str, set[bytes]]:
        book = self.book
        found = {
            topic: book.owed[topic] - book.received[topic] - book.spoiled for topic in self.groups
        }
        if self._about_members:
            found[WORK] = {
                body
                for body in found[WORK]
                if not (self._always_fails(body) and RETRIES in book.tries[body])
            }
        return {topic: missing for topic, missing in found.items() if missing}

    async def _check_dead_letters(self) -> None:
        """Each message that always fails is there once all its tries were made, and not before."""
        found: Counter[bytes] = Counter()
        async with aio.PullConsumer(client=CLIENT, start="earliest") as reader:
            with suppress(NoRoute):
                await reader.assign(await reader.queues(f"%DLQ%{GROUPS[WORK]}"))
                while batch := await reader.poll(5.0):
                    found.update(message.body for message in batch)
        for body, count in found.items():
            if not self.book.tries[body].issuperset(range(1 + RETRIES)):
                self.book.faults.append(
                    f"{body[:6]!r} is a dead letter after the tries {sorted(self.book.tries[body])}"
                )
            if count > 1 and self._calm:
                self.book.faults.append(f"{body[:6]!r} is a dead letter {count} times")
        owed = {body for body in self.book.owed[WORK] if self._always_fails(body)}
        self.book.faults += [
            f"{body[:6]!r} is not a dead letter" for body in sorted(owed - found.keys())
        ]

    async def _check_progress(self, until: float) -> None:
        async with aio.Admin(client=CLIENT) as admin:
            while True:
                behind = [
                    f"{group} at {row.queue}: {row.lag}"
                    for group in self.groups.values()
                    for row in await admin.lag(group, members=False)
                    if row.lag
                ]
                if not behind:
                    return
                if self.loop.now > until:
                    self.book.faults.append(f"progress does not reach the end: {', '.join(behind)}")
                    return
                await asyncio.sleep(1.0)
