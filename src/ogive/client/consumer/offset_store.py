"""Progress of one group member in each queue, kept at brokers or in a local file.

The local file is a broadcasting member's. Source: LocalFileOffsetStore.java, 5.3.

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
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

from ogive.client.consumer.group_client import Outages
from ogive.errors import IllegalStateError, InvalidOption, MessageIllegal, OgiveError, ProtocolError
from ogive.files import replace_file
from ogive.model import MessageQueue
from ogive.wire.bodies.stats import offset_table_dumps, offset_table_loads

log = logging.getLogger(__name__)


class OffsetStore(Protocol):
    """Offsets of the queues that a member holds, and the lasting record behind them.

    An offset never moves back, but for a repair, which also freezes it: results of listeners that
    were still running then cannot overwrite it. Queues are independent of each other: persisting or
    forgetting one touches no other. What is taken over begins with ``begin``.
    """

    async def open(self) -> None: ...

    async def fetch(self, queue: MessageQueue) -> int | None:
        """Return the committed offset; None only if there certainly is none.

        Every failure raises OgiveError: it must never pass for "none".
        """
        ...

    def read(self, queue: MessageQueue) -> int | None:
        """Return the offset known here."""
        ...

    def highest(self, queue: MessageQueue) -> int | None:
        """Return the highest offset known here since ``begin``: only another member can have
        brought the record further.
        """
        ...

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """Begin at *offset* with a queue that is taken over, and forget what was known before."""
        ...

    def update(self, queue: MessageQueue, offset: int) -> None: ...

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also back."""
        ...

    def repair(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also back, and keep it until ``thaw``, or until the queue is
        forgotten.
        """
        ...

    def thaw(self, queue: MessageQueue) -> None:
        """Consume again from the repaired offset on."""
        ...

    def forget(self, queue: MessageQueue) -> None:
        """Drop what is known here; the record stays."""
        ...

    async def persist(self, queues: Collection[MessageQueue], *, again: bool = False) -> None:
        """Bring what is known of *queues* to the record.

        A failure is logged. *again*: also what was brought before.
        """
        ...

    def is_saved(self, queue: MessageQueue) -> bool:
        """Return True if the record has what is known here of the queue."""
        ...

    async def close(self) -> None: ...


class Offsets:
    """Offsets in memory, for both stores."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        # the highest offset before the present one
        self._passed: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def read(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def highest(self, queue: MessageQueue) -> int | None:
        known = [offsets[queue] for offsets in (self._offsets, self._passed) if queue in offsets]
        return max(known, default=None)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        self.forget(queue)
        self._passed[queue] = offset

    def update(self, queue: MessageQueue, offset: int) -> None:
        if queue not in self._frozen and offset > self._offsets.get(queue, -1):
            self._offsets[queue] = offset

    def repair(self, queue: MessageQueue, offset: int) -> None:
        self.move(queue, offset)
        self._frozen.add(queue)

    def thaw(self, queue: MessageQueue) -> None:
        self._frozen.discard(queue)

    def move(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, also back, at the application's request.

        Unlike after a repair, consumption continues there.
        """
        highest = self.highest(queue)
        if highest is not None:
            self._passed[queue] = highest
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._passed.pop(queue, None)
        self._frozen.discard(queue)


class OffsetRequests(Protocol):
    """Protocol of the remote store's requests to brokers. Every failure raises OgiveError."""

    async def query_offset(self, queue: MessageQueue) -> int | None: ...
    async def update_offset(self, queue: MessageQueue, offset: int) -> bool:
        """Commit the offset. Return False if the queue ends before it, and the broker does not keep
        it.
        """
        ...

    def link(self, queue: MessageQueue) -> object:
        """Return the connection to the queue's broker, or None if there is none now."""
        ...


class RemoteOffsetStore(Offsets):
    """Offsets kept at the brokers, for the members of a clustering group.

    Source: RemoteBrokerOffsetStore.java, 5.3.

    Differs from Java: there is one update of a queue in flight at a time, and its answer is
    awaited. Apache's broker handles the requests of one connection in several threads: of two
    one-way updates, every tenth pair was carried out in reverse, and an update carried by a pull
    lost to an older one even more often. The queue's next owner then starts far too early. The
    first update of a topic at a broker goes alone, as it creates the group's table for the topic:
    of several at once, each creates one, and the offsets in the others are lost
    (ConsumerOffsetManager.commitOffset, 5.5; seen in one of 20 closes of a new group).

    The first update on a new connection is sent only if the broker does not know more: a member
    that was cut off, or stood still, may have lost the queue meanwhile, and would take back what
    its next owner did.
    """

    def __init__(self, calls: OffsetRequests) -> None:
        super().__init__()
        self._calls = calls
        self._acknowledged: dict[MessageQueue, int] = {}
        # Of queues that are held: the connection by which the broker last said where the group is.
        self._links: dict[MessageQueue, object] = {}
        self._turns: defaultdict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        # (topic, broker name): the broker has acknowledged an update of the topic
        self._begun: set[tuple[str, str]] = set()
        self._beginning: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._outages = Outages()

    async def open(self) -> None:
        """Do nothing: each queue is asked for when it is taken over."""

    async def close(self) -> None:
        """Do nothing: the last progress was committed when the queues were given up."""

    async def fetch(self, queue: MessageQueue) -> int | None:
        return await self._calls.query_offset(queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        super().begin(queue, offset)
        self._links[queue] = self._calls.link(queue)

    def forget(self, queue: MessageQueue) -> None:
        super().forget(queue)
        self._links.pop(queue, None)
        self._acknowledged.pop(queue, None)
        self._turns.pop(queue, None)
        self._outages.ends(queue)

    def is_saved(self, queue: MessageQueue) -> bool:
        return queue not in self._offsets or self._offsets[queue] == self._acknowledged.get(queue)

    async def persist(self, queues: Collection[MessageQueue], *, again: bool = False) -> None:
        """Send what is known of *queues* to their brokers and wait for the answers.

        A broker that fails is logged, the others get theirs.

        *again* sends also what was acknowledged before: a broker may have lost it in a crash.
        """
        await asyncio.gather(
            *(self._persist(queue, again) for queue in queues if queue in self._offsets)
        )

    async def commit(self, offsets: Mapping[MessageQueue, int], *, again: bool = False) -> None:
        """Set offsets, also back, as the application says, and tell the brokers.

        Raises the first failure after every broker was asked.

        Without *again* those that were acknowledged before are not sent, nor those of a queue in
        which another member has gone on meanwhile. With it, an offset that the broker does not keep
        is a failure. One that fails is forgotten: the application may go back, and then nothing may
        send it later.
        """
        for failure in await asyncio.gather(
            *(self._commit(*row, again) for row in offsets.items()), return_exceptions=True
        ):
            if failure is not None:
                raise failure

    async def _commit(self, queue: MessageQueue, offset: int, again: bool) -> None:
        async with self._turns[queue]:
            if not again and not await self._counts(queue):
                return
            before = self._offsets.get(queue)
            self.move(queue, offset)
            try:
                if not await self._tell(queue, again) and again:
                    raise InvalidOption(
                        f"{queue} ends before {offset}, and its broker keeps no progress beyond "
                        "the end"
                    )
            except BaseException:
                if self._offsets.get(queue) == offset:
                    self._restore(queue, before)
                raise

    def _restore(self, queue: MessageQueue, offset: int | None) -> None:
        if offset is None:
            del self._offsets[queue]
        else:
            self.move(queue, offset)

    async def _persist(self, queue: MessageQueue, again: bool) -> None:
        async with self._turns[queue]:
            offset = self._offsets.get(queue, 0)
            try:
                if await self._counts(queue):
                    await self._tell(queue, again)
            except MessageIllegal as exc:
                # The topic has fewer queues now. Nobody continues in this one, so its commit is not
                # tried again.
                log.debug("offset %d of %s is not kept: %s", offset, queue, exc)
                self._acknowledged[queue] = offset
            except OgiveError as exc:
                level = logging.WARNING if self._outages.begins(queue, str(exc)) else logging.DEBUG
                log.log(level, "could not store offset %d of %s: %s", offset, queue, exc)
            else:
                if self._outages.ends(queue):
                    log.info("offsets of %s are stored at %s again", queue.topic, queue.broker_name)

    async def _counts(self, queue: MessageQueue) -> bool:
        """Return False if another member has continued in the queue. Called in the queue's turn."""
        link = self._calls.link(queue)
        if queue not in self._links or (link is not None and link is self._links[queue]):
            return True
        at, known = await self.fetch(queue), self.highest(queue)
        if at is not None and known is not None and at > known:
            log.warning(
                "offset %s of %s is not stored: another member has already stored %d",
                self.read(queue),
                queue,
                at,
            )
            return False
        self._links[queue] = self._calls.link(queue)
        return True

    async def _tell(self, queue: MessageQueue, again: bool) -> bool:
        """Commit in the queue's turn. Return True if the broker keeps the offset."""
        offset = self._offsets.get(queue)
        if offset is None or (not again and offset == self._acknowledged.get(queue)):
            return True
        kept = await self._update(queue, offset)
        self._acknowledged[queue] = offset
        return kept

    async def _update(self, queue: MessageQueue, offset: int) -> bool:
        topic = (queue.topic, queue.broker_name)
        if topic not in self._begun:
            async with self._beginning[topic]:
                if topic not in self._begun:
                    kept = await self._calls.update_offset(queue, offset)
                    self._begun.add(topic)
                    return kept
        return await self._calls.update_offset(queue, offset)


JAVA_FOLDER: Final = ".rocketmq_offsets"
DEFAULT_INSTANCE: Final = "DEFAULT"


def offsets_path(folder: Path | None, ip: str, instance_name: str | None, group: str) -> Path:
    """Return the path of one member's file. Raises InvalidOption if the instance name cannot be
    part of a file name.
    """
    name = f"{ip}@{instance_name or DEFAULT_INSTANCE}"
    if "/" in name or "\0" in name:
        raise InvalidOption(
            f"instance name {instance_name!r} cannot name a folder, which broadcasting needs for "
            "its offsets"
        )
    return (folder or Path.home() / JAVA_FOLDER) / name / group / "offsets.json"


class LocalOffsetStore(Offsets):
    """Offsets of one broadcasting member. ``open`` comes first; ``close`` unlocks the file for the
    next owner.
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
        """Write the file. Differs from the remote store: no other process can lose what is in the
        file, so *again* changes nothing.
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
            log.warning("could not use %s, progress is lost at exit: %s", self._path, exc)
            self._failing = True
        return read_offsets(self._path)

    def _lock_file(self) -> None:
        """Lock the file. Raises OSError; BlockingIOError if another process has locked it."""
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
    """Return the offsets in the file, or else in its backup; empty if neither can be read."""
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            return offset_table_loads(candidate.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ProtocolError) as exc:
            log.warning("could not read %s, which is ignored: %s", candidate, exc)
            set_aside(candidate)
    return {}


def set_aside(path: Path) -> None:
    """Keep the latest damaged file for inspection."""
    try:
        path.replace(path.with_name(path.name + ".damaged"))
    except OSError as exc:
        log.debug("%s stays where it is: %s", path, exc)
