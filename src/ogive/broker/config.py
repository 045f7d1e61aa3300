"""Settings of a broker and of its POP, and those that may change over the network.

Only the settings listed here may: through settings for files, addresses or programs, attackers ran
commands on brokers (CVE-2023-33246).

A change is kept in a file of its own, beside the value that the configuration had when the change
was made. Once the configuration has another value, that one applies, and the change is dropped.
Java writes into broker.conf itself, where the last writer wins, too.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any, Final, Literal

from ogive.broker.replies import Rejected
from ogive.broker.state.config_table import Render, TableWriter
from ogive.errors import InvalidOption, ResponseCode
from ogive.model import MAX_BODY_BYTES, MAX_TOPIC_LENGTH, NAME_CHARACTER
from ogive.store.retention import RetentionConfig
from ogive.store.tables import JsonTable
from ogive.text import is_line
from ogive.transport.event_loop import MAX_BUSY_POLL_S
from ogive.transport.limits import ServerLimits
from ogive.transport.tls import TlsConfig
from ogive.wire.bodies.configs import DEFAULT_DELAY_LEVELS, DataVersion, DelayLevels
from ogive.wire.command import MAX_FRAME_BYTES, parse_int
from ogive.wire.java_properties import parse_properties
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PopConfig:
    """Behind each setting: its name in Apache's broker.conf, and the default there where it
    differs.
    """

    max_leases: int = 200_000
    """maxPopLeases (ours alone); reads whose messages are out, each takes some 800 bytes."""
    max_waiting_per_key: int = 1024
    """popPollingSize; requests that wait, of one group for one queue."""
    max_waiting_keys: int = 100_000
    """Limit of pairs of a group and a queue that requests wait for. Java: popPollingMapSize."""
    max_waiting: int = 100_000
    """Limit of requests that wait. Java: maxPopPollingSize."""
    retry_v2: bool = False
    """enableRetryTopicV2; name the retry topics of groups ``%RETRY%group+topic``."""
    read_retry_v1: bool = True
    """retrieveMessageFromPopRetryTopicV1; read those of the older name as well."""
    actual_retry_topic: bool = False
    """popResponseReturnActualRetryTopic; messages for another try keep the topic they are in."""
    limit_out: bool = False
    """enablePopMessageThreshold; read nothing from a queue with max_out messages out."""
    max_out: int = 10_000
    """Limit of messages of a queue that are out, with limit_out. Java: popInflightMessageThreshold.
    """
    retry_share: int = 20
    """popFromRetryProbability; percentage of requests that read the retry topic first."""
    priority_retry_share: int = 0
    """popFromRetryProbabilityForPriority; the same, for requests that read by priority."""
    priority_ascending: bool = True
    """priorityOrderAsc; queues with higher numbers have the higher priority."""
    separate_retry_queues: bool = False
    """useSeparateRetryQueue; a retry topic has as many queues as its topic, and a message for
    another try keeps its queue, and so its priority.
    """
    notify_unlocks: bool = True
    """enableNotifyAfterPopOrderLockRelease; wake requests when an orderly batch's time is over."""
    revive_queues: int = 8
    """reviveQueueNum; handles name so many queues of the revive topic of Apache's broker."""
    look_in_memory: bool = True
    """initPopOffsetByCheckMsgInMem; a new group that asks for the end begins at 0 while message 0
    is in memory.
    """

    def __post_init__(self) -> None:
        for name in ("retry_share", "priority_retry_share"):
            if not 0 <= (share := getattr(self, name)) <= 100:
                raise InvalidOption(f"{name}={share}: must be between 0 and 100")
        if not 0 < self.revive_queues <= 128:
            raise InvalidOption(f"revive_queues={self.revive_queues}: must be between 1 and 128")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.startswith("max_") and value <= 0:
                raise InvalidOption(f"{entry.name}={value}: must be more than 0")


