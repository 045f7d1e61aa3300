"""Refusal of delay levels that the brokers of a topic do not have.

A broker, Apache's too, uses its last level for a level above it: 30 becomes two hours. Levels of
the default table are sent without asking.
"""

from ogive.client import rpc
from ogive.client.instance import ClientInstance
from ogive.client.sending.destinations import find_queues
from ogive.client.sending.pending import PendingSend
from ogive.errors import InvalidOption, OgiveError, TransportError
from ogive.model import DelayLevels


class LevelCheck:
    """Delay levels of one client's brokers, asked for when a message needs them."""

    def __init__(self, client: ClientInstance, default_topic_queues: int) -> None:
        self._client = client
        self._default_topic_queues = default_topic_queues
        # By address. None: the broker does not show its settings.
        self._known: dict[str, DelayLevels | None] = {}

    async def check(self, pending: PendingSend, timeout_s: float) -> None:
        """Raise InvalidOption for a level that a broker of the topic does not have.

        Brokers that do not show their levels are ignored.
        """
        try:
            queues = await find_queues(
                self._client, pending.topic, self._default_topic_queues, timeout_s
            )
            addresses = {
                queue.broker_name: self._client.routes.broker_address(queue.broker_name)
                for queue in queues
            }
        except OgiveError:
            # The send meets the same error, and raises it.
            return
        level = pending.unusual_level
        for name, address in sorted(addresses.items()):
            levels = self._known.get(address)
            if address not in self._known or (levels is not None and level > len(levels.delays_ms)):
                # A refusal rests on a fresh answer: a broker may have started again with other
                # levels.
                levels = await self._ask(address, timeout_s)
            if levels is not None and level > (count := len(levels.delays_ms)):
                raise InvalidOption(
                    f"delay_level is {level}: {name} has {count} delay "
                    f"level{'' if count == 1 else 's'}, the last is "
                    f"{levels.delays_ms[-1] / 1000:g} s; delay_s= and deliver_at= take any time"
                )

    async def _ask(self, address: str, timeout_s: float) -> DelayLevels | None:
        budget = min(timeout_s, self._client.config.request_timeout_s)
        try:
            levels = await rpc.delay_levels(self._client.pool, address, timeout_s=budget)
        except TransportError:
            # It may answer the next time.
            return None
        except OgiveError:
            levels = None
        # There are as many as brokers that routes name, or were named once.
        self._known[address] = levels
        return levels
