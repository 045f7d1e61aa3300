"""``ogive up --config FILE``: the options of the command line in a TOML file, or the supported keys
of Apache's broker.conf.

The command line wins over the file.
"""

import argparse
import codecs
import difflib
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from ogive.broker.config import PopConfig
from ogive.errors import InvalidOption
from ogive.text import is_line
from ogive.wire.command import parse_long
from ogive.wire.java_properties import parse_properties
from ogive.wire.signing import Credentials

V = TypeVar("V")

MAX_FILE_BYTES: Final = 1024 * 1024
_NOT_IN_FILES: Final = ("help", "config", "verbose")
_NAMED: Final = re.compile(r"--[a-z-]+|[a-z_]+(?==)")
"""An option, or a field and its value, at the beginning of an error's text."""


def read(path: str, command: argparse.ArgumentParser) -> dict[str, Any]:
    """Return new defaults for *command*, by the names of its options' attributes. ``config_notes``
    are for the log, once it is set up.

    Raises InvalidOption.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
    except OSError as exc:
        raise InvalidOption(f"--config {path} cannot be read: {exc.strerror}") from None
    if _is_broker_conf(path):
        return _from_broker_conf(path, _properties(path, data), is_ascii=data.isascii())
    try:
        table = tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InvalidOption(f"--config {path} cannot be read: it is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as exc:
        raise InvalidOption(f"--config {path} is not TOML: {exc}") from None
    return _from_toml(path, table, command)


# --- TOML -----------------------------------------------------------------------------------------


def _from_toml(
    path: str, table: Mapping[str, Any], command: argparse.ArgumentParser
) -> dict[str, Any]:
    known = {
        option.removeprefix("--"): action
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest not in _NOT_IN_FILES
    }
    found = {}
    for name, value in table.items():
        action = known.get(name)
        if action is None and isinstance(value, dict):
            raise InvalidOption(
                f"{path}: [{name}] is a table: settings stand at the top level, without one"
            )
        if action is None:
            raise InvalidOption(f"{path}: {name} is not a setting{_nearest(name, known)}")
        found[action.dest] = _value(f"{path}: {name}", action, value)
    return found


def _value(where: str, action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise InvalidOption(f"{where} is true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        several = "; several are one text, joined by commas" if isinstance(value, list) else ""
        raise InvalidOption(f"{where} needs text or a number{several}")
    if isinstance(value, str) and not is_line(value):
        raise InvalidOption(f"{where}: {value!r} holds a control character")
    if action.choices is not None and value not in action.choices:
        raise InvalidOption(
            f"{where}: {value!r} is not one of {', '.join(map(str, action.choices))}"
        )
    if not callable(action.type):
        return str(value)
    try:
        return action.type(str(value))
    except ValueError:
        raise InvalidOption(f"{where}: {value!r} is not a number") from None


def place_in_file(text: str, options: argparse.Namespace) -> str:
    """Return the place in the file to which an error's *text* refers, as a sentence; empty if the
    value is not from the file.

    Such a text begins with an option, or a field of BrokerConfig. ``options.in_file`` is the result
    of read(); the command line wins.
    """
    named = _NAMED.match(text)
    if named is None:
        return ""
    path, found = options.config, options.in_file
    name = named[0].removeprefix("--").replace("-", "_")
    if name not in found.get("broker_settings", {}) and (
        name not in found or getattr(options, name) is not found[name]
    ):
        return ""
    keys = (
        {dest: key for key, (dest, _) in (*_KEYS.items(), *_SETTINGS.items())}
        if _is_broker_conf(path)
        else {}
    )
    return f"{keys.get(name, name.replace('_', '-'))} in {path} says so."


def _is_broker_conf(path: str) -> bool:
    return path.endswith((".conf", ".properties"))


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; {near[0]} is" if near else f"; there are {', '.join(sorted(known))}"


# --- broker.conf ----------------------------------------------------------------------------------


def _properties(path: str, data: bytes) -> dict[str, str]:
    """Return the properties that Apache's broker would read from the file.

    A byte order mark, which some editors put at the beginning of UTF-8, is skipped.
    """
    try:
        return parse_properties(data.removeprefix(codecs.BOM_UTF8))
    except InvalidOption as exc:
        raise InvalidOption(f"{path}: {exc}") from None


def _choice(values: Mapping[str, V], fold: Callable[[str], str] = str.lower) -> Callable[[str], V]:
    """Return a function that reads one of *values*, in any case that *fold* removes."""

    def read(text: str) -> V:
        if fold(text) not in values:
            raise InvalidOption(f"must be one of {', '.join(values)}")
        return values[fold(text)]

    return read


_switch: Final = _choice({"true": True, "false": False})
_unless: Final = _choice({"true": False, "false": True})
"""Read the value for an option that means the opposite of the key."""


def _whole(text: str) -> int:
    try:
        return parse_long(text)
    except ValueError:
        raise InvalidOption("a whole number is expected") from None


def _number(text: str) -> float:
    if not re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", text):
        raise InvalidOption("a number is expected")
    return float(text)


def _seconds(text: str) -> float:
    return _whole(text) / 1000


def _count(text: str) -> int:
    count = _whole(text)
    if count <= 0:
        raise InvalidOption("must be more than 0")
    return count


def _period(text: str) -> float:
    return _count(text) / 1000


def _no_old_rules(text: str) -> None:
    if _switch(text):
        raise InvalidOption(
            "users and rules of releases before 5 (plain_acl.yml) are not read. "
            "authenticationEnabled and authorizationEnabled switch on "
            "those of the newer ones"
        )


def _master_id(text: str) -> None:
    if _whole(text):
        raise InvalidOption(
            "only 0, a master, is possible here: there are no replicas. Give each broker a "
            "brokerName of its own"
        )


def _master_role(text: str) -> None:
    if text not in ("ASYNC_MASTER", "SYNC_MASTER"):
        raise InvalidOption(
            "only ASYNC_MASTER and SYNC_MASTER are possible here: there are no replicas"
        )


def _account(name_key: str, password_key: str) -> Callable[[str], Credentials]:
    """Return a function that reads credentials in JSON under these keys."""

    def read(text: str) -> Credentials:
        value = json.loads(text)
        name, password = value[name_key], value[password_key]
        if not isinstance(name, str) or not isinstance(password, str):
            raise TypeError("text")
        return Credentials(access_key=name, secret_key=password)

    return read


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "storePathRootDir": ("data", str),
    "bindAddress": ("host", str),
    "brokerIP1": ("advertised_host", str),
    "listenPort": ("broker_port", _whole),
    "brokerName": ("broker_name", str),
    "namesrvAddr": ("name_servers", str),
    "brokerClusterName": ("cluster", str),
    "regionId": ("region", str),
    "flushDiskType": (
        "flush",
        _choice({"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}, str.upper),
    ),
    "mappedFileSizeCommitLog": ("segment_size", _whole),
    "messageDelayLevel": ("delay_levels", str),
    "timerMaxDelaySec": ("max_timer_delay", _number),
    "autoCreateTopicEnable": ("no_auto_create_topics", _unless),
    "autoCreateSubscriptionGroup": ("no_auto_create_groups", _unless),
    "defaultTopicQueueNums": ("default_queues", _whole),
    "enablePropertyFilter": ("no_property_filter", _unless),
    "maxMessageSize": ("max_message_size", _whole),
    "timerMaxWaiting": ("max_timer_messages", _whole),
    "maxOpenTransactions": ("max_open_transactions", _whole),
    "maxUnansweredChecks": ("max_unanswered_checks", _whole),
    "transactionTimeOut": ("transaction_timeout", _seconds),
    "transactionCheckInterval": ("transaction_check_interval", _seconds),
    "transactionCheckMax": ("transaction_check_max", _whole),
    "fileReservedTime": ("keep_hours", _number),
    "deleteWhen": ("delete_at", lambda text: text.replace(";", ",")),
    "diskMaxUsedSpaceRatio": ("delete_above", _number),
    "diskSpaceCleanForciblyRatio": ("delete_young_above", _number),
    "authenticationEnabled": ("acl", _switch),
    "initAuthenticationUser": ("first_user", _account("username", "password")),
    "innerClientAuthenticationCredentials": (
        "name_servers_user",
        _account("accessKey", "secretKey"),
    ),
    "tls.server.certPath": ("tls_cert", str),
    "tls.server.keyPath": ("tls_key", str),
    "tls.server.mode": (
        "tls_mode",
        _choice({mode: mode for mode in ("enforcing", "permissive", "disabled")}),
    ),
    "tls.server.trustCertPath": ("tls_client_ca", str),
    "tls.server.need.client.auth": (
        "tls_client_auth",
        _choice({"none": "none", "optional": "optional", "require": "required"}),
    ),
}
"""Name in broker.conf -> the option's attribute, and the function that reads the text."""

