"""The summary that a pipeline returns."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Summary:
    """Counts are messages.

    *skipped* says why, *notes* what else is worth knowing; with *dry_run* nothing was written.
    """

    pipeline: str
    read: int = 0
    written: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    dry_run: bool = False
    # stopped on request: the next run continues from here
    stopped: bool = False
    # what only this pipeline tells
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "pipeline": self.pipeline,
            "read": self.read,
            "written": self.written,
            "skipped": dict(self.skipped),
            "notes": self.notes,
            "dry_run": self.dry_run,
            "stopped": self.stopped,
            **self.figures,
        }

    def lines(self) -> list[str]:
        """For people."""
        head = (
            f"{self.pipeline}: {self.read:,} read, {self.written:,} "
            f"{'would be written' if self.dry_run else 'written'}"
        )
        if self.skipped:
            head += f", {self.skipped.total():,} skipped"
        lines = [head + (" (stopped; run it again to go on)" if self.stopped else "")]
        lines += [f"  skipped {count:,}: {why}" for why, count in sorted(self.skipped.items())]
        return lines + [f"  {note}" for note in self.notes]
