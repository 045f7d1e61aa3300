"""Trace records as Java's clients write them."""

import pytest

from ogive.errors import ProtocolError
from ogive.wire.trace import TraceRecord, by_time, decode_trace

KEY = "C0000202444077C45AE868EB66A60000"


def body(*records: tuple[object, ...]) -> bytes:
    return "".join("\x01".join(map(str, record)) + "\x02" for record in records).encode()


def test_a_send_a_delivery_and_its_end_are_read() -> None:
    pub = (
        "Pub",
        1000,
        "DefaultRegion",
        "pg",
        "Orders",
        KEY,
        "paid",
        "4711 4712",
        "127.0.0.1:10911",
        3,
        7,
        0,
        "7F00",
        "true",
    )
    before = ("SubBefore", 2000, "DefaultRegion", "billing", "R1", KEY, 2, "4711")
    after = ("SubAfter", "R1", KEY, 5, "false", "4711", 2, 2005, "billing")
    assert decode_trace(body(pub, before, after)) == [
        TraceRecord(
            step="sent",
            message_id=KEY,
            at_ms=1000,
            group="pg",
            topic="Orders",
            tag="paid",
            keys=("4711", "4712"),
            host="127.0.0.1:10911",
            cost_ms=7,
            success=True,
            message_type="normal",
            offset_id="7F00",
        ),
        TraceRecord(
            step="delivered",
            message_id=KEY,
            at_ms=2000,
            group="billing",
            keys=("4711",),
            request_id="R1",
            retries=2,
        ),
        TraceRecord(
            step="consumed",
            message_id=KEY,
            at_ms=2005,
            group="billing",
            keys=("4711",),
            cost_ms=5,
            success=False,
            request_id="R1",
            result="exception",
        ),
    ]


def test_what_a_client_tells_of_a_failure_is_read() -> None:
    after = ("SubAfter", "R1", KEY, 5, "false", "", 4, 2005, "billing", "asked for another try")
    (record,) = decode_trace(body(after))
    assert (record.result, record.error) == ("later", "asked for another try")


def test_the_end_of_a_transaction_is_read() -> None:
    record = (
        "EndTransaction",
        1,
        "r",
        "pg",
        "Orders",
        KEY,
        "null",
        "",
        "127.0.0.1:10911",
        2,
        "T1",
        "COMMIT_MESSAGE",
        "true",
    )
    (read,) = decode_trace(body(record))
    assert (read.step, read.message_type, read.transaction_state, read.tag, read.keys) == (
        "transaction ended",
        "commit",
        "COMMIT_MESSAGE",
        None,
        (),
    )


def test_older_and_newer_clients_say_less_and_more() -> None:
    old, new = (
        ("SubAfter", "R1", KEY, 5, "true", "k"),
        ("SubAfter", "R1", KEY, 5, "true", "k", 0, 9, "g", "more"),
    )
    assert [
        (r.at_ms, r.group)
        for r in decode_trace(body(old, new, ("Recall", 1, "r", "g", "T", KEY, "true")))
    ] == [(None, None), (9, "g")]
    assert decode_trace(b"") == []


@pytest.mark.parametrize(
    "bad", [b"\xff", body(("Pub", "soon", "r", "g", "T", KEY)), body(("SubBefore", 1, "r", "g"))]
)
def test_what_is_no_trace_is_refused(bad: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_trace(bad)


def test_steps_of_one_millisecond_stand_in_the_order_in_which_they_happen() -> None:
    steps = ("consumed", "delivered", "transaction ended", "sent")
    records = [TraceRecord(step=step, message_id=KEY, at_ms=7, group="g") for step in steps]
    records.append(TraceRecord(step="sent", message_id=KEY, at_ms=8, group="g"))
    assert [record.step for record in sorted(records, key=by_time)] == [
        "sent",
        "transaction ended",
        "delivered",
        "consumed",
        "sent",
    ]
