"""Decide which segments of the log are old enough, and note a removal under way.

The removal itself is MessageStore.expire.

Behaviour
- A segment's age is the time since it was full, by the machine's uptime, which nobody can set. Ages
  are saved, and go on counting while the broker is down. A wall clock that jumps deletes nothing.
- Segments that are old enough go at the hours of the configuration, and at any hour while the disk
  is fuller than disk_share. While it is fuller than force_share, the oldest go whatever their age;
  by default nothing young is ever deleted.

Differs from Java
- Age is not the file's modification time. A directory that comes from elsewhere is as old as its
  stay here.
- The newest segment never goes, and force_share is off by default (85 % there): a disk that others
  fill is no reason to lose messages. Source: DefaultMessageStore.CleanCommitLogService, 5.3.

A note of which segments are about to be removed, so that what readers were told is gone stays
gone after a crash.

The note exists from shortly before the lowest offsets move up until the segments are removed.
Recovery that finds it finishes the removal, but only once there is a checkpoint of all queues: the
offset of a queue that loses all its records is known from nowhere else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption
from ogive.store.fs import Fs
from ogive.store.segments import segment_names
from ogive.store.tables import read_file, replace_file
from ogive.wire.checksum import crc32

_NAME: Final = "removing"
_DIGITS: Final = 20


def note(fs: Fs, root: Path, until: int) -> None:
    """Segments before commit-log offset *until* go. Raises OSError."""
    replace_file(fs, root / _NAME, _text(until))


def done(fs: Fs, root: Path) -> None:
    """They are gone. Raises OSError; a note that stays does no harm."""
    if read_file(fs, root / _NAME) is not None:
        fs.unlink(root / _NAME)


def pending(fs: Fs, root: Path, directory: Path) -> int | None:
    """What a removal that a crash ended was to reach, if there was one.

    A note that makes no sense is forgotten. Raises OSError.
    """
    raw = read_file(fs, root / _NAME)
    if raw is None:
        return None
    until = raw.partition(b" ")[0]
    names = segment_names(fs, directory)
    if (
        until.isdigit()
        and len(until) <= _DIGITS
        and raw == _text(int(until))
        and names
        and int(until) <= int(names[-1])
    ):
        return int(until)
    done(fs, root)
    return None


def finish(fs: Fs, root: Path, directory: Path, until: int) -> None:
    """Go on with it.

    Only where a checkpoint has seen every record before *until*. Raises OSError.
    """
    for name in segment_names(fs, directory):
        if int(name) < until:
            fs.unlink(directory / name)
    fs.fsync_dir(directory)
    done(fs, root)


def _text(until: int) -> bytes:
    return b"%d %d\n" % (until, crc32(b"%d" % until))


MAX_PER_RUN: Final = 10
_MOST_S: Final = 1e10  # three centuries
_OFFSET_DIGITS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionConfig:
    """When segments are removed.

    Behind each setting: its name in Apache's broker.conf, and the default there where it differs.
    """

    keep_s: float = 72 * 3600.0  # fileReservedTime, hours
    hours: tuple[int, ...] = (4,)
    """deleteWhen; local time."""
    disk_share: float = 0.75
    """diskMaxUsedSpaceRatio; above it segments that are old enough go at any hour."""
    force_share: float = 1.0
    """diskSpaceCleanForciblyRatio, 0.85; above it the oldest go whatever their age; 1: never."""

    def __post_init__(self) -> None:
        if not 0 < self.keep_s <= _MOST_S:
            raise InvalidOption(
                f"keep_s={self.keep_s:g}: more than 0, and up to {_MOST_S:g} is needed"
            )
        if not self.hours or not all(0 <= hour < 24 for hour in self.hours):
            raise InvalidOption(f"hours={self.hours}: one or more of 0 to 23 are needed")
        for name in ("disk_share", "force_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidOption(
                    f"{name}={getattr(self, name)}: a share of the disk, more than 0 and up to 1, "
                    "is needed"
                )


class Ages:
    """For how long each segment has been full.

    *boot* names a run of the machine, on whose clock *at_s* counts.
    """

    def __init__(self, boot: str, at_s: float) -> None:
        self._boot, self._at_s = boot, at_s
        self._elapsed_s = 0.0
        # start of a segment -> _elapsed_s when it was seen to be full
        self._full_at_s: dict[int, float] = {}

    def load(self, value: Mapping[str, Any]) -> None:
        """What save() gave.

        Time between two runs of the machine is not counted; what makes no sense counts as young.
        """
        elapsed, full_at, at_s = (
            _seconds(value.get("elapsed")),
            value.get("fullAt"),
            _seconds(value.get("at")),
        )
        if elapsed is None or not isinstance(full_at, dict) or at_s is None:
            return
        self._elapsed_s = elapsed
        if value.get("boot") == self._boot:
            self._elapsed_s += max(0.0, self._at_s - at_s)
        for start, seen in full_at.items():
            seen_s = _seconds(seen)
            if (
                isinstance(start, str)
                and start.isdecimal()
                and len(start) <= _OFFSET_DIGITS
                and seen_s is not None
            ):
                self._full_at_s[int(start)] = seen_s

    def save(self) -> dict[str, Any]:
        return {
            "boot": self._boot,
            "at": self._at_s,
            "elapsed": self._elapsed_s,
            "fullAt": {str(s): at for s, at in self._full_at_s.items()},
        }

    def see(self, full: Sequence[int], at_s: float) -> None:
        """Time has come to *at_s*, and these are the full segments."""
        self._elapsed_s += max(0.0, at_s - self._at_s)
        self._at_s = at_s
        self._full_at_s = {start: self._full_at_s.get(start, self._elapsed_s) for start in full}

    def of(self, start: int) -> float:
        """In seconds."""
        return self._elapsed_s - self._full_at_s.get(start, self._elapsed_s)


def _seconds(value: object) -> float | None:
    """None for what is no time."""
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def due(
    full: Sequence[int],
    ages: Ages,
    config: RetentionConfig,
    *,
    hour: int,
    disk_used: float,
    at_once: bool = False,
) -> int:
    """How many of the oldest full segments go now.

    *at_once*: an operator asked for it, so the hour does not matter.
    """
    forced = disk_used > config.force_share
    now = at_once or hour in config.hours or disk_used > config.disk_share
    count = 0
    for start in full[:MAX_PER_RUN]:
        if not forced and not (now and ages.of(start) >= config.keep_s):
            break
        count += 1
    return count
