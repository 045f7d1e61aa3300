"""The frames of sends are what the general codec would make of the same message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.client.config import ClientConfig
from ogive.client.sending.frame import SendFrames
from ogive.client.sending.message_builder import (
    message_property_text,
    property_text,
    with_unique_key,
)
from ogive.errors import MessageIllegal, OgiveError
from ogive.model import Message, MessageQueue
from ogive.wire.codes import Flag, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.signing import Credentials

QUEUE = MessageQueue("Orders", "broker-a", 3)
BORN_MS = 1_700_000_000_000
texts = st.none() | st.text(max_size=6) | st.sampled_from(["", "a b", "\x01", "x\x02y", "\ud800"])


@pytest.mark.feature(4)
@given(
    st.integers(0, 2**31 - 1),
    st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1),
    st.binary(max_size=200),
    st.integers(0, 0x7FF),
    st.integers(-(2**31), 2**31 - 1),
    st.booleans(),
    st.booleans(),
    st.sampled_from(
        [
            None,
            Credentials(access_key="u", secret_key="s"),
            Credentials(access_key="u", secret_key="s", security_token="t"),
        ]
    ),
    st.sampled_from([None, "shop"]),
)
def test_a_frame_decodes_to_the_command_it_stands_for(
    opaque: int,
    tag: str,
    body: bytes,
    sys_flag: int,
    flag: int,
    oneway: bool,
    is_batch: bool,
    credentials: Credentials | None,
    namespace_v2: str | None,
) -> None:
    raw = with_unique_key("K" * 32, f"TAGS\x01{tag}\x02")
    config = ClientConfig(credentials=credentials, namespace_v2=namespace_v2)
    frames = SendFrames("sellers", QUEUE, 4, config)
    if is_batch:
        frame, sys_flag, flag, oneway = frames.batch(opaque, BORN_MS, raw, body), 0, 0, False
    else:
        frame = frames.single(opaque, BORN_MS, raw, body, sys_flag, flag, oneway=oneway)
    header = SendMessageRequestV2(
        producer_group="sellers",
        topic="Orders",
        queue_id=3,
        sys_flag=sys_flag,
        born_timestamp=BORN_MS,
        flag=flag,
        properties=raw.decode(),
        reconsume_times=0,
        unit_mode=False,
        batch=is_batch,
        broker_name="broker-a",
    )
    code = RequestCode.SEND_BATCH_MESSAGE if is_batch else RequestCode.SEND_MESSAGE_V2
    flags = Flag.ONEWAY if oneway else 0
    fields = encode_header(header) | config.request_fields
    if credentials is not None:
        fields = credentials.sign(fields, body)
    expected = RemotingCommand(
        code, fields, body, opaque, flags, serialize_type=SerializeType.ROCKETMQ
    )
    assert decode_command(frame[4:]) == expected
    assert len(frame) == len(encode_command(expected))
    assert int.from_bytes(frame[:4]) == len(frame) - 4


@given(
    texts,
    st.lists(st.text(max_size=4) | st.sampled_from(["", "a b", "\x01"]), max_size=3).map(tuple),
    texts,
    st.integers(0, 18),
)
def test_the_quick_way_takes_and_refuses_what_a_message_does(
    tag: str | None, keys: tuple[str, ...], sharding_key: str | None, delay_level: int
) -> None:
    try:
        message = Message(
            "Orders", b"", tag=tag, keys=keys, sharding_key=sharding_key, delay_level=delay_level
        )
    except OgiveError as exc:
        with pytest.raises(type(exc)):
            property_text("Orders", b"", tag, keys, sharding_key, delay_level)
    else:
        assert property_text(
            "Orders", b"", tag, keys, sharding_key, delay_level
        ) == message_property_text(message)


@pytest.mark.parametrize("text", ["TAGS\x01\ud800\x02", "long\x01" + "x" * 32_767 + "\x02"])
def test_properties_that_no_broker_takes_are_refused(text: str) -> None:
    with pytest.raises(MessageIllegal):
        with_unique_key("K" * 32, text)
