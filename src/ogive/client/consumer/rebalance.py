"""Decide which queues a member holds, take them over and give them up.

Source: RebalanceImpl.java, RebalancePushImpl.java, 5.3.

Behaviour
- A pass runs at start, at once when members or routes change, every 20 s, and 1 s after a pass that
  could not do everything; sooner while a queue changes hands. The members of a group run at most a
  hundred passes a second together, and each one at least one a second. For 20 s after queues were
  taken over, a retry topic that is missing counts so: brokers make it with a group's first
  heartbeat, and name servers hear of it a moment later.
- If the strategy raises, or does not return a list of queues, the topic keeps its assignment.
- A broadcasting member holds every queue, whatever other members there are.
- A topic whose queues or members are unknown keeps its assignment.
- A queue that is given up: no new call begins, running calls are waited for, progress goes to the
  broker, and only then we say that we do not hold it any more; then (orderly) the lock is given
  back. Calls are waited for up to hand_over_wait_s, orderly ones until our lease on the lock is
  over. At the close it is given up at once, and its broker keeps it locked, until its own lease
  ends: nobody else gets a queue whose listener still works. A broker that hangs holds up only its
  own.
- A queue is taken over once no other member has it, see ``other_members.py`` (orderly: once the
  broker has granted the lock). It begins at the group's offset. If that cannot be learned the queue
  is left alone until it can: an unknown offset is never taken for "no offset".
- Where the group has no offset the place where it begins is committed before the first pull: it is
  the group's progress from then on.
- A member whose link to a queue's broker was cut, or that its brokers had forgotten, asks where the
  group is in the queue before it pulls or commits there again. If another one has brought it
  further, the queue starts again there: progress that others made counts.
- A suspended member takes part: it holds its share, and gives up what is not its any more.

Differs from Java
- A member that does not find itself among the members sends a heartbeat and asks again before it
  gives everything up.
- Members that a broker listed before it started again count for a while, see ``other_members.py``.
- In a concurrent group Java takes a queue over at once, while its last owner still works on it:
  every hand-over repeats what that one has in hand, and what it did since its last commit.
- A lock that was refused, or that came back only after our lease had run out, makes the queue start
  again: another member may have moved on.
- A retry topic is always read from its beginning if the group has no offset there: no retry is
  skipped.
- Java does not commit where a new group begins, so that who takes over before its first message is
  finished begins later. After a cut it goes on where it was, writes that over what others
  committed, and while suspended it keeps its queues.

Time for leases on queue locks, which brokers count on while this machine sleeps: a loop's clock
stands still then.
"""

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import Receiver
from ogive.client.consumer.other_members import Claims, MemberLists
from ogive.client.consumer.process_queue import ProcessQueue, QueueState, until_quiet
from ogive.client.consumer.subscription import MemberContext
from ogive.client.listener import Start
from ogive.errors import BrokerInternalError, NoRoute, OgiveError
from ogive.model import RETRY_PREFIX, MessageQueue

_KNOWS = hasattr(time, "CLOCK_BOOTTIME")


def _slept_s() -> float:
    """Return the seconds that the machine has slept since it started, or 0 if the system does not
    report them.
    """
    return (
        time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
        if _KNOWS
        else 0.0
    )


_BEFORE_S = _slept_s()


def lease_time(now: float) -> float:
    """Return *now*, a time of the loop's clock, plus the time that the machine has slept since this
    process began.

    In whole seconds: that is the difference of two clocks, which are read one after the other.
    """
    return now + round(_slept_s() - _BEFORE_S)


log = logging.getLogger(__name__)

# for brokers that do not answer while the consumer closes
LEAVE_TIMEOUT_S: Final = 3.0
QUIET_S: Final = 0.25
"""The longest wait for running calls in one pass."""
LOOK_S: Final = 0.05
"""The shortest pause after a pass in which a queue waited for its old owner or for its calls."""
SLOWER: Final = 10
"""Divides the time that the queue has waited so far: the result is that pause."""
PASS_EACH_S: Final = 0.01
"""Times the members: the members of a group run at most a hundred passes a second together."""
TOPICS_AT_ONCE: Final = 16
BROKER_LEASE_S: Final = 60.0  # rocketmq.broker.rebalance.lockMaxLiveTime