_SETTINGS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "channelExpiredTimeout": ("client_expiry_s", _period),
    "cleanResourceInterval": ("retention_check_s", _period),
    "flushConsumerOffsetInterval": ("offsets_persist_s", _period),
    "flushDelayOffsetInterval": ("delay_persist_s", _period),
    "maxTransferBytesOnMessageInMemory": ("max_pull_bytes", _count),
    "maxTransferCountOnMessageInMemory": ("max_pull_messages", _count),
    "registerBrokerTimeoutMills": ("name_server_timeout_s", _period),
    "registerNameServerPeriod": ("register_period_s", _period),
    "sendThreadPoolQueueCapacity": ("max_sends_waiting", _count),
    "storeReplyMessageEnable": ("store_replies", _switch),
}
"""The same for settings without an option: -> name in BrokerConfig."""

_POP: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "enableNotifyAfterPopOrderLockRelease": ("notify_unlocks", _switch),
    "enablePopMessageThreshold": ("limit_out", _switch),
    "enableRetryTopicV2": ("retry_v2", _switch),
    "initPopOffsetByCheckMsgInMem": ("look_in_memory", _switch),
    "maxPopLeases": ("max_leases", _count),
    "maxPopPollingSize": ("max_waiting", _count),
    "popFromRetryProbability": ("retry_share", _whole),
    "popFromRetryProbabilityForPriority": ("priority_retry_share", _whole),
    "popInflightMessageThreshold": ("max_out", _count),
    "popPollingMapSize": ("max_waiting_keys", _count),
    "popPollingSize": ("max_waiting_per_key", _count),
    "popResponseReturnActualRetryTopic": ("actual_retry_topic", _switch),
    "priorityOrderAsc": ("priority_ascending", _switch),
    "retrieveMessageFromPopRetryTopicV1": ("read_retry_v1", _switch),
    "reviveQueueNum": ("revive_queues", _count),
    "useSeparateRetryQueue": ("separate_retry_queues", _switch),
}
"""The same: -> name in PopConfig."""

