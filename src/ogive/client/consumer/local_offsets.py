"""The progress of a broadcasting member, in a local file. Source: LocalFileOffsetStore.java,
5.3.

Behaviour
- The file is ``<folder>/<ip>@<instance name>/<group>/offsets.json``; the instance name is DEFAULT
  unless one is given, so that a restarted program finds its progress again. Place and form are
  those of Java's clients, whose files are read as well.
- Queues that are not held now keep their place in the file.

Differs from Java
- The file is replaced as a whole and on stable storage before the next step: after a crash at any
  point it is the old one or the new one.
- A damaged file is set aside and logged, and does not prevent the start: its ``.bak``, which Java's
  clients write, is read instead.
- A file has one owner at a time. A second member with the same name would overwrite the progress of
  the first, so it is refused.
- Where nothing can be written the progress stays in memory; the log says so once.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from ogive.client.consumer.offset_store import Offsets
from ogive.errors import IllegalStateError, InvalidOption, ProtocolError
from ogive.model import MessageQueue
from ogive.wire.bodies import offset_table_dumps, offset_table_loads

log = logging.getLogger(__name__)

JAVA_FOLDER: Final = ".rocketmq_offsets"
DEFAULT_INSTANCE: Final = "DEFAULT"


def offsets_path(folder: Path | None, ip: str, instance_name: str | None, group: str) -> Path:
    """The file of one member. Raises InvalidOption for an instance name that is no file name."""
    name = f"{ip}@{instance_name or DEFAULT_INSTANCE}"
    if "/" in name or "\0" in name:
        raise InvalidOption(
            f"instance name {instance_name!r} cannot name a folder, which broadcasting needs for "
            "its offsets"
        )
    return (folder or Path.home() / JAVA_FOLDER) / name / group / "offsets.json"


class LocalOffsetStore(Offsets):
    """Offsets of one broadcasting member. ``open`` comes first; ``close`` gives the file free for
    the next owner.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._saved: dict[MessageQueue, int] = {}
        self._turn = asyncio.Lock()
        # one thread: even an abandoned write ends before the next begins
        self._writer: ThreadPoolExecutor | None = None
        self._lock: int | None = None
        self._failing = False

    async def open(self) -> None:
        """Read the file. Raises IllegalStateError if another member uses it."""
        self._writer = ThreadPoolExecutor(
            1, thread_name_prefix=f"offsets of {self._path.parent.name}"
        )
        self._saved = await asyncio.get_running_loop().run_in_executor(
            self._writer, self._take_file
        )

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.shutdown()
            self._writer = None
        if self._lock is not None:
            _unlock(self._lock)
            os.close(self._lock)
            self._lock = None

    async def fetch(self, queue: MessageQueue) -> int | None:
        return self._saved.get(queue)

    def is_saved(self, queue: MessageQueue) -> bool:
        return True

    async def persist(self, queues: Collection[MessageQueue], *, again: bool = False) -> None:
        """Differs from the remote store: what is in the file is not lost in somebody else's crash,
        so *again* changes nothing.
        """
        async with self._turn:
            known = {queue: offset for queue in queues if (offset := self.read(queue)) is not None}
            table = {**self._saved, **known}
            if (table == self._saved and not self._failing) or self._writer is None:
                return
            # what fetch returns, even while the file cannot be written
            self._saved = table
            try:
                data = offset_table_dumps(dict(sorted(table.items())))
                await asyncio.get_running_loop().run_in_executor(self._writer, self._write, data)
            except OSError as exc:
                log.log(
                    logging.DEBUG if self._failing else logging.WARNING,
                    "%s cannot be written, progress is lost at exit: %s",
                    self._path,
                    exc,
                )
                self._failing = True
            else:
                self._failing = False

    # --- in the writer's thread -------------------------------------------------------------------

    def _take_file(self) -> dict[MessageQueue, int]:
        try:
            self._lock_file()
        except BlockingIOError:
            raise IllegalStateError(
                f"another broadcasting member keeps its progress in {self._path}: give each on "
                "this machine an "
                "instance_name of its own (`ogive run --instance-name NAME`, or "
                "ClientConfig(instance_name=...))"
            ) from None
        except OSError as exc:
            log.warning("%s cannot be used, progress is lost at exit: %s", self._path, exc)
            self._failing = True
        return read_offsets(self._path)

    def _lock_file(self) -> None:
        """Raises OSError; BlockingIOError where somebody else has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path.with_name("lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _take_lock(handle)
        except OSError:
            os.close(handle)
            raise
        self._lock = handle

    def _write(self, data: bytes) -> None:
        if self._lock is None:
            self._lock_file()
        replace_file(self._path, data)


def _take_lock(handle: int) -> None:
    """Lock a file for this process. Raises BlockingIOError if another one has locked it."""
    # Imported here: each module exists on some platforms only, and only broadcasting needs it.
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as exc:
            raise BlockingIOError(*exc.args) from None
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(handle: int) -> None:
    # Closing is enough on Windows. Elsewhere a forked child has the file open, too, and would keep
    # the lock.
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_UN)


def read_offsets(path: Path) -> dict[MessageQueue, int]:
    """What the file says, or else its backup; nothing where neither can be read."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return offset_table_loads(candidate.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ProtocolError) as exc:
            log.warning("%s cannot be read and is passed over: %s", candidate, exc)
            set_aside(candidate)
    return {}


def set_aside(path: Path) -> None:
    """Keep the latest damaged file for inspection."""
    try:
        path.replace(path.with_name(path.name + ".damaged"))
    except OSError as exc:
        log.debug("%s stays where it is: %s", path, exc)


def replace_file(path: Path, data: bytes) -> None:
    """After a crash at any point *path* holds its old bytes or *data*; after the return, *data*.

    Raises OSError.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # Windows opens no folders.
    if os.name == "nt":
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
