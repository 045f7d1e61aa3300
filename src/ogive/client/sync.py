"""The blocking facade: the same words as ``ogive.aio``, for scripts, threads and jobs. A test keeps the signatures equal.

Objects may be used from any thread of the process that made them. They are never pickled, and a forked child makes its own.
"""

import concurrent.futures
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, NoReturn, Self, TypeVar

from ogive.client import producer as aio_producer
from ogive.client import transaction as aio_transaction
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, ProducerConfig
from ogive.client.consumer import pull, push
from ogive.client.consumer.announce import OnChange
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, Start
from ogive.client.lone import LoneSends
from ogive.client.outgoing import Outgoing
from ogive.client.portal import Outcome, Portal, SubmitFuture, portal
from ogive.client.producer import B
from ogive.client.publish import Publisher
from ogive.client.transaction import Check
from ogive.errors import IllegalStateError, InvalidOption, OgiveError
from ogive.model import Message, MessageExt, MessageQueue, PullResult, SendResult

T = TypeVar("T")

MAX_POSTED: Final = 256  # messages on their way to the loop, beside those in flight
POSTED_BYTES: Final = 64 * 1024  # a larger message waits for its room on the loop: what is posted is bounded in bytes, too


class Facade(ABC):
    """What all blocking objects share: the portal they live on, from ``start`` to ``close``."""

    def __init__(self) -> None:
        self._portal: Portal | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def close_at_exit(self) -> None:
        """The program ended without closing."""
        self.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} cannot be pickled: it holds connections; make one where it is used")

    def _live(self) -> Portal:
        if self._portal is None:
            raise IllegalStateError(f"this {type(self).__name__} is not started: start it, or use it in a `with` block")
        return self._portal

    def _begin(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start on the portal of this process, which closes the object at the interpreter's exit."""
        if self._portal is None:
            self._portal = portal()
        self._portal.call(start())
        self._portal.keep(self)

    def _end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, where there is anything to close: never started, in a forked child, or after the program's end there is not."""
        if self._portal is not None and self._portal.alive:
            self._portal.call(close())
            self._portal.let_go(self)


class Producer(Facade, Generic[B]):
    """Blocking ``ogive.aio.Producer``. ``with Producer() as producer``; many threads may share it."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        group: str | None = None,
        check: Check | None = None,
        serializer: Callable[[B], bytes] | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._producer: aio_producer.Producer[B] = aio_producer.Producer(
            name_server, group=group, check=check, serializer=serializer, config=config, client=client
        )
        self._lone: LoneSends | None = None

    def start(self) -> None:
        """See ``ogive.aio.Producer.start``."""
        self._begin(self._producer.start)
        self._lone = LoneSends(self._producer.publisher, self._live())

    def close(self) -> None:
        """See ``ogive.aio.Producer.close``."""
        self._end(self._producer.close)

    @property
    def in_flight(self) -> int:
        """See ``ogive.aio.Producer.in_flight``."""
        return self._producer.in_flight

    def send(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """See ``ogive.aio.Producer.send``."""
        outgoing = self._prepare(topic, body, tag, keys, properties, sharding_key, queue, delay_level, deliver_at, delay_s)
        budget = self._producer.budget_s(timeout_s)
        sent: Outcome[SendResult] = Outcome()  # Outcome[SendResult]() would take 2 us
        outgoing.future = sent
        if self._lone is None or not self._lone.send(outgoing, budget):
            self._submit(outgoing, budget)
        return sent.result()

    def submit(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        deliver_at: datetime | None = None,
        delay_s: float | None = None,
        timeout_s: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """See ``ogive.aio.Producer.submit``. Blocks while there is no room among the messages in flight.

        The messages of one thread keep their order. A failure that nobody looks at is logged.
        """
        outgoing = self._prepare(topic, body, tag, keys, properties, sharding_key, queue, delay_level, deliver_at, delay_s)
        future: SubmitFuture[SendResult] = SubmitFuture()
        outgoing.future = future
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled, so the loop may set its outcome
        self._submit(outgoing, self._producer.budget_s(timeout_s))
        return future

    def send_oneway(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """See ``ogive.aio.Producer.send_oneway``."""
        self._live().call(
            self._producer.send_oneway(
                topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key, queue=queue, timeout_s=timeout_s
            )
        )

    def transaction(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> "Transaction":
        """See ``ogive.aio.Producer.transaction``."""
        portal = self._live()
        portal.check()
        transaction = self._producer.transaction(
            topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key, queue=queue, timeout_s=timeout_s
        )
        return Transaction(transaction, portal)

    def send_batch(
        self,
        topic: str,
        messages: Iterable[B | Message],
        *,
        tag: str | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendResult]:
        """See ``ogive.aio.Producer.send_batch``."""
        return self._live().call(
            self._producer.send_batch(topic, messages, tag=tag, sharding_key=sharding_key, queue=queue, timeout_s=timeout_s)
        )

    def request(
        self,
        topic: str | Message,
        body: B | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> MessageExt:
        """See ``ogive.aio.Producer.request``."""
        return self._live().call(
            self._producer.request(
                topic, body, tag=tag, keys=keys, properties=properties, sharding_key=sharding_key, queue=queue, timeout_s=timeout_s
            )
        )

    def recall(self, topic: str, handle: str, *, timeout_s: float | None = None) -> str:
        """See ``ogive.aio.Producer.recall``."""
        return self._live().call(self._producer.recall(topic, handle, timeout_s=timeout_s))

    def flush(self) -> None:
        """See ``ogive.aio.Producer.flush``."""
        self._live().call(self._producer.flush())

    def _prepare(
        self,
        topic: str | Message,
        body: B | None,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
        deliver_at: datetime | None,
        delay_s: float | None,
    ) -> Outgoing:
        self._live().check()
        _ = self._producer.publisher  # raises where nothing can be sent
        return self._producer.prepare(topic, body, tag, keys, properties, sharding_key, queue, delay_level, deliver_at, delay_s)

    def _submit(self, outgoing: Outgoing, budget: float) -> None:
        portal, publisher = self._live(), self._producer.publisher
        if portal.posted < MAX_POSTED and outgoing.size < POSTED_BYTES and publisher.has_room(outgoing.size):
            portal.post(_take, publisher, outgoing, budget)
        else:
            portal.call(publisher.accept(outgoing, budget))


def _take(publisher: Publisher, outgoing: Outgoing, timeout_s: float) -> None:
    try:
        publisher.take(outgoing, timeout_s)
    except OgiveError as exc:
        outgoing.future.set_exception(exc)


class Transaction:
    """Blocking ``ogive.aio.Transaction``. ``with producer.transaction(topic, body) as transaction``."""

    def __init__(self, transaction: aio_transaction.Transaction, portal: Portal) -> None:
        self._transaction, self._portal = transaction, portal

    def __enter__(self) -> Self:
        self._portal.call(self._transaction.__aenter__())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._portal.call(self._transaction.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        """See ``ogive.aio.Transaction.id``."""
        return self._transaction.id

    @property
    def confirmed(self) -> bool:
        """See ``ogive.aio.Transaction.confirmed``."""
        return self._transaction.confirmed

    def rollback(self) -> None:
        """See ``ogive.aio.Transaction.rollback``."""
        self._transaction.rollback()

    def leave_open(self) -> None:
        """See ``ogive.aio.Transaction.leave_open``."""
        self._transaction.leave_open()


class PushConsumer(Facade):
    """Blocking ``ogive.aio.PushConsumer`` for listeners. ``with PushConsumer(bill, ship) as consumer``.

    Plain listeners are called in threads, ``async def`` ones on ogive's loop. To iterate over messages use ``ogive.aio``.
    """

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
            raise InvalidOption("a blocking push consumer calls listeners; to iterate over messages use ogive.aio.PushConsumer")
        self._consumer = push.PushConsumer(
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
        """See ``ogive.aio.PushConsumer.start``."""
        self._begin(self._consumer.start)

    def close(self) -> None:
        """See ``ogive.aio.PushConsumer.close``. A listener may call it."""
        self._end(partial(self._consumer.close_for, threading.get_ident()))

    def wait(self) -> None:
        """See ``ogive.aio.PushConsumer.wait``."""
        self._live().call(self._consumer.wait())

    def subscribe(self, listener: AnyListener) -> None:
        """See ``ogive.aio.PushConsumer.subscribe``."""
        self._live().call(self._consumer.subscribe(listener))

    def unsubscribe(self, listener: AnyListener) -> None:
        """See ``ogive.aio.PushConsumer.unsubscribe``. A listener may call it."""
        self._live().call(self._consumer.unsubscribe_for(listener, threading.get_ident()))

    def lag(self) -> dict[MessageQueue, int]:
        """See ``ogive.aio.PushConsumer.lag``."""
        return self._live().call(self._consumer.lag())

    def suspend(self) -> None:
        """See ``ogive.aio.PushConsumer.suspend``."""
        self._live().call(self._consumer.suspend())

    def resume(self) -> None:
        """See ``ogive.aio.PushConsumer.resume``."""
        self._live().call(self._consumer.resume())

    @property
    def client_id(self) -> str:
        """See ``ogive.aio.PushConsumer.client_id``."""
        return self._consumer.client_id

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """See ``ogive.aio.PushConsumer.assignment``."""
        return self._consumer.assignment


class PullConsumer(Facade):
    """Blocking ``ogive.aio.PullConsumer``. ``with PullConsumer("Orders", group="replay") as consumer``. One thread polls."""

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
        self._consumer = pull.PullConsumer(
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
        """See ``ogive.aio.PullConsumer.start``."""
        self._begin(self._consumer.start)

    def close(self) -> None:
        """See ``ogive.aio.PullConsumer.close``."""
        self._close(in_good_order=True)

    def close_at_exit(self) -> None:
        """Nobody said that what the last poll handed out is finished: it will be delivered again."""
        self._close(in_good_order=False)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """A block that ends with an exception has not finished what it had in hand."""
        self._close(in_good_order=kind is None)

    def _close(self, *, in_good_order: bool) -> None:
        self._end(partial(self._consumer.close_for, in_good_order=in_good_order))

    @property
    def client_id(self) -> str:
        """See ``ogive.aio.PullConsumer.client_id``."""
        return self._consumer.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """See ``ogive.aio.PullConsumer.assignment``."""
        return self._consumer.assignment

    def poll(self, timeout_s: float | None = 5.0, *, max_messages: int = 1000) -> list[MessageExt]:
        """See ``ogive.aio.PullConsumer.poll``."""
        return self._live().call(self._consumer.poll(timeout_s, max_messages=max_messages))

    def batches(self, *, max_messages: int = 1000) -> Iterator[list[MessageExt]]:
        """See ``ogive.aio.PullConsumer.batches``."""
        batches = self._consumer.batches(max_messages=max_messages)
        while (batch := self._live().call(_next(batches))) is not None:
            yield batch

    def pull(
        self, queue: MessageQueue, offset: int, *, max_messages: int = 32, suspend_s: float = 0.0, tags: str = "*", sql: str | None = None
    ) -> PullResult:
        """See ``ogive.aio.PullConsumer.pull``."""
        return self._live().call(self._consumer.pull(queue, offset, max_messages=max_messages, suspend_s=suspend_s, tags=tags, sql=sql))

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """See ``ogive.aio.PullConsumer.assign``."""
        self._live().call(self._consumer.assign(queues))

    def seek(self, queue: MessageQueue, to: int | Literal["earliest", "latest"] | None = None, *, at: datetime | None = None) -> None:
        """See ``ogive.aio.PullConsumer.seek``."""
        self._live().call(self._consumer.seek(queue, to, at=at))

    def pause(self, *queues: MessageQueue) -> None:
        """See ``ogive.aio.PullConsumer.pause``."""
        self._live().call(self._consumer.pause(*queues))

    def resume(self, *queues: MessageQueue) -> None:
        """See ``ogive.aio.PullConsumer.resume``."""
        self._live().call(self._consumer.resume(*queues))

    def position(self, queue: MessageQueue) -> int:
        """See ``ogive.aio.PullConsumer.position``."""
        return self._live().call(self._consumer.position(queue))

    def lag(self) -> dict[MessageQueue, int]:
        """See ``ogive.aio.PullConsumer.lag``."""
        return self._live().call(self._consumer.lag())

    def queues(self, topic: str) -> list[MessageQueue]:
        """See ``ogive.aio.PullConsumer.queues``."""
        return self._live().call(self._consumer.queues(topic))

    def beginning_offset(self, queue: MessageQueue) -> int:
        """See ``ogive.aio.PullConsumer.beginning_offset``."""
        return self._live().call(self._consumer.beginning_offset(queue))

    def end_offset(self, queue: MessageQueue) -> int:
        """See ``ogive.aio.PullConsumer.end_offset``."""
        return self._live().call(self._consumer.end_offset(queue))

    def offset_at(self, queue: MessageQueue, at: datetime) -> int:
        """See ``ogive.aio.PullConsumer.offset_at``."""
        return self._live().call(self._consumer.offset_at(queue, at))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """See ``ogive.aio.PullConsumer.commit``."""
        self._live().call(self._consumer.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        """See ``ogive.aio.PullConsumer.committed``."""
        return self._live().call(self._consumer.committed(queue))


async def _next(iterator: AsyncIterator[T]) -> T | None:
    return await anext(iterator, None)
