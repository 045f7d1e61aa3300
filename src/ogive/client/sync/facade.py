"""What all blocking objects share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn, Self

from ogive.client.portal import Portal, portal
from ogive.client.with_blocks import OnlyWith
from ogive.errors import IllegalStateError


class Facade(OnlyWith, ABC):
    """The portal that a blocking object lives on, from ``start`` to ``close``."""

    _consumes = False

    def __init__(self) -> None:
        self._portal: Portal | None = None

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    def close_at_exit(self) -> None:
        """Called at the interpreter's exit for an object that is still open."""
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
        self._portal.keep(self, first=self._consumes)

    def _end(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close, where there is anything to close: never started, in a forked child, or after the program's end there is not."""
        if self._portal is not None and self._portal.alive:
            self._portal.call(close())
            self._portal.let_go(self)
