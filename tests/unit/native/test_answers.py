"""native/answers.c beside ogive.wire.sends."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.native import Native
from ogive.store.types import PutResult
from ogive.wire.command import FrameDecoder, decode_command
from ogive.wire.sends import SendAnswer, encode_answers, encode_answers_in_python

HOST, HOST_V6 = bytes.fromhex("7f000001000027d1"), bytes(range(20))
VERSION = 479
int64s = st.one_of(st.integers(0, 100), st.integers(-(2**63), 2**63 - 1))
offsets = st.one_of(st.integers(0, 100), st.integers(0, 2**63 - 1))
texts = st.one_of(st.text(max_size=8), st.from_regex(r"[A-Za-z0-9]{1,70}\Z"))
answers = st.builds(
    SendAnswer,
    st.one_of(st.none(), int64s),
    int64s,
    st.one_of(st.none(), texts),
    more=st.one_of(st.none(), st.tuples(texts, texts)),
)
places = st.builds(
    PutResult,
    offsets,
    offsets,
    st.just(1),
    st.just(1),
    st.lists(offsets, max_size=3).map(lambda of_batch: b"".join(n.to_bytes(8) for n in of_batch)),
)
PLACE = PutResult(3, 4, 1, 1)


@given(
    st.lists(st.tuples(answers, places), max_size=4),
    st.sampled_from(["DefaultRegion", "50 % %d", ""]) | texts,
    st.sampled_from([HOST, HOST_V6]),
)
@example([], "", HOST)
@example([(SendAnswer(1, 2, '\ud800\x00\x7f\U0001f600"\\\b\f\n\r\t/'), PLACE)], "é", HOST)
def test_answers_are_those_that_python_writes(
    compiled: Native,
    sent: list[tuple[SendAnswer, PutResult]],
    region: str,
    host: bytes,
) -> None:
    arguments = ([one for one, _ in sent], [place for _, place in sent], region, host, VERSION)
    assert compiled.encode_answers(*arguments) == encode_answers_in_python(*arguments)


def test_an_answer_tells_all_that_clients_look_at() -> None:
    batch = PutResult(7, 8, 2, 1, (8).to_bytes(8) + (9).to_bytes(8))
    frames = encode_answers(
        [
            SendAnswer(5, 3, 'K"ü', 2, ("batchUniqId", "B")),
            SendAnswer(None, 3, "one-way"),
        ],
        [batch, PutResult(1, 2, 3, 4)],
        "Région",
        HOST,
        VERSION,
    )
    (frame,), fault = FrameDecoder().feed(frames)
    answer = decode_command(frame)
    assert fault is None
    assert (answer.code, answer.opaque, answer.flag, answer.version) == (0, 5, 1, VERSION)
    assert answer.ext_fields == {
        "queueId": "3",
        "transactionId": 'K"ü',
        "msgId": "7F000001000027D10000000000000008,7F000001000027D10000000000000009",
        "TRACE_ON": "true",
        "MSG_REGION": "Région",
        "batchUniqId": "B",
        "queueOffset": "7",
    }
    assert json.loads(frame[4:])["language"] == "PYTHON"


@pytest.mark.parametrize("count", [0, 2])
def test_places_of_others_are_refused(compiled: Native, count: int) -> None:
    for encode in (compiled.encode_answers, encode_answers_in_python):
        with pytest.raises(ValueError, match="not those of the answers"):
            encode([SendAnswer(1, 2, "A")] * count, [PLACE], "", HOST, VERSION)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        (1, 2, "A", 1),
        ("1", 2, "A", 1, None),
        (1, None, "A", 1, None),
        (1, 2, b"A", 1, None),
        (1, 2, "A", 1, ("name",)),
        (1, 2, "A", 1, (b"name", "value")),
        (1, 2, "A", 1, ("name", None)),
        (2**63, 2, "A", 1, None),
    ],
)
def test_what_is_no_answer_is_refused(compiled: Native, answer: Any) -> None:
    with pytest.raises(TypeError, match="is a SendAnswer"):
        compiled.encode_answers([answer], [PLACE], "", HOST, VERSION)


@pytest.mark.parametrize(
    "place",
    [
        None,
        (1,),
        (1, 2, 3, 4),
        ("1", 2, 3, 4, b""),
        (1, "2", 3, 4, b""),
        (-1, 2, 3, 4, b""),
        (1, -2, 3, 4, b""),
        (1, 2**63, 3, 4, b""),
        (1, 2, 3, 4, ""),
    ],
)
def test_what_is_no_place_is_refused(compiled: Native, place: Any) -> None:
    with pytest.raises(TypeError, match="a place is a PutResult"):
        compiled.encode_answers([SendAnswer(1, 2, "A")], [place], "", HOST, VERSION)


def test_wrong_types_are_refused(compiled: Native) -> None:
    right: list[Any] = [[], [], "", HOST, VERSION]
    for at, wrong in enumerate([(), (), b"", "", "1"]):
        arguments: Any = [*right[:at], wrong, *right[at + 1 :]]
        with pytest.raises(TypeError, match="answers: list"):
            compiled.encode_answers(*arguments)
    too_few: Any = right[:-1]
    with pytest.raises(TypeError, match="answers: list"):
        compiled.encode_answers(*too_few)
