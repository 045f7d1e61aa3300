"""Push consumer: members of one or several groups on one client, and ``run`` for programs that only
consume.
"""

import asyncio
import functools
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Self

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig, own_config
from ogive.client.consumer.concurrent import ConcurrentService
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.consumer.delivery import ConsumeService
from ogive.client.consumer.filter import warn_of_tags
from ogive.client.consumer.listener_call import no_function
from ogive.client.consumer.member import PushMember, check_one_group
from ogive.client.consumer.message_iterator import IncomingMessage, IteratorService
from ogive.client.consumer.orderly import OrderlyService
from ogive.client.consumer.pop_member import PopMember
from ogive.client.consumer.subscription import MemberContext, OnChange
from ogive.client.consumer.workers import Callers
from ogive.client.instance import ClientInstance, ClientOwner, StartedByWith
from ogive.client.listener import AnyListener, Listener, ListenerConfig, Start
from ogive.errors import IllegalStateError, InvalidOption
from ogive.keywords import explained, explains
from ogive.model import MessageQueue
from ogive.transport.event_loop import each

log = logging.getLogger(__name__)

_found_in: Final[ContextVar[str | None]] = ContextVar("found_in", default=None)


@explains
class PushConsumer(StartedByWith):
    """Consumer that calls listeners: ``async with PushConsumer(bill, ship) as consumer``. Several
    listeners may be of one group.

    Given a topic and a *group* instead of listeners, ``async for message in consumer`` yields
    messages, each to be finished by ``async with message.process()``. *tags*, *sql*, *max_retries*,
    *consume_timeout_s*, *start* and *broadcast* then mean what they mean for ``listener``;
    listeners have their own.

    *on_change* is called with the queues that were gained and lost, whenever that happens: a plain
    function in a thread, an ``async def`` on the loop. *client* takes either settings, instead of
    *name_server*, or a running client to share, which stays open.
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
        self._config = own_config(config, ConsumerConfig)
        self._owner = ClientOwner("push consumer", name_server, client)
        topics = [one for one in listeners if isinstance(one, str)]
        self._iterated = bool(topics)
        if not topics:
            self._listeners = _checked_listeners(listeners, group)
        elif any(isinstance(one, Listener) for one in listeners):
            raise InvalidOption(
                f"{topics[0]!r} stands among listeners, which name their topics: an address is "
                "given as name_server="
            )
        elif len(listeners) > 1 or group is None:
            raise InvalidOption(
                "to iterate, give one topic and a group; to consume several topics, give listeners"
            )
        else:
            settings = ListenerConfig(
                topic=topics[0],
                group=group,
                tags=tags,
                sql=sql,
                max_retries=max_retries,
                consume_timeout_s=consume_timeout_s,
                start=start,
                broadcast=broadcast,
            )
            warn_of_tags(tags)
            self._listeners = [Listener(no_function, settings, f"iteration over {topics[0]}")]
        if self._iterated and self._config.interceptors:
            raise InvalidOption(
                "interceptors stand around listener calls; an iterated consumer makes none"
            )
        self._by_group = _by_group(self._listeners)
        self._on_change = on_change
        # one subscribe, unsubscribe or close at a time
        self._changing = asyncio.Lock()
        # of subscribe, unsubscribe and close
        self._callers = Callers()
        self._changes: set[asyncio.Task[None]] = set()
        self._members: list[PushMember] = []
        self._iteration: IteratorService | None = None
        self._closing: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None] | None = None

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the groups.

        Raises NoNameServer, the BrokerError of a broker that refuses a group or its topics, and
        IllegalStateError after an earlier start.
        """
        instance = await self._owner.start()
        self._ended = asyncio.get_running_loop().create_future()
        instance.on_failure.append(self._fail)
        try:
            self._members = [self._member_of(listeners) for listeners in self._by_group]
            await each(self._members, PushMember.prepare)
            for member in self._members:
                member.register()
            await instance.announce()
            for member in self._members:
                member.begin()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the groups and close the client.

        No more listener calls begin; running ones get up to *await_termination_s* to end; then
        progress is committed. A listener may call this, and is not waited for. Closing again does
        nothing.
        """
        await self.close_for(asyncio.current_task())

    async def close_for(self, caller: object) -> None:
        """Close for *caller*: a task, or the ident of a thread."""
        with self._callers.waiting(caller):
            if self._closing is None:
                self._closing = asyncio.create_task(self._close(), name="close consumer")
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        if not self._owner.started:
            return
        async with self._changing:
            await self._leave_all(self._owner.client)

    async def _leave_all(self, instance: ClientInstance) -> None:
        try:
            for result in await asyncio.gather(
                *(member.stop(self._callers) for member in self._members), return_exceptions=True
            ):
                if isinstance(result, BaseException):
                    log.error("could not leave a group cleanly", exc_info=result)
        finally:
            instance.on_failure.remove(self._fail)
            await self._owner.close()
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    async def wait(self) -> None:
        """Wait until the consumer is closed.

        Raises IllegalStateError if an unexpected error stopped it.
        """
        instance = self._owner.client
        instance.check_loop()
        assert self._ended is not None
        await asyncio.shield(self._ended)
        if instance.failure is not None:
            raise IllegalStateError(
                "the consumer stopped after an unexpected error"
            ) from instance.failure

    def _fail(self, error: BaseException) -> None:
        for member in self._members:
            member.abandon()
        if self._iteration is not None:
            self._iteration.fail(error)
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # --- use --------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        if not self._iterated:
            raise IllegalStateError(
                "this consumer calls listeners; to iterate, make one with a topic and a group"
            )
        return self

    async def __anext__(self) -> IncomingMessage:
        self._owner.client.check_loop()
        assert self._iteration is not None
        return await self._iteration.next()

    async def subscribe(self, listener: AnyListener) -> None:
        """Add a listener, in a new group or in one that this consumer is in.

        Raises InvalidOption, NoNameServer, and the BrokerError of a broker that refuses the group
        or the topic; nothing has changed then.
        """
        self._check_listening()
        (listener,) = _checked_listeners([listener], None)
        await self._change(self._subscribe(listener), "subscribe")

    async def _subscribe(self, listener: AnyListener) -> None:
        async with self._changing:
            self._check_listening()
            member = self._member(listener.config.group)
            if member is not None:
                await member.add(listener)
                return
            try:
                await self._join([listener])
            except BaseException:
                await self._members.pop().stop()
                raise

    async def unsubscribe(self, listener: AnyListener) -> None:
        """Remove a listener.

        Waits for its running calls, as ``close`` does, and leaves its group if it was the last one
        there.

        A listener may call this. Raises InvalidOption for a listener that does not run here.
        """
        await self.unsubscribe_for(listener, asyncio.current_task())

    async def unsubscribe_for(self, listener: AnyListener, caller: object) -> None:
        """Unsubscribe for *caller*: a task, or the ident of a thread."""
        self._check_listening()
        with self._callers.waiting(caller):
            await self._change(self._unsubscribe(listener), "unsubscribe")

    async def _unsubscribe(self, listener: AnyListener) -> None:
        async with self._changing:
            self._check_listening()
            group, topic = listener.config.group, self._owner.namespace.wrap(listener.config.topic)
            member = self._member(group)
            if member is None or topic not in member.topics:
                raise InvalidOption(
                    f"no listener of {listener.config.topic} in group {group} runs here"
                )
            if len(member.topics) > 1:
                await member.remove(topic, self._callers)
            else:
                self._members.remove(member)
                await member.stop(self._callers)
                member.announce()

    async def _change(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Finish a change even if its caller is cancelled: half of it would leave queues that
        nobody consumes.
        """
        task = asyncio.create_task(work, name=f"{name} of {self.client_id}")
        self._changes.add(task)
        task.add_done_callback(self._changed)
        await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[None]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            # perhaps nobody waits for it any more
            task.exception()

    def _check_listening(self) -> None:
        self._owner.client.check_running()
        if self._iterated:
            raise IllegalStateError("this consumer is iterated over: its topic stays as it is")
        if self._closing is not None:
            raise IllegalStateError("the push consumer is closed; make a new one")

    def _member(self, group: str) -> PushMember | None:
        group = self._owner.namespace.wrap(group)
        return next((member for member in self._members if member.group == group), None)

    async def _join(self, listeners: Sequence[AnyListener]) -> None:
        member = self._member_of(listeners)
        self._members.append(member)
        await member.start()

    def _member_of(self, listeners: Sequence[AnyListener]) -> PushMember:
        make = PopMember if listeners[0].config.mode == "pop" else PushMember
        return make(
            self._owner.client, listeners, self._config, self._make_service, self._on_change
        )

    async def lag(self) -> dict[MessageQueue, int]:
        """Return the number of unfinished messages of each queue that this consumer holds, as the
        brokers count them now. Raises OgiveError.
        """
        self._owner.client.check_running()
        namespace = self._owner.namespace
        lags: dict[MessageQueue, int] = {}
        for member in self._members:
            lags.update(
                {namespace.strip_queue(queue): lag for queue, lag in (await member.lag()).items()}
            )
        return lags

    async def suspend(self) -> None:
        """Stop pulling until ``resume``. Messages that were pulled are still consumed."""
        _ = self._owner.client
        for member in self._members:
            member.suspend()

    async def resume(self) -> None:
        """Pull again after ``suspend``."""
        _ = self._owner.client
        for member in self._members:
            member.resume()

    @property
    def client_id(self) -> str:
        """Name of this consumer at the brokers."""
        return self._owner.client.client_id

    @property
    def assignment(self) -> dict[str, list[MessageQueue]]:
        """Queues held now, by group; those of retry topics included."""
        namespace = self._owner.namespace
        return {
            namespace.strip(member.group): sorted(map(namespace.strip_queue, member.assignment))
            for member in self._members
        }

    def _make_service(
        self, group: MemberContext, listener: AnyListener, config: ConsumerConfig
    ) -> ConsumeService:
        if self._iterated:
            self._iteration = IteratorService(group, listener, config)
            return self._iteration
        if listener.config.orderly:
            return OrderlyService(group, listener)
        return ConcurrentService(group, listener, config)


