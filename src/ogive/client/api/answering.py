"""Answers to the requests of brokers."""

from collections.abc import Mapping

from ogive.errors import ResponseCode
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand


def success(ext_fields: Mapping[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """An answer to a broker's request; opaque is filled in where it is sent."""
    return RemotingCommand(ResponseCode.SUCCESS, dict(ext_fields or {}), body, flag=Flag.RESPONSE)


def refusal(code: int, remark: str) -> RemotingCommand:
    """An answer that says why a broker's request was not carried out."""
    return RemotingCommand(code, {}, flag=Flag.RESPONSE, remark=remark)
