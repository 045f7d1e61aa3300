"""A message's body as text, JSON or hex, of a bounded size."""

import json
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ogive.errors import InvalidOption
from ogive.harmless import harmless_text

Form = Literal["text", "json", "hex"]

MAX_SHOWN_BYTES: Final = 64 * 1024
# indents may make much of little
MAX_PRETTY_CHARS: Final = 4 * MAX_SHOWN_BYTES
PREVIEW_BYTES: Final = 160
_HEX_ROW: Final = 16


@dataclass(frozen=True, slots=True)
class Body:
    """*shown*: as *form*; *cut*: not all of the *size* bytes.

    *forms*: what else it can be read as.
    """

    form: Form
    shown: str
    size: int
    cut: bool
    forms: tuple[Form, ...]


def body_of(raw: bytes, wanted: str = "") -> Body:
    """Return the body in the *wanted* form, or else in the first of JSON, text, hex that fits.

    Raises InvalidOption.
    """
    if wanted and wanted not in get_args(Form):
        raise InvalidOption(
            f"a body cannot be shown as {wanted[:80]!r}: {', '.join(get_args(Form))} are the forms"
        )
    head = raw[:MAX_SHOWN_BYTES]
    texts: dict[Form, str] = {}
    pretty = _pretty(raw) if len(raw) <= MAX_SHOWN_BYTES else None
    if pretty is not None:
        texts["json"] = pretty
    text = _text(head, whole=len(head) == len(raw))
    if text is not None:
        texts["text"] = harmless_text(text)
    texts["hex"] = hex_rows(head) if wanted == "hex" or not texts else ""
    form = next((form for form in texts if form == wanted), next(iter(texts)))
    return Body(form, texts[form], len(raw), len(head) < len(raw), tuple(texts))


def preview(raw: bytes) -> str:
    """One line."""
    head = raw[:PREVIEW_BYTES]
    text = _text(head, whole=len(head) == len(raw))
    line = (
        head[: PREVIEW_BYTES // 3].hex(" ")
        if text is None
        else harmless_text(" ".join(text.split()))
    )
    return f"{line} …" if len(raw) > len(head) else line


def hex_rows(raw: bytes) -> str:
    """``00000010  7b 22 6e ...  {"n...``"""
    rows = []
    for at in range(0, len(raw), _HEX_ROW):
        row = raw[at : at + _HEX_ROW]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{at:08x}  {row.hex(' '):<{3 * _HEX_ROW}} {letters}")
    return "\n".join(rows)


def _text(head: bytes, *, whole: bool) -> str | None:
    """None for what is no UTF-8; a character that the cut went through is left out."""
    try:
        return head.decode()
    except UnicodeDecodeError as exc:
        if whole or len(head) - exc.start > 3:
            return None
        return head[: exc.start].decode()


def _pretty(raw: bytes) -> str | None:
    """None for what is no JSON object or list."""
    if raw.lstrip()[:1] not in (b"{", b"["):
        return None
    try:
        pretty = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    return harmless_text(pretty) if len(pretty) <= MAX_PRETTY_CHARS else None
