"""Text for people: escape what others wrote, such as tags, client names and remarks of servers, so
that a terminal or a page can show it; count in sentences.
"""

from typing import Final

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}"
    for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
"""Escapes of the characters that command a terminal, end a line, or turn the direction of text."""
_CONTROLS_IN_TEXT: Final = {
    code: shown for code, shown in _CONTROLS.items() if chr(code) not in "\n\t"
}
_CONTROLS_IN_JSON: Final = {code: f"\\u{code:04x}" for code in _CONTROLS}


def escape(text: str) -> str:
    """Return *text* on one line, with its control characters escaped."""
    return text.translate(_CONTROLS)


def escape_lines(text: str) -> str:
    """Return *text* with its control characters escaped, ends of lines and tabs aside."""
    return text.translate(_CONTROLS_IN_TEXT)


def escape_json(text: str) -> str:
    """Return JSON *text* with JSON's own escapes for all characters that a terminal obeys."""
    return text.translate(_CONTROLS_IN_JSON)


def is_line(text: str) -> bool:
    """Return True if a file or a property can hold *text*: UTF-8 without control characters."""
    return text.isprintable() or not any(
        char < " " or char == "\x7f" or "\ud800" <= char <= "\udfff" for char in text
    )


def pluralize(number: int, word: str) -> str:
    """Return *number* and *word*, in the plural unless it is one: ``1,200 queues``."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
