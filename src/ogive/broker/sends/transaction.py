"""END_TRANSACTION (37): a producer commits a half message or rolls it back, by itself or because it
was asked (39).

Source: EndTransactionProcessor.java, 5.3.

Behaviour
- The request names the half message by both its offsets, and its producer group must be the
  sender's.
- A commit is answered when the message is safe and visible. A transaction that has ended already is
  not ended again: the same decision is a success once more, any other ILLEGAL_OPERATION.
- The decision "unknown" changes nothing: the producer will be asked, or asked again.

Differs from Java
- Java stores the message again for each commit of a copy of its half message.
- Java does not answer "unknown", and refuses a commit that comes after the time that
  CHECK_IMMUNITY_TIME_IN_SECONDS grants.
"""

from functools import partial
from typing import Final

from ogive.broker.replies import ONEWAY, Rejected, refuse, reply_success
from ogive.broker.services import Context
from ogive.broker.transactions.half_messages import identity_of_record
from ogive.errors import ResponseCode, StoreError
from ogive.model import HALF_TOPIC, PropertyName
from ogive.transport.connection import Connection
from ogive.wire.codes import Decision
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import decode_header
from ogive.wire.headers.send import EndTransactionRequest
from ogive.wire.message import StoredMessage, decode_stored, raw_property

DECISIONS: Final = frozenset(Decision)


def end(ctx: Context, connection: Connection, command: RemotingCommand) -> None:
    """End a transaction that is looked up in the log.

    Nearly every end finds its transaction in memory, see plan.py: reading and decoding the half
    message costs as much as the rest of an end.
    """
    header = decode_header(EndTransactionRequest, command.ext_fields)
    if header.commit_or_rollback not in DECISIONS:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong")
    if header.commit_or_rollback == Decision.UNKNOWN:
        ctx.transactions.undecided(
            header.tran_state_table_offset, header.commit_log_offset, header.producer_group
        )
        reply_success(connection, command)
        return
    decision = Decision(header.commit_or_rollback)
    identity = identity_of_record(_half_message(ctx, header))
    transaction, outcome = ctx.transactions.get(identity), ctx.transactions.outcome(identity)
    if transaction is None or outcome is not None:
        if outcome is not decision:
            how = "nobody knows how any more" if outcome is None else outcome.name.lower()
            raise Rejected(
                ResponseCode.ILLEGAL_OPERATION, f"the transaction has ended before: {how}"
            )
        reply_success(connection, command)
        return
    ended = None if command.flag & ONEWAY else partial(_ended, connection, command)
    ctx.transactions.end(transaction, decision, ended)


def _half_message(ctx: Context, header: EndTransactionRequest) -> StoredMessage:
    with ctx.store.without_waiting():
        record = ctx.store.record_at(header.commit_log_offset)
    stored = decode_stored(record) if record is not None else None
    if stored is None or stored.topic != HALF_TOPIC:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
    if (
        raw_property(stored.properties, PropertyName.PRODUCER_GROUP.encode())
        != header.producer_group.encode()
    ):
        raise Rejected(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
    if stored.queue_offset != header.tran_state_table_offset:
        raise Rejected(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    return stored


def _ended(connection: Connection, command: RemotingCommand, error: StoreError | None) -> None:
    if error is None:
        reply_success(connection, command)
    else:
        refuse(connection, command, error)
