"""Faults that a broker and a client must never have.

Tests say which of them they must notice: ``@pytest.mark.kills("name of the fault")``, and for one
set of parameters ``@pytest.mark.kills("name of the fault", param="error-orderly")``.
"case N" is a case of tests/never, "TN" a test of docs/reliability.md.
"""

from collections.abc import Mapping
from typing import Final

from ogive.access import permissions
from ogive.broker.pulls.long_polling import SlowReaders
from ogive.broker.state.queue_locks import QueueLocks
from ogive.client.broker_requests import BrokerRequests
from ogive.client.consumer.allocate import average, consistent_hash
from ogive.client.consumer.concurrent import ConcurrentService
from ogive.client.consumer.delivery import CorruptMessages
from ogive.client.consumer.group_client import GroupClient
from ogive.client.consumer.member import GroupMember
from ogive.client.consumer.offset_store import Offsets, read_offsets
from ogive.client.consumer.orderly import OrderlyService
from ogive.client.consumer.outcome import failed, read
from ogive.client.consumer.process_queue import ProcessQueue
from ogive.client.consumer.pull_loop import PullService
from ogive.client.consumer.rebalance import Rebalancer
from ogive.client.consumer.send_back import SendBack
from ogive.client.consumer.workers import ThreadPool
from ogive.client.ids import make_client_id
from ogive.client.instance import ClientInstance, ClientOwner
from ogive.client.producer import Producer
from ogive.client.route_cache import NameServers
from ogive.client.rpc.groups import query_consumer_offset
from ogive.client.rpc.messages import _pulled, pull_message
from ogive.client.sending.pending import may_try_again
from ogive.errors import ConnectionLost
from ogive.store.log_scan import LogScan
from ogive.store.message_store import MessageStore
from ogive.store.record import read_record
from ogive.store.replay import Replay
from ogive.store.tables import replace_file, write_synced
from ogive.store.writer import CommitWriter
from ogive.transport.connection import Connection
from ogive.wire.bodies.routes import RegisterBrokerBody, check_brokers
from ogive.wire.command import FrameDecoder
from ogive.wire.compression import _unpack_zlib
from ogive.wire.message import _decode
from tests.mutants.fault import Fault

