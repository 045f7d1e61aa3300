"""The line that ``ogive up`` prints when it is ready."""

import re
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"ready name-server=(\S+) broker=(\S+)\s*")


class Ready(NamedTuple):
    """Addresses, ``host:port`` each."""

    name_server: str
    broker: str

    @classmethod
    def parse(cls, line: str) -> "Ready | None":
        """None for any other line, and for none at all."""
        found = _LINE.fullmatch(line)
        return cls(found[1], found[2]) if found else None
