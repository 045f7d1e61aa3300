"""Runs tests with every call of the compiled part noted, then repeats each call: what grows then is
never given back.

``python -m tests.rel.native_calls TEST ...``; test_native_memory.py runs it with the part that the
sanitizers watch.
"""

import array
import copy
import gc
import importlib.util
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, Final

import pytest

# that are kept of each function
CALLS: Final = 60
# that each is repeated; where it grew, ten times as often, up to three times: what Python keeps
# does not grow again
TIMES: Final = 30
# items or bytes: of an argument of a call that is not kept, as copies of it take long
LARGE: Final = 100_000
# that are there once, and counted by whoever holds them
ONES: Final = (None, True, False, b"", "", (), 0, 1)

Call = tuple[Any, ...]


class Book:
    """Stands for ogive._native, and keeps the arguments of the calls: all of the first, then ever
    fewer.
    """

    def __init__(self, compiled: ModuleType) -> None:
        self.kept: dict[str, list[Call]] = {}
        self.seen: dict[str, int] = {}
        for name, value in vars(compiled).items():
            # a type is used by more than calls
            if callable(value) and not isinstance(value, type):
                self.kept[name], self.seen[name] = [], 0
                value = self._noted(name, value)
            setattr(self, name, value)

    def _noted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.seen[name] += 1
            kept = self.kept[name]
            if (
                len(kept) < CALLS
                and self.seen[name] % (1 + len(kept) // 5) == 0
                and all(map(is_small, args))
            ):
                kept.append(own(args))
            return function(*args)

        return call


def is_small(arg: Any) -> bool:
    return (
        not isinstance(arg, bytes | bytearray | memoryview | list | dict | array.array)
        or len(arg) <= LARGE
    )


def own(args: Call) -> Call:
    """What a call may change, as a copy."""
    return tuple(
        copy.copy(arg) if isinstance(arg, list | dict | bytearray | array.array) else arg
        for arg in args
    )


def held(value: Any) -> Iterator[object]:
    """*value* and what it consists of."""
    yield value
    if isinstance(value, list | tuple):
        for part in value:
            yield from held(part)
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from held(part)


def forget() -> None:
    """What Python keeps of work that is done.

    Its cache of attributes holds names by their address, which is a new one each time here.
    """
    gc.collect()
    sys._clear_type_cache()


def growth(function: Callable[..., Any], args: Call, times: int) -> str | None:
    """What a call leaves behind each time, if it does: memory, or references to what it was
    given.
    """

    def repeat(times: int) -> None:
        for _ in range(times):
            with suppress(Exception):
                function(*own(args))

    watched = [*ONES, *held(args)]
    repeat(3)
    forget()
    references = list(map(sys.getrefcount, watched))
    memory = tracemalloc.get_traced_memory()[0]
    repeat(times)
    forget()
    more = tracemalloc.get_traced_memory()[0] - memory
    for thing, before in zip(watched, references, strict=True):
        if abs(sys.getrefcount(thing) - before) >= times // 2:
            return f"{(sys.getrefcount(thing) - before) / times:+.2f} references to {thing!r}"
    return f"{more / times:.1f} bytes" if more >= 8 * times else None


def load() -> ModuleType:
    """ogive._native without ogive, which pytest wants to import itself."""
    ogive = importlib.util.find_spec("ogive")
    assert ogive is not None
    found = PathFinder.find_spec("ogive._native", ogive.submodule_search_locations)
    assert found is not None, "the compiled part is not there"
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def main(tests: list[str]) -> int:
    """0 when the tests pass and nothing grows."""
    compiled = load()
    print(compiled.__file__)
    book = Book(compiled)
    sys.modules["ogive._native"] = book  # type: ignore[assignment]
    # -s: what a sanitizer says last would be lost with the process
    ended = pytest.main(["-q", "-s", "-p", "no:cacheprovider", *tests])
    if ended != pytest.ExitCode.OK:
        return int(ended)
    # what the tests left need not be looked through again each time
    gc.freeze()
    tracemalloc.start()
    leaks = []
    for name, calls in book.kept.items():
        print(f"{name}: {book.seen[name]} calls, {len(calls)} of them repeated", flush=True)
        if not calls:
            leaks.append(f"{name} was never called")
        for args in calls:
            function = getattr(compiled, name)
            found = [growth(function, args, TIMES)]
            while found[-1] is not None and len(found) < 4:
                found.append(growth(function, args, 10 * TIMES))
            if (what := found[-1]) is not None:
                leaks.append(f"{name}{str(args)[:500]} leaves {what} a call")
    print("\n".join(leaks[:50]))
    return bool(leaks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