def _checked_listeners(given: Sequence[Any], group: str | None) -> list[AnyListener]:
    if not given:
        raise InvalidOption("a push consumer needs at least one listener, or a topic and a group")
    for one in given:
        if not isinstance(one, Listener):
            raise InvalidOption(
                f"{one!r} is not a listener: decorate it with @ogive.listener(topic, group=...)"
            )
    if group is not None:
        raise InvalidOption(
            "listeners have their own groups; group= is for a consumer that is iterated over"
        )
    return list(given)


def _by_group(listeners: Sequence[AnyListener]) -> list[list[AnyListener]]:
    groups: dict[str, list[AnyListener]] = {}
    for one in listeners:
        groups.setdefault(one.config.group, []).append(one)
    for members in groups.values():
        check_one_group([one.config for one in members])
    return list(groups.values())


@contextmanager
def found_in(module: str) -> Generator[None, None, None]:
    """Note that *module* is being imported for its listeners: a ``run`` in it would block the
    import for ever, and is refused.
    """
    before = _found_in.set(module)
    try:
        yield
    finally:
        _found_in.reset(before)


@explained
def run(
    *listeners: AnyListener,
    name_server: str = DEFAULT_NAME_SERVER,
    config: ConsumerConfig | None = None,
    client: ClientConfig | None = None,
) -> None:
    """Run listeners until Ctrl-C or SIGTERM, then leave their groups in good order.

    Raises what ``PushConsumer.start`` raises.

    The same signal again: running calls are not waited for, their messages are delivered again, and
    KeyboardInterrupt is raised.

    Raises IllegalStateError inside a running event loop: use ``await ogive.aio.run(...)`` there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise IllegalStateError(
            "run() would hold up the event loop that calls it: use `await ogive.aio.run(...)` there"
        )
    if (module := _found_in.get()) is not None:
        raise IllegalStateError(
            f"{module} calls run() while it is imported, and who imports it runs its listeners: "
            'put the call under `if __name__ == "__main__":`'
        )
    consumer = PushConsumer(*listeners, name_server=name_server, config=config, client=client)
    try:
        asyncio.run(run_until_signal(consumer))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@functools.partial(explained, name="run")
async def serve(
    *listeners: AnyListener,
    name_server: str = DEFAULT_NAME_SERVER,
    config: ConsumerConfig | None = None,
    client: ClientConfig | None = None,
) -> None:
    """Run listeners until Ctrl-C or SIGTERM, then leave their groups in good order and return.

    Raises what ``PushConsumer.start`` raises.

    The same signal again cancels the task that awaits this: running calls are not waited for, what
    they were given comes again. Signals are handled in the main thread only, and as before once
    this has returned; elsewhere cancel the task.
    """
    await run_until_signal(
        PushConsumer(*listeners, name_server=name_server, config=config, client=client)
    )


@contextmanager
def _handling(
    loop: asyncio.AbstractEventLoop,
    end: Callable[[int], None],
    at_once: Callable[[], object] | None,
) -> Iterator[None]:
    """Let *end* handle SIGINT and SIGTERM meanwhile, on the loop; *at_once* is called before that,
    also while the loop is blocked.
    """
    before = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, end, number)
            before[number] = handler
            if at_once is not None:
                # in place of one that does nothing: what wakes the loop stays
                signal.signal(number, lambda *_, call=at_once: call())
    except (ValueError, RuntimeError, NotImplementedError):
        # Signals belong to the main thread, and the loops of Windows do not handle them.
        log.debug(
            "run() handles no signals here: this is not the main thread, or not a POSIX system"
        )
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)


async def _nothing() -> None:
    """Do nothing."""


async def run_until_signal(
    consumer: PushConsumer,
    *,
    started: Callable[[], Awaitable[None]] = _nothing,
    drain: Callable[[], Awaitable[None]] = _nothing,
    at_once: Callable[[], object] | None = None,
) -> None:
    """Run the consumer until SIGINT or SIGTERM, then close it.

    *started* is awaited after its start, *drain* after the signal, before the close. The same
    signal again cancels all. *at_once* is called in the signal handler, also while the loop is
    blocked.
    """
    loop, stop, whole = asyncio.get_running_loop(), asyncio.Event(), asyncio.current_task()
    assert whole is not None

    came: set[int] = set()

    def end(number: int) -> None:
        # not just any: Ctrl-C under --reload is SIGINT from the terminal and SIGTERM from its
        # parent
        if number in came:
            whole.cancel()
        came.add(number)
        stop.set()

    stopped = asyncio.ensure_future(stop.wait())
    with _handling(loop, end, at_once):
        try:
            if not await _unless(stopped, consumer.start()):
                return
            try:
                await started()
                if not await _unless(stopped, consumer.wait()):
                    await drain()
            finally:
                await consumer.close()
        finally:
            stopped.cancel()


async def _unless(stopped: asyncio.Future[Any], work: Coroutine[Any, Any, None]) -> bool:
    """Return True if *work* ended before *stopped*; otherwise cancel it.

    Raises what *work* raises.
    """
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait({stopped, doing}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        doing.cancel()
    await asyncio.wait({doing})
    if doing.cancelled():
        return False
    doing.result()
    return True