def difference(
    held: Collection[MessageQueue], mine: Collection[MessageQueue]
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """Return the queues to give up and the queues to take over, sorted."""
    return sorted(set(held) - set(mine)), sorted(set(mine) - set(held))


@dataclass(frozen=True, slots=True)
class Begin:
    """First offset of a queue that is taken over. *new*: the group may have no offset there yet."""

    queue: MessageQueue
    offset: int
    new: bool = False


class Rebalancer:
    """Assignment of one member: keeps the held queues of *group* equal to what the strategy gives
    it.

    *receiver* has the messages of the queues.
    """

    def __init__(self, group: MemberContext, config: ConsumerConfig, receiver: Receiver) -> None:
        self._group = group
        self._state = group.state
        self._config = config
        self._receiver = receiver
        self._wanted = asyncio.Event()
        # one change of the assignment at a time
        self._changing = asyncio.Lock()
        # topics whose last pass failed
        self._failing: set[str] = set()
        # given up while a call was still running
        self._leaving: dict[MessageQueue, ProcessQueue] = {}
        # by the loop's clock: a retry topic that is missing now should come to be
        self._retries_expected_until = 0.0
        # given up without telling their broker: until when its lock lasts
        self._locked_still: dict[MessageQueue, float] = {}
        self._loop = asyncio.get_running_loop()
        self._claims = Claims(group, config)
        self._lists = MemberLists(group)
        # The member leaves: no more topics.
        self._ending = False

    def soon(self) -> None:
        """Run a pass as soon as the pause since the last one allows."""
        self._wanted.set()

    async def run(self) -> None:
        """Run passes until cancelled."""
        balanced = True
        while True:
            try:
                async with asyncio.timeout(
                    self._config.rebalance_period_s if balanced else self._again_s()
                ):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            balanced = await self.rebalance()
            await asyncio.sleep(
                min(self._config.rebalance_pause_s, PASS_EACH_S * self._lists.largest)
            )

    def _again_s(self) -> float:
        """Return the pause after an incomplete pass. It is shorter while a queue changes hands."""
        now, pause_s = self._loop.time(), self._config.rebalance_pause_s
        ages = [
            now - p.releasing_since
            for p in self._state.held.values()
            if p.releasing_since is not None
        ]
        if self._claims.oldest_s is not None:
            ages.append(self._claims.oldest_s)
        return min(pause_s, max(LOOK_S, max(ages) / SLOWER)) if ages else pause_s

    def holdings(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Return those of *queues* that this member holds or claims.

        Another member asks that wants them. It may know of a change before we do.
        """
        ours = [queue for queue in queues if queue in self._state.held or queue in self._claims]
        if any(queue in self._state.held and self._state.held[queue].active for queue in ours):
            self.soon()
        return ours

    async def settle(self) -> None:
        """Wait for the topics of the current pass, the last one.

        If that is cut short, it may have dropped a queue without committing its progress.
        """
        self._ending = True
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S), self._changing:
                pass
        except TimeoutError:
            log.warning(
                "cancelled a rebalance of %s that did not end within %.0f s",
                self._group.name,
                LEAVE_TIMEOUT_S,
            )

    async def rebalance(self) -> bool:
        """Run one pass over all topics. Return False if something is left to do."""
        turns = asyncio.Semaphore(TOPICS_AT_ONCE)

        async def one(topic: str) -> bool:
            async with turns:
                return self._ending or await self._rebalance_topic(topic)

        async with self._changing:
            before = dict(self._state.held)
            retries = [topic for topic in self._state.starts if topic.startswith(RETRY_PREFIX)]
            results = await asyncio.gather(
                *(one(topic) for topic in self._state.starts if topic not in retries)
            )
            # Last: a missing one is expected if queues were taken over.
            results += await asyncio.gather(*map(one, retries))
            await self._unlock_again()
            if self._state.held != before:
                await self._group.calls.heartbeat()
        return all(results) and not self._locked_still

    async def _rebalance_topic(self, topic: str) -> bool:
        group, me = self._group, self._group.instance.client_id
        try:
            queues = await group.calls.queues(topic)
            members = [me] if group.broadcast else await self._members(topic)
        except NoRoute as exc:
            # the start has warned; a retry topic may never come to be
            log.debug("rebalance of %s: %s", group.name, exc)
            return (
                topic.startswith(RETRY_PREFIX) and self._loop.time() >= self._retries_expected_until
            )
        except OgiveError as exc:
            # once per outage
            level = logging.DEBUG if topic in self._failing else logging.WARNING
            self._failing.add(topic)
            log.log(level, "rebalance of %s keeps its queues of %s: %s", group.name, topic, exc)
            return False
        try:
            mine = set(self._share(queues, members, me))
            held = {
                queue: process_queue
                for queue, process_queue in self._state.held.items()
                if queue.topic == topic
            }
            given_up = sorted(
                queue
                for queue, p in held.items()
                if queue not in mine or p.releasing_since is not None
            )
            taken = sorted(mine - held.keys())
        except Exception:
            # user code: a strategy
            level = logging.DEBUG if topic in self._failing else logging.ERROR
            self._failing.add(topic)
            log.log(
                level,
                "the strategy of %s failed: it keeps its queues of %s",
                group.name,
                topic,
                exc_info=True,
            )
            return False
        self._failing.discard(topic)
        self._claims.claim(topic, taken)
        if me not in members:
            log.warning(
                "rebalance of %s: this client is not among the %d members that the broker knows",
                group.name,
                len(members),
            )
        released = await self._give_up(given_up)
        added = await self._take_over(topic, taken, [member for member in members if member != me])
        if added:
            self._retries_expected_until = self._loop.time() + self._config.rebalance_period_s
        if released or added:
            log.info(
                "rebalance of %s in %s: +%d -%d queues, now %d of %d",
                group.name,
                topic,
                len(added),
                len(released),
                len(mine),
                len(queues),
            )
            self._state.report(added, released)
        if mine.intersection(released):
            # It came back while its calls were waited for.
            self.soon()
        certain = group.broadcast or self._lists.is_certain(topic)
        return (
            certain
            and me in members
            and len(released) == len(given_up)
            and len(added) == len(taken)
        )

    def _share(
        self, queues: Sequence[MessageQueue], members: Sequence[str], me: str
    ) -> Sequence[MessageQueue]:
        if self._group.broadcast:
            return queues
        return list(self._config.strategy(queues, members, me)) if me in members else []

    async def _members(self, topic: str) -> list[str]:
        """Return the client ids of the group, sorted. A broker that does not know us yet gets a
        heartbeat first.
        """
        try:
            members = await self._lists.of(topic)
        except BrokerInternalError:
            # how brokers say that they know no member of the group
            members = []
        if self._group.instance.client_id in members:
            return members
        for process_queue in self._state.held.values():
            process_queue.doubted = True
        await self._group.calls.heartbeat()
        await self._verify_doubted(list(self._state.held.values()))
        # Last: what is claimed by it must be claimed at once.
        return await self._lists.of(topic)

    # --- giving up --------------------------------------------------------------------------------

    async def _give_up(self, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        """Give up *queues*. Return those that could be let go now."""
        if not queues:
            return []
        now, wait_s = self._loop.time(), self._config.hand_over_wait_s
        process_queues = [self._state.held[queue] for queue in queues]
        for process_queue in process_queues:
            self._state.release(process_queue)
            if process_queue.releasing_since is None:
                process_queue.releasing_since = now
        quiet_s = QUIET_S if self._group.locks else min(QUIET_S, wait_s)
        quiet = await asyncio.gather(
            *(self._quiet(process_queue, quiet_s) for process_queue in process_queues)
        )
        released = [p for p, is_quiet in zip(process_queues, quiet, strict=True) if is_quiet]
        for process_queue in process_queues:
            process_queue.failed_unlocks += process_queue not in released
        overdue = [p for p in process_queues if p not in released and self._is_overdue(p)]
        for process_queue in overdue:
            self._group.statistics.left_behind += 1
            why = (
                "our lock on it is over"
                if self._group.locks
                else f"waited {wait_s:g} s (hand_over_wait_s), its messages come again"
            )
            log.warning(
                "releasing %s of %s while its listener still runs: %s",
                process_queue.queue,
                self._group.name,
                why,
            )
        await self._let_go([*released, *overdue])
        return [
            process_queue.queue
            for process_queue in (*released, *overdue)
            if not self._state.is_held(process_queue)
        ]

    async def _quiet(self, process_queue: ProcessQueue, timeout_s: float) -> bool:
        """Return True once the queue is not busy, False if it still is after *timeout_s*."""
        return await until_quiet(self._receiver.is_busy, process_queue, timeout_s)

    def _is_overdue(self, process_queue: ProcessQueue) -> bool:
        """Return True if the queue is given up whatever runs: (orderly) our lease is over, or its
        calls were waited for long enough.
        """
        if self._group.locks:
            return self._lease_time() >= process_queue.leased_until
        since = process_queue.releasing_since
        return since is not None and self._loop.time() - since >= self._config.hand_over_wait_s

    async def _let_go(self, process_queues: Iterable[ProcessQueue]) -> None:
        """Let go of the queues that are still held.

        Progress that is still in doubt is not committed; a queue in which a listener works stays
        locked.
        """
        brokers: defaultdict[str, list[ProcessQueue]] = defaultdict(list)
        for process_queue in process_queues:
            brokers[process_queue.queue.broker_name].append(process_queue)
        await asyncio.gather(*map(self._let_go_of_one_broker, brokers.values()))

    async def _let_go_of_one_broker(self, process_queues: Sequence[ProcessQueue]) -> None:
        await self._verify_doubted(process_queues)
        await self._group.store.persist(
            [p.queue for p in process_queues if self._state.is_held(p) and not p.doubted],
            again=True,
        )
        process_queues = [
            p
            for p in process_queues
            if self._state.is_held(p) and not self._waits_for_its_commit(p)
        ]
        for process_queue in process_queues:
            # Not before its progress is at the broker: its next owner begins there.
            self._drop(process_queue)
            self._group.store.forget(process_queue.queue)
        quiet = [process_queue.queue for process_queue in process_queues if not process_queue.busy]
        if self._group.locks and quiet:
            await self._unlock(quiet)

    def _waits_for_its_commit(self, process_queue: ProcessQueue) -> bool:
        """Return True if the queue must wait because its broker has not accepted its last commit.

        Its next owner would repeat what was done. The next pass commits again.
        """
        if (
            process_queue.releasing_since is None
            or process_queue.doubted
            or self._is_overdue(process_queue)
        ):
            return False
        return not self._group.store.is_saved(process_queue.queue)

    async def _unlock(self, queues: Iterable[MessageQueue]) -> None:
        try:
            await self._group.calls.unlock(queues)
        except OgiveError as exc:
            log.warning(
                "could not unlock queues of %s, which stay locked until a retry succeeds or the "
                "lease ends: %s",
                self._group.name,
                exc,
            )
            until = self._loop.time() + BROKER_LEASE_S
            self._locked_still |= dict.fromkeys(queues, until)

    async def _unlock_again(self) -> None:
        """Unlock queues again whose unlock failed: others wait for them, and the broker may be back
        before the lease is over.
        """
        now, held = self._loop.time(), self._state.held
        self._locked_still = {
            queue: until
            for queue, until in self._locked_still.items()
            if until > now and queue not in held
        }
        if self._locked_still:
            try:
                await self._group.calls.unlock(list(self._locked_still))
            except OgiveError as exc:
                log.debug("queues of %s are still locked: %s", self._group.name, exc)
            else:
                self._locked_still.clear()

    def join(self, topic: str, start: Start) -> None:
        """Share this topic, too, from the next pass on."""
        self._state.starts[topic] = start
        self.soon()

    async def leave(self, topic: str, end_calls: Callable[[], Awaitable[None]]) -> None:
        """Remove the topic: its queues are given up once *end_calls* has waited for the running
        calls, whose results still count.
        """
        async with self._changing:
            self._state.starts.pop(topic, None)
            self._claims.claim(topic, ())
            self._lists.forget(topic)
            leaving = [
                process_queue
                for queue, process_queue in self._state.held.items()
                if queue.topic == topic
            ]
            for process_queue in leaving:
                self._state.release(process_queue)
                # For good, whatever its broker says.
                process_queue.releasing_since = None
            await end_calls()
            await self._let_go(leaving)
        self._state.report([], [process_queue.queue for process_queue in leaving])

    async def give_up_all(self) -> None:
        """Give up every queue at shutdown, after the last call has ended: commit progress,
        unlock.
        """
        self._claims.clear()
        async with self._changing:
            for process_queue in self._state.held.values():
                # For good, whatever its broker says.
                process_queue.releasing_since = None
            try:
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._let_go(list(self._state.held.values()))
            except TimeoutError:
                log.warning(
                    "not every broker stored the last progress of %s within %.0f s",
                    self._group.name,
                    LEAVE_TIMEOUT_S,
                )

    def lose_all(self) -> None:
        """Drop every queue, because the client has failed: no call begins, and no result counts any
        more.
        """
        for process_queue in list(self._state.held.values()):
            self._lose(process_queue)

    def _drop(self, process_queue: ProcessQueue) -> None:
        self._state.drop(process_queue)
        if process_queue.busy:
            self._leaving[process_queue.queue] = process_queue

    def _lose(self, process_queue: ProcessQueue) -> None:
        """Drop a queue whose lock is lost. Its offset is not committed: another member may have
        moved it by now.
        """
        if self._state.is_held(process_queue):
            self._drop(process_queue)
            self._group.store.forget(process_queue.queue)
            self.soon()

    async def verify(self, process_queue: ProcessQueue) -> None:
        """Check a queue that is in doubt against what other members committed meanwhile.

        Raises OgiveError, and it stays in doubt.
        """
        group, queue = self._group, process_queue.queue
        if not group.broadcast and queue.topic in self._state.starts:
            at, known = await group.store.fetch(queue), group.store.highest(queue)
            if (
                at is not None
                and known is not None
                and at > known
                and self._state.is_held(process_queue)
            ):
                log.warning(
                    "%s: another member has moved the offset of %s from %d to %d: consumption "
                    "continues there",
                    queue,
                    group.name,
                    known,
                    at,
                )
                self._lose(process_queue)
                self._state.report([], [queue])
        process_queue.doubted = False

    async def _verify_doubted(self, process_queues: Iterable[ProcessQueue]) -> None:
        async def settle(process_queue: ProcessQueue) -> None:
            # it stays in doubt, and its pulls ask again
            with contextlib.suppress(OgiveError):
                await self.verify(process_queue)

        await asyncio.gather(
            *(settle(process_queue) for process_queue in process_queues if process_queue.doubted)
        )

    # --- taking over ------------------------------------------------------------------------------

    async def _take_over(
        self, topic: str, queues: Sequence[MessageQueue], others: Sequence[str]
    ) -> list[MessageQueue]:
        """Take over *queues*. Return those that are held now. *others*: the other members of the
        group.

        A queue in which a call of an earlier time still runs has to wait for it.
        """
        self._leaving = {
            queue: process_queue
            for queue, process_queue in self._leaving.items()
            if process_queue.busy
        }
        queues = [queue for queue in queues if queue not in self._leaving]
        if not queues:
            return []
        leased_until = float("inf")
        if self._group.locks:
            leased_until = self._lease_time() + self._config.lock_lease_s
            try:
                queues = sorted((await self._group.calls.lock(queues))[0])
            except OgiveError as exc:
                log.warning("could not lock queues of %s: %s", self._group.name, exc)
                return []
        elif others:
            queues = await self._claims.free(topic, queues, others)
        begins = [
            begin for begin in await asyncio.gather(*map(self._begin, queues)) if begin is not None
        ]
        await self._hold_from(begins, leased_until)
        return [begin.queue for begin in begins]

    async def _hold_from(self, begins: Sequence[Begin], leased_until: float = float("inf")) -> None:
        store = self._group.store
        for begin in begins:
            store.begin(begin.queue, begin.offset)
        if self._group.auto_commit:
            new = [begin for begin in begins if begin.new]
            for begin in new:
                store.update(begin.queue, begin.offset)
            await store.persist([begin.queue for begin in new])
        for begin in begins:
            self._state.hold(ProcessQueue(begin.queue, begin.offset, leased_until))
        self._claims.settle(begin.queue for begin in begins)

    async def _begin(self, queue: MessageQueue) -> Begin | None:
        """Return the group's next offset in *queue*; None if it cannot be read now."""
        try:
            offset = await self._group.store.fetch(queue)
            if offset is not None:
                # which brokers say of a young queue, and no longer of an old one
                return Begin(queue, offset, new=offset == 0)
            return Begin(
                queue,
                await self._group.calls.start_offset(queue, self._state.starts[queue.topic]),
                new=True,
            )
        except OgiveError as exc:
            log.warning(
                "%s is not consumed for now: could not read the offset of %s: %s",
                queue,
                self._group.name,
                exc,
            )
            return None

    # --- what an application that pulls asks for --------------------------------------------------

    async def exchange(self, given_up: Iterable[MessageQueue], taken: Sequence[Begin]) -> None:
        """Give up queues that are held, and take over others."""
        async with self._changing:
            await self._let_go([self._state.held[queue] for queue in given_up])
            await self._hold_from(taken)

    def jump(self, process_queue: ProcessQueue, offset: int) -> None:
        """Continue a held queue at *offset*, and discard what was pulled before, or is being
        pulled.
        """
        if self._group.auto_commit:
            self._group.store.move(process_queue.queue, offset)
        self._drop(process_queue)
        moved = ProcessQueue(process_queue.queue, offset)
        moved.paused = process_queue.paused
        self._state.hold(moved)

    # --- repairs and locks ------------------------------------------------------------------------

    async def go_to(self, process_queue: ProcessQueue, offset: int) -> None:
        """Continue a held queue at another offset, also a lower one.

        A running orderly call is waited for as at a hand-over. The application of a polled member
        is not.
        """
        group, queue = self._group, process_queue.queue
        if process_queue.state is not QueueState.ACTIVE:
            return
        if group.polled:
            self.jump(process_queue, offset)
            return
        # not released: the queue's pull loop may be the caller
        process_queue.move_to(QueueState.RELEASING)
        group.store.repair(queue, offset)
        await group.store.persist([queue], again=True)
        await self._quiet(process_queue, max(0.0, process_queue.leased_until - self._lease_time()))
        async with self._changing:
            if not self._state.is_held(process_queue):
                # given up in between
                return
            self._drop(process_queue)
            if process_queue.busy:
                group.store.forget(queue)
                self.soon()
            else:
                group.store.thaw(queue)
                self._state.hold(ProcessQueue(queue, offset, process_queue.leased_until))

    def _lease_time(self) -> float:
        return lease_time(self._loop.time())

    async def renew_locks(self) -> None:
        """Renew the locks of an orderly group, periodically. A queue that is being given up is not
        renewed.
        """
        held = {queue: p for queue, p in self._state.held.items() if p.state is QueueState.ACTIVE}
        if not held:
            return
        asked_at = self._lease_time()
        granted, refused = await self._group.calls.lock(held)
        for queue in refused:
            log.warning(
                "lost the lock on %s: %s starts again from its stored offset",
                queue,
                self._group.name,
            )
            self._lose(held[queue])
        for queue in granted:
            if held[queue].leased_until <= asked_at:
                log.warning(
                    "the lock on %s was renewed after its lease had ended: %s starts again from "
                    "its stored offset",
                    queue,
                    self._group.name,
                )
                self._lose(held[queue])
            else:
                held[queue].leased_until = asked_at + self._config.lock_lease_s
                # The lease may have been over for a moment, and the calls have stopped.
                self._receiver.submit(held[queue], ())