_ONLY: Final[Mapping[str, Callable[[str], None]]] = {
    "aclEnable": _no_old_rules,
    "brokerId": _master_id,
    "brokerRole": _master_role,
}
"""Settings of which only some values are possible, namely those that match the broker's
behaviour.
"""

_PLACES: Final[Mapping[str, str]] = {
    "storePathCommitLog": "commitlog",
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
"""Parts that Apache's broker can keep in other places, and their places here, below
storePathRootDir.
"""

_SECRET: Final = {
    "initAuthenticationUser": '{"username":"NAME","password":"SECRET"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"NAME","secretKey":"SECRET"}',
}
"""Keys whose values are not shown, with their form."""
_KNOWN: Final = (*_KEYS, *_SETTINGS, *_POP, *_ONLY, *_PLACES, "authorizationEnabled")


def _from_broker_conf(path: str, found: Mapping[str, str], *, is_ascii: bool) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    popping: dict[str, Any] = {}
    for name, text in found.items():
        try:
            if name in _KEYS:
                dest, parse = _KEYS[name]
                # Properties keeps blanks at the end; only texts may have them
                defaults[dest] = text if parse is str else parse(text.strip())
            elif name in _SETTINGS:
                field, parse = _SETTINGS[name]
                settings[field] = parse(text.strip())
            elif name in _POP:
                field, parse = _POP[name]
                popping[field] = parse(text.strip())
                # refuses what is out of its range, with the name of the key
                settings["pop"] = PopConfig(**popping)
            elif name in _ONLY:
                _ONLY[name](text.strip())
        except (ValueError, KeyError, TypeError, InvalidOption) as exc:
            # never show a password
            shown = "what stands there" if name in _SECRET else repr(text[:80])
            why = (
                f": {exc}"
                if isinstance(exc, InvalidOption)
                else f": {_SECRET[name]} is expected"
                if name in _SECRET
                else ""
            )
            raise InvalidOption(f"{path}: {name} cannot be {shown}{why}") from None
    for name in _PLACES.keys() & found.keys():
        _check_place(path, name, found[name], found.get("storePathRootDir"))
    if settings:
        defaults["broker_settings"] = settings
    _drop_unused_tls(defaults)
    if (found.get("authorizationEnabled", "false").lower() == "true") != bool(
        defaults.get("acl", False)
    ):
        raise InvalidOption(
            f"{path}: authenticationEnabled and authorizationEnabled must be equal here: one asks "
            "who it is, the other decides"
        )
    unknown = sorted(found.keys() - set(_KNOWN))
    notes = (
        [f"{path}: not used here: {', '.join(map(_doubted, unknown))[:2000]}"] if unknown else []
    )
    foreign = sorted(
        name
        for name in found.keys() & set(_KNOWN)
        if not found[name].isascii() and name not in _SECRET
    )
    # In a file with only ASCII, they are from escapes.
    if foreign and not is_ascii:
        notes.append(
            f"{path}: {', '.join(foreign)}: characters beyond ASCII are read byte by byte, as by "
            "Apache's broker; write \\uXXXX for each"
        )
    if notes:
        defaults["config_notes"] = notes
    return defaults


def _drop_unused_tls(defaults: dict[str, Any]) -> None:
    """Drop settings of TLS that have no effect in Apache's broker either."""
    if defaults.get("tls_mode") == "disabled":
        for dest in [dest for dest in defaults if dest.startswith("tls_")]:
            del defaults[dest]
    elif "tls_cert" not in defaults and defaults.get("tls_mode") == "permissive":
        del defaults["tls_mode"]
    if defaults.get("tls_client_auth") == "none":
        del defaults["tls_client_auth"]
        defaults.pop("tls_client_ca", None)


def _check_place(path: str, name: str, text: str, root: str | None) -> None:
    """Raise InvalidOption if the file names another place than ours: a start there would begin an
    empty log, although there are messages elsewhere.
    """
    if root is None or Path(text).resolve() != (Path(root) / _PLACES[name]).resolve():
        raise InvalidOption(
            f"{path}: {name} cannot be {text[:80]!r}: it is always {_PLACES[name]} in "
            "storePathRootDir, "
            f"which {'is not given' if root is None else f'is {root}'}; a mount or a link there "
            "puts it on another disk"
        )


def _doubted(name: str) -> str:
    """Return *key* with the key that it may be a misspelling of: only with a very near one, because
    most keys are other settings of Apache's.
    """
    if not name or any(map(str.isspace, name)) or not name.isprintable():
        return repr(name[:80])
    near = next(
        ([key] for key in _KNOWN if key.lower() == name.lower()), []
    ) or difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.9)
    return f"{name} (did you mean {near[0]}?)" if near else name
