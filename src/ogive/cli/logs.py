"""Log of ``ogive up`` on standard error: one line per event, of bounded length, as text or JSON."""

import json
import logging
import math
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Literal

from ogive.text import escape, escape_json

log = logging.getLogger(__name__)

# limit for one place in the code; further lines are only counted
LINES_A_SECOND: Final = 10
# longer than the retries of one request
SAME_AFTER_S: Final = 10.0
MAX_LINES_KNOWN: Final = 1_000
CHANGES: Final = ("ogive.access.audit", "ogive.console.audit")
"""The loggers of administrative changes, which are always shown."""
RECOVERY: Final = "ogive.store.recovery"
LEVELS: Final = (logging.WARNING, logging.INFO, logging.DEBUG)


def set_up_logging(verbose: int, form: Literal["text", "json"]) -> None:
    """Set up all loggers of this process, from WARNING on; with *verbose* 1 from INFO, 2 from
    DEBUG.

    Administrative changes, and the report of a start after a crash, are shown in any case.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonFormatter()
        if form == "json"
        else TextFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    handler.addFilter(RateFilter())
    level = LEVELS[min(verbose, 2)]
    logging.basicConfig(level=level, handlers=[handler])
    for name in (*CHANGES, RECOVERY):
        logging.getLogger(name).setLevel(min(level, logging.INFO))


def step_log_level() -> None:
    """Change the level at a SIGHUP: from WARNING to INFO, to DEBUG, and back."""
    root = logging.getLogger()
    at = LEVELS.index(root.level) if root.level in LEVELS else -1
    level = LEVELS[(at + 1) % len(LEVELS)]
    root.setLevel(level)
    log.warning("SIGHUP: the log level is %s now", logging.getLevelName(level))


class TextFormatter(logging.Formatter):
    """Text that keeps a name from a client inside its line: it must not look like a line of ours,
    nor control a terminal.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name is logging's
        return escape(super().formatMessage(record))


class JsonFormatter(logging.Formatter):
    """JSON lines: time (UTC), level, logger, message, exception if there is one, and the fields of
    changes and refusals, see ogive.access.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return escape_json(json.dumps(line, ensure_ascii=False))


def last_line(text: str) -> str:
    """Return the reason why the command ended, in the form of JsonFormatter."""
    return JsonFormatter().format(
        logging.LogRecord("ogive", logging.CRITICAL, "", 0, "%s", (text,), None)
    )


class RepeatFilter(logging.Filter):
    """Filter for commands that drops lines which were shown within the last *after_s* seconds: all
    tries at a wrong address fail alike.

    It also drops a connection's report of its end, because the command's own error has it.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, after_s: float = SAME_AFTER_S
    ) -> None:
        super().__init__()
        self._now, self._after_s = now, after_s
        self._shown: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "ogive.transport.connection":
            return False
        line, now = record.getMessage(), self._now()
        if now - self._shown.get(line, -math.inf) < self._after_s:
            return False
        if len(self._shown) >= MAX_LINES_KNOWN:
            self._shown.clear()
        self._shown[line] = now
        return True


_ONCE: Final = RepeatFilter()
_NEVER_AGAIN: Final = RepeatFilter(after_s=math.inf)


def filter_repeated_warnings(*, again: bool = True) -> None:
    """Filter Python's last resort, which writes warnings to standard error, for a command that sets
    up no log.

    Without *again* no line is ever repeated: for a command that reads the same files several times,
    over any time.
    """
    if logging.lastResort is not None:
        # adding the same filter again has no effect
        logging.lastResort.addFilter(_ONCE if again else _NEVER_AGAIN)


class RateFilter(logging.Filter):
    """Filter that passes LINES_A_SECOND lines of one kind, so that a peer that makes the server
    complain cannot fill a disk; the next line says how many were dropped.

    A kind is a place in our own code, so there are few of them. Administrative changes are never
    dropped: other lines must not hide them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        # start of the second, lines passed, lines held back
        self._kinds: dict[tuple[str, int], tuple[float, int, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name in CHANGES:
            return True
        kind, now = (record.name, record.lineno), self._now()
        start, passed, held_back = self._kinds.get(kind, (now, 0, 0))
        if now - start >= 1.0:
            start, passed = now, 0
        if passed >= LINES_A_SECOND:
            self._kinds[kind] = (start, passed, held_back + 1)
            return False
        self._kinds[kind] = (start, passed + 1, 0)
        if held_back:
            record.msg = f"{record.getMessage()} (and {held_back} more of this kind)"
            record.args = ()
        return True
