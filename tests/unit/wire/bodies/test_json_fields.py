"""Numbers in JSON bodies that Python takes, and Java has not."""

import pytest

from ogive.errors import ProtocolError
from ogive.wire.bodies.clients import ConsumerRunningInfo, HeartbeatData
from ogive.wire.bodies.stats import consume_tps_loads

HUGE = b"9" * 400


def heartbeat(code: bytes) -> bytes:
    return (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
        b'[{"topic":"T","subString":"a","codeSet":[' + code + b"]}]}]}"
    )


@pytest.mark.parametrize("number", [HUGE, b"1e999", b"Infinity", b"NaN"])
def test_a_tag_code_that_is_no_integer_is_refused(number: bytes) -> None:
    with pytest.raises(ProtocolError):
        HeartbeatData.decode(heartbeat(number))


def test_a_rate_beyond_all_floats_is_refused() -> None:
    with pytest.raises(ProtocolError):
        consume_tps_loads(b'{"consumeTps":' + HUGE + b"}")
    with pytest.raises(ProtocolError):
        ConsumerRunningInfo.decode(b'{"statusTable":{"T":{"pullRT":' + HUGE + b"}}}")
