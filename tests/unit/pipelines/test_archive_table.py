"""What an archive in a table keeps there about itself, and which batches it refuses."""

import json
import re
import shutil
import sys
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark")

from ogive.client.namespace import Namespace
from ogive.errors import InvalidOption, OgiveError
from ogive.pipelines import Stop, Summary
from ogive.pipelines.archive_table import (
    ArchiveTable,
    Table,
    TableBatch,
    check_owner,
    owner_property,
)

STREAM = "6c3f1f5a-0d5e-4c0b-9f57-0a6f6bd0c6a2"

# spark.redaction.regex and spark.sql.redaction.options.regex
HIDDEN = re.compile("(?i)secret|password|token|access[.]?key|url")


def shown(properties: dict[str, str]) -> dict[str, str]:
    """Return the properties as SHOW TBLPROPERTIES shows them."""
    return {
        name: "*********(redacted)" if HIDDEN.search(f"{name} {value}") else value
        for name, value in properties.items()
    }


@pytest.mark.parametrize("topic", ["Orders", "hourly-orders", "user_tokens", "PasswordResets"])
def test_a_topic_of_any_name_is_archived_again_by_its_stream(topic: str, tmp_path: Path) -> None:
    properties = shown({owner_property(topic): STREAM})
    check_owner(properties, STREAM, [topic], tmp_path)
    with pytest.raises(InvalidOption, match=f"{topic} is archived .* by the stream {STREAM}"):
        check_owner(properties, None, [topic], tmp_path)
    check_owner(properties, None, [f"{topic}2"], tmp_path)


class Condition:
    """A condition of a query: the tests that a row must pass."""

    def __init__(self, name: str, *tests: Any) -> None:
        self.name, self.tests = name, tests

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, value: object) -> "Condition":  # type: ignore[override]
        return Condition("", lambda row: row[self.name] == value)

    def __and__(self, other: "Condition") -> "Condition":
        return Condition("", *self.tests, *other.tests)

    def between(self, first: int, last: int) -> "Condition":
        return Condition("", lambda row: first <= row[self.name] <= last)


class Rows:
    """The rows of a table."""

    columns = ("topic", "brokerName", "queueId", "queueOffset")

    def __init__(self, rows: list[tuple[Any, ...]]) -> None:
        self.rows = [dict(zip(self.columns, row, strict=True)) for row in rows]

    def where(self, condition: Condition) -> Any:
        found = [row for row in self.rows if all(test(row) for test in condition.tests)]
        return SimpleNamespace(isEmpty=lambda: not found)


class MemoryTable(Table):
    """A table whose history has expired."""

    name = "lake"
    needed_properties = MappingProxyType({"staged": "true"})

    def __init__(self) -> None:
        self.appended: list[TableBatch] = []
        self.kept: dict[str, str] = {}
        self.changes = 0

    def exists(self, _: Any) -> bool:
        return True

    def create(self, _: Any, __: str) -> None:
        pass

    def commits(self, _: Any, newest: int | None = None) -> list[str]:
        return [str(batch) for batch in self.appended[-(newest or 0) :]]

    def append(self, _: Any, batch: TableBatch) -> None:
        self.appended.append(batch)

    def properties(self, _: Any) -> dict[str, str]:
        return self.kept

    def set_properties(self, _: Any, properties: Any) -> None:
        self.kept |= properties
        self.changes += 1


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """The checkpoint of a stream that has ended one batch and planned another."""
    for number, end in enumerate((3, 6)):
        file = tmp_path / "offsets" / str(number)
        file.parent.mkdir(exist_ok=True)
        file.write_text("v1\n{}\n" + json.dumps({"q": {"Shop%Orders": {"broker-a": {"0": end}}}}))
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "0").write_text("v1\n{}")
    (tmp_path / "metadata").write_text(json.dumps({"id": STREAM}))
    return tmp_path


def write(
    table: MemoryTable, rows: Rows, checkpoint: Path, monkeypatch: Any, *numbers: int
) -> None:
    """Write batches as Spark lets a new run do it: without numbers, the one that is planned."""
    monkeypatch.setattr(sys.modules[ArchiveTable.__module__], "f", SimpleNamespace(col=Condition))
    batch: Any = SimpleNamespace(sparkSession=SimpleNamespace(table=lambda _: rows))
    summary = Summary("archive")
    writer = ArchiveTable(table, checkpoint, ["Orders"], Stop(), summary, None, Namespace("Shop"))
    for number in numbers or (1,):
        writer.write(batch, number)


