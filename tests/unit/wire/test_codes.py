"""Names of releases."""

import pytest

from ogive.wire.codes import version_name


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (513, "5.5.0"),
        (479, "5.3.3"),
        (478, "5.3.3-SNAPSHOT"),
        (413, "5.0.0"),
        (399, "4.9.3"),
        (317, "4.5.2"),
        (62, "before 4.0 (62)"),
    ],
)
def test_a_version_number_stands_for_a_release(number: int, name: str) -> None:
    assert version_name(number) == name
