"""Makes foreign text, such as tags, client names and remarks of servers, safe to show in a terminal
or page.
"""

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}"
    for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""What commands a terminal, ends a line, or turns the direction of text."""
_CONTROLS_IN_TEXT: Final = {
    code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"
}

_CONTROLS_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _CONTROLS}


def harmless(text: str) -> str:
    """On one line."""
    return text.translate(_CONTROLS)


def harmless_text(text: str) -> str:
    """Lines and tabs stay."""
    return text.translate(_CONTROLS_IN_TEXT)


def escape_controls(text: str) -> str:
    """Return JSON *text* with JSON's own escapes for all characters that a terminal obeys."""
    return text.translate(_CONTROLS_IN_JSON)


def is_line(text: str) -> bool:
    """Whether it can stand in a file or a property: UTF-8 without control characters."""
    return text.isprintable() or not any(
        char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text
    )
