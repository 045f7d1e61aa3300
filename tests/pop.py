"""POP over the wire, for tests that look at a broker from outside."""

from ogive.broker.pop.leases import Lease
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_messages
from ogive.wire.pop import PopHandle, read_offset_infos
from tests.raw_client import RawClient

GROUP = "G"


def open_offsets(lease: Lease) -> list[int]:
    """The offsets of a lease that are not acknowledged."""
    return [offset for at, offset in enumerate(lease.offsets) if lease.open >> at & 1]


def popping(topic: str = "T", group: str = GROUP, **changed: object) -> dict[str, object]:
    """The fields of a POP_MESSAGE that waits for nothing."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": -1,
        "maxMsgNums": 32,
        "invisibleTime": 60_000,
        "pollTime": 0,
        "bornTime": 0,
        "initMode": 0,
    } | changed


async def pop(
    client: RawClient, topic: str = "T", group: str = GROUP, **changed: object
) -> list[tuple[MessageExt, PopHandle]]:
    """What a request gets, each message with its handle; nothing for 210."""
    answer = await client.call(RequestCode.POP_MESSAGE, **popping(topic, group, **changed))
    return [] if answer.code == ResponseCode.POLLING_TIMEOUT else leased(answer)


def leased(answer: RemotingCommand, broker: str = "broker-a") -> list[tuple[MessageExt, PopHandle]]:
    """The messages of an answer with their handles, as a Java client makes them."""
    assert answer.code == ResponseCode.SUCCESS, answer
    fields = answer.ext_fields
    found = decode_messages(answer.body)
    infos = read_offset_infos(fields["startOffsetInfo"], fields["msgOffsetInfo"])
    assert len(found) == sum(len(one.offsets) for one in infos)
    # those of retry topics have their handles with them
    plain = {
        (one.queue_id, offset): (one.start, one.flag)
        for one in infos
        if not one.flag
        for offset in one.offsets
    }
    pairs = []
    for message in found:
        text = message.properties.get("POP_CK")
        if text is None:
            start, flag = plain[message.queue.queue_id, message.queue_offset]
            handle = PopHandle(
                start,
                int(fields["popTime"]),
                int(fields["invisibleTime"]),
                int(fields["reviveQid"]),
                flag,
                broker,
                message.queue.queue_id,
                message.queue_offset,
            )
        else:
            handle = PopHandle.read(text)
        pairs.append((message, handle))
    return pairs


def acknowledging(
    handle: PopHandle, topic: str = "T", group: str = GROUP, **changed: object
) -> dict[str, object]:
    """The fields of an ACK_MESSAGE. *topic*: the one that the message was read from."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": handle.queue_id,
        "extraInfo": str(handle),
        "offset": handle.offset,
    } | changed
