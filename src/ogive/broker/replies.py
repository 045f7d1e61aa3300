"""Build answers, and turn errors into answers.

Every server of 5.x answers in JSON, whatever the encoding of the request is: clients decode a frame
by its own type, and those in C++ read only JSON.
"""

import logging
import struct
from typing import Final

from ogive.errors import (
    InvalidOption,
    OgiveError,
    ProtocolError,
    Refused,
    ResponseCode,
    StoreBusy,
    StoreError,
)
from ogive.transport.connection import Connection
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand, encode_command
from ogive.wire.headers.codec import Header, encode_header

log = logging.getLogger(__name__)

RESPONSE: Final = int(Flag.RESPONSE)
ONEWAY: Final = int(Flag.ONEWAY)
# in one answer, some 10 MB of text: more may fit no frame
MAX_QUEUES_SHOWN: Final = 50_000

# of a frame, and of its header in JSON
_LENGTHS: Final = struct.Struct(">II")
_SUCCESS: Final = encode_command(RemotingCommand(ResponseCode.SUCCESS, {}, b"", 0, RESPONSE))[
    8:
].replace(b'"opaque":0', b'"opaque":%d')


class Rejected(Refused):
    """Error raised by the broker's handlers."""


def success(
    header: Header | None = None, body: bytes = b"", *, remark: str | None = None
) -> RemotingCommand:
    """Return SUCCESS with the fields of *header*; the opaque is added when it is sent."""
    return RemotingCommand(
        ResponseCode.SUCCESS,
        {} if header is None else encode_header(header),
        body,
        0,
        RESPONSE,
        remark,
    )


def success_frame(opaque: int) -> bytes:
    """Return the frame of success() for the request with this number, at a tenth of its cost."""
    return framed(_SUCCESS % opaque)


def framed(head: bytes, body_bytes: int = 0) -> bytes:
    """Return a frame up to its body: both lengths, and *head*, its header in JSON."""
    return _LENGTHS.pack(4 + len(head) + body_bytes, len(head)) + head


def reply_success(connection: Connection, request: RemotingCommand) -> None:
    """Call reply() with success()."""
    if not request.flag & ONEWAY:
        connection.reply(success_frame(request.opaque))


def reply(connection: Connection, request: RemotingCommand, answer: RemotingCommand) -> None:
    """Send the answer, unless the request is one-way."""
    if not request.flag & ONEWAY:
        answer.opaque = request.opaque
        connection.reply(answer)


def refuse(
    connection: Connection,
    request: RemotingCommand,
    error: OgiveError,
    fields: dict[str, str] | None = None,
) -> None:
    """Answer with the code for *error*, and *fields*.

    Raises *error* again if no request can cause it, which means a bug.
    """
    code, remark = code_and_remark(error)
    reply(connection, request, RemotingCommand(code, fields or {}, b"", 0, RESPONSE, remark))


def refusal(error: Exception) -> OgiveError:
    """Return the error to answer with if *error* ended a step that no caller awaits.

    An error that is not an OgiveError means a bug. It is logged, and answered as StoreError.
    """
    if isinstance(error, OgiveError):
        return error
    log.error("a request failed", exc_info=error)
    return StoreError(f"the broker failed: {type(error).__name__}")


def code_and_remark(error: OgiveError) -> tuple[ResponseCode, str]:
    """Return the answer to *error*. Raises it again if no request can cause it."""
    match error:
        case Refused():
            return error.code, error.remark
        case InvalidOption():
            return ResponseCode.INVALID_PARAMETER, str(error)
        case ProtocolError():
            return ResponseCode.SYSTEM_ERROR, str(error)
        case StoreBusy():
            return (
                ResponseCode.SYSTEM_BUSY,
                f"[REJECTREQUEST]system busy, start flow control for a while: {error}",
            )
        case StoreError():
            return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
    raise error
