"""Numbers that brokers keep for a consumer group: each is its offset in queue 0 of a topic.

The topic is read-only: ogive's broker accepts an offset beyond the end of a queue only if the queue
can get no messages.
"""

import asyncio
import logging
from collections.abc import Mapping

from ogive.client import rpc
from ogive.errors import GroupNotExist, OgiveError, TopicNotExist
from ogive.model import MessageQueue
from ogive.spark.patience import CALL_TIMEOUT_S, PASSING
from ogive.transport.pool import ConnectionPool
from ogive.wire.bodies.configs import SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ

log = logging.getLogger(__name__)


async def read(
    pool: ConnectionPool, masters: Mapping[str, str], group: str, topic: str
) -> dict[str, int]:
    """Return the number at each of *masters* (name -> address), without those that have none or are
    away.
    """

    async def ask(name: str, address: str) -> int | None:
        try:
            return await _number(pool, address, group, MessageQueue(topic, name, 0))
        except (GroupNotExist, TopicNotExist):
            return None
        except PASSING as exc:
            log.warning("broker %s did not return the offsets of group %s: %s", name, group, exc)
            return None

    answers = await asyncio.gather(*(ask(name, address) for name, address in masters.items()))
    return {
        name: number for name, number in zip(masters, answers, strict=True) if number is not None
    }


async def store(
    pool: ConnectionPool, masters: Mapping[str, str], group: str, topic: str, number: int
) -> None:
    """Store *number* at each of *masters* (name -> address); create *topic* and *group* if needed.

    Raises OgiveError if no broker accepts it; a part of the brokers that do not is logged.
    """

    async def tell(name: str, address: str) -> None:
        queue = MessageQueue(topic, name, 0)
        try:
            await rpc.update_consumer_offset(
                pool, address, group, queue, number, timeout_s=CALL_TIMEOUT_S
            )
            if await _number(pool, address, group, queue) == number:
                return
        except (GroupNotExist, TopicNotExist):
            pass
        # It does not exist yet; or it is writable, as that of an earlier release may be, and then
        # the number is acknowledged but not stored.
        await rpc.create_topic(
            pool, address, TopicConfig(name=topic, read_queues=1, write_queues=1, perm=PERM_READ)
        )
        await rpc.create_group(pool, address, SubscriptionGroupConfig(name=group))
        await rpc.update_consumer_offset(
            pool, address, group, queue, number, timeout_s=CALL_TIMEOUT_S
        )

    outcomes = await asyncio.gather(
        *(tell(name, address) for name, address in masters.items()), return_exceptions=True
    )
    failures = [outcome for outcome in outcomes if outcome is not None]
    for failure in failures:
        if not isinstance(failure, OgiveError) or len(failures) == len(masters):
            raise failure
        log.warning("could not report progress to a broker: %s", failure)


async def _number(
    pool: ConnectionPool, address: str, group: str, queue: MessageQueue
) -> int | None:
    return await rpc.query_consumer_offset(
        pool, address, group, queue, zero_if_young=False, timeout_s=CALL_TIMEOUT_S
    )
