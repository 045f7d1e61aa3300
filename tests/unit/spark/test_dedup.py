"""A repeated task sends what is not stored yet, each row once and under a key of its own, whatever
order its rows come in.
"""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

from ogive.spark.dedup import Unsent
from ogive.spark.rows import Keys, Row, form
from ogive.wire.message import decode_properties

KEYS = Keys("query", 7, partition=3, of_content=True)


def formed(bodies: list[int], first: int = 0) -> list[Row]:
    batch = pa.RecordBatch.from_arrays([pa.array(list(map(str, bodies)), pa.string())], ["body"])
    return form(batch, "Orders", first, 3, KEYS)


@given(st.lists(st.integers(0, 5), max_size=12), st.data())
def test_each_row_is_sent_once_under_a_key_of_its_own(
    bodies: list[int], data: st.DataObject
) -> None:
    """Three attempts, each in its own order, each but the last cut anywhere: any of what it sends
    is stored or not.
    """
    stored: list[Row] = []
    for last in (False, False, True):
        order = data.draw(st.permutations(bodies))
        cut = data.draw(st.integers(0, len(order)))
        unsent = Unsent(row.key for row in stored)
        sent = unsent.of(formed(order[:cut])) + unsent.of(formed(order[cut:], cut))
        stored += sent if last else [row for row in sent if data.draw(st.booleans())]
    assert Counter(row.body for row in stored) == Counter(str(body).encode() for body in bodies)
    assert len({row.key for row in stored}) == len(bodies)
    assert all(decode_properties(row.properties) == {"UNIQ_KEY": row.key} for row in stored)


def test_a_key_of_the_users_is_one_row() -> None:
    """However many rows have it, and whatever they hold."""
    names = ["body", "uniqueKey"]
    columns = [
        pa.array(values, pa.string())
        for values in (["a", "b", "c"], ["order 1", "order 1", "order 2"])
    ]
    rows = form(pa.RecordBatch.from_arrays(columns, names), "Orders", 0, 3, KEYS)
    assert [row.body for row in Unsent([rows[0].key]).of(rows)] == [b"c"]
    assert [row.body for row in Unsent([f"{rows[0].key[:20]}{0:012X}"]).of(rows)] == [
        b"a",
        b"b",
        b"c",
    ]


def test_messages_of_others_are_nobodys_rows() -> None:
    rows = formed([1, 1])
    assert Unsent(["", "k", "7F0000010000000000000000000000000"]).of(rows) == rows
    assert Unsent([rows[0].key + "00", *(row.key for row in formed([2]))]).of(rows) == rows
