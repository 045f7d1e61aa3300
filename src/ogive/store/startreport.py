"""What a start after an unclean stop says of it, in one line."""

from collections.abc import Iterator
from dataclasses import dataclass

from ogive.words import counted


@dataclass(slots=True)
class StartReport:
    """What recovery did; offsets are those of the log."""

    read_from: int = 0
    end: int = 0
    # read again, between the two
    records: int = 0
    # queues that got entries by that
    grown: int = 0
    # queues that the checkpoint counted on
    made_again: int = 0
    # from where on keys that the checkpoint counted on were made again
    keys_from: int | None = None
    # bytes behind the end
    cleared: int = 0

    def __str__(self) -> str:
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        read = self.end - self.read_from
        yield (
            f"{counted(self.records, 'record')}, {counted(read, 'byte')} of the log, from "
            f"{self.read_from} on, were read again"
        )
        if self.grown:
            yield f"{counted(self.grown, 'queue')} and the index of keys were completed"
        if self.made_again:
            yield (
                f"{counted(self.made_again, 'queue')} that had been lost "
                f"{'was' if self.made_again == 1 else 'were'} made again"
            )
        if self.keys_from is not None:
            yield f"the index of keys was made again, from {self.keys_from} on"
        if self.cleared:
            yield (
                f"{counted(self.cleared, 'byte')} behind the end of the log, at {self.end}, were "
                "no record and were cleared"
            )
        else:
            yield f"the log ends at {self.end}, and nothing had to be cut"
