"""What an archive in a table keeps there about itself."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ogive.errors import InvalidOption
from ogive.pipelines.archive_table import check_owner, owner_property

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
