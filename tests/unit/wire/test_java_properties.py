"""Files in the form of java.util.Properties. tests/interop/test_broker_conf.py has Java read the
same texts.
"""

import pytest

from ogive.errors import InvalidOption
from ogive.wire.java_properties import parse_properties
from tests.java_properties import SAMPLES


@pytest.mark.parametrize(("data", "expected"), SAMPLES)
def test_a_text_is_read_as_by_java(data: bytes, expected: dict[str, str] | None) -> None:
    """None: Java refuses it, too."""
    if expected is None:
        with pytest.raises(InvalidOption, match="not a Unicode escape"):
            parse_properties(data)
    else:
        assert parse_properties(data) == expected