@pytest.mark.parametrize(("offset", "refused"), [(2, False), (3, True), (5, True), (6, False)])
def test_rows_of_an_open_batch_are_found_in_a_namespace_too(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, offset: int, refused: bool
) -> None:
    """The table has the topic as the application knows it, the checkpoint as the brokers do."""
    table, rows = MemoryTable(), Rows([("Orders", "broker-a", 0, offset)])
    if refused:
        with pytest.raises(OgiveError, match="between the offsets 3 and 5 already"):
            write(table, rows, checkpoint, monkeypatch)
    else:
        write(table, rows, checkpoint, monkeypatch)
    assert [one.number for one in table.appended] == ([] if refused else [1])


def test_a_run_changes_the_properties_of_a_table_only_if_they_differ(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is a commit, with which transactions of others collide."""
    table = MemoryTable()
    for staged, changes in (("true", 1), ("true", 1), ("false", 2)):
        table.appended.clear()
        table.kept |= {"staged": staged}
        write(table, Rows([]), checkpoint, monkeypatch)
        assert (table.changes, table.kept["staged"]) == (changes, "true")


def test_a_table_that_lacks_batches_which_the_checkpoint_has_finished_is_refused(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one that was rolled back, or restored from a backup."""
    table = MemoryTable()
    write(table, Rows([]), checkpoint, monkeypatch)
    for number in (2, 3):
        (checkpoint / "commits" / str(number - 1)).write_text("v1\n{}")
        shutil.copy(checkpoint / "offsets" / "1", checkpoint / "offsets" / str(number))
    with pytest.raises(OgiveError, match=r"has finished batch 2 .* in the table is 1: .* rolled"):
        write(table, Rows([]), checkpoint, monkeypatch, 3)
    assert [batch.number for batch in table.appended] == [1]
    write(table, Rows([]), checkpoint, monkeypatch, 2)
    write(table, Rows([]), checkpoint, monkeypatch, 3)
    assert [batch.number for batch in table.appended] == [1, 2, 3]


class AnotherDriver(MemoryTable):
    """A table to which a driver with a copy of the checkpoint writes batch 2 with other messages:
    before ours is looked for, or while it is written.
    """

    def __init__(self, *, before: bool) -> None:
        super().__init__()
        self._before = before

    def append(self, _: Any, batch: TableBatch) -> None:
        theirs = TableBatch(batch.stream, 2, "0" * 16)
        if batch.number == 1:
            self.appended += [batch, theirs] if self._before else [batch]
        else:
            # as Delta: of a number that it has, it stores nothing
            self.appended.append(theirs)


@pytest.mark.parametrize("before", [True, False])
def test_of_two_drivers_with_copies_of_a_checkpoint_the_second_fails(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    table = AnotherDriver(before=before)
    shutil.copy(checkpoint / "offsets" / "1", checkpoint / "offsets" / "2")
    written = "another driver has written batch 2 of this archive, with other messages"
    with pytest.raises(OgiveError, match=written):
        write(table, Rows([]), checkpoint, monkeypatch, 1, 2)
    assert [batch.number for batch in table.appended] == [1, 2]


class SharedTable(MemoryTable):
    """A table in which so many commits of others follow each of ours, and which notes how many
    commits it is asked for.
    """

    def __init__(self, others: int) -> None:
        super().__init__()
        self._others = others
        self.asked: list[int | None] = []

    def commits(self, _: Any, newest: int | None = None) -> list[str]:
        self.asked.append(newest)
        all_ = [text for batch in self.appended for text in (str(batch), *[""] * self._others)]
        return all_[-(newest or 0) :]


@pytest.mark.parametrize(
    ("others", "asked"), [(0, [4, 4]), (2, [4, 4, 100]), (30, [4, 100, 4, 100])]
)
def test_a_batch_reads_no_more_commits_than_it_needs(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, others: int, asked: list[int]
) -> None:
    """Back to the batch before: each commit may be a request to an object store."""
    table = SharedTable(others)
    for number in (2, 3):
        shutil.copy(checkpoint / "offsets" / "1", checkpoint / "offsets" / str(number))
    write(table, Rows([]), checkpoint, monkeypatch, 1, 2, 3)
    assert table.asked[-len(asked) :] == asked
    assert [batch.number for batch in table.appended] == [1, 2, 3]


@pytest.mark.parametrize("others", [0, 2, 30])
def test_a_batch_of_another_driver_is_found_behind_commits_of_others(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    table = SharedTable(others)
    append = table.append

    def both(rows: Any, batch: TableBatch) -> None:
        append(rows, batch)
        if batch.number == 2:
            append(rows, TableBatch(batch.stream, 2, "0" * 16))

    monkeypatch.setattr(table, "append", both)
    shutil.copy(checkpoint / "offsets" / "1", checkpoint / "offsets" / "2")
    with pytest.raises(OgiveError, match="another driver has written batch 2"):
        write(table, Rows([]), checkpoint, monkeypatch, 1, 2)
