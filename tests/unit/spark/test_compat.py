"""The differences between releases of Spark: what Spark 4.0 and 4.1 are given, and where a release
is known.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ogive.spark import compat
from ogive.spark.compat import (
    ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    TrackingReader,
    ends_after_open_batch,
    limit_of_available_now,
    reader_of_release,
    reported_lag,
)

pytestmark = pytest.mark.releases

SOURCE = Path(__file__).parents[3] / "src"
OF_A_RELEASE = re.compile(
    r"pyspark\.__version__|spark\.version\b|pyspark\.version\b"
    r"|sql\.streaming\.datasource|DataSourceStreamArrowWriter\b.*pyspark"
    r"|pyspark.*DataSourceStreamArrowWriter"
)


def test_one_module_knows_releases_of_spark() -> None:
    found = [path for path in SOURCE.rglob("*.py") if OF_A_RELEASE.search(path.read_text("utf-8"))]
    assert found == [Path(compat.__file__)]


class Counting(DataSourceStreamReader):
    """A queue with so many messages in its latest state; keeps what it is asked."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.asked: list[tuple[int, ReadLimit]] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(10)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self.asked.append((start["at"], limit))
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self.end
        return {"at": min(self.end, start["at"] + most)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["at"], end["at"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from range(*partition.value)

    def commit(self, end: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...


def tracking(source: Counting, *, keep_limit_after_restart: bool = False) -> TrackingReader:
    return TrackingReader(source, keep_limit_after_restart=keep_limit_after_restart)


def restarted(reader: TrackingReader, at: int) -> TrackingReader:
    """Spark 4.0 and 4.1 tell a new process where its query is by an empty range."""
    assert reader.partitions({"at": at}, {"at": at}) == []
    return reader


def test_the_batches_after_the_first_have_the_limit_and_begin_where_the_last_one_ended() -> None:
    source = Counting(25)
    reader = tracking(source)
    assert reader.latestOffset() == {"at": 25}
    source.end = 60
    assert [reader.latestOffset()["at"] for _ in range(5)] == [35, 45, 55, 60, 60]


@pytest.mark.parametrize("keep", [False, True])
def test_a_new_query_reads_everything_first_because_it_may_be_one_of_available_now(
    keep: bool,
) -> None:
    source = Counting(25)
    assert tracking(source, keep_limit_after_restart=keep).latestOffset() == {"at": 25}
    assert source.asked[0][0] == 0
    assert isinstance(source.asked[0][1], ReadAllAvailable)


def test_a_restarted_query_reads_everything_first_from_where_it_was() -> None:
    source = Counting(50)
    assert restarted(tracking(source), 12).latestOffset() == {"at": 50}
    assert source.asked[0][0] == 12


def test_a_restarted_query_keeps_its_limit_where_that_is_asked_for() -> None:
    reader = restarted(tracking(Counting(50), keep_limit_after_restart=True), 12)
    assert [reader.latestOffset()["at"] for _ in range(3)] == [22, 32, 42]


def test_a_batch_that_is_repeated_after_a_restart_is_not_read_again() -> None:
    reader = restarted(tracking(Counting(50), keep_limit_after_restart=True), 20)
    (partition,) = reader.partitions({"at": 12}, {"at": 20})
    assert list(reader.read(partition)) == list(range(12, 20))
    assert reader.latestOffset() == {"at": 30}


def test_a_reader_is_given_to_spark_in_the_form_that_it_calls() -> None:
    source = Counting(25)
    given = reader_of_release(source, keep_limit_after_restart=False)
    assert (given is source) == ADMISSION_CONTROL


WITHOUT_ADMISSION_CONTROL = (
    "import sys, pyspark.sql.datasource; sys.modules['pyspark.sql.streaming.datasource'] = None\n"
)


def test_a_spark_without_admission_control_gets_no_limit_under_available_now_and_shows_no_lag() -> (
    None
):
    """Its one batch must not be cut, and what it calls the latest offset is the batch's own end."""
    code = (
        f"{WITHOUT_ADMISSION_CONTROL}"
        "from ogive.spark.compat import *\n"
        "offset = {'q': {'Orders': {'broker-a': {'0': 5}}}}\n"
        "source = {'latestOffset': offset, 'endOffset': offset}\n"
        "print(ADMISSION_CONTROL, limit_of_available_now(10), reported_lag(source))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False {} {}\n"


@pytest.mark.skipif(not ADMISSION_CONTROL, reason="this Spark has no admission control")
def test_a_spark_with_admission_control_gets_the_limit_and_shows_the_lag() -> None:
    latest, end = ({"q": {"Orders": {"broker-a": {"0": at}}}} for at in (8, 5))
    assert limit_of_available_now(10) == {"maxOffsetsPerTrigger": "10"}
    assert list(reported_lag({"latestOffset": latest, "endOffset": end}).values()) == [3]


OLD_SPARK = """
import sys
from types import ModuleType
old = ModuleType("pyspark"); old.__version__ = "3.5.6"; old.__path__ = []
sql = ModuleType("pyspark.sql"); sql.__path__ = []
sys.modules |= {"pyspark": old, "pyspark.sql": sql}
import ogive.errors, ogive.spark
"""


@pytest.mark.parametrize(
    "use",
    [
        "ogive.spark.session()",
        "ogive.spark.register(None)",
        "ogive.spark.read('Orders', spark=object())",
    ],
)
def test_an_older_spark_is_one_sentence_that_names_what_is_needed(use: str) -> None:
    code = f"{OLD_SPARK}\ntry: {use}\nexcept ogive.errors.OgiveError as exc: print(exc)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == (
        "ogive needs Spark 4.0 or later, and pyspark 3.5.6 is installed: pip install --upgrade "
        "'ogive[spark]'\n"
    )


@pytest.mark.parametrize(
    ("finished", "expected"), [([], True), (["0", ".1.crc"], True), (["0", "1"], False)]
)
def test_a_spark_without_admission_control_ends_after_a_batch_that_was_open(
    finished: list[str], expected: bool, tmp_path: Path
) -> None:
    for log, names in (("offsets", ["0", "1", ".1.crc"]), ("commits", finished)):
        (tmp_path / log).mkdir()
        for name in names:
            (tmp_path / log / name).touch()
    code = (
        f"{WITHOUT_ADMISSION_CONTROL}from pathlib import Path\nfrom ogive.spark.compat import *\n"
        f"checkpoint = Path({str(tmp_path)!r})\n"
        "print(ends_after_open_batch(checkpoint), ends_after_open_batch(checkpoint / 'new'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{expected} False\n"
    assert ends_after_open_batch(tmp_path) is (expected and not ADMISSION_CONTROL)
