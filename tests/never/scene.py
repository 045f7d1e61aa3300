"""What the tests here share: a group on a scripted broker, and the ledger of what became of its
messages.

Times are short by configuration. Whatever a test waits for has a generous deadline, for the machine
may be busy.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import ogive
from ogive import aio
from ogive.client.config import ClientConfig
from ogive.client.consumer.config import ConsumerConfig
from ogive.client.listener import AnyListener
from ogive.model import MessageExt, MessageQueue
from ogive.testing import FakeBroker
from ogive.testing.fake_broker import ok
from ogive.wire.bodies.clients import consumer_ids_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import encode_header
from ogive.wire.headers.pull import PullMessageResponse
from tests.ledger import Ledger

# tests.mutants makes it shorter: there most waits are in vain.
WAIT_S = float(os.environ.get("OGIVE_TEST_WAIT_S", "150"))
TOPIC, GROUP, RETRY = "Orders", "billing", "%RETRY%billing"

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
QUERY = RequestCode.QUERY_CONSUMER_OFFSET
UPDATE = RequestCode.UPDATE_CONSUMER_OFFSET
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK
MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP
LOCK, UNLOCK = RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ
HEARTBEAT = RequestCode.HEART_BEAT
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC

QUICK = ConsumerConfig(
    rebalance_period_s=0.5,
    rebalance_pause_s=0.02,
    hand_over_pause_s=0.02,
    pull_retry_s=0.02,
    pull_suspend_s=5.0,
    persist_period_s=0.05,
    send_back_retry_s=0.05,
    lock_renew_s=0.1,
    lock_lease_s=0.5,
    await_termination_s=10.0,
)

Function = Callable[[MessageExt], Any]


class Scene:
    """Messages in a fake broker, and members of the group "billing" that read them."""

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.ledger = Ledger()
        self._loop = asyncio.get_running_loop()

    # --- who takes part ---------------------------------------------------------------------------

    def put(
        self, count: int, *, queues: int = 1, every: int = 1, topic: str = TOPIC
    ) -> list[bytes]:
        """*count* new messages, in turn over every *every*-th of the first *queues* queues; each
        body names its queue and place.
        """
        bodies = []
        for i in range(count):
            queue_id = i * every % queues
            body = b"%s/%d/%d" % (
                topic.encode(),
                queue_id,
                len(self.broker.stored[topic, queue_id]),
            )
            self.broker.put(topic, body, queue_id=queue_id)
            bodies.append(body)
        self.ledger.sent(bodies)
        return bodies

    def listener(
        self,
        function: Function | None = None,
        *,
        member: str = "",
        thread: bool = False,
        **settings: Any,
    ) -> AnyListener:
        """Enters each delivery in the ledger, then does what *function* says.

        *thread*: a plain function, in a thread of the member's.
        """
        work = function or (lambda _: None)

        def plain(message: MessageExt) -> Any:
            self._loop.call_soon_threadsafe(self.ledger.receive, message, member)
            return work(message)

        async def on_loop(message: MessageExt) -> Any:
            self.ledger.receive(message, member)
            result = work(message)
            return await result if isinstance(result, Awaitable) else result

        pause = {"suspend_s": 0.02} if settings.get("orderly") else {}
        settings = {"topic": TOPIC, "group": GROUP, "start": "earliest", **pause, **settings}
        return ogive.listener(**settings)(plain if thread else on_loop)

    def consumer(
        self, *listeners: AnyListener, client: ClientConfig | None = None, **changes: Any
    ) -> aio.PushConsumer:
        """*changes*: of QUICK."""
        client = replace(
            client or ClientConfig(request_timeout_s=2.0), name_server=self.broker.address
        )
        return aio.PushConsumer(
            *(listeners or (self.listener(),)), config=replace(QUICK, **changes), client=client
        )

    def others(self, *client_ids: str) -> None:
        """Let the broker say that these are members, too, and tell the real ones that something
        changed.
        """
        ids = [*client_ids]
        self.broker.on(
            MEMBERS,
            (lambda _: ok(body=consumer_ids_dumps(sorted([*self.broker.members[GROUP], *ids]))))
            if ids
            else None,
        )
        self.broker.notify(GROUP)

    # --- what came of it --------------------------------------------------------------------------

    def commits(self, queue_id: int = 0, topic: str = TOPIC) -> list[int]:
        """Progress that was told to the broker, in order."""
        return [
            int(update.ext_fields["commitOffset"])
            for update in self.broker.of(UPDATE)
            if update.ext_fields["topic"] == topic and update.ext_fields["queueId"] == str(queue_id)
        ]

    def pulls(self, queue_id: int = 0, topic: str = TOPIC) -> list[int]:
        """Offsets that were pulled, in order."""
        return [
            int(request.ext_fields["queueOffset"])
            for request in self.pull_requests(queue_id, topic)
        ]

    def pull_requests(self, queue_id: int = 0, topic: str = TOPIC) -> list[RemotingCommand]:
        return [
            r
            for r in self.broker.of(PULL)
            if r.ext_fields["topic"] == topic and r.ext_fields["queueId"] == str(queue_id)
        ]

    @property
    def queues_pulled(self) -> int:
        """How many queues were pulled at least once."""
        return len(
            {
                (request.ext_fields["topic"], request.ext_fields["queueId"])
                for request in self.broker.of(PULL)
            }
        )

    def progress(self, queue_id: int = 0, topic: str = TOPIC) -> int | None:
        return self.broker.offsets.get((GROUP, topic, queue_id))

    def check(self, *, skipped: bool = False) -> None:
        """Nothing lost, invented or passed over.

        *skipped*: messages may be passed over, because the broker moved the group.
        """
        for queue_id in range(self.broker.topics[TOPIC]):
            for offset in self.commits(queue_id):
                self.ledger.commit(MessageQueue(TOPIC, self.broker.name, queue_id), offset)
        self.ledger.check()
        assert skipped or not self.ledger.skipped, f"progress passed {self.ledger.skipped[:10]}"

    @property
    def received(self) -> int:
        return len(self.ledger.received)


async def until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until *condition* holds."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {WAIT_S:.0f} s: {what or 'the condition'}") from None


async def rounds(scene: Scene, count: int = 3) -> None:
    """Until the members have looked at their group *count* times more: what they were about to do
    at once is done.
    """
    for _ in range(count):
        wanted = len(scene.broker.of(MEMBERS)) + 1
        scene.broker.notify(GROUP)
        await until(partial(_came, scene.broker, MEMBERS, wanted), "a look at the group")


def _came(broker: FakeBroker, code: int, count: int) -> bool:
    return len(broker.of(code)) >= count


def moved(next_offset: int, least: int = 0, most: int = 0) -> RemotingCommand:
    """The answer PULL_OFFSET_MOVED (21)."""
    return RemotingCommand(
        21,
        encode_header(
            PullMessageResponse(next_begin_offset=next_offset, min_offset=least, max_offset=most)
        ),
    )