MIB: Final = 1024 * 1024
LOOPBACK: Final = "127.0.0.1"
# of records; the rest is for the answer's header
MAX_PULL_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
MAX_HOST_NAME: Final = 253
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
_NAME: Final = re.compile(f"(?:{NAME_CHARACTER}|\\.)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Settings of a broker. Times are in seconds, sizes in bytes.

    "Java:" names a setting in Apache's broker.conf, and the default there where it differs.
    Apache's broker passes over keys that are ours alone.
    """

    data: Path
    """Directory of the store. Java: storePathRootDir."""
    host: str = LOOPBACK
    """IP address to listen on. Java: bindAddress, 0.0.0.0."""
    port: int = 10911
    """Port to listen on; 0 takes a free one. Java: listenPort."""
    advertised_host: str | None = None
    """Address or name that clients connect to. Required if host is a wildcard. Java: brokerIP1."""
    name_servers: tuple[str, ...] = ()
    """Addresses of the name servers to register with. Java: namesrvAddr."""
    cluster: str = "DefaultCluster"
    """Name of the cluster. Java: brokerClusterName."""
    name: str = "broker-a"
    """Name of the broker, unique in its cluster. Java: brokerName."""
    broker_id: int = 0
    """Number of the broker among those of its name; 0 is the master. Java: brokerId."""
    region: str = "DefaultRegion"
    """Region that each message notes. Java: regionId."""

    # the store
    flush: Literal["sync", "async"] = "sync"
    """When a send is acknowledged: after the sync ("sync"), or before it ("async"). Java:
    flushDiskType, ASYNC_FLUSH."""
    segment_bytes: int = 64 * MIB
    """Size of a segment of the commit log. Java: mappedFileSizeCommitLog, 1 GiB."""
    empty_log: bool = False
    """Begin a new log where that of the directory is gone, instead of asking for it."""
    delay_levels: str = DEFAULT_DELAY_LEVELS
    """Delays that ``delay_level`` counts, from 1. Java: messageDelayLevel."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """Ages and disk limits at which messages are removed."""
    retention_check_s: float = 10.0
    """Time between two looks for segments to remove. Java: cleanResourceInterval."""
    scrub_bytes_per_s: int = MIB
    """Speed at which the log is read again in the background to find damage; 0: not."""

    # timer messages
    timer_max_delay_s: float = 7 * 24 * 3600.0
    """Longest delay of a timer message. Java: timerMaxDelaySec, 3 days."""
    timer_max_waiting: int = 1_000_000
    """Limit of waiting timer messages (timerMaxWaiting, ours alone); each takes some 800 bytes of
    memory until its time."""

    # topics and groups
    auto_create_topics: bool = True
    """Create a topic at the first send to it. Java: autoCreateTopicEnable."""
    auto_create_groups: bool = True
    """Create a group when its first member connects. Java: autoCreateSubscriptionGroup."""
    default_topic_queues: int = 8
    """Limit of the queues of a topic that a send creates. Java: defaultTopicQueueNums."""
    max_topics: int = 20_000
    """Limit of topics."""
    max_groups: int = 20_000
    """Limit of consumer groups."""

    # sends
    # see broker/state/topic_table.py
    enforce_message_types: bool = False
    """Refuse a message that is not of its topic's type."""
    max_message_bytes: int = 4 * MIB
    """Limit of a message's body. Java: maxMessageSize."""
    max_sends_waiting: int = 10_000
    """Limit of sends that wait for the disk; above it SYSTEM_BUSY. Java:
    sendThreadPoolQueueCapacity."""
    duplicate_window_s: float = 0.0
    """Time for which a message with a known unique key is not stored again; 0: always stored."""
    duplicate_max_keys: int = 200_000
    """Limit of unique keys that are remembered."""
    store_replies: bool = True
    """Store a reply that its requester did not take. Java: storeReplyMessageEnable."""

    # pulls; "large" counts for clients that ask for more than Apache's own limits, see
    # pulls/pull.py
    property_filter: bool = True
    """Allow consumers to filter by SQL92. Java: enablePropertyFilter, false."""
    max_pull_messages: int = 32
    """Limit of messages in the answer to a pull. Java: maxTransferCountOnMessageInMemory."""
    max_pull_bytes: int = 256 * 1024
    """Limit of bytes in the answer to a pull. Java: maxTransferBytesOnMessageInMemory."""
    max_large_pull_messages: int = 4096
    """The same for clients that ask for more than Apache's limits."""
    max_large_pull_bytes: int = 4 * MIB
    """The same for clients that ask for more than Apache's limits."""
    max_held_pulls: int = 50_000
    """Limit of pulls that wait for messages; beyond it a connection's first 64 are held. Each takes
    some 850 bytes of memory."""
    max_held_pulls_per_connection: int = 20_000
    """Limit of pulls of one connection that wait for messages."""

    pop: PopConfig = field(default_factory=PopConfig)
    """Limits and behaviour of POP consumption."""

    # transactions
    transaction_timeout_s: float = 6.0
    """Age from which an open transaction is asked about. Java: transactionTimeOut."""
    transaction_check_interval_s: float = 30.0
    """Time between two questions about an open transaction. Java: transactionCheckInterval."""
    transaction_check_max: int = 15
    """Questions about a transaction before it is given up. Java: transactionCheckMax."""
    transaction_keep_s: float = 72 * 3600.0
    """An open transaction is given up when its producer group is gone for longer. Java:
    fileReservedTime."""
    max_open_transactions: int = 100_000
    """Limit of open transactions (maxOpenTransactions, ours alone); each takes some 800 bytes of
    memory."""
    max_unanswered_checks: int = 2_000
    """Limit of transaction checks without an answer (maxUnansweredChecks, ours alone); as many as a
    producer of Apache's lets wait, checkRequestHoldMax."""

    # clients
    client_expiry_s: float = 120.0
    """A client without a heartbeat for so long is gone. Java: channelExpiredTimeout."""
    client_scan_s: float = 10.0
    """Time between two looks for clients that are gone."""
    lock_lease_s: float = 60.0
    """Lock of a queue for an orderly group, unless renewed. Java:
    rocketmq.broker.rebalance.lockMaxLiveTime."""
    max_clients: int = 20_000
    """Limit of producers and consumers, counted per group."""
    max_subscriptions_per_group: int = 1_000
    """Limit of topics that one group subscribes to."""
    max_locks: int = 200_000
    """Limit of queues that are locked."""

    # progress
    max_offsets: int = 1_000_000
    """Limit of progress entries: groups times topics times queues."""
    offsets_persist_s: float = 5.0
    """Time between two saves of the groups' progress. Java: flushConsumerOffsetInterval."""
    delay_persist_s: float = 1.0
    """Time between two saves of the progress of delayed messages; about this much is delivered
    again after a crash. Java: flushDelayOffsetInterval, 10 s."""

    # access
    tls: TlsConfig | None = None
    """Certificates; None: connections are not encrypted. Java: ``tls.server.*``."""
    credentials: Credentials | None = None
    """Keys for requests to name servers. Java: innerClientAuthenticationCredentials."""

    # the rest
    register_period_s: float = 30.0
    """Time between two registrations. Java: registerNameServerPeriod."""
    name_server_timeout_s: float = 3.0
    """Time budget of a registration. Java: registerBrokerTimeoutMills, 24 s."""
    stop_grace_s: float = 3.0
    """Time that a stop gives running requests."""
    busy_poll_s: float = 0.0
    """Time to look for a client's next request before sleeping; 0 turns it off. See
    transport/event_loop.py."""
    server: ServerLimits = field(default_factory=ServerLimits)
    """Limits of connections."""

    def __post_init__(self) -> None:
        # raises InvalidOption: a broker must not start with half a table
        DelayLevels.parse(self.delay_levels)
        if not 0 <= self.port < 65536:
            raise InvalidOption(f"port={self.port}: must be between 0 and 65535")
        if self.flush not in ("sync", "async"):
            raise InvalidOption(f"flush={self.flush!r}: must be sync or async")
        if self.broker_id < 0:
            raise InvalidOption(f"broker_id={self.broker_id}: must be 0 or more")
        ip_of(self.host)
        if self.advertised_host:
            check_advertised("advertised_host=", self.advertised_host)
        check_name("name", self.name)
        check_name("cluster", self.cluster)
        check_region("region", self.region)
        if self.host in ("0.0.0.0", "::") and not self.advertised_host:
            raise InvalidOption(
                f"host={self.host}: give advertised_host too, the address at which clients reach "
                "this broker"
            )
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.duplicate_window_s < 0:
            raise InvalidOption(f"duplicate_window_s={self.duplicate_window_s}: must be 0 or more")
        if not 0 <= self.busy_poll_s <= MAX_BUSY_POLL_S:
            raise InvalidOption(
                f"busy_poll_s={self.busy_poll_s}: must be between 0 and {MAX_BUSY_POLL_S:g}"
            )
        if self.max_message_bytes > MAX_BODY_BYTES:
            raise InvalidOption(
                f"max_message_bytes={self.max_message_bytes}: "
                f"must be at most {MAX_BODY_BYTES} bytes"
            )
        for name in ("max_pull_bytes", "max_large_pull_bytes"):
            if getattr(self, name) > MAX_PULL_BYTES:
                raise InvalidOption(
                    f"{name}={getattr(self, name)}: must be at most {MAX_PULL_BYTES} bytes, "
                    "clients read no larger answer"
                )
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, float) and not value <= _MAX_NUMBER:
                raise InvalidOption(f"{entry.name}={value:g}: must be at most {_MAX_NUMBER:g}")
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name}={getattr(self, name)}: must be more than 0")

    @property
    def levels(self) -> DelayLevels:
        """Return the delays of *delay_levels*."""
        return DelayLevels.parse(self.delay_levels)


