"""Finds the listener that ``app:bill`` on the command line names."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from ogive.client.consumer.push_consumer import found_in
from ogive.client.listener import AnyListener, Listener
from ogive.errors import InvalidOption


def load_listeners(targets: Iterable[str]) -> list[AnyListener]:
    """The listeners that *targets* name, each once, in their order; modules are found as by
    ``python -m``, from the working directory too.

    A target is ``module:name``, with dots for what lies deeper, or a module alone: all its
    listeners. Raises InvalidOption; for a module that fails while it is imported its traceback is
    on standard error by then.
    """
    # as text, the way that sys.path has it
    if os.getcwd() not in sys.path and "" not in sys.path:  # noqa: PTH109
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    found: dict[int, AnyListener] = {}
    for target in targets:
        for one in _of_target(target):
            found.setdefault(id(one), one)
    return list(found.values())


def _of_target(target: str) -> list[AnyListener]:
    name, _, path = target.partition(":")
    module = _import(target, name)
    if ":" not in target:
        listeners = list(listeners_in(module).values())
        if not listeners:
            raise InvalidOption(
                f"{target}: {name} has no listener; a function becomes one with "
                "@ogive.listener(topic, group=...)"
            )
        return listeners
    value: Any = module
    for word in path.split("."):
        value = getattr(value, word, None)
    if not isinstance(value, Listener):
        what = (
            f"{name} has no {path!r}"
            if value is None
            else f"{path!r} is a {type(value).__name__}, not a listener"
        )
        raise InvalidOption(f"{target}: {what}. {_advice(name, module)}")
    return [value]


def listeners_in(module: ModuleType) -> dict[str, AnyListener]:
    """The listeners of a module by the names that they have there, in the order of their
    definition.
    """
    return {name: value for name, value in vars(module).items() if isinstance(value, Listener)}


def _advice(name: str, module: ModuleType) -> str:
    names = ", ".join(f"{name}:{one}" for one in listeners_in(module))
    return (
        f"Its listeners are: {names}"
        if names
        else "It has none; a function becomes one with @ogive.listener(topic, group=...)"
    )


def _import(target: str, name: str) -> ModuleType:
    stem = name.removesuffix(".py")
    if name.endswith(".py") or "/" in name:
        raise InvalidOption(
            f"{target}: a module is named as in an import, for example "
            f"{stem.strip('./').replace('/', '.')}:listener"
        )
    if not all(word.isidentifier() for word in name.split(".")):
        raise InvalidOption(f"{target}: expected module:listener, for example app:bill")
    try:
        with found_in(name):
            return importlib.import_module(name)
    except ModuleNotFoundError as exc:
        if exc.name is not None and (name == exc.name or name.startswith(f"{exc.name}.")):
            parent, _, last = name.rpartition(".")
            hint = (
                f"; a listener stands behind a colon: {parent}:{last}"
                if exc.name == name and parent in sys.modules
                else ""
            )
            where = f"neither here ({os.getcwd()}) nor installed"  # noqa: PTH109
            raise InvalidOption(
                f"{target}: there is no module {exc.name!r}, {where}{hint}"
            ) from None
        raise _broken(target, name, exc) from None
    except Exception as exc:  # noqa: BLE001
        # the user's module: whatever it raises at import is theirs to see, with its place
        raise _broken(target, name, exc) from None


def _broken(target: str, name: str, error: Exception) -> InvalidOption:
    frames = traceback.extract_tb(error.__traceback__)
    first = next(
        (
            i
            for i, frame in enumerate(frames)
            if "importlib" not in frame.filename and frame.filename != __file__
        ),
        0,
    )
    sys.stderr.write(
        "".join(["Traceback (most recent call last):\n", *traceback.format_list(frames[first:])])
    )
    sys.stderr.write("".join(traceback.format_exception_only(error)))
    return InvalidOption(f"{target}: {name} cannot be imported: {type(error).__name__}: {error}")
