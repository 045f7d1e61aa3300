"""Faults that no test can tell from the original, each by the reason why nobody sees a difference.

A change of how fast something is, or of a default that nobody promised, belongs here as well.
"""

from collections.abc import Mapping
from typing import Final

from ogive.access import permissions
from ogive.broker.pop.waiting import PopHolds
from ogive.broker.state import client_table
from ogive.client.consumer.pull_loop import PullService
from ogive.spark.listener_task import Consuming
from ogive.store.commitlog import LogReader
from ogive.store.verify import verify
from tests.mutants.fault import Fault

EQUIVALENT: Final[Mapping[str, Fault]] = {
    "descriptor 0 is standard input: no lock is ever given it": Fault(
        at=verify,
        change="lock >= 0",
        to="lock > 0",
    ),
    "both permissions are needed, in whatever order they are asked for": Fault(
        at=permissions,
        change='both(topic(GET), if_given("consumerGroup", group(GET)))',
        to='both(if_given("consumerGroup", group(GET)), topic(GET))',
    ),
    "reads take the newest part of the log from the files, and get the same": Fault(
        at=LogReader,
        change="self.hot.add(offset, data)",
        to="pass",
    ),
    "a slice of the loop's time looks at the clock more often": Fault(
        at=PopHolds,
        change="tried % _AT_ONCE == 0",
        to="tried % _AT_ONCE != 0",
    ),
    "nobody reads the end of the queue in a result that the client makes itself": Fault(
        at=PullService,
        change="PullResult(PullStatus.NO_MATCHED_MSG, offset, 0, 0)",
        to="PullResult(PullStatus.NO_MATCHED_MSG, offset, 0, 1)",
    ),
    "a lock is renewed after 7 s instead of 5, and expires after 60": Fault(
        at=Consuming,
        change="asyncio.sleep(self._config.lock_renew_s / 4)",
        to="asyncio.sleep(self._config.lock_renew_s / 3)",
    ),
    "a log line shows one more character of an expression": Fault(
        at=client_table,
        change="MAX_SHOWN: Final = 80",
        to="MAX_SHOWN: Final = 81",
    ),
}