def check_name(what: str, name: str) -> None:
    """Check the name of a broker or cluster. Raises InvalidOption.

    Each has a topic of its name; unlike the names of other topics, it may have dots, as in a host
    name.
    """
    if not 0 < len(name) <= MAX_TOPIC_LENGTH:
        raise InvalidOption(f"{what} has {len(name)} characters: must have 1 to {MAX_TOPIC_LENGTH}")
    if not _NAME.fullmatch(name):
        raise InvalidOption(f"{what} {name!r} may hold only letters, digits and % | - _ .")


def check_region(what: str, region: str) -> None:
    """Check that a property of a message (MSG_REGION) can have the value. Raises InvalidOption."""
    if not region:
        raise InvalidOption(f"{what} must not be empty")
    if not is_line(region):
        raise InvalidOption(
            f"{what} {region!r}: text in UTF-8 without control characters is expected, every "
            "message holds it"
        )


def ip_of(host: str) -> str:
    """Return *host*, which records have as an IP address.

    Raises InvalidOption for any other name than localhost, and for a zone (``%eth0``).
    """
    try:
        address = LOOPBACK if host == "localhost" else str(ip_address(host))
    except ValueError:
        raise InvalidOption(
            f"host {host!r}: must be an IP address, which every record holds"
        ) from None
    if "%" in address:
        raise InvalidOption(
            f"host {host!r}: must be an IP address without a zone, which every record holds"
        )
    return address


