"""The page of a trace report."""

import pytest

pytest.importorskip("pyspark")

from ogive.pipelines.page import page


def test_a_page_is_whole_and_escapes_names() -> None:
    row = {"name": "<b>group</b>", "count": 3, "failed": 1, "quantiles": [1, 20, 300], "most": 301}
    html = page(
        {"Delivery": [row], "Nothing": []},
        {"<b>group</b>": [(1_700_000_000_000, 20.0)]},
        read=6,
        bucket="1 minute",
    )
    assert "<b>group" not in html
    assert "&lt;b&gt;group&lt;/b&gt;" in html
    assert "Nothing was traced" in html
    assert "<script" not in html
    assert html.count("<table>") == 1
