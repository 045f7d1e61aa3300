"""The time zone of this process, for a while."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def local_zone(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let local time be that of *name*: a name of the zone database, or a rule in POSIX form."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", name)
        time.tzset()
        try:
            yield
        finally:
            changed.undo()
            time.tzset()