def check_advertised(what: str, host: str) -> None:
    """Check that *host* is a host name or the address of one machine. Raises InvalidOption.

    *what* is the start of the message: the option as the user writes it.
    """
    if is_host_name(host):
        return
    try:
        address = ip_address(ip_of(host))
    except InvalidOption:
        raise InvalidOption(
            f"{what}{host}: a host name, or an IP address without a zone, is expected"
        ) from None
    if address.is_unspecified or address.is_multicast or address == IPv4Address("255.255.255.255"):
        raise InvalidOption(
            f"{what}{host}: the address of this machine to which clients connect is expected"
        )


def is_host_name(host: str) -> bool:
    """Return True for a DNS name, localhost included.

    A name whose last label has only digits is meant as an IP address.
    """
    labels = host.removesuffix(".").split(".")
    return (
        len(host) <= MAX_HOST_NAME
        and all(map(_LABEL.fullmatch, labels))
        and not labels[-1].isdecimal()
    )


# decades in seconds; more is no time any more
_MAX_NUMBER: Final = 1e9
_POSITIVE: Final = (
    "duplicate_max_keys",
    "timer_max_delay_s",
    "timer_max_waiting",
    "segment_bytes",
    "default_topic_queues",
    "max_topics",
    "max_groups",
    "max_message_bytes",
    "max_sends_waiting",
    "max_pull_messages",
    "max_pull_bytes",
    "max_large_pull_messages",
    "max_large_pull_bytes",
    "max_held_pulls",
    "max_held_pulls_per_connection",
    "client_expiry_s",
    "client_scan_s",
    "lock_lease_s",
    "max_clients",
    "transaction_timeout_s",
    "transaction_check_interval_s",
    "transaction_check_max",
    "transaction_keep_s",
    "max_open_transactions",
    "max_unanswered_checks",
    "max_subscriptions_per_group",
    "max_locks",
    "max_offsets",
    "offsets_persist_s",
    "delay_persist_s",
    "register_period_s",
    "name_server_timeout_s",
    "stop_grace_s",
    "retention_check_s",
)


MAX_SETTINGS_BYTES: Final = 16 * 1024


def _count(most: int = 999_999_999) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = parse_int(text)
        except ValueError:
            value = 0
        if not 1 <= value <= most:
            raise ValueError(f"must be a number from 1 to {most}")
        return value

    return read


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


