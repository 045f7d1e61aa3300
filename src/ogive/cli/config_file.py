"""``ogive up --config FILE``: the options of the command line in a TOML file, or the supported keys of Apache's broker.conf.

The command line wins over the file.
"""

import argparse
import difflib
import json
import logging
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ogive.errors import InvalidOption
from ogive.wire.acl import Credentials

log = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 1024 * 1024
_NOT_IN_FILES: Final = ("help", "config", "verbose")


def read(path: str, command: argparse.ArgumentParser) -> dict[str, Any]:
    """New defaults for *command*, by the names of its options' attributes. Raises InvalidOption."""
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption(f"--config {path} cannot be read: {getattr(exc, 'strerror', None) or 'it is no text'}") from None
    if path.endswith((".conf", ".properties")):
        return _from_broker_conf(path, properties(text))
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise InvalidOption(f"--config {path} is no TOML: {exc}") from None
    return _from_toml(path, table, command)


# --- TOML ------------------------------------------------------------------------------------------------------------


def _from_toml(path: str, table: Mapping[str, Any], command: argparse.ArgumentParser) -> dict[str, Any]:
    known = {
        option.removeprefix("--"): action
        for action in command._actions
        for option in action.option_strings
        if option.startswith("--") and action.dest not in _NOT_IN_FILES
    }
    found = {}
    for name, value in table.items():
        action = known.get(name)
        if action is None:
            raise InvalidOption(f"{path}: {name} is no setting{_nearest(name, known)}")
        found[action.dest] = _value(f"{path}: {name}", action, value)
    return found


def _value(where: str, action: argparse.Action, value: Any) -> Any:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise InvalidOption(f"{where} is true or false")
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidOption(f"{where} needs text or a number")
    if action.choices is not None and value not in action.choices:
        raise InvalidOption(f"{where}: {value!r} is none of {', '.join(map(str, action.choices))}")
    if not callable(action.type):
        return str(value)
    try:
        return action.type(str(value))
    except ValueError:
        raise InvalidOption(f"{where}: {value!r} is no number") from None


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; {near[0]} is" if near else f"; there are {', '.join(sorted(known))}"


# --- broker.conf -----------------------------------------------------------------------------------------------------


def properties(text: str) -> dict[str, str]:
    """Lines ``name = value`` (or with a colon); # and ! begin a comment. The last of two with the same name counts."""
    found = {}
    for line in map(str.strip, text.splitlines()):
        if line and line[0] not in "#!":
            at = min((i for i in (line.find("="), line.find(":")) if i > 0), default=len(line))
            found[line[:at].strip()] = line[at + 1 :].strip()
    return found


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _flush(text: str) -> str:
    return {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}[text.upper()]


def _seconds(text: str) -> float:
    return int(text) / 1000


def _count(text: str) -> int:
    if int(text) <= 0:
        raise ValueError("more than 0")
    return int(text)


def _period(text: str) -> float:
    return _count(text) / 1000


def _master_id(text: str) -> None:
    if int(text):
        raise InvalidOption("only 0, a master, is possible here: there are no replicas. Give each broker a brokerName of its own")


def _master_role(text: str) -> None:
    if text not in ("ASYNC_MASTER", "SYNC_MASTER"):
        raise InvalidOption("only ASYNC_MASTER and SYNC_MASTER are possible here: there are no replicas")


def _client_auth(text: str) -> str:
    return {"none": "none", "optional": "optional", "require": "required"}[text.lower()]


def _credentials(text: str) -> Credentials:
    """Of the class SessionCredentials."""
    value = json.loads(text)
    return _named(value["accessKey"], value["secretKey"])


def _user(text: str) -> Credentials:
    value = json.loads(text)
    return _named(value["username"], value["password"])


def _named(name: object, password: object) -> Credentials:
    if not isinstance(name, str) or not isinstance(password, str):
        raise TypeError("text")
    return Credentials(access_key=name, secret_key=password)


