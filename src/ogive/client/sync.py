"""The blocking facade: the same words as ``ogive.aio``, for scripts, threads and jobs. A test keeps the signatures equal.

Objects may be used from any thread of the process that made them. They are never pickled, and a forked child makes its own.
"""

import concurrent.futures
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from ogive.client import producer as aio_producer
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, ProducerConfig
from ogive.client.consumer import push
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.instance import ClientInstance
from ogive.client.listener import AnyListener, Start
from ogive.client.outgoing import Outgoing
from ogive.client.portal import Portal, SubmitFuture, portal
from ogive.client.publish import Publisher
from ogive.errors import IllegalStateError, InvalidOption, OgiveError
from ogive.model import Message, MessageQueue, SendResult

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


class Producer(Facade):
    """Blocking ``ogive.aio.Producer``. ``with Producer() as producer``; many threads may share it."""

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        group: str | None = None,
        config: ProducerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._producer = aio_producer.Producer(name_server, group=group, config=config, client=client)

    def start(self) -> None:
        """See ``ogive.aio.Producer.start``."""
        self._begin(self._producer.start)

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
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout_s: float | None = None,
    ) -> SendResult:
        """See ``ogive.aio.Producer.send``."""
        return self._submit(topic, body, tag, keys, properties, sharding_key, queue, delay_level, timeout_s).result()

    def submit(
        self,
        topic: str | Message,
        body: bytes | None = None,
        *,
        tag: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        sharding_key: str | None = None,
        queue: MessageQueue | None = None,
        delay_level: int = 0,
        timeout_s: float | None = None,
    ) -> concurrent.futures.Future[SendResult]:
        """See ``ogive.aio.Producer.submit``. Blocks while there is no room among the messages in flight.

        The messages of one thread keep their order. A failure that nobody looks at is logged.
        """
        return self._submit(topic, body, tag, keys, properties, sharding_key, queue, delay_level, timeout_s)

    def send_oneway(
        self,
        topic: str | Message,
        body: bytes | None = None,
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

    def send_batch(
        self,
        topic: str,
        messages: Iterable[bytes | Message],
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

    def flush(self) -> None:
        """See ``ogive.aio.Producer.flush``."""
        self._live().call(self._producer.flush())

    def _submit(
        self,
        topic: str | Message,
        body: bytes | None,
        tag: str | None,
        keys: str | Iterable[str],
        properties: Mapping[str, str] | None,
        sharding_key: str | None,
        queue: MessageQueue | None,
        delay_level: int,
        timeout_s: float | None,
    ) -> SubmitFuture[SendResult]:
        portal = self._live()
        portal.check()
        producer = self._producer
        publisher = producer.publisher
        budget = producer.budget_s(timeout_s)
        outgoing = producer.prepare(topic, body, tag, keys, properties, sharding_key, queue, delay_level)
        future: SubmitFuture[SendResult] = SubmitFuture()
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled, so the loop may set its outcome
        outgoing.future = future
        if portal.posted < MAX_POSTED and outgoing.size < POSTED_BYTES and publisher.has_room(outgoing.size):
            portal.post(_take, publisher, outgoing, budget)
        else:
            portal.call(publisher.accept(outgoing, budget))
        return future


def _take(publisher: Publisher, outgoing: Outgoing, timeout_s: float) -> None:
    try:
        publisher.take(outgoing, timeout_s)
    except OgiveError as exc:
        outgoing.future.set_exception(exc)


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
        max_retries: int | None = None,
        consume_timeout_s: float = 900.0,
        start: Start = "latest",
        config: ConsumerConfig | None = None,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        if any(isinstance(one, str) for one in listeners):
            raise InvalidOption("a blocking push consumer calls listeners; to iterate over messages use ogive.aio.PushConsumer")
        self._consumer = push.PushConsumer(
            *listeners,
            name_server=name_server,
            group=group,
            tags=tags,
            max_retries=max_retries,
            consume_timeout_s=consume_timeout_s,
            start=start,
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
