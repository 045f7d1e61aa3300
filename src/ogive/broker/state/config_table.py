"""Tables of configurations in files: saved off the event loop, many changes in one write."""

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Protocol, TypeVar

from ogive.broker.replies import Rejected
from ogive.errors import InvalidOption, ProtocolError, ResponseCode, StoreError
from ogive.model import TOOLS_GROUP, TRANSACTION_GROUP, validate_group
from ogive.store.fs import reason
from ogive.store.tables import JsonTable
from ogive.wire.bodies.clients import RequestMode
from ogive.wire.bodies.configs import DataVersion, SubscriptionGroupConfig, TopicConfig
from ogive.wire.bodies.json_fields import PERM_READ, dumps

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

Render = Callable[[], dict[str, Any]]
"""Builds the JSON object; runs in a thread, so it may only use values that do not change."""


class TableWriter:
    """Owned by the event loop; *snapshot* is called there, and its result in a thread."""

    def __init__(self, name: str, table: JsonTable, snapshot: Callable[[], Render]) -> None:
        self._name = name
        self._table = table
        self._snapshot = snapshot
        # counts changes
        self.version = 0
        # the version that the file holds
        self.written = 0
        self._writing: asyncio.Task[None] | None = None
        # the newest version that could not be written
        self._failed = 0
        self._failure: OSError | None = None
        self._failed_at = 0.0

    @property
    def unsaved(self) -> bool:
        """True if a change has not reached stable storage yet."""
        return self.written < self.version

    def mark(self) -> None:
        """Record that the table differs from the file; the next ``saved`` writes it."""
        self.version += 1

    def start(self) -> None:
        """Mark, and begin to write in the background.

        A failure is logged, and the change is kept for the next write.
        """
        self.mark()
        if self._writing is None:
            self._begin().add_done_callback(self._report)

    async def saved(self, version: int | None = None) -> None:
        """Return when every change made before the call, or up to *version*, is on stable storage.

        Raises StoreError.
        """
        wanted = self.version if version is None else version
        while self.written < wanted:
            writing = self._writing or self._begin()
            await asyncio.wait([writing])
            if writing.exception() is not None and self._writing is None and self.written < wanted:
                raise StoreError(
                    f"could not save {self._name}: {_why(writing.exception())}"
                ) from writing.exception()

    def check(self, version: int) -> None:
        """Raise StoreError if *version* could not be saved, and begin another try for the next
        call.
        """
        if self.written < version <= self._failed:
            self.save_again()
            raise StoreError(f"could not save {self._name}: {_why(self._failure)}")

    def save_again(self) -> None:
        """Write changes in the background that could not be written, at most once a second."""
        if (
            self.unsaved
            and self._writing is None
            and asyncio.get_running_loop().time() >= self._failed_at + RETRY_S
        ):
            self._begin().add_done_callback(self._report)

    def _begin(self) -> asyncio.Task[None]:
        self._writing = asyncio.create_task(self._write(), name=f"save {self._name}")
        return self._writing

    async def _write(self) -> None:
        """Write until the file has the newest version, so that changes during a write need no
        further trigger.
        """
        version = self.version
        try:
            while self.written < self.version:
                version, render = self.version, self._snapshot()
                await asyncio.to_thread(self._save, render)
                self.written = version
        except OSError as exc:
            self._failed = version
            self._failure = exc
            self._failed_at = asyncio.get_running_loop().time()
            raise
        finally:
            self._writing = None

    def _save(self, render: Render) -> None:
        self._table.save(render())

    def _report(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.error("could not save %s: %s", self._name, _why(exc))


def _why(failure: BaseException | None) -> str:
    return reason(failure) if isinstance(failure, OSError) else str(failure)


class Counted(Protocol):
    """A table that changes all the time. *version* grows with every change."""

    @property
    def version(self) -> int: ...

    def snapshot(self) -> Render: ...


class ProgressSaver:
    """Saves a table from time to time, and never ahead of the log.

    A state is saved only after everything that was put before it is synced: otherwise a power cut
    could leave progress for messages that are lost. This matters with flush=async; with flush=sync
    the log is on disk anyway.
    """

    def __init__(
        self, name: str, table: Counted, file: JsonTable, synced: Callable[[], Awaitable[None]]
    ) -> None:
        self._table = table
        self._synced = synced
        self._render: Render = dict
        self._saved = 0
        self._saving = asyncio.Lock()
        self._writer = TableWriter(name, file, lambda: self._render)

    async def save(self) -> None:
        """Save the table if it has changed. Raises StoreError."""
        async with self._saving:
            version = self._table.version
            if version == self._saved:
                return
            self._render = self._table.snapshot()
            await self._synced()
            self._writer.mark()
            await self._writer.saved()
            self._saved = version


# names come from clients and messages
_MAX_MISSED: Final = 1_000

C = TypeVar("C", TopicConfig, SubscriptionGroupConfig)


class ConfigTable(ABC, Generic[C]):
    """Name to configuration. Event-loop only; the file is written off the loop.

    *changed* callbacks run after each change, on the loop, and must be short.
    """

    def __init__(
        self, kind: str, table: JsonTable, *, now_ms: Callable[[], int], limit: int
    ) -> None:
        """*kind*: "topic" or "group", for messages."""
        self._kind, self._now_ms, self._limit = kind, now_ms, limit
        self._configs: dict[str, C] = {}
        self._missed: set[str] = set()
        self._writer = TableWriter(f"{kind}s", table, self._snapshot)
        self.changed: list[Callable[[], None]] = []
        self.data_version = DataVersion()

    def _begin(
        self,
        built_in: Mapping[str, C],
        loaded: Mapping[str, C],
        version: object,
        *,
        differs: bool = False,
    ) -> None:
        """Load the contents of the file, also beyond the limit, and add the built-in entries.

        *differs*: the file does not have all of *loaded*.
        """
        self._configs = {**built_in, **loaded}
        if len(self._configs) > self._limit:
            log.warning(
                "the broker has %d %ss, more than its limit of %d: all are kept, new ones are "
                "refused",
                len(self._configs),
                self._kind,
                self._limit,
            )
        self.data_version = self._read_version(version)
        if differs or not built_in.keys() <= loaded.keys():
            self.data_version = self.data_version.next(self._now_ms())
            self._writer.mark()

    def _read_version(self, version: object) -> DataVersion:
        try:
            return DataVersion.from_json(version or {})
        except ProtocolError as exc:
            log.warning(
                "%ss file: invalid data version, replaced by a new one: %s", self._kind, exc
            )
            return DataVersion().next(self._now_ms())

    # --- reading ----------------------------------------------------------------------------------

    def get(self, name: str) -> C | None:
        return self._configs.get(name)

    def all(self) -> Mapping[str, C]:
        """Return the live table: do not keep it across an await."""
        return self._configs

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def __iter__(self) -> Iterator[C]:
        return iter(self._configs.values())

    def __len__(self) -> int:
        return len(self._configs)

    def _is_new_miss(self, name: str) -> bool:
        """Return True if a missing *name* has to be reported: once, until it is created."""
        if name in self._missed or len(self._missed) >= _MAX_MISSED:
            return False
        self._missed.add(name)
        return True

    # --- changing ---------------------------------------------------------------------------------

    @abstractmethod
    def check(self, config: C) -> None:
        """Check the name and the numbers of a configuration. Raises InvalidOption."""

    def create_or_update(self, config: C) -> C:
        """Add or replace a configuration. Raises InvalidOption as check() does, and if the table is
        full.
        """
        self.check(config)
        return self._put(config)

    def _put(self, config: C, *, beyond_limit: bool = False) -> C:
        known = self._configs.get(config.name)
        if known == config:
            return known
        if known is None and len(self._configs) >= self._limit and not beyond_limit:
            raise InvalidOption(
                f"{self._kind} {config.name}: the broker holds {len(self._configs)} {self._kind}s, "
                f"its limit is {self._limit}"
            )
        self._configs[config.name] = config
        self._missed.discard(config.name)
        self._note_change()
        return config

    def _remove(self, name: str) -> bool:
        """Return True if there was one of that name."""
        if self._configs.pop(name, None) is None:
            return False
        self._note_change()
        return True

    def _note_change(self) -> None:
        self.data_version = self.data_version.next(self._now_ms())
        self._writer.start()
        for callback in self.changed:
            callback()

    # --- the file ---------------------------------------------------------------------------------

    @property
    def unsaved(self) -> bool:
        """True if a change has not reached stable storage yet."""
        return self._writer.unsaved

    async def saved(self) -> None:
        """Return when every change made before the call is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def save_again(self) -> None:
        """Try again in the background to save what could not be saved."""
        self._writer.save_again()

    @abstractmethod
    def _snapshot(self) -> Render: ...


def read_configs(
    stored: object, kind: type[C], validate: Callable[[str], str], file: str
) -> dict[str, C]:
    """Return the configurations of a file by name.

    Leave out an entry that no command could have made, with a warning.
    """
    configs: dict[str, C] = {}
    entries: dict[Any, Any] = stored if isinstance(stored, dict) else {}
    for name, value in entries.items():
        try:
            config = kind.from_json(value)
            configs[validate(str(name))] = replace(config, name=str(name))
        except (InvalidOption, ProtocolError) as exc:
            log.warning("%s file: ignored the invalid entry %.80r: %s", file, name, exc)
    return configs


# The consumer groups of one broker. Source: SubscriptionGroupManager.java, 5.5.
#
# Retry policy, attributes, system flag and fixed subscriptions are stored and shown. Nothing here
# uses them; in Java they are for the proxy, POP and lite topics.
#
# Differs from Java: settings that Java could not read from the file are refused; a group's
# forbidden topics are deleted with the group, and one topic's with that topic only.

BUILT_IN: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
NONE_IS_MADE: Final = "this broker makes none by itself (`ogive group create`)"
MAX_RETRY_QUEUES: Final = 1024
# pairs of a group and a topic
MAX_FORBIDDEN: Final = 20_000
MAX_KEPT_BYTES: Final = 16_384
"""Limit of one group's settings that the broker only stores."""


class GroupTable(ConfigTable[SubscriptionGroupConfig]):
    """See ConfigTable."""

    def __init__(
        self,
        table: JsonTable,
        *,
        auto_create: bool,
        now_ms: Callable[[], int],
        max_groups: int = 20_000,
    ) -> None:
        """Load the file, ours or Apache's (blocking). Raises StoreError, ProtocolError."""
        super().__init__("group", table, now_ms=now_ms, limit=max_groups)
        self.auto_create = auto_create
        stored = table.load() or {}
        loaded = read_configs(
            stored.get("subscriptionGroupTable"), SubscriptionGroupConfig, validate_group, "groups"
        )
        forbidden = stored.get("forbiddenTable")
        self._forbidden: dict[str, Any] = forbidden if isinstance(forbidden, dict) else {}
        """Group to topic to bits of the forbidden actions, as in the file: any JSON."""
        self._begin(
            {name: SubscriptionGroupConfig(name=name) for name in BUILT_IN},
            loaded,
            stored.get("dataVersion"),
        )

    def find_or_create(self, name: str) -> SubscriptionGroupConfig | None:
        """Return the group; None if it does not exist and must not be created.

        Raises Rejected for an invalid name, with Java's code for a group that does not exist.
        Raises InvalidOption for a full table.
        """
        found = self._configs.get(name)
        if found is not None or not self.auto_create:
            return found
        try:
            validate_group(name)
        except InvalidOption as exc:
            raise Rejected(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, str(exc)) from None
        return self._put(SubscriptionGroupConfig(name=name))

    def miss(self, name: str) -> None:
        """Report that a member of an unknown group has connected, and that none is created."""
        if self._is_new_miss(name):
            log.warning(
                "group %s does not exist, so its member receives no messages: %s",
                name,
                NONE_IS_MADE,
            )

    def check(self, config: SubscriptionGroupConfig) -> None:
        """Check the name and the settings of a group. Raises InvalidOption."""
        validate_group(config.name)
        if not 0 <= config.retry_queues <= MAX_RETRY_QUEUES:
            raise InvalidOption(
                f"group {config.name}: {config.retry_queues} retry queues: must be between 0 "
                f"and {MAX_RETRY_QUEUES}"
            )
        if config.retry_max_times < -1:
            raise InvalidOption(
                f"group {config.name}: {config.retry_max_times} retries: must be -1 or more"
            )
        for name, number in (
            ("retryMaxTimes", config.retry_max_times),
            ("groupSysFlag", config.sys_flag),
            ("consumeTimeoutMinute", config.consume_timeout_minutes),
        ):
            if not -0x80000000 <= number <= 0x7FFFFFFF:
                raise InvalidOption(f"group {config.name}: {name} {number} is outside 32 bits")
        _check_kept(config)

    def delete(self, name: str) -> bool:
        """Return True if there was such a group. Raises InvalidOption for a built-in one."""
        if name in BUILT_IN:
            raise InvalidOption(f"group {name} belongs to the broker: it cannot be deleted")
        self._forbidden = {
            group: topics for group, topics in self._forbidden.items() if group != name
        }
        return self._remove(name)

    def may_read(self, group: str, topic: str) -> bool:
        return not self._forbidden or not self._bits(group).get(topic, 0) & PERM_READ

    def forbid_or_allow(self, group: str, topic: str, *, may_read: bool) -> None:
        """Allow or forbid *group* to read *topic*. Raises InvalidOption for a full table."""
        if may_read == self.may_read(group, topic):
            return
        topics = self._bits(group)
        if not may_read and sum(len(self._bits(name)) for name in self._forbidden) >= MAX_FORBIDDEN:
            raise InvalidOption(
                f"group {group}: {MAX_FORBIDDEN} topics are forbidden to groups already"
            )
        topics[topic] = topics.get(topic, 0) ^ PERM_READ
        self._forbidden = {
            **self._forbidden,
            group: {name: bits for name, bits in topics.items() if bits},
        }
        self._note_change()

    def _bits(self, group: str) -> dict[str, int]:
        topics = self._forbidden.get(group)
        return (
            {name: bits for name, bits in topics.items() if type(bits) is int and bits > 0}
            if isinstance(topics, dict)
            else {}
        )

    def to_json(self, first: int = 0, end: int | None = None) -> dict[str, Any]:
        """Return the table in the form of the file and of GET_ALL_SUBSCRIPTIONGROUP_CONFIG, or the
        groups of one page of it.
        """
        return self._render(list(itertools.islice(self._configs.values(), first, end)))()

    def _snapshot(self) -> Render:
        return self._render(list(self._configs.values()))

    def _render(self, groups: list[SubscriptionGroupConfig]) -> Render:
        version, forbidden = self.data_version, self._forbidden
        return lambda: {
            "dataVersion": version.to_json(),
            "forbiddenTable": forbidden,
            "subscriptionGroupTable": {group.name: group.to_json() for group in groups},
        }


def _check_kept(config: SubscriptionGroupConfig) -> None:
    """Check settings that this broker only stores: Apache's must be able to read them. Raises
    InvalidOption.
    """
    policy, subscriptions = config.retry_policy, config.subscriptions or ()
    if (policy.get("type") or "CUSTOMIZED") not in ("CUSTOMIZED", "EXPONENTIAL"):
        raise InvalidOption(
            f"group {config.name}: the type of groupRetryPolicy is CUSTOMIZED or EXPONENTIAL"
        )
    exponential = policy.get("exponentialRetryPolicy") or {}
    customized = policy.get("customizedRetryPolicy") or {}
    if not isinstance(exponential, dict) or not all(
        _is_number(exponential.get(name, 0)) for name in ("initial", "max", "multiplier")
    ):
        raise InvalidOption(
            f"group {config.name}: exponentialRetryPolicy holds the numbers initial, max and "
            "multiplier"
        )
    if not isinstance(customized, dict) or not _are_numbers(customized.get("next", [])):
        raise InvalidOption(
            f"group {config.name}: customizedRetryPolicy holds a list of numbers, next"
        )
    for subscription in subscriptions:
        texts = [subscription.get(name) or "" for name in ("topic", "expressionType", "expression")]
        if not all(isinstance(text, str) for text in texts) or not _is_number(
            subscription.get("version", 0)
        ):
            raise InvalidOption(
                f"group {config.name}: subscriptionDataSet holds the texts topic, expressionType, "
                "expression, and a number"
            )
    size = len(dumps([dict(config.attributes), dict(policy), *map(dict, subscriptions)]))
    if size > MAX_KEPT_BYTES:
        raise InvalidOption(
            f"group {config.name}: {size} bytes of attributes, retry policy and subscriptions: "
            f"must be at most {MAX_KEPT_BYTES}"
        )


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and -0x8000000000000000 <= value <= 0x7FFFFFFFFFFFFFFF
    )


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


