"""What a running broker and the commands show stays. tests/surface says how the lists are made."""

from pathlib import Path

import pytest

from tests.peers import Flavour
from tests.surface import lines, running


def test_json_metrics_log_lines_and_exit_codes_are_what_they_were(
    flavour: Flavour,
    tmp_path: Path,
) -> None:
    if flavour != "ogive":
        pytest.skip("it is our broker's surface")
    today = running.lines(tmp_path)
    assert set(today) == {"exits", "json", "logs", "metrics"}
    for part in today:
        lines.check(part, today[part])
