"""Where a pull answer stops being messages, and what stands before that."""

import zlib
from collections.abc import Callable

import pytest

from ogive.errors import ProtocolError
from ogive.wire.codes import SysFlag
from ogive.wire.message import NoRecord, StoredMessage, decode_messages, encode_stored

Change = Callable[[bytearray], object]
LAST: dict[str, Change] = {
    "declares more bytes than there are": lambda record: record.__setitem__(3, record[3] + 1),
    "declares fewer bytes than it has": lambda record: record.__setitem__(3, record[3] - 1),
    "declares no bytes": lambda record: record.__setitem__(slice(4), bytes(4)),
    "has another magic": lambda record: record.__setitem__(4, 0),
    "has a body that ends behind it": lambda record: record.__setitem__(84, 1),
    "has a topic that is no text": lambda record: record.__setitem__(-3, 0xFF),
    "is cut off": lambda record: record.__delitem__(slice(-1, None)),
    "is the first bytes of one": lambda record: record.__delitem__(slice(7, None)),
}


@pytest.mark.parametrize("change", LAST.values(), ids=list(LAST))
def test_what_stands_before_bytes_that_are_no_message_is_known(change: Change) -> None:
    whole = [encode_stored(StoredMessage("T", b"body", queue_offset=offset)) for offset in range(3)]
    last = bytearray(whole[-1])
    change(last)
    with pytest.raises(NoRecord) as caught:
        decode_messages(b"".join(whole[:-1]) + last, "broker-a")
    assert [message.queue_offset for message in caught.value.intact] == [0, 1]
    assert isinstance(caught.value, ProtocolError)
    assert str(caught.value)


def test_bodies_behind_too_many_inflated_bytes_stay_compressed_and_say_so() -> None:
    """Megabytes of compressed bodies, one answer, may be gigabytes in memory."""
    answer = b"".join(encode_stored(StoredMessage("T", zlib.compress(b"%d" % n * 1000), sys_flag=SysFlag.COMPRESSED)) for n in range(4))
    found = decode_messages(answer, max_inflated_bytes=1500)
    assert [(len(message.body), message.is_compressed) for message in found[:2]] == [(1000, False)] * 2
    assert [(message.body, message.is_compressed) for message in found[2:]] == [(zlib.compress(b"%d" % n * 1000), True) for n in (2, 3)]
    assert not any(message.is_compressed for message in decode_messages(answer))
