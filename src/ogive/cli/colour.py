"""Colours of the command line: only on terminals, and only for what the eye looks for first."""

import os
from typing import TextIO


def bold(text: str, stream: TextIO) -> str:
    return _styled("1", text, stream)


def red(text: str, stream: TextIO) -> str:
    return _styled("1;31", text, stream)


def _styled(codes: str, text: str, stream: TextIO) -> str:
    """Return *text* with the codes of a terminal, if *stream* shows colours.

    NO_COLOR turns them off, and FORCE_COLOR on where there is no terminal; see no-color.org and
    force-color.org.
    """
    if os.environ.get("NO_COLOR"):
        return text
    shows = stream.isatty() and os.environ.get("TERM") != "dumb"
    return f"\x1b[{codes}m{text}\x1b[0m" if shows or os.environ.get("FORCE_COLOR") else text
