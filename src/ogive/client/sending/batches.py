"""Make requests of what waits in an inbox, and single messages of a batch that was refused.

A message with a time budget of its own shares a request with neighbours of the same budget only: a
request has one deadline.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from ogive.client.config import ProducerConfig
from ogive.client.ids import UniqueKeys
from ogive.client.sending.handle import ITEM_BYTES, KEY_BYTES, BatchOutcome, SendHandle
from ogive.client.sending.pending import BATCH_PROPERTIES, OVERHEAD_BYTES, Inbox, OnEnd, PendingSend
from ogive.model import Message
from ogive.wire.message import MAX_BATCH_MESSAGES, decode_batch, encode_batch
from ogive.wire.sends import split_result

# what is in an inbox is shared by the queues, but smaller batches are not worth it
MIN_BATCH: Final = 256

Observed = tuple[Message, tuple[Any, ...]]
"""A message as the hooks left it, and what the instrumentation made of it: one object, or none."""


class Batches:
    """Builder of one producer's batches. *on_end* gets the outcome of each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: ProducerConfig,
        keys: UniqueKeys,
        on_end: OnEnd | None,
    ) -> None:
        self._loop = loop
        self._config = config
        self._keys = keys
        self._on_end = on_end
        # of messages in an inbox
        self._observed: dict[SendHandle, Observed] = {}
        self._own_budgets_s: dict[SendHandle, float] = {}
        self._flags: dict[SendHandle, int] = {}
        # of those with a budget of their own, as noted; no message of them ends before _next_end
        self._ends: deque[float] = deque()
        self._next_end = math.inf

    def note(
        self,
        handle: SendHandle,
        own_budget_s: float | None,
        observed: Observed | None,
        flag: int = 0,
    ) -> None:
        """Note what is special about a message, before it is in an inbox. Any thread may call
        this.
        """
        if own_budget_s is not None:
            self._own_budgets_s[handle] = own_budget_s
            self._ends.append(handle._since + own_budget_s)
        if observed is not None:
            self._observed[handle] = observed
        if flag:
            self._flags[handle] = flag

    @property
    def has_own_budgets(self) -> bool:
        """Return True if a message in an inbox has a time budget of its own."""
        return bool(self._own_budgets_s)

    def form(self, waiting: Inbox, most: int) -> PendingSend:
        """Take messages from the front of an inbox, as many as one request can carry."""
        config, inbox, now_ms = self._config, waiting.inbox, int(time.time() * 1000)
        share = -(-len(inbox) // len(waiting.queues)) if waiting.queues else 0
        most = min(len(inbox), max(share, MIN_BATCH), MAX_BATCH_MESSAGES, most)
        budget_s = config.send_timeout_s
        if self._own_budgets_s:
            own = [self._own_budgets_s.get(handle) for handle in inbox[:most]]
            budget_s = config.send_timeout_s if own[0] is None else own[0]
            most = next((i for i, one in enumerate(own) if one != own[0]), most)
        prefix, number = self._keys.take(now_ms, most)
        outcome = BatchOutcome(self._loop, prefix, number)
        body, count = SendHandle._fill(inbox, outcome, prefix, number, config.max_batch_bytes, most)
        outcome.handles, outcome.count = inbox[:count], count
        del inbox[:count]
        if self._flags:
            body = self._with_flags(body, outcome.handles)
        first, last = outcome.handles[0], outcome.handles[-1]
        pending = self._submitted(waiting.name, body, outcome, f"{prefix}{number:012X}", now_ms)
        pending.started, pending.deadline = first._since, last._since + budget_s
        if self._own_budgets_s:
            for handle in outcome.handles:
                self._own_budgets_s.pop(handle, None)
        if self._observed:
            observed = [self._observed.pop(handle) for handle in outcome.handles]
            _observe(pending, observed)
        return pending

    def _with_flags(self, body: bytes, handles: Sequence[SendHandle]) -> bytes:
        flags = [self._flags.pop(handle, 0) for handle in handles]
        items = zip(flags, decode_batch(body), strict=True)
        return encode_batch([item._replace(flag=flag) for flag, item in items])

    def _submitted(
        self, topic: str, body: bytes, outcome: BatchOutcome, key: str, now_ms: int
    ) -> PendingSend:
        """Return what is sent for messages that were submitted; *body* is that of a batch."""
        count = outcome.count
        if count == 1:
            [(flag, body, properties)] = decode_batch(body)
            pending = PendingSend(topic, body, "", None, None, flag=flag)
            pending.properties = properties
            pending.size += len(properties) - KEY_BYTES
        else:
            pending = PendingSend(topic, body, "", None, None, batch=[])
            pending.properties = BATCH_PROPERTIES
            pending.size = len(body) + count * (OVERHEAD_BYTES - ITEM_BYTES)
        pending.count, pending.outcome, pending.future = count, outcome, outcome
        pending.key, pending.born_ms, pending.on_end = key, now_ms, self._on_end
        return pending

    def split(self, pending: PendingSend) -> list[PendingSend]:
        """Return the messages of a batch that was submitted, each by itself."""
        whole = pending.outcome
        assert whole is not None
        keys = pending.keys
        # an earlier try stored it, with a weaker guarantee than wished for
        results = None if pending.result is None else split_result(pending.result, keys)
        singles: list[PendingSend] = []
        items = decode_batch(pending.body)
        for index, (handle, item) in enumerate(zip(whole.handles, items, strict=True)):
            outcome = BatchOutcome(self._loop)
            outcome.handles = [handle]
            handle._index, handle._batch = 0, outcome
            one = self._submitted(
                pending.topic, encode_batch([item]), outcome, keys[index], pending.born_ms
            )
            one.result = None if results is None else results[index]
            one.started, one.deadline, one.alone = pending.started, pending.deadline, True
            one.tries, one.tried, one.error = pending.tries, pending.tried, pending.error
            one.target, one.unknown = pending.target, pending.unknown
            one.pinned = pending.pinned
            one.messages = pending.messages[index : index + 1]
            one.begun = pending.begun[index : index + 1]
            singles.append(one)
        whole.handles = []
        return singles

    def refuse(self, waiting: Inbox, observed: Observed | None, error: BaseException) -> None:
        """Report a message that does not get into its inbox."""
        if self._on_end is not None:
            pending = PendingSend(waiting.name, b"", "", None, None)
            _observe(pending, [] if observed is None else [observed])
            self._on_end(pending, None, error)

    def next_look(self, waiting: Inbox) -> float:
        """Return the time at which a message of an inbox may end."""
        return min(self._deadline_of(waiting.inbox[0]), self._next_own_end())

    def bring_due_forward(self, waiting: Inbox, now: float) -> int:
        """Return the number of messages of an inbox whose time is up: they are at its front."""
        inbox = waiting.inbox
        if now < self._next_own_end():
            due = 0
            while due < len(inbox) and self._deadline_of(inbox[due]) <= now:
                due += 1
            return due
        found = [handle for handle in inbox if self._deadline_of(handle) <= now]
        for handle in reversed(found):
            # one step each: other threads append
            inbox.remove(handle)
            inbox.insert(0, handle)
        left = list(self._own_budgets_s.items())
        ends = [handle._since + budget_s for handle, budget_s in left if handle not in found]
        self._next_end = min(ends, default=math.inf)
        return len(found)

    def _deadline_of(self, handle: SendHandle) -> float:
        return handle._since + self._own_budgets_s.get(handle, self._config.send_timeout_s)

    def _next_own_end(self) -> float:
        """Return a time before which no message with a budget of its own ends."""
        while self._ends:
            self._next_end = min(self._next_end, self._ends.popleft())
        return self._next_end


def _observe(pending: PendingSend, observed: Sequence[Observed]) -> None:
    """Note what hooks and the instrumentation saw of the messages of *pending*."""
    pending.messages = [message for message, _ in observed]
    pending.begun = [one for _, begun in observed for one in begun]
