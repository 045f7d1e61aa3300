"""Pull consumer: the application polls for messages, and decides where to read and what to
commit.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Literal

from ogive.client.config import (
    DEFAULT_NAME_SERVER,
    MAX_TIME_S,
    ClientConfig,
    check_type,
    own_config,
)
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.filter import select, subscription, validate_filter, warn_of_tags
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.pull_member import PullMember, PullSettings
from ogive.client.consumer.subscription import OnChange, bare_on_change
from ogive.client.instance import ClientInstance, ClientOwner, StartedByWith
from ogive.client.instrumentation import observed
from ogive.client.listener import Start, validate_start
from ogive.errors import IllegalStateError, InvalidOption
from ogive.keywords import explains
from ogive.model import MessageExt, MessageQueue, PullResult, check_offset, check_queue


@explains
class PullConsumer(StartedByWith):
    """Consumer of messages on demand: ``async with PullConsumer("Orders", group="replay") as
    consumer``.

    With *topics* it is a member of *group* and shares their queues with the other members. Without
    topics it reads the queues given to ``assign``; without a group as well, it leaves no trace at
    the brokers.

    *tags* or *sql* choose messages. *start* is where to begin in a queue without a committed
    offset: "latest", "earliest" or a datetime. With *auto_commit* the messages of a poll count as
    finished at the next poll, or when the consumer is closed in good order. *on_change* is called
    with the queues gained and lost, from within ``poll`` and before it returns anything of a new
    queue. *client* takes either settings, instead of *name_server*, or a running client to share,
    which stays open. Raises InvalidOption.
    """

    def __init__(
        self,
        *topics: str,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        start: Start = "latest",
        auto_commit: bool = True,
        on_change: OnChange | None = None,
        name_server: str = DEFAULT_NAME_SERVER,
        config: ConsumerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        for topic in topics:
            if not isinstance(topic, str):
                raise TypeError(
                    "topics are str, one argument each: PullConsumer('Orders', 'Refunds', "
                    f"group=...), not {type(topic).__name__}"
                )
        self._settings = PullSettings(
            topics=topics,
            group=group,
            tags=tags,
            sql=sql,
            start=start,
            auto_commit=auto_commit,
            on_change=on_change,
        )
        warn_of_tags(tags)
        self._config = own_config(config, ConsumerConfig)
        self._owner = ClientOwner("pull consumer", name_server, client)
        self._namespace = namespace = self._owner.namespace
        self._wire_settings = replace(
            self._settings,
            topics=tuple(map(namespace.wrap, topics)),
            group=None if group is None else namespace.wrap(group),
            on_change=bare_on_change(on_change, namespace),
        )
        self._member: PullMember | None = None
        self._closing: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, if there are topics.

        Raises NoNameServer, the BrokerError of a broker that refuses the member, and
        IllegalStateError after an earlier start.
        """
        instance = await self._owner.start()
        self._member = PullMember(instance, self._wire_settings, self._config)
        instance.on_failure.append(self._fail)
        try:
            await self._member.start()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group and close the client.

        With auto-commit the last poll's messages count as finished. Closing again does nothing.
        """
        await self.close_for(in_good_order=True)

    async def close_for(self, *, in_good_order: bool) -> None:
        """Close. Unless *in_good_order*, the last poll's messages do not count as finished, and are
        delivered again.
        """
        if not self._owner.started:
            return
        if self._closing is None:
            self._closing = asyncio.create_task(
                self._close(in_good_order), name="close pull consumer"
            )
        await asyncio.shield(self._closing)

    async def _close(self, in_good_order: bool) -> None:
        if self._member is None:
            return
        try:
            await self._member.stop(in_good_order=in_good_order)
        finally:
            self._owner.client.on_failure.remove(self._fail)
            await self._owner.close()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. After an exception the last poll's messages do not count as finished."""
        await self.close_for(in_good_order=kind is None)

    def _fail(self, _: BaseException) -> None:
        if self._member is not None:
            self._member.wake()

    def _running(self) -> PullMember:
        self._owner.client.check_loop()
        assert self._member is not None
        if self._closing is not None:
            raise IllegalStateError("the pull consumer is closed: make a new one")
        return self._member

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._owner.client.client_id

    # --- messages ---------------------------------------------------------------------------------

    async def poll(
        self, timeout_s: float | None = 5.0, *, max_messages: int = 1000
    ) -> list[MessageExt]:
        """Return up to *max_messages* as soon as there is one, or an empty list after *timeout_s*
        (None: wait forever) or at the close.

        The messages of a queue are in order. With auto-commit, polling again marks the messages of
        the last poll as finished. Raises IllegalStateError during another poll, and after the
        client failed.
        """
        member = self._running()
        check_type("max_messages", max_messages, int, "int")
        check_type("timeout_s", timeout_s, int | float | None, "a number of seconds or None")
        if max_messages < 1:
            raise InvalidOption(f"max_messages is {max_messages}: must be at least 1")
        if timeout_s is not None and not timeout_s >= 0:
            raise InvalidOption(f"timeout_s is {timeout_s}: must be at least 0 seconds")
        work = self._poll(member, timeout_s, max_messages)
        return await observed("poll", self._settings.group, self._settings.topics, work)

    async def _poll(
        self, member: PullMember, timeout_s: float | None, max_messages: int
    ) -> list[MessageExt]:
        messages = await member.poll(timeout_s, max_messages)
        return list(map(self._namespace.strip_message, messages)) if self._namespace else messages

    def take_back(self, _: object) -> None:
        """Return the messages of the last poll again: they did not reach the application.

        For the blocking facade.
        """
        if self._member is not None:
            self._member.take_back()

    async def batches(self, *, max_messages: int = 1000) -> AsyncIterator[list[MessageExt]]:
        """Yield what ``poll`` returns, without empty lists, until the consumer is closed."""
        while self._closing is None:
            batch = await self.poll(None, max_messages=max_messages)
            if batch:
                yield batch

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = 32,
        suspend_s: float = 0.0,
        tags: str = "*",
        sql: str | None = None,
    ) -> PullResult:
        """Pull from any queue at any offset once, without touching positions or progress.

        If there is nothing, the broker holds the request for up to *suspend_s*. Raises OgiveError.
        """
        check_offset(offset)
        check_type("max_messages", max_messages, int, "int")
        check_type("suspend_s", suspend_s, int | float, "a number of seconds")
        if max_messages < 1:
            raise InvalidOption(f"max_messages is {max_messages}: must be at least 1")
        if not 0 <= suspend_s <= MAX_TIME_S:
            raise InvalidOption(
                f"suspend_s is {suspend_s}: must be between 0 and {MAX_TIME_S:.0f} seconds"
            )
        validate_filter(tags, sql)
        queue = self._queue_on_wire(queue)
        calls = await self._calls(queue)
        wanted = subscription(queue.topic, tags, sql, 0)
        result = await calls.pull(
            queue,
            offset,
            broker_id=0,
            max_messages=max_messages,
            max_bytes=self._config.pull_batch_bytes,
            subscription=wanted,
            post_subscription=True,
            suspend_s=suspend_s,
        )
        return replace(
            result,
            messages=tuple(map(self._namespace.strip_message, select(result.messages, wanted))),
        )

    # --- queues and positions ---------------------------------------------------------------------

    @property
    def assignment(self) -> list[MessageQueue]:
        """Queues held now."""
        return (
            list(map(self._namespace.strip_queue, self._member.assignment))
            if self._member is not None
            else []
        )

    async def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues, new ones from the group's offset or else from *start*.

        For a consumer without topics.

        Raises OgiveError if an offset cannot be found out; nothing has changed then.
        """
        await self._running().assign(self._on_wire(queues))

    async def seek(
        self,
        queue: MessageQueue,
        to: int | Literal["earliest", "latest"] | None = None,
        *,
        at: datetime | None = None,
    ) -> None:
        """Continue elsewhere in a held queue: at an offset, at either end, or at the first message
        stored *at* a time or later.

        Messages pulled ahead are discarded. With auto-commit the new position also becomes the
        group's progress. Raises InvalidOption for an offset that the queue does not have,
        IllegalStateError for a queue that is not held.
        """
        member = self._running()
        if (to is None) == (at is None):
            raise InvalidOption('seek takes an offset, "earliest" or "latest", or at=datetime')
        target = at if to is None else to
        assert target is not None
        if isinstance(target, bool):
            raise InvalidOption(f"to is {target}: an offset is a number")
        if not isinstance(target, int):
            validate_start(target, "at" if to is None else "to")
        await member.seek(self._queue_on_wire(queue), target)

    async def pause(self, *queues: MessageQueue) -> None:
        """Neither pull nor return messages of *queues* (all, if none is given) until ``resume``."""
        self._running().pause(self._on_wire(queues))

    async def resume(self, *queues: MessageQueue) -> None:
        """Continue with *queues*, or with all."""
        self._running().resume(self._on_wire(queues))

    async def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that ``poll`` returns.

        Raises IllegalStateError for a queue that is not held.
        """
        return self._running().position(self._queue_on_wire(queue))

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages of each held queue still to be returned, as the brokers
        count them now. Raises OgiveError.
        """
        return {
            self._namespace.strip_queue(queue): lag
            for queue, lag in (await self._running().lag()).items()
        }

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of *topic*. Raises NoRoute."""
        check_type("topic", topic, str, "str")
        return list(
            map(
                self._namespace.strip_queue,
                await self._running().calls.queues(self._namespace.wrap(topic)),
            )
        )

    async def beginning_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        queue = self._queue_on_wire(queue)
        return await (await self._calls(queue)).min_offset(queue)

    async def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message sent to the queue will get."""
        queue = self._queue_on_wire(queue)
        return await (await self._calls(queue)).max_offset(queue)

    async def offset_at(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset of the first message stored *at* that time or later; the queue's end if
        there is none.
        """
        validate_start(at, "at")
        queue = self._queue_on_wire(queue)
        return await (await self._calls(queue)).start_offset(queue, at)

    # --- progress ---------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the group's progress: everything that was returned, or the given offsets, which
        may also go back.

        An offset is that of the next message to read. Returns once the brokers have it. Raises
        IllegalStateError for a queue that is not held, InvalidOption for an offset that the broker
        does not keep because the queue ends before it, OgiveError for the first broker that failed
        (the others have theirs). A cancelled commit is still sent.
        """
        if offsets is not None:
            _check_offsets(offsets)
        wrap = self._namespace.wrap_queue
        await self._running().commit(
            None if offsets is None else {wrap(queue): offset for queue, offset in offsets.items()}
        )

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, asked from the broker; None if it has none."""
        return await self._running().committed(self._queue_on_wire(queue))

    def _on_wire(self, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        if not isinstance(queues, Iterable):
            raise TypeError(
                f"queues must be several ogive.MessageQueue, not {type(queues).__name__}"
            )
        return list(map(self._queue_on_wire, queues))

    def _queue_on_wire(self, queue: MessageQueue) -> MessageQueue:
        check_queue(queue)
        return self._namespace.wrap_queue(queue)

    async def _calls(self, queue: MessageQueue) -> GroupClient:
        """Return the requests to brokers, with the route of *queue* known."""
        calls = self._running().calls
        await calls.queues(queue.topic)
        return calls


def _check_offsets(offsets: Mapping[MessageQueue, int]) -> None:
    if not isinstance(offsets, Mapping):
        raise TypeError(f"offsets must be {{queue: offset}}, not {type(offsets).__name__}")
    for queue, offset in offsets.items():
        check_queue(queue)
        check_offset(offset)
