"""The progress of timer messages, in two files: Apache's config/timercheck, and
config/timerProgress.json for data that does not fit into it.

Apache's broker keeps waiting messages in timerwheel and timerlog; timercheck has the queue offset
up to which they are complete. Ours keeps them in memory: it writes a timercheck with which
everything since the oldest waiting message has to be read again, and removes the wheel and the log,
which would be out of date. Apache's broker then rebuilds both from the topic. It cannot know which
messages behind the oldest waiting one are already delivered or cancelled, and delivers those again.

In the other direction nothing is delivered twice: timercheck shows which messages Apache's broker
has delivered, and the topic has those that wait. Source: TimerCheckpoint.java,
TimerMessageStore.recover, 5.5.
"""

import struct
from pathlib import Path
from typing import Any, Final

from ogive.broker.deferred.timers import TimerProgress
from ogive.store.fs import Fs
from ogive.store.tables import JsonTable, read_file, write_synced

_PAGE: Final = struct.Struct(">qqqq")
"""lastReadTimeMs, lastTimerLogFlushPos, lastTimerQueueOffset, masterTimerQueueOffset; more follows
that may be zero
"""
_PAGE_BYTES: Final = 4096


class TimerProgressFile(JsonTable):
    """Both files as one table. *root*: the store's directory."""

    def __init__(self, fs: Fs, root: Path) -> None:
        super().__init__(fs, root / "config" / "timerProgress.json", valid=_is_ours)
        self._fs, self._root = fs, root
        self._check = root / "config" / "timercheck"

    def progress(self) -> TimerProgress:
        """Return the progress in the files.

        If Apache's broker ran here since, its own file applies. Raises OSError.
        """
        page = self._page()
        ours = self.load()
        if ours is not None and (
            page.hex() in (ours["timercheck"], ours.get("timercheckBefore"))
            or not self._apaches_files()
        ):
            settled_ms = ours["settledMs"]
            return TimerProgress(
                ours["low"], ours["end"], settled_ms, ours.get("settledDelaysMs", settled_ms)
            )
        if len(page) < _PAGE.size:
            return TimerProgress()
        read_ms, _, end, _ = _PAGE.unpack(page)
        return TimerProgress(0, end, read_ms, read_ms, by_second=True)

    def _apaches_files(self) -> list[Path]:
        """Return the paths of its wheel and log: without them it did not run since our last start,
        whatever timercheck says.
        """
        folder, wheel = self._root / "timerlog", "timerwheel"
        return [folder / name for name in self._fs.list(folder)] + (
            [self._root / wheel] if wheel in self._fs.list(self._root) else []
        )

    def _page(self) -> bytes:
        return (read_file(self._fs, self._check) or b"")[: _PAGE.size]

    def take_over(self, value: dict[str, Any]) -> None:
        """Take over from Apache's broker: its derived files are out of date from here on.

        *value* is saved first. Raises OSError.
        """
        theirs = self._apaches_files()
        if not theirs:
            return
        self.save(value)
        for path in theirs:
            self._fs.unlink(path)
            self._fs.fsync_dir(path.parent)

    def save(self, value: dict[str, Any]) -> None:
        """Save *value*, see Timers.snapshot.

        Raises OSError. After a kill between the two files, our own still applies.
        """
        page = _PAGE.pack(max(0, value["readMs"]), 0, value["low"], value["low"])
        super().save(value | {"timercheck": page.hex(), "timercheckBefore": self._page().hex()})
        with self.telling():
            write_synced(self._fs, self._check, page.ljust(_PAGE_BYTES, b"\0"), size=_PAGE_BYTES)
            self._fs.fsync_dir(self._check.parent)


def _is_ours(value: dict[str, Any]) -> bool:
    times = (
        value.get("low"),
        value.get("end"),
        value.get("settledMs"),
        value.get("settledDelaysMs", 0),
    )
    return isinstance(value.get("timercheck"), str) and all(type(time) is int for time in times)
