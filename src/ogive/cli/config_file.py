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


def _user(text: str) -> Credentials:
    value = json.loads(text)
    name, password = value["username"], value["password"]
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
    "flushDiskType": ("flush", _flush),
    "messageDelayLevel": ("delay_levels", str),
    "autoCreateTopicEnable": ("no_auto_create_topics", lambda text: not _switch(text)),
    "transactionTimeOut": ("transaction_timeout", _seconds),
    "transactionCheckInterval": ("transaction_check_interval", _seconds),
    "fileReservedTime": ("keep_hours", float),
    "deleteWhen": ("delete_at", lambda text: text.replace(";", ",")),
    "authenticationEnabled": ("acl", _switch),
    "initAuthenticationUser": ("first_user", _user),
    "tls.server.certPath": ("tls_cert", str),
    "tls.server.keyPath": ("tls_key", str),
    "tls.server.mode": ("tls_mode", str),
    "tls.server.trustCertPath": ("tls_client_ca", str),
}


def _from_broker_conf(path: str, found: Mapping[str, str]) -> dict[str, Any]:
    defaults = {}
    for name, text in found.items():
        if name in _KEYS:
            dest, parse = _KEYS[name]
            try:
                defaults[dest] = parse(text)
            except (ValueError, KeyError, TypeError, InvalidOption):
                shown = "what stands there" if name == "initAuthenticationUser" else repr(text[:80])  # never a password
                raise InvalidOption(f"{path}: {name} cannot be {shown}") from None
    if (found.get("authorizationEnabled", "false").lower() == "true") != bool(defaults.get("acl", False)):
        raise InvalidOption(
            f"{path}: authenticationEnabled and authorizationEnabled must be equal here: one asks who it is, the other decides"
        )
    unknown = sorted(found.keys() - _KEYS.keys() - {"authorizationEnabled"})
    if unknown:
        log.warning("%s: not used here: %s", path, ", ".join(map(_doubted, unknown))[:2000])
    return defaults


def _doubted(name: str) -> str:
    """With the key that it may be a misspelling of: very near ones only, as most are other settings of Apache's."""
    near = difflib.get_close_matches(name, _KEYS, n=1, cutoff=0.9)
    return f"{name} (did you mean {near[0]}?)" if near else name
