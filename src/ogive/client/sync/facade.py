"""Base of the blocking classes."""

import asyncio
import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NoReturn, ParamSpec, Self, TypeVar

from ogive.client.portal import Portal, portal
from ogive.errors import IllegalStateError, OgiveError
from ogive.keywords import explain

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger(__name__)


class OnlyWith:
    """Base class of blocking objects: ``async with`` raises TypeError with advice. Type checkers
    refuse it by themselves.
    """

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} blocks and takes `with`; the one for `async with` is "
                "in ogive.aio"
            )

        def __aexit__(self, *_: object) -> NoReturn:
            self.__aenter__()


class Facade(OnlyWith, ABC):
    """Blocking object on the portal of its process, from ``start`` to ``close``."""

    _consumes = False

    def __init__(self) -> None:
        self._portal: Portal | None = None
        self._starting: _Starting | None = None

    @abstractmethod
    def start(self) -> None:
        """Start the object. ``with`` does it."""

    @abstractmethod
    def close(self) -> None:
        """Close the object. ``with`` does it."""

    def close_at_exit(self) -> None:
        """Close an object that is still open at the interpreter's exit."""
        self.close()

    def __enter__(self) -> Self:
        try:
            self.start()
            # An interrupt after this line finds the block entered.
            return self
        except BaseException as exc:
            self._undo_start(exc)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} cannot be pickled: it holds connections; make one where it is "
            "used"
        )

    def _live(self) -> Portal:
        if self._portal is None:
            raise IllegalStateError(
                f"this {type(self).__name__} is not started: start it, or use it in a `with` block"
            )
        return self._portal

    def _begin(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        close: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Start on the portal of this process, which closes the object at the interpreter's exit.

        If an interrupt keeps the start from the caller, it is undone in the background. A start
        that fails undoes itself.
        """
        if self._portal is None:
            self._portal = portal()
        self._starting = starting = _Starting(start, close)
        try:
            self._portal.call(starting.run())
            self._portal.register(self, first=self._consumes)
        except BaseException as exc:
            self._undo_start(exc)
            raise

    def _undo_start(self, error: BaseException) -> None:
        """Close what the last start has started, unless *error* comes from that start."""
        if self._portal is None or not self._portal.alive or self._starting is None:
            return
        if error is not self._starting.failure:
            self._portal.unregister(self)
            self._portal.loop.call_soon_threadsafe(self._starting.undo)

    def _end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, unless it was never started, or its loop has ended or belongs to the parent
        process.

        After an interrupt (Ctrl-C) the interpreter's exit does not wait for the close again.
        """
        if self._portal is not None and self._portal.alive:
            try:
                self._portal.call(close())
            except Exception:
                # the exit tries again
                raise
            except BaseException:
                self._portal.unregister(self)
                raise
            self._portal.unregister(self)


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return a coroutine of an asyncio class as a method that blocks, for a Facade with the object
    as *_asyncio*. Signature and docstring stay.
    """
    name, signature = method.__name__, inspect.signature(method)

    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError:
            explain(method, f"{type(self).__name__}.{name}", kwargs)
            raise
        result: T = self._live().call(getattr(self._asyncio, name)(*args, **kwargs))
        return result

    functools.update_wrapper(call, method)
    call.__dict__["__signature__"] = signature
    # else inspect would find a coroutine
    del call.__dict__["__wrapped__"]
    return call


class _Starting:
    """Start on the loop, which can be undone whatever became of it."""

    def __init__(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        close: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._start, self._close = start, close
        self._task: asyncio.Task[Any] | None = None
        self.failure: BaseException | None = None

    async def run(self) -> None:
        self._task = asyncio.current_task()
        try:
            await self._start()
        except BaseException as exc:
            self.failure = exc
            raise

    def undo(self) -> None:
        """Close what was started, once the start has ended. Runs on the loop."""
        if self._task is not None:
            undoing = asyncio.create_task(self._undo(self._task), name="undo an interrupted start")
            _undoing.add(undoing)
            undoing.add_done_callback(_undoing.discard)

    async def _undo(self, starting: asyncio.Task[Any]) -> None:
        await asyncio.wait((starting,))
        try:
            await self._close()
        except OgiveError as exc:
            log.warning("after an interrupted start: %s", exc)


_undoing: set[asyncio.Task[None]] = set()
