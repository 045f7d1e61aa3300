"""The format of java.util.Properties, for Apache's broker.conf and for changes of settings.

Source: Properties.java, LineReader and load0.
"""

from collections.abc import Iterator
from typing import Final

from ogive.errors import InvalidOption

_BLANK: Final = " \t\f"
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "f": "\f"}


def parse_properties(data: bytes) -> dict[str, str]:
    """Return names and values as Properties.load(InputStream) reads them.

    Bytes are ISO-8859-1. The last of two values with the same name counts. Raises InvalidOption for
    an incomplete Unicode escape.
    """
    found = {}
    for line in _logical_lines(data.decode("latin-1")):
        name, value = _split(line)
        found[_unescaped(name)] = _unescaped(value)
    return found


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines without comments and leading blanks, joined after a backslash at the end."""
    line = ""
    for raw in text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        part = raw.lstrip(_BLANK)
        if not line and (not part or part[0] in "#!"):
            continue
        line += part
        if part and _ends_in_backslash(part):
            line = line[:-1]
            continue
        yield line
        line = ""
    if line:
        yield line


def _ends_in_backslash(part: str) -> bool:
    """Return True if the last backslash is not itself escaped."""
    return (len(part) - len(part.rstrip("\\"))) % 2 == 1


def _split(line: str) -> tuple[str, str]:
    """Split at the first separator that is not escaped: blanks, = or :, or = or : with blanks
    around it.
    """
    at, escaped = 0, False
    while at < len(line) and (escaped or line[at] not in f"=:{_BLANK}"):
        escaped = line[at] == "\\" and not escaped
        at += 1
    rest = line[at:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:at], rest


def _unescaped(text: str) -> str:
    if "\\" not in text:
        return text
    out, at = [], 0
    while at < len(text):
        char = text[at]
        at += 1
        if char == "\\" and at < len(text):
            char = text[at]
            at += 1
            if char == "u":
                digits = text[at : at + 4]
                if len(digits) < 4 or not all(
                    digit in "0123456789abcdefABCDEF" for digit in digits
                ):
                    raise InvalidOption(
                        f"\\u{digits} is not a Unicode escape: four hexadecimal digits are expected"
                    )
                char, at = chr(int(digits, 16)), at + 4
            else:
                char = _ESCAPES.get(char, char)
        elif char == "\\":
            char = ""
        out.append(char)
    # Pairs of surrogates are one character. Half of one is replaced: no answer could hold it.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
