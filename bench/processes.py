"""What a process has used, from /proc."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


@dataclass(slots=True)
class Use:
    """Wall and CPU seconds of a stretch of work."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def measured(pid: int) -> Iterator[Use]:
    """The use of process *pid* during the block; filled in at its end."""
    use = Use()
    cpu, wall = cpu_s(pid), time.perf_counter()
    yield use
    use.wall_s, use.cpu_s = time.perf_counter() - wall, cpu_s(pid) - cpu
