"""Connections of lanes to brokers, and the messages that wait for them."""

import asyncio
import logging
from collections import deque
from typing import Final

from ogive.client.instance import ClientInstance
from ogive.client.sending.destinations import Destinations
from ogive.client.sending.in_flight import DeadlineWatch
from ogive.client.sending.pending import Lane, PendingSend, Publishing, Pump
from ogive.errors import ConnectError, NoRoute, OgiveError, TransportError
from ogive.transport.connection import Connection

log = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 0.1
MAX_PAUSE_S: Final = 1.0


class Connector:
    """Open the connections of lanes while anything waits there, and send it then.

    *patience_s* is the time of one attempt.
    """

    def __init__(
        self,
        client: ClientInstance,
        patience_s: float,
        destinations: Destinations,
        watch: DeadlineWatch,
        publisher: Publishing,
    ) -> None:
        self._client = client
        self._patience_s = patience_s
        self._destinations = destinations
        self._watch = watch
        self._publisher = publisher
        self._closed = False

    def park(self, lane: Lane, pending: PendingSend) -> None:
        lane.backlog.append(pending)
        self._watch.add(pending)
        self._start(lane)

    def stall(self, lane: Lane, queue: Pump) -> None:
        """Call ``pump`` once the lane's connection is open."""
        lane.stalled[queue] = None
        self._start(lane)

    def look_again(self) -> None:
        """Check the lanes after a change of routes: brokers may have moved, or be back."""
        for lane in self._destinations.lanes.values():
            address = self._client.routes.find_address(lane.broker_name)
            if address is not None and address != lane.address:
                # the broker moved; what is in flight there may still be answered
                lane.connection = None
            if address is not None and lane.down is not None:
                self._start(lane)

    def close(self) -> None:
        """Open nothing more."""
        self._closed = True

    def _start(self, lane: Lane) -> None:
        if not lane.opening:
            lane.opening = True
            self._client.spawn(self._open(lane), f"connection to {lane.broker_name}")

    async def _open(self, lane: Lane) -> None:
        """Connect, and send the backlog.

        While the broker cannot be reached, try again and again, for later messages as well.
        """
        pause = FIRST_PAUSE_S
        try:
            while (
                not self._closed and self._client.running and (lane.wanted or lane.down is not None)
            ):
                try:
                    lane.address = self._client.routes.broker_address(lane.broker_name)
                    async with asyncio.timeout(self._patience_s):
                        connection = await self._client.pool.get(lane.address)
                except TimeoutError:
                    lane.down = ConnectError(f"no connection to {lane.address} yet", lane.address)
                except (TransportError, NoRoute) as exc:
                    lane.down = exc
                    if isinstance(exc, NoRoute) and not lane.wanted:
                        # the broker left for good
                        break
                else:
                    self._opened(lane, connection)
                    continue
                self._move_on(lane)
                await self._refresh_one_route(lane)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_S)
        finally:
            lane.opening = False

    def _opened(self, lane: Lane, connection: Connection) -> None:
        lane.connection, lane.down = connection, None
        while lane.backlog and not (connection.closed or connection.leaving):
            pending = lane.backlog.popleft()
            self._watch.drop(pending)
            if not pending.finished:
                self._publisher.send(pending, connection)
        stalled, lane.stalled = lane.stalled, {}
        for queue in stalled:
            queue.pump()

    def _move_on(self, lane: Lane) -> None:
        """Send what may go anywhere to brokers that can be reached."""
        waiting, lane.backlog = lane.backlog, deque()
        for pending in waiting:
            if pending.finished:
                continue
            if self._destinations.can_be_reached(pending.topic):
                self._watch.drop(pending)
                self._publisher.place(pending)
            else:
                lane.backlog.append(pending)

    async def _refresh_one_route(self, lane: Lane) -> None:
        """Ask for the route of a topic there: the broker may have moved to another address."""
        topics = self._destinations.topics_on(lane)
        if topics:
            try:
                await self._client.routes.refresh(topics[0], doubted=True)
            except OgiveError as exc:
                # the address that is known may still be right
                log.debug("connection to %s: %s", lane.broker_name, exc)
