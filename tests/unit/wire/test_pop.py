"""Texts of POP, as Apache's clients and brokers write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.errors import ProtocolError
from ogive.model import validate_topic
from ogive.wire.pop import (
    BatchAckBody,
    PopHandle,
    PoppedOffsets,
    bits_text,
    msg_offset_info,
    read_offset_infos,
    read_topic,
    retry_flag,
    start_offset_info,
)

LONGS = st.integers(0, 2**63 - 1)
HANDLES = st.builds(
    PopHandle,
    LONGS,
    LONGS,
    LONGS,
    st.integers(0, 999),
    st.integers(0, 2),
    st.sampled_from(["broker-a", "b.c_1"]),
    st.integers(0, 2**31 - 1),
    LONGS,
)


def test_a_handle_as_apaches_broker_writes_it() -> None:
    text = "17 1735689600123 60000 3 0 broker-a 2 19"
    assert PopHandle.read(text) == PopHandle(17, 1735689600123, 60000, 3, 0, "broker-a", 2, 19)


@given(HANDLES, st.sampled_from(["", " 4711", " x y"]))
def test_a_handle_is_read_as_it_was_written(handle: PopHandle, more: str) -> None:
    assert PopHandle.read(f"{handle}{more}") == handle


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError):
        PopHandle.read(f"{text.replace(' ', '')} 1 2 3 0 broker-a 0")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "17 1735689600123 60000 3 0 broker-a 2",
        "17 1735689600123 60000 3 3 broker-a 2 19",
        "17 1735689600123 60000 1000 0 broker-a 2 19",
        "17 1735689600123 60000 3 0  2 19",
        f"{2**63} 1735689600123 60000 3 0 broker-a 2 19",
        "17 1735689600123 60000 3 0 broker-a 2 -1",
    ],
)
def test_handles_that_no_broker_gave(text: str) -> None:
    with pytest.raises(ProtocolError, match="invalid handle"):
        PopHandle.read(text)


def test_offsets_of_an_answer_as_apaches_broker_writes_them() -> None:
    queues = [PoppedOffsets(0, 1, 17, (17, 19)), PoppedOffsets(1, 0, 3, (3,))]
    assert start_offset_info(queues) == "0 1 17;1 0 3"
    assert msg_offset_info(queues) == "0 1 17,19;1 0 3"
    assert read_offset_infos("0 1 17;1 0 3", "0 1 17,19;1 0 3") == queues
    assert read_offset_infos("", "") == []
    for starts, offsets in (("0 1 17", "0 2 17"), ("0 1 17", "0 1"), ("0 1 1", "0 1 1;0 1 2")):
        with pytest.raises(ProtocolError):
            read_offset_infos(starts, offsets)


def test_a_batch_acknowledgement_as_javas_client_writes_it() -> None:
    short = (
        b'{"brokerName":"broker-a","acks":[{"c":"group","t":"topic","r":"1","so":17,"q":2,"rq":3,'
        b'"pt":1735689600123,"it":60000,"b":"BQ=="}]}'
    )
    long = (
        b'{"brokerName":"broker-a","acks":[{"consumerGroup":"group","topic":"topic","retry":"1",'
        b'"startOffset":17,"queueId":2,"reviveQueueId":3,"popTime":1735689600123,'
        b'"invisibleTime":60000,"bitSet":"BQ=="}]}'
    )
    (ack,) = BatchAckBody.decode(short).acks
    assert BatchAckBody.decode(long).acks == (ack,)
    assert (ack.bits, ack.read_topic, ack.start) == (0b101, "%RETRY%group_topic", 17)
    assert BatchAckBody.decode(BatchAckBody(acks=(ack,)).encode()).acks == (ack,)
    wrong = b'{"acks":[{"c":"g","t":"t","r":"3","so":0,"q":0,"b":"AQ=="}]}'
    with pytest.raises(ProtocolError):
        _ = BatchAckBody.decode(wrong).acks[0].read_topic
    with pytest.raises(ProtocolError):
        BatchAckBody.decode(b'{"acks":[{"b":"?"}]}')


@given(st.integers(0, 2**800))
def test_bits_are_read_as_they_were_written(bits: int) -> None:
    body = b'{"acks":[{"b":"%b"}]}' % bits_text(bits).encode()
    assert BatchAckBody.decode(body).acks[0].bits == bits


def test_names_of_retry_topics() -> None:
    assert read_topic("g_1", "t", 0) == "t"
    assert read_topic("g_1", "t", 1) == "%RETRY%g_1_t"
    assert read_topic("g_1", "t", 2) == validate_topic("%RETRY%g_1+t")
    assert [retry_flag(read_topic("g", "t", flag)) for flag in range(3)] == [0, 1, 2]
