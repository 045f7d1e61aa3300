"""The consumers, blocking."""

import threading
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Literal, TypeVar

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.consumer import pull_consumer, push_consumer, simple_consumer
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.subscription import OnChange
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, Start
from ogive.client.portal import Facade
from ogive.errors import InvalidOption
from ogive.keywords import explains
from ogive.model import MessageExt, MessageQueue, PullResult

T = TypeVar("T")


@explains
class PushConsumer(Facade):
    """Consumer that calls listeners: ``with PushConsumer(bill, ship) as consumer``.

    Several listeners may be of one group.

    Plain listeners run in threads, ``async def`` ones on ogive's own event loop. *on_change* is
    called with the queues that were gained and lost, whenever that happens. *client* takes either
    settings, instead of *name_server*, or a running client to share, which stays open. To iterate
    over messages use ``ogive.aio.PushConsumer``; the arguments from *group* to *broadcast* are for
    that.
    """

    _consumes = True

    def __init__(
        self,
        *listeners: AnyListener | str,
        name_server: str = DEFAULT_NAME_SERVER,
        group: str | None = None,
        tags: str = "*",
        sql: str | None = None,
        max_retries: int | None = None,
        consume_timeout_s: float = 900.0,
        start: Start = "latest",
        broadcast: bool = False,
        on_change: OnChange | None = None,
        config: ConsumerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        if listeners and all(isinstance(one, str) for one in listeners):
            raise InvalidOption(
                "a blocking push consumer calls listeners; to iterate over messages use "
                "ogive.aio.PushConsumer"
            )
        self._consumer = push_consumer.PushConsumer(
            *listeners,
            name_server=name_server,
            group=group,
            tags=tags,
            sql=sql,
            max_retries=max_retries,
            consume_timeout_s=consume_timeout_s,
            start=start,
            broadcast=broadcast,
            on_change=on_change,
            config=config,
            client=client,
        )

    def start(self) -> None:
        """Join the groups.

        Raises NoNameServer, the BrokerError of a broker that refuses a group or its topics, and
        IllegalStateError after an earlier start.
        """
        self._begin(self._consumer.start, self._consumer.close)

    def close(self) -> None:
        """Leave the groups and close the client.

        No more listener calls begin; running ones get up to *await_termination_s* to end; then
        progress is committed. A listener may call this, and is not waited for. Closing again does
        nothing.
        """
        self._end(partial(self._consumer.close_for, threading.get_ident()))

    def wait(self) -> None:
        """Wait until the consumer is closed.

        Raises IllegalStateError if an unexpected error stopped it.
        """
        self._live().call(self._consumer.wait())

    def subscribe(self, listener: AnyListener) -> None:
        """Add a listener, in a new group or in one that this consumer is in.

        Raises InvalidOption, NoNameServer, and the BrokerError of a broker that refuses the group
        or the topic; nothing has changed then.
        """
        self._live().call(self._consumer.subscribe(listener))

    def unsubscribe(self, listener: AnyListener) -> None:
        """Remove a listener.

        Waits for its running calls, as ``close`` does, and leaves its group if it was the last one
        there.

        A listener may call this. Raises InvalidOption for a listener that does not run here.
        """
        self._live().call(self._consumer.unsubscribe_for(listener, threading.get_ident()))

    def lag(self) -> dict[MessageQueue, int]:
        """Return the number of unfinished messages of each queue that this consumer holds, as the
        brokers count them now. Raises OgiveError.
        """
        return self._live().call(self._consumer.lag())

    def suspend(self) -> None:
        """Stop pulling until ``resume``. Messages that were pulled are still consumed."""
        self._live().call(self._consumer.suspend())

    def resume(self) -> None:
        """Pull again after ``suspend``."""
        self._live().call(self._consumer.resume())

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._consumer.client_id

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """Queues held now, by group; those of retry topics included."""
        return self._consumer.assignment


@explains
class PullConsumer(Facade):
    """Consumer of messages on demand: ``with PullConsumer("Orders", group="replay") as consumer``.

    One thread at a time may poll.

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

    _consumes = True

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
        super().__init__()
        self._consumer = pull_consumer.PullConsumer(
            *topics,
            group=group,
            tags=tags,
            sql=sql,
            start=start,
            auto_commit=auto_commit,
            on_change=on_change,
            name_server=name_server,
            config=config,
            client=client,
        )

    def start(self) -> None:
        """Join the group, if there are topics.

        Raises NoNameServer, the BrokerError of a broker that refuses the member, and
        IllegalStateError after an earlier start.
        """
        self._begin(self._consumer.start, self._consumer.close)

    def close(self) -> None:
        """Leave the group and close the client.

        With auto-commit the last poll's messages count as finished. Closing again does nothing.
        """
        self._close(in_good_order=True)

    def close_at_exit(self) -> None:
        """Close. The last poll's messages are delivered again: nobody said that they are
        finished.
        """
        self._close(in_good_order=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close. After an exception the last poll's messages do not count as finished."""
        self._close(in_good_order=kind is None)

    def _close(self, *, in_good_order: bool) -> None:
        self._end(partial(self._consumer.close_for, in_good_order=in_good_order))

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._consumer.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """Queues held now."""
        return self._consumer.assignment

    def poll(self, timeout_s: float | None = 5.0, *, max_messages: int = 1000) -> list[MessageExt]:
        """Return up to *max_messages* as soon as there is one, or an empty list after *timeout_s*
        (None: wait forever) or at the close.

        The messages of a queue are in order. With auto-commit, polling again marks the messages of
        the last poll as finished. Raises IllegalStateError during another poll, and after the
        client failed.
        """
        return self._live().call(
            self._consumer.poll(timeout_s, max_messages=max_messages), self._consumer.take_back
        )

    def batches(self, *, max_messages: int = 1000) -> Iterator[list[MessageExt]]:
        """Yield what ``poll`` returns, without empty lists, until the consumer is closed."""
        batches = self._consumer.batches(max_messages=max_messages)
        while (batch := self._live().call(_next(batches), self._consumer.take_back)) is not None:
            yield batch

    def pull(
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
        return self._live().call(
            self._consumer.pull(
                queue, offset, max_messages=max_messages, suspend_s=suspend_s, tags=tags, sql=sql
            )
        )

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues, new ones from the group's offset or else from *start*.

        For a consumer without topics.

        Raises OgiveError if an offset cannot be found out; nothing has changed then.
        """
        self._live().call(self._consumer.assign(queues))

    def seek(
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
        self._live().call(self._consumer.seek(queue, to, at=at))

    def pause(self, *queues: MessageQueue) -> None:
        """Neither pull nor return messages of *queues* (all, if none is given) until ``resume``."""
        self._live().call(self._consumer.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Continue with *queues*, or with all."""
        self._live().call(self._consumer.resume(*queues))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that ``poll`` returns.

        Raises IllegalStateError for a queue that is not held.
        """
        return self._live().call(self._consumer.position(queue))

    def lag(self) -> dict[MessageQueue, int]:
        """Return the number of messages of each held queue still to be returned, as the brokers
        count them now. Raises OgiveError.
        """
        return self._live().call(self._consumer.lag())

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of *topic*. Raises NoRoute."""
        return self._live().call(self._consumer.queues(topic))

    def beginning_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message in the queue."""
        return self._live().call(self._consumer.beginning_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message sent to the queue will get."""
        return self._live().call(self._consumer.end_offset(queue))

    def offset_at(self, queue: MessageQueue, at: datetime) -> int:
        """Return the offset of the first message stored *at* that time or later; the queue's end if
        there is none.
        """
        return self._live().call(self._consumer.offset_at(queue, at))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the group's progress: everything that was returned, or the given offsets, which
        may also go back.

        An offset is that of the next message to read. Returns once the brokers have it. Raises
        IllegalStateError for a queue that is not held, InvalidOption for an offset that the broker
        does not keep because the queue ends before it, OgiveError for the first broker that failed
        (the others have theirs). A cancelled commit is still sent.
        """
        self._live().call(self._consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, asked from the broker; None if it has none."""
        return self._live().call(self._consumer.committed(queue))


@explains
class SimpleConsumer(Facade):
    """Consumer of messages on a lease: ``with SimpleConsumer("Orders", group="billing") as
    consumer``, then ``receive`` and ``ack``. Several threads may use it.

    No member holds a queue: each receive gets messages that no other member has at present. A
    message that is not acknowledged before its lease ends is delivered again.

    *tags* or *sql* choose messages of the *topics*; ``subscribe`` takes other ones. *start* is
    where a new group begins: "latest" or "earliest". *client* takes either settings, instead of
    *name_server*, or a running client to share, which stays open. Raises InvalidOption.
    """

    _consumes = True

    def __init__(
        self,
        *topics: str,
        group: str,
        tags: str = "*",
        sql: str | None = None,
        start: Start = "latest",
        name_server: str = DEFAULT_NAME_SERVER,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._consumer = simple_consumer.SimpleConsumer(
            *topics,
            group=group,
            tags=tags,
            sql=sql,
            start=start,
            name_server=name_server,
            client=client,
        )

    def start(self) -> None:
        """Join the group.

        Raises NoNameServer, the BrokerError of a broker that refuses the member or a filter, and
        IllegalStateError after an earlier start. A topic that does not exist yet is waited for.
        """
        self._begin(self._consumer.start, self._consumer.close)

    def close(self) -> None:
        """Leave the group and close the client.

        Messages that were popped and did not reach the application are given back. Those that it
        received and has not acknowledged come again when their lease ends. Closing again does
        nothing.
        """
        self._end(self._consumer.close)

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._consumer.client_id

    @property
    def topics(self) -> list[str]:
        """Topics subscribed to."""
        return self._consumer.topics

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        """Receive messages of *topic* as well, or choose others of it from now on.

        Raises InvalidOption, NoNameServer, and the BrokerError of a broker that refuses the topic
        or the filter; nothing has changed then.
        """
        self._live().call(self._consumer.subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Receive no more messages of *topic*. Raises InvalidOption for an unknown one."""
        self._live().call(self._consumer.unsubscribe(topic))

    def receive(
        self, max_messages: int = 16, *, invisible_s: float = 30.0, wait_s: float = 20.0
    ) -> list[MessageExt]:
        """Return up to *max_messages* as soon as there is one, or an empty list after *wait_s* or
        at the close.

        No member gets them again within *invisible_s*; ``ack`` finishes one for good. Brokers give
        at most 32 at a time. Raises IllegalStateError without topics, and with 65,536 messages that
        are neither acknowledged nor delivered again; OgiveError if all brokers fail.
        """
        return self._live().call(
            self._consumer.receive(max_messages, invisible_s=invisible_s, wait_s=wait_s),
            self._consumer.take_back,
        )

    def ack(self, *messages: MessageExt) -> None:
        """Finish received messages: they are not delivered again. Several go in one request.

        Raises LeaseEnded if one cannot be finished any more: it is delivered again, or was
        acknowledged before. The others are acknowledged then. After another OgiveError the messages
        may be acknowledged again.
        """
        self._live().call(self._consumer.ack(*messages))

    def change_invisible(self, message: MessageExt, seconds: float) -> None:
        """Keep a received message for *seconds* from now; 0 has it delivered again at once.

        Raises LeaseEnded if it is delivered again already, or was acknowledged.
        """
        self._live().call(self._consumer.change_invisible(message, seconds))


async def _next(iterator: AsyncIterator[T]) -> T | None:
    return await anext(iterator, None)
