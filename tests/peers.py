"""One way to start a name server and a broker, ours or Apache's, for suites that run on both."""

from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

from ogive.testing import Broker
from tests.interop.apache import VERSION, Apache

Flavour = Literal["ogive", "apache"]

# Levels 1 to 18 with short delays, so that retries and delayed messages take a second; both brokers
# are started with them.
DELAY_LEVELS = "1s 2s " + " ".join(["1s"] * 16)


# Transactions that nobody ends are asked about after a second, every second; for as long as a test
# may take, where 15 times are usual: Apache's broker counts questions also while nobody is there to
# be asked, and what it has counted holds for ours too.
CHECK_MAX = "1000"
APACHES_CHECKS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "100",
    "transactionCheckMax": CHECK_MAX,
}
OUR_CHECKS = (
    "--transaction-timeout",
    "1",
    "--transaction-check-interval",
    "1",
    "--transaction-check-max",
    CHECK_MAX,
)


class RunningBroker(Protocol):
    """A broker with a name server; addresses are "host:port" and stay the same over kill and
    start.
    """

    @property
    def name_server(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def data(self) -> Path:
        """The store: commitlog/, consumequeue/, config/."""

    @property
    def pid(self) -> int:
        """The broker's process."""

    def start(self) -> object:
        """Returns when the broker is in the routes."""

    def stop(self) -> None: ...
    def kill(self) -> None:
        """kill -9 of the broker."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def start_broker(
    flavour: Flavour, directory: Path, delay_levels: str = DELAY_LEVELS, *, version: str = VERSION
) -> RunningBroker:
    """A broker of that kind, Apache's of *version*, with its files in *directory*; it runs inside
    the with block.
    """
    if flavour == "apache":
        return Apache(
            directory, {"messageDelayLevel": delay_levels, **APACHES_CHECKS}, version=version
        )
    return our_broker(directory, delay_levels=delay_levels)


def our_broker(
    directory: Path, *, flush: Literal["sync", "async"] = "sync", delay_levels: str = DELAY_LEVELS
) -> Broker:
    """Ours, with its store where Apache has it in *directory*, so that each opens what the other
    wrote.
    """
    return Broker(
        data=directory / "store", flush=flush, options=("--delay-levels", delay_levels, *OUR_CHECKS)
    )
