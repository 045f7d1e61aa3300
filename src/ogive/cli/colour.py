"""Colours of the command line: on terminals, for table headings and the name before an error."""

import os
from typing import TextIO


def bold(text: str, stream: TextIO) -> str:
    return _styled("1", text, stream)


def red(text: str, stream: TextIO) -> str:
    return _styled("1;31", text, stream)


def _styled(codes: str, text: str, stream: TextIO) -> str:
    """Return *text* with these codes (ANSI SGR) if *stream* shows colours.

    NO_COLOR turns colours off, and FORCE_COLOR turns them on without a terminal; see no-color.org
    and force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return text
    shows = stream.isatty() and os.environ.get("TERM") != "dumb"
    return f"\x1b[{codes}m{text}\x1b[0m" if shows or os.environ.get("FORCE_COLOR") else text
