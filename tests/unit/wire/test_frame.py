"""Frames of a stream of bytes."""

from ogive.http2.connection import PREFACE
from ogive.wire.command import FrameDecoder


def test_a_grpc_client_is_told_the_right_port() -> None:
    frames, fault = FrameDecoder().feed(PREFACE)
    assert frames == []
    assert "it speaks gRPC" in str(fault)
    assert "--grpc-port" in str(fault)
