"""The broker's files: what the process sees, what a power cut would leave, and errors on demand;
and a writer without a thread.
"""

import errno
import random
from collections import deque
from pathlib import Path

from ogive.store.fs import Data
from ogive.store.writer import CommitGroup, CommitWriter, Job
from tests.chaos.recorder import Disk, Inode, MemoryFs, Operation
from tests.simulation.loop import Node, VirtualLoop


class LiveFs(MemoryFs):
    """Files in memory that know what of them is certainly on the disk.

    A dead node's calls change nothing.
    """

    def __init__(self, base: MemoryFs | None, node: Node, boot: str) -> None:
        super().__init__(
            {path: inode.data for path, inode in base.names.items()} if base else None,
            base.directories if base else None,
        )
        names: dict[Path, Inode | None] = dict(self.names)
        self._disk = Disk(
            {inode: bytearray(inode.data) for inode in self.names.values()},
            names | dict.fromkeys(self.directories),
        )
        self._node, self._boot = node, boot
        self.failing = False
        self.full = False

    def boot_id(self) -> str:
        return self._boot

    def record(self, operation: Operation) -> None:
        self._disk.apply(operation)

    def open(self, path: Path, *, create: bool = False) -> int:
        if create and path not in self.names:
            self._check_room()
        return super().open(path, create=create)

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        self._check()
        if offset + len(data) > self.size(handle):
            self._check_room()
        super().pwrite(handle, data, offset)

    def fdatasync(self, handle: int) -> None:
        self._check()
        super().fdatasync(handle)

    def _check(self) -> None:
        if self._node.dead:
            raise OSError(errno.EIO, "the process is gone")
        if self.failing:
            raise OSError(errno.EIO, "input/output error")

    def _check_room(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device")

    def after_kill(self) -> MemoryFs:
        """The operating system has everything that was written."""
        return self.copy()

    def after_power_cut(self, rng: random.Random) -> MemoryFs:
        return self._disk.after_power_cut(rng)


class VirtualWriter:
    """Groups wait for each other as in the writer's thread, and a sync takes its time."""

    def __init__(self, loop: VirtualLoop, work: CommitWriter, max_group_bytes: int) -> None:
        self._loop, self._work, self._max_group_bytes = loop, work, max_group_bytes
        self._jobs: deque[CommitGroup | Job] = deque()
        self._due = False
        self._closed = False

    def post(self, job: CommitGroup | Job) -> None:
        self._jobs.append(job)
        if not self._due:
            self._due = True
            self._loop.call_later(0.0002 + self._loop.rng.expovariate(500.0), self._turn)

    def close(self) -> None:
        self._closed = True
        self._empty()
        self._work.sync_now()

    def _turn(self) -> None:
        self._due = False
        if not self._closed:
            self._empty()
            if self._work.sync_in_s() < 60.0:
                self._loop.call_later(self._work.sync_in_s(), self._sync)

    def _sync(self) -> None:
        if not self._closed and self._work.sync_in_s() == 0.0:
            self._work.sync_now()

    def _empty(self) -> None:
        while self._jobs:
            groups: list[CommitGroup] = []
            size = 0
            while (
                self._jobs
                and isinstance(job := self._jobs[0], CommitGroup)
                and size < self._max_group_bytes
            ):
                groups.append(job)
                size += job.end - job.start
                self._jobs.popleft()
            if groups:
                self._work.commit(groups)
            elif not isinstance(job := self._jobs.popleft(), CommitGroup):
                job()
        self._work.idle()
