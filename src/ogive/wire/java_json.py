"""Reader for the JSON that Java's fastjson writes: bare integer keys, objects as keys, references
to earlier values.

Source: behaviour of fastjson 1 and 2 in answers of Apache's brokers (protocol 01, section 10).
"""

import json
import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

from ogive.errors import ProtocolError

MAX_DEPTH: Final = 64
MAX_VALUES: Final = 1_000_000
MAX_JAVA_VALUES: Final = 25_000
"""Limit for data of a peer.

A frame has room for eight million values. They would need a third of a GiB and, in Java's dialect
with two microseconds per value, over ten seconds in which a server's loop does nothing else. 25,000
of them block the loop as long as 1 MiB of plain JSON.
"""
# limit for the dialect in an answer with a table of all queues, topics or groups
MAX_TABLE_VALUES: Final = 250_000
MAX_REFERRED: Final = 1_000_000
# limit for the characters of a reference
MAX_PATH: Final = 4_096
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_WORDS: Final = {"true": True, "false": False, "null": None}


class FrozenObject(dict[str, Any]):
    """Object that is a key of another object: equal to a dict, and hashable by its contents."""

    def __hash__(self) -> int:  # type: ignore[override]
        # Of texts: Python seeds their hashes, so that nobody can choose many keys with one. str()
        # would give 1 and "1" the same text.
        return hash(frozenset((k, repr(v)) for k, v in self.items()))


def loads(raw: bytes | str, *, bounded: bool = False, java_values: int = MAX_JAVA_VALUES) -> Any:
    """Read standard JSON at full speed, or else Java's dialect. Bare integer keys become text.

    *bounded*: at most MAX_VALUES values, or *java_values* in the dialect and with references.

    Raises ProtocolError.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError as exc:
        raise ProtocolError(f"body is not UTF-8: {exc.reason}") from None
    if holds_half_a_character(text):
        raise ProtocolError("body holds half a character, which no UTF-8 can hold")
    if bounded:
        _check_values(text, MAX_VALUES)
    try:
        value = json.loads(text)
    except RecursionError:
        raise ProtocolError("body is nested too deep") from None
    except ValueError:
        if bounded:
            _check_values(text, java_values, "in Java's dialect ")
        value = _Reader(text).document()
    if '"$ref"' not in text:
        return value
    if bounded:
        _check_values(text, java_values, "with references ")
    return _resolve(value)


def _check_values(text: str, limit: int, kind: str = "") -> None:
    """Raise ProtocolError for too many values, before a reader creates an object for each.

    Commas and brackets inside strings count, too.
    """
    if len(text) > limit and (count := text.count(",") + text.count("{") + text.count("[")) > limit:
        raise ProtocolError(f"body {kind}holds up to {count} values: {limit} are the limit")


# an escaped backslash, a pair of surrogates, or a lone surrogate
_HALVES: Final = re.compile(r"\\\\|\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F])")


def holds_half_a_character(text: str) -> bool:
    """Return True if JSON *text* escapes a lone surrogate.

    Python would read it, and then fail to write any answer that contains it.
    """
    return ("\\ud" in text or "\\uD" in text) and any(found[1] for found in _HALVES.finditer(text))


class _Reader:
    """Recursive-descent parser of the dialect; depth is limited."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Any:
        value = self._value(0)
        self._skip()
        if self._at != len(self._text):
            raise self._wrong("something stands behind the value")
        return value

    def _wrong(self, what: str) -> ProtocolError:
        return ProtocolError(f"body is not JSON, also not Java's: {what} at character {self._at}")

    def _skip(self) -> str:
        match = _SPACE.match(self._text, self._at)
        self._at = match.end() if match else self._at
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise self._wrong("nested too deep")
        first = self._skip()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first == '"':
            return self._string()
        if match := _NUMBER.match(self._text, self._at):
            self._at = match.end()
            try:
                return float(match[0]) if match[1] or match[2] else int(match[0])
            except ValueError:
                raise self._wrong("a number is too long") from None
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._wrong("no value")

    def _string(self) -> str:
        try:
            value, self._at = scanstring(self._text, self._at + 1)
        except ValueError:
            raise self._wrong("a string does not end") from None
        return str(value)

    def _object(self, depth: int) -> dict[Any, Any]:
        self._at += 1
        out: dict[Any, Any] = {}
        if self._skip() == "}":
            self._at += 1
            return out
        while True:
            key = self._value(depth + 1)
            if isinstance(key, dict):
                key = FrozenObject(key)
            elif isinstance(key, list):
                raise self._wrong("a list stands as a key")
            elif not isinstance(key, str):
                key = str(key)
            if self._skip() != ":":
                raise self._wrong("a colon is missing")
            self._at += 1
            out[key] = self._value(depth + 1)
            if self._closes("}"):
                return out

    def _array(self, depth: int) -> list[Any]:
        self._at += 1
        out: list[Any] = []
        if self._skip() == "]":
            self._at += 1
            return out
        while True:
            out.append(self._value(depth + 1))
            if self._closes("]"):
                return out

    def _closes(self, bracket: str) -> bool:
        found = self._skip()
        self._at += 1
        if found == bracket:
            return True
        if found == ",":
            return False
        raise self._wrong(f"neither a comma nor {bracket}")


_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")


def _resolve(root: Any) -> Any:
    """Replace ``{"$ref": "$.a.b[0]"}`` by the value at that path.

    Raises ProtocolError for other forms of reference, for references to themselves, and if the
    result has more than MAX_REFERRED values.
    """
    # id of a dict or list -> values in it, 0 while it is being walked
    sizes: dict[int, int] = {}
    left = MAX_REFERRED

    def walk(value: Any, depth: int) -> tuple[Any, int]:
        """Return the value, and the number of values in it."""
        nonlocal left
        if depth > MAX_DEPTH:
            raise ProtocolError("body is nested too deep")
        if isinstance(value, dict) and len(value) == 1 and isinstance(value.get("$ref"), str):
            path = _steps(value["$ref"])
            value, size = walk(_follow(root, path), depth + 1)
            left -= size + len(path)
            if left < 0:
                raise ProtocolError(
                    f"references in the body stand for more than {MAX_REFERRED} values"
                )
            return value, size
        if not isinstance(value, dict | list):
            return value, 1
        known = sizes.get(id(value))
        if known is not None:
            if not known:
                raise ProtocolError("a reference in the body leads into itself")
            return value, known
        sizes[id(value)] = 0
        size = 1
        for key in value if isinstance(value, dict) else range(len(value)):
            value[key], more = walk(value[key], depth + 1)
            size += more
        sizes[id(value)] = size
        return value, size

    return walk(root, 0)[0]


def _steps(path: str) -> list[tuple[str, str]]:
    """Split a reference into steps; each has either a name or an index.

    Raises ProtocolError for a path beyond MAX_DEPTH, because no value is nested so deeply.
    """
    steps = _STEP.findall(path) if len(path) <= MAX_PATH else []
    if not path.startswith("$") or ".." in path or len(path) > MAX_PATH or len(steps) > MAX_DEPTH:
        raise ProtocolError(f"reference {path[:64]!r} is not of the form $.a.b[0]")
    return steps


def _follow(root: Any, path: list[tuple[str, str]]) -> Any:
    value = root
    for name, index in path:
        try:
            value = value[name] if name else value[int(index)]
        except (KeyError, IndexError, TypeError):
            written = "$" + "".join(f".{name}" if name else f"[{index}]" for name, index in path)
            raise ProtocolError(f"reference {written[:64]!r} points nowhere") from None
    return value
