"""Old files: DELETE_EXPIRED_COMMITLOG (329), CLEAN_EXPIRED_CONSUMEQUEUE (306).

Source: AdminBrokerProcessor.java, 5.5.

Behaviour
- 329 makes the next checks remove segments that are old enough, whatever the hour. Younger ones
  stay.
- 306 finds nothing to do: the files of a queue are removed together with the segments that they
  refer to.

Differs from Java
- 306 looks for queue files that were left over; here there are none.
"""

from ogive.broker.context import Context
from ogive.broker.replies import success
from ogive.transport.connection import Connection
from ogive.wire.command import RemotingCommand
from ogive.wire.headers import CleanExpiredQueuesRequest, DeleteExpiredLogRequest


def delete_expired_log(
    ctx: Context, connection: Connection, header: DeleteExpiredLogRequest, body: bytes
) -> RemotingCommand:
    ctx.retention.at_once = True
    return success()


def clean_expired_queues(
    ctx: Context, connection: Connection, header: CleanExpiredQueuesRequest, body: bytes
) -> RemotingCommand:
    return success()
