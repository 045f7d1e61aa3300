"""Receives the replies to this client's requests.

Source: ClientRemotingProcessor.java, RequestFutureHolder.java, 5.3.

Behaviour
- A broker pushes a reply (code 326) to the client that asked; the correlation id tells which
  request it is for. The broker is told SUCCESS, even if nobody is waiting for the reply any more.
- A reply that cannot be read ends its request with that error, and the broker is told.
"""

import asyncio
import logging
import time
from typing import Final

from ogive.client import api
from ogive.errors import (
    CompressionUnavailable,
    OgiveError,
    ProtocolError,
    ResponseCode,
    TooManyRequests,
)
from ogive.model import MessageExt, MessageQueue, PropertyName
from ogive.wire.codes import SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.compression import decompress
from ogive.wire.headers import PushReplyMessageRequest, decode_header
from ogive.wire.message import decode_properties

log = logging.getLogger(__name__)

MAX_WAITING: Final = 10_000


class ReplyTable:
    """The requests of one client that wait for a reply, by correlation id."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[MessageExt]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, correlation_id: str) -> asyncio.Future[MessageExt]:
        """A future for the reply; the caller must forget it in the end. Raises TooManyRequests."""
        if len(self._waiting) >= MAX_WAITING:
            raise TooManyRequests(
                f"{MAX_WAITING} requests of this client wait for replies already: this one was not "
                "sent"
            )
        future: asyncio.Future[MessageExt] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = future
        return future

    def forget(self, correlation_id: str) -> None:
        """What comes from now on is late."""
        self._waiting.pop(correlation_id, None)

    def take(self, command: RemotingCommand) -> RemotingCommand:
        """Bring a pushed reply to its request; returns the answer to the broker."""
        try:
            header = decode_header(PushReplyMessageRequest, command.ext_fields)
            properties = decode_properties((header.properties or "").encode("utf-8", "replace"))
        except ProtocolError as exc:
            log.warning("a reply cannot be read: %s", exc)
            return api.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        correlation_id = properties.get(PropertyName.CORRELATION_ID, "")
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None or waiting.done():
            log.debug("nobody waits for the reply to request %s (any more)", correlation_id)
            return api.success()
        properties[PropertyName.ARRIVE_TIME] = str(time.time_ns() // 1_000_000)
        try:
            waiting.set_result(_message(header, properties, command.body))
        except (ProtocolError, CompressionUnavailable) as exc:
            waiting.set_exception(_unreadable(correlation_id, exc))
            return api.refusal(ResponseCode.SYSTEM_ERROR, str(exc))
        return api.success()


def _message(
    header: PushReplyMessageRequest, properties: dict[str, str], body: bytes
) -> MessageExt:
    """The reply as a message; it has no place in a queue yet.

    Raises ProtocolError, CompressionUnavailable.
    """
    sys_flag = header.sys_flag
    if sys_flag & SysFlag.COMPRESSED:
        body = decompress(body, sys_flag)
        sys_flag &= ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
    return MessageExt(
        topic=header.topic,
        body=body,
        properties=properties,
        queue=MessageQueue(header.topic, "", header.queue_id),
        queue_offset=0,
        commitlog_offset=0,
        reconsume_times=header.reconsume_times or 0,
        born_timestamp_ms=header.born_timestamp,
        store_timestamp_ms=header.store_timestamp,
        born_host=header.born_host,
        store_host=header.store_host,
        flag=header.flag,
        sys_flag=sys_flag,
        stored_bytes=0,
    )


def _unreadable(correlation_id: str, error: OgiveError) -> OgiveError:
    return type(error)(f"the reply to request {correlation_id} cannot be read: {error}")
