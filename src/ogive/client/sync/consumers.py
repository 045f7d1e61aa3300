"""The consumers, blocking."""

import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from types import TracebackType
from typing import TypeVar

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.consumer import pull_consumer, push_consumer, simple_consumer
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.subscription import OnChange
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, Start
from ogive.client.portal import Facade, blocking
from ogive.errors import InvalidOption
from ogive.keywords import explains
from ogive.model import MessageExt, MessageQueue

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
        self._asyncio = push_consumer.PushConsumer(
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
        self._begin(self._asyncio.start, self._asyncio.close)

    def close(self) -> None:
        """Leave the groups and close the client.

        No more listener calls begin; running ones get up to *await_termination_s* to end; then
        progress is committed. A listener may call this, and is not waited for. Closing again does
        nothing.
        """
        self._end(partial(self._asyncio.close_for, threading.get_ident()))

    wait = blocking(push_consumer.PushConsumer.wait)
    subscribe = blocking(push_consumer.PushConsumer.subscribe)

    def unsubscribe(self, listener: AnyListener) -> None:
        """Remove a listener.

        Waits for its running calls, as ``close`` does, and leaves its group if it was the last one
        there.

        A listener may call this. Raises InvalidOption for a listener that does not run here.
        """
        self._live().call(self._asyncio.unsubscribe_for(listener, threading.get_ident()))

    lag = blocking(push_consumer.PushConsumer.lag)
    suspend = blocking(push_consumer.PushConsumer.suspend)
    resume = blocking(push_consumer.PushConsumer.resume)

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._asyncio.client_id

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """Queues held now, by group; those of retry topics included."""
        return self._asyncio.assignment


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
        self._asyncio = pull_consumer.PullConsumer(
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
        self._begin(self._asyncio.start, self._asyncio.close)

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
        self._end(partial(self._asyncio.close_for, in_good_order=in_good_order))

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._asyncio.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """Queues held now."""
        return self._asyncio.assignment

    poll = blocking(pull_consumer.PullConsumer.poll, take_back=True)

    def batches(self, *, max_messages: int = 1000) -> Iterator[list[MessageExt]]:
        """Yield what ``poll`` returns, without empty lists, until the consumer is closed."""
        batches = self._asyncio.batches(max_messages=max_messages)
        while (batch := self._live().call(_next(batches), self._asyncio.take_back)) is not None:
            yield batch

    pull = blocking(pull_consumer.PullConsumer.pull)
    assign = blocking(pull_consumer.PullConsumer.assign)
    seek = blocking(pull_consumer.PullConsumer.seek)
    pause = blocking(pull_consumer.PullConsumer.pause)
    resume = blocking(pull_consumer.PullConsumer.resume)
    position = blocking(pull_consumer.PullConsumer.position)
    lag = blocking(pull_consumer.PullConsumer.lag)
    queues = blocking(pull_consumer.PullConsumer.queues)
    beginning_offset = blocking(pull_consumer.PullConsumer.beginning_offset)
    end_offset = blocking(pull_consumer.PullConsumer.end_offset)
    offset_at = blocking(pull_consumer.PullConsumer.offset_at)
    commit = blocking(pull_consumer.PullConsumer.commit)
    committed = blocking(pull_consumer.PullConsumer.committed)


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
        self._asyncio = simple_consumer.SimpleConsumer(
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
        self._begin(self._asyncio.start, self._asyncio.close)

    def close(self) -> None:
        """Leave the group and close the client.

        Messages that were popped and did not reach the application are given back. Those that it
        received and has not acknowledged come again when their lease ends. Closing again does
        nothing.
        """
        self._end(self._asyncio.close)

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._asyncio.client_id

    @property
    def topics(self) -> list[str]:
        """Topics subscribed to."""
        return self._asyncio.topics

    subscribe = blocking(simple_consumer.SimpleConsumer.subscribe)
    unsubscribe = blocking(simple_consumer.SimpleConsumer.unsubscribe)
    receive = blocking(simple_consumer.SimpleConsumer.receive, take_back=True)
    ack = blocking(simple_consumer.SimpleConsumer.ack)
    change_invisible = blocking(simple_consumer.SimpleConsumer.change_invisible)


async def _next(iterator: AsyncIterator[T]) -> T | None:
    return await anext(iterator, None)
