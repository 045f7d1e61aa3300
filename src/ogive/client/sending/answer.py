"""Meaning of a broker's answer to a send."""

from collections.abc import Sequence

from ogive.client.rpc.messages import STORED
from ogive.client.sending.pending import Answer, Outgoing, Target
from ogive.errors import OgiveError, ProtocolError, broker_error
from ogive.model import MessageQueue, SendResult
from ogive.wire.command import RemotingCommand


def result_of(key: str, answer: Answer, target: Target) -> SendResult | OgiveError:
    """The result of one attempt for one message: where it is stored, or an error."""
    if not isinstance(answer, RemotingCommand):
        return answer
    if answer.code not in STORED:
        return broker_error(answer.code, answer.remark, target.lane.address)
    try:
        return _read(key, answer, target.queue)
    except (KeyError, ValueError) as exc:
        return ProtocolError(f"the broker stored the message, but its answer cannot be read: {exc}")


def results_of(
    run: Sequence[Outgoing], answer: Answer, target: Target
) -> list[SendResult] | OgiveError:
    """The same for messages of one request: a result for each, or an error."""
    result = result_of(run[0].key, answer, target)
    if not isinstance(result, SendResult):
        return result
    return [result] if len(run) == 1 else split_result(result, [outgoing.key for outgoing in run])


def _read(key: str, answer: RemotingCommand, queue: MessageQueue) -> SendResult:
    ext = answer.ext_fields
    queue_id = int(ext["queueId"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    return SendResult(
        STORED[answer.code],
        key,
        ext["msgId"],
        queue,
        int(ext["queueOffset"]),
        ext.get("recallHandle"),
    )


def split_result(result: SendResult, keys: list[str]) -> list[SendResult]:
    """A batch's result as one for each message: consecutive offsets of one queue."""
    if len(keys) == 1:
        return [result]
    ids = result.offset_id.split(",")
    if len(ids) != len(keys):
        # a topic that keeps batches whole has one id for all
        ids = [result.offset_id] * len(keys)
    rows = enumerate(zip(keys, ids, strict=True))
    return [
        SendResult(result.status, key, offset_id, result.queue, result.queue_offset + i)
        for i, (key, offset_id) in rows
    ]
