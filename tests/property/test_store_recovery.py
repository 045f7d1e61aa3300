"""Whatever is stored is found again; whatever happens to the end of the log leaves a beginning of
it.
"""

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ogive.store.record import NEVER, read_record
from ogive.store.types import PutResult
from tests.chaos.recorder import MemoryFs
from tests.stores import Driver, message, small

ROOT = Path("/store")
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["A", "B"]), st.integers(0, 2), st.binary(min_size=1, max_size=700)),
    min_size=1,
    max_size=40,
)


# The last byte of the last record, the separator behind its checksum, is another one.
@example(
    messages=[("A", 0, bytes(size)) for size in (1, 2, 2, 3, 17)],
    cut=649,
    tail=b"\x01",
    derived=True,
)
# a torn write within the digits of the last checksum
@example(
    messages=[("A", 0, bytes(size)) for size in (1, 1, 1, 3, 4, 7, 7, 7, 15)],
    cut=1169,
    tail=b"\x00\x01",
    derived=True,
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    messages=MESSAGES,
    cut=st.integers(0, 20_000),
    tail=st.binary(max_size=64),
    derived=st.booleans(),
)
def test_any_cut_leaves_a_prefix(
    messages: list[tuple[str, int, bytes]], cut: int, tail: bytes, derived: bool
) -> None:
    fs = MemoryFs()
    driver = Driver(small(ROOT, segment_bytes=65536), fs, threaded=False)
    ends = [
        (driver.put(message(body, topic, queue_id))[0], topic, queue_id, body)
        for topic, queue_id, body in messages
    ]
    crashed = fs.copy()
    if derived:
        # All but the page that says whose records these are: without it they count as Apache's,
        # whose checksum covers the body only.
        for path in [
            path
            for path in crashed.names
            if "commitlog" not in path.parts and path.name != "checkpoint"
        ]:
            del crashed.names[path]
    data = crashed.names[ROOT / "commitlog" / f"{0:020d}"].data
    end = ends[-1][0].commitlog_offset + ends[-1][0].size
    cut = min(cut, end)
    data[cut:end] = bytes(end - cut)
    data[cut : cut + len(tail)] = tail
    again = Driver(small(ROOT, segment_bytes=65536), crashed, threaded=False)
    found = [
        (topic, queue_id, body)
        for topic, queue_id in sorted(again.store.queues)
        for body in again.bodies(topic, queue_id)
    ]
    whole = fs.names[ROOT / "commitlog" / f"{0:020d}"].data

    def is_whole(result: PutResult) -> bool:
        """Return True if only the separator behind the checksum may differ from what was stored."""
        last = result.commitlog_offset + result.size - 1
        return bytes(data[:last]) == bytes(whole[:last])

    survivors = [
        (topic, queue_id, body) for result, topic, queue_id, body in ends if is_whole(result)
    ]
    cut_off = [
        (topic, queue_id, body)
        for result, topic, queue_id, body in ends
        if result.commitlog_offset + result.size <= cut
    ]
    assert sorted(found) in (sorted(survivors), sorted(cut_off))


@given(
    raw=st.binary(max_size=300),
    at=st.integers(0, 300),
    offset=st.integers(0, 2**63 - 1),
    strict=st.booleans(),
)
def test_garbage_is_no_record(raw: bytes, at: int, offset: int, strict: bool) -> None:
    """Never an exception, never a record that reaches past the bytes there are."""
    record = read_record(raw, at, offset, 0 if strict else NEVER)
    assert record is None or at + record.size <= len(raw)