# --- modes of consumption -------------------------------------------------------------------------
# Modes of consumption by topic and group: SET_ (401) and GET_ALL_MESSAGE_REQUEST_MODE (402).
#
# Source: MessageRequestModeManager.java, QueryAssignmentProcessor.java, 5.5. The file,
# config/messageRequestMode.json, is Apache's.

MAX_MODES: Final = 20_000
POP, PULL = "POP", "PULL"


class RequestModes:
    """Table of the modes in which groups consume topics. Owner: the event loop.

    The file is written off the loop.
    """

    def __init__(self, table: JsonTable) -> None:
        """Load the file. Blocking. Raises StoreError."""
        self._modes: dict[tuple[str, str], RequestMode] = {}
        topics = (table.load() or {}).get("messageRequestModeMap")
        for topic, groups in topics.items() if isinstance(topics, dict) else ():
            for group, value in groups.items() if isinstance(groups, dict) else ():
                try:
                    self._modes[str(topic), str(group)] = RequestMode.from_json(value)
                except ProtocolError as exc:
                    log.warning("ignored the request mode of %.80r: %s", group, exc)
        self._writer = TableWriter("request modes", table, self._snapshot)

    def get(self, topic: str, group: str) -> RequestMode | None:
        return self._modes.get((topic, group))

    def set(self, mode: RequestMode) -> None:
        """Raises Rejected if the table is full."""
        key = mode.topic, mode.group
        if key not in self._modes and len(self._modes) >= MAX_MODES:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY, f"this broker keeps {MAX_MODES} request modes already"
            )
        if self._modes.get(key) != mode:
            self._modes[key] = mode
            self._writer.mark()

    def forget(self, wanted: Callable[[str, str], bool]) -> None:
        """Forget what is deleted; *wanted* gets topic and group."""
        gone = [key for key in self._modes if wanted(*key)]
        for key in gone:
            del self._modes[key]
        if gone:
            self._writer.start()

    async def saved(self) -> None:
        """Return when every change made before is on stable storage. Raises StoreError."""
        await self._writer.saved()

    def to_json(self) -> dict[str, Any]:
        """The table as the file and the answer of 402 hold it."""
        topics: dict[str, dict[str, Any]] = {}
        for (topic, group), mode in self._modes.items():
            topics.setdefault(topic, {})[group] = mode.to_json()
        return {"messageRequestModeMap": topics}

    def _snapshot(self) -> Render:
        content = self.to_json()
        return lambda: content