NAMED: Final[Mapping[str, Fault]] = {
    "a queue is taken over while another member has it": Fault(
        at=Rebalancer,
        change="queues = await self._claims.free(topic, queues, others)",
        to="pass",
    ),
    "a queue is given up before its commit": Fault(
        at=Rebalancer,
        change="return not self._group.store.is_saved(process_queue.queue)",
        to="return False",
    ),
    "ack before fdatasync": Fault(
        at=CommitWriter,
        change="self._log.write(chunks)\nself._log.sync()",
        to="self._log.write(chunks)",
    ),
    "durable mark moves after a failed sync": Fault(
        at=CommitWriter,
        change='self._fail("writing the commit log", exc, groups)\nreturn',
        to="pass",
    ),
    "retry of failed sync acknowledges": Fault(
        at=CommitWriter,
        change='self._fail("writing the commit log", exc, groups)\nreturn',
        to="self._log.sync()",
    ),
    "no fdatasync before rename": Fault(
        at=write_synced,
        change="fs.fdatasync(handle)",
        to="pass",
    ),
    "no directory fsync": Fault(
        at=replace_file,
        change="fs.fsync_dir(path.parent)",
        to="pass",
    ),
    "dispatch before durable": Fault(
        at=MessageStore,
        change="self._link.post(group)",
        to="""
self._link.post(group)
for queue, entries, count in group.entries:
    queue.append(entries, count)
group.entries.clear()
""",
    ),
    "recovery stops at the first bad record in a middle segment": Fault(
        at=LogScan.records,
        change="self.next_valid(position)",
        to="None",
    ),
    "record checksum covers the body only": Fault(
        at=read_record,
        change="tail == crc_property(crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)",
        to="crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF == body_crc",
    ),
    "consume queue not rebuilt": Fault(
        at=Replay,
        change="lost.append(state)",
        to="pass",
    ),
    "responses matched by order, T17": Fault(
        at=Connection,
        change="self._calls.pop(command.opaque, None)",
        to="self._calls.pop(next(iter(self._calls), 0), None)",
    ),
    "queue lock not renewed": Fault(
        at=GroupMember,
        change="""self._jobs.append(
            group.every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks")
        )""",
        to="pass",
    ),
    "declared length is believed": Fault(
        at=FrameDecoder,
        change="4 <= size <= self._max",
        to="4 <= size",
    ),
    "inflate without cap, at the client": Fault(
        at=_unpack_zlib,
        change="inflater.decompress(body, limit + 1)",
        to="inflater.decompress(body)[:limit]",
    ),
    "inflate without cap, at the name server": Fault(
        at=RegisterBrokerBody,
        change="inflater.decompress(body, limit)",
        to="inflater.decompress(body)",
    ),
    "one request code missing from the permission table": Fault(
        at=permissions,
        change='_rows(topic_at("offset", SUB, GET), C.VIEW_MESSAGE_BY_ID)',
        to="{}",
    ),
    "outgoing buffer without limit": Fault(
        at=SlowReaders,
        change="""return (
            connection in self._queues
            or connection.unsent_bytes >= most
            or self._unread.is_full
        )""",
        to="return False",
    ),
    "case 1: a failed query leaves the queue at offset 0": Fault(
        at=Rebalancer._begin,
        change="return None",
        to="return 0",
    ),
    "case 1: any refusal of a query counts as no offset": Fault(
        at=query_consumer_offset,
        change="QueryNotFound",
        to="BrokerError",
    ),
    "case 2: offset committed = highest done": Fault(
        at=ProcessQueue,
        change="self._blocks[0].lowest if self._blocks else self.pull_offset",
        to="self.pull_offset",
    ),
    "case 3: a queue that leaves takes the offsets of all": Fault(
        at=Offsets,
        change="self._offsets.pop(queue, None)",
        to="self._offsets.clear()",
    ),
    "case 4: an illegal offset is followed without a check": Fault(
        at=PullService,
        change="await self._rebalancer.go_to(process_queue, result.next_offset)",
        to="process_queue.pull_offset = result.next_offset",
    ),
    "case 5: a failed send-back counts as done": Fault(
        at=SendBack,
        change="self._strand(process_queue, message)\nreturn",
        to="self._group.finish_message(process_queue, message)\nreturn",
    ),
    "case 6: a failing batch is sent back whole": Fault(
        at=ConcurrentService,
        change="messages[failure.done :]",
        to="messages",
    ),
    "case 7: an unknown result is a success": Fault(
        at=read,
        change="""return (
            Failure(why=f"its listener returned {shown(answer)}, which is not a result"),
            False,
        )""",
        to="return None, True",
    ),
    "case 7: an exception is a success": Fault(
        at=failed,
        change="return Failure(why=shown(error))",
        to="return None",
    ),
    "case 8: one retry too many": Fault(
        at=GroupClient.send_back,
        change="max_retries",
        to="max_retries + 1",
    ),
    "case 9: shares overlap": Fault(
        at=average,
        change="index * share + min(index, extra)",
        to="index * share",
    ),
    "case 9: the ring places brokers, not queues": Fault(
        at=consistent_hash,
        change="_ring_point(_queue_text(queue))",
        to="_ring_point(queue.broker_name)",
    ),
    "case 10: client ids without a random part": Fault(
        at=make_client_id,
        change="secrets.randbits(64)",
        to="0",
    ),
    "case 11: messages of another subscription are passed over in silence": Fault(
        at=PullService,
        change="self._report_unwanted(subscription)",
        to="pass",
    ),
    "case 12: queues are not given up at the end": Fault(
        at=GroupMember,
        change="await self._rebalancer.give_up_all()",
        to="pass",
    ),
    "case 13: the pulls of a queue that leaves go on": Fault(
        at=PullService.left,
        change="task = self._tasks.get(process_queue)",
        to="return",
    ),
    "case 14: a finished message is sent back": Fault(
        at=SendBack,
        change="""(
            self._closed
            or key in self._under_way
            or message.queue_offset not in process_queue
        )""",
        to="self._closed or key in self._under_way",
    ),
    "case 15: locks are not given back": Fault(
        at=Rebalancer,
        change="await self._unlock(quiet)",
        to="pass",
    ),
    "case 15: the lease of a lock never ends": Fault(
        at=QueueLocks,
        change="lease.client_id, lease.expires_at = client_id, now + self._lease_s",
        to="lease.client_id, lease.expires_at = client_id, now + 1e6",
    ),
    "case 16: queue lock not checked before consume": Fault(
        at=OrderlyService,
        change="lease_time(time.monotonic()) < process_queue.leased_until",
        to="True",
    ),
    "case 16: a renewal does not start the queue again": Fault(
        at=Rebalancer,
        change="self._receiver.submit(held[queue], ())",
        to="pass",
    ),
    "case 16: the locks of before a restart are free at once": Fault(
        at=QueueLocks.load,
        change="self._now() + self._lease_s",
        to="self._now()",
    ),
    "case 17: a failed pull is the last": Fault(
        at=PullService,
        change="await self._after_failure(process_queue, exc)",
        to="return",
    ),
    "case 18: a silent connection is kept": Fault(
        at=Connection,
        change="self._loop.time() - self._silent_since >= self.limits.silence_s",
        to="False",
    ),
    "case 18: routes are not asked for again": Fault(
        at=ClientInstance,
        change="self._refresh_routes",
        to="self._beat_all",
    ),
    "case 19: heartbeats wait for one another": Fault(
        at=ClientInstance._beat_all,
        change="self._beat_soon(address)",
        to="await self._beat(address)",
    ),
    "case 20: cached messages without limit": Fault(
        at=PullService,
        change="process_queue.count > config.max_cached_messages",
        to="False",
    ),
    "case 21: an own client stays open": Fault(
        at=ClientOwner.close,
        change="await self._client.close()",
        to="pass",
    ),
    "case 22: a shared client is closed": Fault(
        at=ClientOwner.close,
        change="self._client is not None and self._shared is None",
        to="self._client is not None",
    ),
    "case 23: brokers are unregistered at one after the other": Fault(
        at=ClientInstance,
        change="""await asyncio.gather(*(
            self._unregister_at(address, producer_group, consumer_group) for address in addresses
        ))""",
        to="""[
            await self._unregister_at(address, producer_group, consumer_group)
            for address in addresses
        ]""",
    ),
    "case 23: listeners' threads keep the process alive": Fault(
        at=ThreadPool,
        change="""threading.Thread(
            target=self._run, args=(inbox,), name=IDLE_NAME, daemon=True
        )""",
        to="""threading.Thread(
            target=self._run, args=(inbox,), name=IDLE_NAME, daemon=False
        )""",
    ),
    "case 24: a damaged file of offsets fails the start": Fault(
        at=read_offsets,
        change="(OSError, ProtocolError)",
        to="OSError",
    ),
    "case 25: a send has the time of other requests": Fault(
        at=Producer,
        change="self.config.send_timeout_s",
        to="self._owner.client.config.request_timeout_s",
    ),
    "case 25: one try too few": Fault(
        at=may_try_again,
        change="pending.tries <= retries",
        to="pending.tries < retries",
    ),
    "case 25: a check goes to the first producer": Fault(
        at=BrokerRequests,
        change="self._checks.get(group)",
        to="next(iter(self._checks.values()), None)",
    ),
    "hostile server: checksums of bodies are not checked": Fault(
        at=_decode,
        change="check_crc and body_crc(record.body) != record.body_crc",
        to="False",
    ),
    "hostile server: routes without limit": Fault(
        at=check_brokers,
        change="count > MAX_BROKERS",
        to="False",
    ),
    "hostile server: a pull goes on at a negative offset": Fault(
        at=_pulled,
        change="answer.next_begin_offset < 0",
        to="False",
    ),
    "T17: a broken connection counts as not sent": Fault(
        at=ConnectionLost,
        change="outcome_unknown = True",
        to="outcome_unknown = False",
    ),
    "T18: a doubted name server is asked again": Fault(
        at=NameServers,
        change="self._preferred + doubted",
        to="self._preferred",
    ),
    "T18: the first bad name server ends the call": Fault(
        at=NameServers,
        change="self.trouble = str(exc)\ncontinue",
        to="self.trouble = str(exc)\nraise",
    ),
    "damaged message: pulls do not shrink": Fault(
        at=CorruptMessages,
        change="self._most = max(1, len(failure.intact))",
        to="pass",
    ),
    "damaged message: never passed over": Fault(
        at=CorruptMessages,
        change="self._count >= READINGS",
        to="False",
    ),
    "damaged message: damage on the way looks like damage at rest": Fault(
        at=CorruptMessages,
        change="(asked, failure.next_offset, *record, failure.read_crc)",
        to="(asked, failure.next_offset, *record)",
    ),
    "damaged message: its own offset is believed": Fault(
        at=pull_message,
        change="exc.next_offset = raw.next_offset",
        to="exc.next_offset = exc.queue_offset + 1",
    ),
    "damaged message: a slave speaks for its master": Fault(
        at=GroupClient,
        change="exc.broker_id = answering_id",
        to="exc.broker_id = MASTER_ID",
    ),
}
