"""The frames of sends are what the general codec would make of the same message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogive.model import MessageQueue
from ogive.wire.codes import Flag, RequestCode, SerializeType
from ogive.wire.command import RemotingCommand, decode_command, encode_command
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.send import SendMessageRequestV2
from ogive.wire.sends import SendEncoder
from ogive.wire.signing import Credentials

QUEUE = MessageQueue("Orders", "broker-a", 3)
BORN_MS = 1_700_000_000_000


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
    st.sampled_from([{}, {"ns": "shop", "nsd": "true"}]),
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
    request_fields: dict[str, str],
) -> None:
    raw = f"UNIQ_KEY\x01{'K' * 32}\x02TAGS\x01{tag}\x02".encode()
    encoder = SendEncoder("sellers", QUEUE, 4, credentials, request_fields)
    if is_batch:
        frame, sys_flag, flag, oneway = encoder.batch(opaque, BORN_MS, raw, body), 0, 0, False
    else:
        frame = encoder.single(opaque, BORN_MS, raw, body, sys_flag, flag, oneway=oneway)
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
    fields = encode_header(header) | request_fields
    if credentials is not None:
        fields = credentials.sign(fields, body)
    expected = RemotingCommand(
        code, fields, body, opaque, flags, serialize_type=SerializeType.ROCKETMQ
    )
    assert decode_command(frame[4:]) == expected
    assert len(frame) == len(encode_command(expected))
    assert int.from_bytes(frame[:4]) == len(frame) - 4


@pytest.mark.parametrize("born_ms", [0, 12_345, 999_999_999_999])
def test_a_clock_that_was_not_set_yet_leaves_a_frame_whole(born_ms: int) -> None:
    credentials = Credentials(access_key="u", secret_key="s")
    encoder = SendEncoder("sellers", QUEUE, 4, credentials)
    frame = encoder.single(1, born_ms, b"UNIQ_KEY\x01K\x02", b"body")
    command = decode_command(frame[4:])
    assert int(command.ext_fields["g"]) == born_ms
    assert command.ext_fields["i"] == "UNIQ_KEY\x01K\x02"
    unsigned = {name: text for name, text in command.ext_fields.items() if name != "Signature"}
    assert credentials.sign(unsigned, b"body") == command.ext_fields