_KEYS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "storePathRootDir": ("data", str),
    "bindAddress": ("host", str),
    "brokerIP1": ("advertised_host", str),
    "listenPort": ("broker_port", int),
    "brokerName": ("broker_name", str),
    "namesrvAddr": ("name_servers", str),
    "brokerClusterName": ("cluster", str),
    "regionId": ("region", str),
    "flushDiskType": ("flush", _flush),
    "mappedFileSizeCommitLog": ("segment_size", int),
    "messageDelayLevel": ("delay_levels", str),
    "timerMaxDelaySec": ("max_timer_delay", float),
    "autoCreateTopicEnable": ("no_auto_create_topics", lambda text: not _switch(text)),
    "autoCreateSubscriptionGroup": ("no_auto_create_groups", lambda text: not _switch(text)),
    "defaultTopicQueueNums": ("default_queues", int),
    "enablePropertyFilter": ("no_property_filter", lambda text: not _switch(text)),
    "maxMessageSize": ("max_message_size", int),
    "timerMaxWaiting": ("max_timer_messages", int),
    "maxOpenTransactions": ("max_open_transactions", int),
    "maxUnansweredChecks": ("max_unanswered_checks", int),
    "transactionTimeOut": ("transaction_timeout", _seconds),
    "transactionCheckInterval": ("transaction_check_interval", _seconds),
    "transactionCheckMax": ("transaction_check_max", int),
    "fileReservedTime": ("keep_hours", float),
    "deleteWhen": ("delete_at", lambda text: text.replace(";", ",")),
    "diskMaxUsedSpaceRatio": ("delete_above", float),
    "diskSpaceCleanForciblyRatio": ("delete_young_above", float),
    "authenticationEnabled": ("acl", _switch),
    "initAuthenticationUser": ("first_user", _user),
    "innerClientAuthenticationCredentials": ("name_servers_user", _credentials),
    "tls.server.certPath": ("tls_cert", str),
    "tls.server.keyPath": ("tls_key", str),
    "tls.server.mode": ("tls_mode", str),
    "tls.server.trustCertPath": ("tls_client_ca", str),
    "tls.server.need.client.auth": ("tls_client_auth", _client_auth),
}
"""Name in broker.conf -> the option's attribute, and how the text is read."""

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

_ONLY: Final[Mapping[str, Callable[[str], None]]] = {"brokerId": _master_id, "brokerRole": _master_role}
"""Settings of which only some values are possible: those are what the broker does anyway."""

_PLACES: Final[Mapping[str, str]] = {
    "storePathCommitLog": "commitlog",
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}
"""What Apache's broker can keep elsewhere, and its place here, below storePathRootDir."""

_SECRET: Final = ("initAuthenticationUser", "innerClientAuthenticationCredentials")
_KNOWN: Final = (*_KEYS, *_SETTINGS, *_ONLY, *_PLACES, "authorizationEnabled")


def _from_broker_conf(path: str, found: Mapping[str, str]) -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, text in found.items():
        try:
            if name in _KEYS:
                dest, parse = _KEYS[name]
                defaults[dest] = parse(text)
            elif name in _SETTINGS:
                field, parse = _SETTINGS[name]
                settings[field] = parse(text)
            elif name in _ONLY:
                _ONLY[name](text)
        except (ValueError, KeyError, TypeError, InvalidOption) as exc:
            shown = "what stands there" if name in _SECRET else repr(text[:80])  # never a password
            why = f": {exc}" if name in _ONLY and isinstance(exc, InvalidOption) else ""
            raise InvalidOption(f"{path}: {name} cannot be {shown}{why}") from None
    for name in _PLACES.keys() & found.keys():
        _check_place(path, name, found[name], found.get("storePathRootDir"))
    if settings:
        defaults["broker_settings"] = settings
    if defaults.get("tls_client_auth") == "none":  # as in Apache's, the authorities are then not used
        del defaults["tls_client_auth"]
        defaults.pop("tls_client_ca", None)
    if (found.get("authorizationEnabled", "false").lower() == "true") != bool(defaults.get("acl", False)):
        raise InvalidOption(
            f"{path}: authenticationEnabled and authorizationEnabled must be equal here: one asks who it is, the other decides"
        )
    unknown = sorted(found.keys() - set(_KNOWN))
    if unknown:
        log.warning("%s: not used here: %s", path, ", ".join(map(_doubted, unknown))[:2000])
    return defaults


def _check_place(path: str, name: str, text: str, root: str | None) -> None:
    """Raises InvalidOption for another place than ours: a start there would begin an empty log, while the messages are elsewhere."""
    if root is None or Path(text).resolve() != (Path(root) / _PLACES[name]).resolve():
        raise InvalidOption(
            f"{path}: {name} cannot be {text[:80]!r}: it is always {_PLACES[name]} in storePathRootDir, "
            f"which {'is not given' if root is None else f'is {root}'}; a mount or a link there puts it on another disk"
        )


def _doubted(name: str) -> str:
    """With the key that it may be a misspelling of: very near ones only, as most are other settings of Apache's."""
    near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.9)
    return f"{name} (did you mean {near[0]}?)" if near else name