CHANGEABLE: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "autoCreateSubscriptionGroup": ("auto_create_groups", _switch),
    "autoCreateTopicEnable": ("auto_create_topics", _switch),
    "maxMessageSize": ("max_message_bytes", _count(MAX_BODY_BYTES)),
    "maxTransferBytesOnMessageInMemory": ("max_pull_bytes", _count(MAX_PULL_BYTES)),
    "maxTransferCountOnMessageInMemory": ("max_pull_messages", _count()),
    "sendThreadPoolQueueCapacity": ("max_sends_waiting", _count()),
    "storeReplyMessageEnable": ("store_replies", _switch),
}
"""Name in Apache's broker.conf -> name in BrokerConfig, and the function that reads the text. It is
as strict as BrokerConfig, so that an error has the requested name.
"""


class RemoteSettings:
    """The settings that were changed over the network.

    Event-loop only; the file is written off the loop.
    """

    def __init__(
        self, table: JsonTable, configured: BrokerConfig, now_ms: Callable[[], int]
    ) -> None:
        """Load the file (blocking).

        *configured*: the settings of the command line, a file or a program. Raises StoreError.
        """
        self._now_ms = now_ms
        self.version = DataVersion(0, now_ms())
        """Version of the settings of this run. It grows with each change."""
        self.config = self._configured = configured
        """The configuration with the changes."""
        self._changed: dict[str, str] = {}
        self._writer = TableWriter("remote settings", table, self._snapshot)
        self._load((table.load() or {}).get("settings"))

    def _load(self, stored: object) -> None:
        entries: dict[Any, Any] = stored if isinstance(stored, dict) else {}
        for name, entry in entries.items():
            value = entry.get("value") if isinstance(entry, dict) else None
            if name not in CHANGEABLE or not isinstance(value, str):
                log.warning("remote settings file: ignored the invalid entry %.80r", name)
            elif entry.get("insteadOf") != self._configured_as(name):
                log.warning(
                    "ignored %s=%.80s, set over the network: the configuration has changed since",
                    name,
                    value,
                )
            else:
                self._apply_stored(name, value)
        if entries.keys() != self._changed.keys():
            self._writer.mark()
        if self._changed:
            log.warning(
                "settings changed over the network override the configuration: %s",
                ", ".join(f"{name}={value}" for name, value in sorted(self._changed.items())),
            )

    def _apply_stored(self, name: str, value: str) -> None:
        try:
            self.config = _with(self.config, {name: value})
        except (Rejected, InvalidOption) as exc:
            log.warning("remote settings file: ignored %s=%.80s: %s", name, value, exc)
        else:
            self._changed[name] = value

    def change(self, body: bytes) -> BrokerConfig:
        """Carry out all lines ``name=value`` of *body*, or none.

        Return the settings that then apply. Raises Rejected, InvalidOption.
        """
        asked = _properties(body)
        self.config = _with(self.config, asked)
        self.version = self.version.next(self._now_ms())
        for name in asked:
            value = setting_text(self.config, name)
            if value == self._configured_as(name):
                self._changed.pop(name, None)
            else:
                self._changed[name] = value
        self._writer.mark()
        return self.config

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def _configured_as(self, name: str) -> str:
        return setting_text(self._configured, name)

    def _snapshot(self) -> Render:
        settings = {
            name: {"value": value, "insteadOf": self._configured_as(name)}
            for name, value in self._changed.items()
        }
        return lambda: {"settings": settings}


def setting_text(config: BrokerConfig, name: str) -> str:
    """Return a setting in the form of broker.conf."""
    value = getattr(config, CHANGEABLE[name][0])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with(config: BrokerConfig, asked: Mapping[str, str]) -> BrokerConfig:
    """Return *config* with a changed setting. Raises Rejected, which names the setting, and
    InvalidOption.
    """
    changes: dict[str, Any] = {}
    for name, text in asked.items():
        known = CHANGEABLE.get(name)
        if known is None:
            allowed = ", ".join(CHANGEABLE)
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"{name[:80]} cannot be changed over the network; these can: {allowed}",
            )
        field, read = known
        try:
            changes[field] = read(text)
        except ValueError as exc:
            raise Rejected(ResponseCode.INVALID_PARAMETER, f"{name}={text[:80]}: {exc}") from None
    # raises InvalidOption, which is answered as INVALID_PARAMETER
    return replace(config, **changes)


def _properties(body: bytes) -> dict[str, str]:
    if len(body) > MAX_SETTINGS_BYTES:
        raise InvalidOption(f"{len(body)} bytes of settings, {MAX_SETTINGS_BYTES} are allowed")
    found = {name: value.strip() for name, value in parse_properties(body).items()}
    if not found:
        raise InvalidOption("no line of the form name=value")
    return found
