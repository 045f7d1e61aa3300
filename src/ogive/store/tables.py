"""Small JSON tables (topics, groups, offsets), replaced atomically: a reader finds either the old
or the new version.

Apache's broker reads these files too, and its own (also the integer keys that its JSON writer
leaves unquoted) load here.
"""

import errno
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ogive.errors import ProtocolError
from ogive.store.bad_sectors import read_or_nothing
from ogive.store.fs import Data, Fs
from ogive.wire import java_json

log = logging.getLogger(__name__)


def read_file(fs: Fs, path: Path) -> bytes | None:
    """Read a whole file. Return None if there is none, and no bytes if the disk cannot read it."""
    try:
        handle = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        return read_or_nothing(fs, handle, path, fs.size(handle), 0)
    finally:
        fs.close(handle)


def write_synced(fs: Fs, path: Path, data: Data, *, size: int = 0) -> None:
    """Write a file with exactly these bytes, and sync it. Its name is not durable yet.

    *size*: an existing file of this size is written in place.
    """
    handle = fs.open(path, create=True)
    try:
        if fs.size(handle) != size:
            fs.truncate(handle, size)
        fs.pwrite(handle, data, 0)
        fs.fdatasync(handle)
    finally:
        fs.close(handle)


def replace_file(fs: Fs, path: Path, data: Data) -> None:
    """Replace the file *path*: after a crash at any point it holds its old bytes or *data*.

    Raises OSError.
    """
    temporary = path.with_name(path.name + ".tmp")
    write_synced(fs, temporary, data)
    fs.rename(temporary, path)
    fs.fsync_dir(path.parent)


def make_lasting_dirs(fs: Fs, directory: Path) -> None:
    """Create directories whose names survive a power cut."""
    for made in fs.make_dirs(directory):
        fs.fsync_dir(made.parent)


def peek(fs: Fs, path: Path) -> dict[str, Any] | None:
    """Return the object in a file, which is not changed, or None if it contains no possible table.
    Raises OSError.
    """
    raw = read_file(fs, path)
    return None if raw is None else parsed(raw)


def parsed(raw: bytes) -> dict[str, Any] | None:
    """Return an object, or None for contents that are no table: an empty file, ``null``, half an
    object.
    """
    try:
        value = java_json.loads(raw)
    except ProtocolError:
        return None
    return value if isinstance(value, dict) else None


class JsonTable:
    """One JSON object in a file, and its ``.bak``, the previous version. Not safe for two
    writers.
    """

    def __init__(
        self,
        fs: Fs,
        path: Path,
        *,
        valid: Callable[[dict[str, Any]], bool] = lambda _: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Keep a table in *path*. *valid* checks whether an object in the file is this table at
        all.
        """
        self._fs = fs
        self._path = path
        self._valid = valid
        self._now = now
        self._backup = path.with_name(path.name + ".bak")
        # what the file holds, once it is known to be good
        self._current: bytes | None = None
        self.on_broken: Callable[[str, OSError], None] | None = None
        """Called with a description when the disk fails, on the thread that saves; this save and
        each later one also raise the error.
        """
        self._broken: OSError | None = None

    def load(self) -> dict[str, Any] | None:
        """Return the stored object, or None if there is none.

        An invalid file is set aside as ``.corrupt-<seconds>`` with one warning, and the backup is
        used.
        """
        raw = read_file(self._fs, self._path)
        if raw is not None:
            value = self._parse(raw)
            if value is not None:
                self._current = raw
                return value
        backup = read_file(self._fs, self._backup)
        value = self._parse(backup) if backup is not None else None
        if raw is not None:
            no_use = (
                "it has no backup"
                if backup is None
                else f"its backup {self._backup.name} is damaged, too"
            )
            self._set_aside(
                f"{no_use}: what it held is lost"
                if value is None
                else f"reading {self._backup.name} instead"
            )
        return value

    @property
    def is_lost(self) -> bool:
        """True if the file was missing or damaged: load() returned its backup, or nothing."""
        return self._current is None

    def save(self, value: dict[str, Any]) -> None:
        """Replace the file; the previous version becomes the backup.

        Raises OSError, with the old or the new version in place.
        """
        self.save_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))

    def save_text(self, text: str) -> None:
        """Replace the file as save() does, by text that is already JSON."""
        make_lasting_dirs(self._fs, self._path.parent)
        if (
            self._current is None
            and (found := read_file(self._fs, self._path)) is not None
            and self._parse(found) is not None
        ):
            self._current = found
        raw = text.encode()
        with self.telling():
            if self._current is not None:
                replace_file(self._fs, self._backup, self._current)
            replace_file(self._fs, self._path, raw)
        self._current = raw

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Fail the log, too, if the disk fails in the block: another try may succeed with nothing
        on the disk. A full disk is not a failure.
        """
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except OSError as exc:
            if exc.errno == errno.EIO and self.on_broken is not None:
                self._broken = exc
                self.on_broken(f"saving {self._path.name}", exc)
            raise

    def _set_aside(self, instead: str) -> None:
        aside = self._path.with_name(f"{self._path.name}.corrupt-{self._now():.0f}")
        self._fs.rename(self._path, aside)
        self._fs.fsync_dir(self._path.parent)
        log.warning("%s is damaged: renamed to %s, %s", self._path, aside.name, instead)

    def _parse(self, raw: bytes) -> dict[str, Any] | None:
        value = parsed(raw)
        return value if value is not None and self._valid(value) else None
