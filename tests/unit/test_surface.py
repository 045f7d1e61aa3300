"""What users rely on stays: names, options, settings. tests/surface says how the lists are made."""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.surface import alerts, lines, parts
from tests.surface.lines import Change

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", parts.WITHOUT_PROCESSES)
def test_nothing_that_users_rely_on_is_gone_or_different(part: str) -> None:
    """Additions pass."""
    lines.check(part, parts.WITHOUT_PROCESSES[part]())


def test_every_line_to_alert_on_is_logged() -> None:
    rows, logged = alerts.documented(), alerts.logged()
    assert len(rows) > 20
    assert [row for row in rows if row not in logged] == []


@pytest.mark.parametrize("part", parts.ALL)
def test_a_stored_list_is_as_it_is_written(part: str) -> None:
    """Sorted, each line once: so that two branches that add lines can be merged."""
    stored = lines.stored(part)
    assert stored
    assert stored == sorted(set(stored))


def test_every_change_says_why_and_what_became_of_the_old_form() -> None:
    stored = {line for part in parts.ALL for line in lines.stored(part)}
    for change in lines.load_changes():
        assert change.was in stored, f"{change.was}: the stored lists have no such line"
        assert not change.now or change.now in stored, f"{change.now}: add it with --write"
        assert change.reason, f"{change.was}: why is it another one now?"
        assert bool(change.test) != bool(change.gone_because), (
            f"{change.was}: name the test that shows that the old form works, or say why it cannot"
        )
        if change.test:
            file, _, test = change.test.partition("::")
            source = (ROOT / file).read_text("utf-8")
            assert f"def {test}(" in source, f"{change.was}: there is no {change.test}"


# --- the comparison ----------------------------------------------------------------------------

BEFORE = [
    "ogive.Producer",
    "ogive.Producer.send() -> SendResult",
    "ogive.Producer.send(tag=): str | None = None",
    "ogive.Producer.send needs topic",
    "ogive topic show",
    "ogive topic show needs argument 1",
]


def test_additions_pass() -> None:
    more = {"ogive.Consumer", "ogive.Producer.send(delay=): int = 0", "ogive.Consumer needs group"}
    assert lines.faults(BEFORE, {*BEFORE, *more}, []) == []


@pytest.mark.parametrize("gone", ["ogive.Producer", "ogive topic show"])
def test_what_is_gone_is_named(gone: str) -> None:
    assert lines.faults(BEFORE, {*BEFORE} - {gone}, []) == [f"{gone}\n    today: nothing"]


def test_what_is_different_is_named_with_what_it_is_today() -> None:
    today = {*BEFORE, "ogive.Producer.send() -> str"} - {"ogive.Producer.send() -> SendResult"}
    assert lines.faults(BEFORE, today, []) == [
        "ogive.Producer.send() -> SendResult\n    today: ogive.Producer.send() -> str",
    ]


@pytest.mark.parametrize(
    "new",
    [
        "ogive.Producer.send needs body",
        "ogive topic show forbids --all with --json",
    ],
)
def test_more_must_not_be_asked_of_what_there_is(new: str) -> None:
    assert lines.faults(BEFORE, {*BEFORE, new}, []) == [f"{new}\n    before: no such condition"]


def test_less_may_be_asked() -> None:
    assert lines.faults(BEFORE, {*BEFORE} - {"ogive.Producer.send needs topic"}, []) == []


def test_a_change_with_an_entry_passes() -> None:
    was, now = "ogive.Producer.send() -> SendResult", "ogive.Producer.send() -> str"
    change = Change(was, now, reason="shorter", test="", gone_because="nobody used it")
    assert lines.faults(BEFORE, {*BEFORE, now} - {was}, [change]) == []


def test_writing_adds_lines_and_removes_none(tmp_path: Path) -> None:
    assert lines.write("python", {"b", "a"}, tmp_path) == {"a", "b"}
    assert lines.write("python", {"c"}, tmp_path) == {"c"}
    assert lines.stored("python", tmp_path) == ["a", "b", "c"]


def test_a_change_that_is_not_complete_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "changes.toml"
    file.write_text('[[change]]\nwas = "x"\n')
    with pytest.raises(TypeError, match="reason"):
        lines.load_changes(file)
    file.write_text('[[change]]\nwas = "x"\nreson = "y"\n')
    with pytest.raises(TypeError, match="reson"):
        lines.load_changes(file)
    file.write_text("[[change]\n")
    with pytest.raises(tomllib.TOMLDecodeError):
        lines.load_changes(file)
