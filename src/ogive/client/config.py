"""Settings of clients and producers.

Times are in seconds; "Java:" names the counterpart of a setting there.
"""

import functools
import logging
import math
import os
import re
import shlex
import ssl
import ssl as tls
import stat
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar, get_args
from urllib.parse import urlsplit

from ogive.client.instrumentation import SendHook
from ogive.client.namespace import validate_namespace
from ogive.errors import ConnectError, InvalidOption
from ogive.keywords import explains
from ogive.model import MAX_BODY_BYTES, validate_group
from ogive.transport.connection import join_address, split_address
from ogive.transport.tls import fault_of, refuse_password
from ogive.wire.compression import CompressionType, require
from ogive.wire.signing import Credentials

# Credentials and authorities that are kept in files.


log = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(r"(?P<name>[^:=]*)(?P<sign>[:=])(?P<value>.*)")
_QUOTED: Final = r""""(?P<double>[^"\\]*)"|'(?P<single>[^']*)'"""
_SCALAR: Final = {
    ":": re.compile(rf"(?:{_QUOTED})(?:\s+#.*)?|(?P<plain>(?![\"']).*?)(?:(?:^|\s+)#.*)?"),
    "=": re.compile(rf"{_QUOTED}|(?P<plain>(?![\"']).*)"),
}
"""Text behind the sign: as in YAML, where quotes are no part of a value and a comment may follow
it; or to the end of the line.
"""
_NAMES: Final = {
    "accesskey": "access_key",
    "secretkey": "secret_key",
    "securitytoken": "security_token",
}


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced, or None if it does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_credentials(path: str) -> Credentials:
    """Read a file with lines ``accessKey: NAME`` and ``secretKey: SECRET`` (or with ``=``), as
    Apache's tools.yml. Warn once if other users can read it. Raises InvalidOption.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode()
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & (
                stat.S_IRGRP | stat.S_IROTH
            ):
                _say_that_others_read(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption(
            f"credentials file {path} cannot be read: "
            f"{getattr(exc, 'strerror', None) or 'it is not text'}"
        ) from None
    found: dict[str, str] = {}
    for line in map(_LINE.fullmatch, text.splitlines()):
        if line is not None and (field := _NAMES.get(line["name"].strip().lower())) is not None:
            scalar = _SCALAR[line["sign"]].fullmatch(line["value"].strip())
            if scalar is None:
                raise InvalidOption(
                    f"credentials file {path}: {line['name'].strip()} begins with a quote; inside "
                    "may be neither it nor a backslash, "
                    "and behind it a comment only"
                )
            found[field] = scalar["double"] or scalar["single"] or scalar["plain"] or ""
    if not found.get("access_key") or not found.get("secret_key"):
        raise InvalidOption(
            f"credentials file {path} needs the lines accessKey: NAME and secretKey: SECRET"
        )
    return Credentials(**found)


# once a file
@functools.lru_cache(64)
def _say_that_others_read(path: str) -> None:
    log.warning(
        "credentials file %s is readable by other users of this machine: chmod 600 %s",
        path,
        shlex.quote(path),
    )


def trusting(
    cafile: str | None, certfile: str | None = None, keyfile: str | None = None
) -> ssl.SSLContext:
    """Return a context that checks certificates and host names, against the authorities in *cafile*
    or else the system's.

    A server that asks for a certificate gets that in *certfile*; its key is in *keyfile*, or in the
    same file. Raises InvalidOption.
    """
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as exc:
        # ssl.SSLError is one, too
        reason = "it holds no certificate" if isinstance(exc, ssl.SSLError) else exc.strerror
        raise InvalidOption(f"authorities file {cafile}: {reason}") from None
    if certfile is None:
        if keyfile is not None:
            raise InvalidOption(
                f"key file {keyfile}: the key alone is shown to nobody, the file with its "
                "certificate is missing (--certfile; on Spark "
                "tls.certificate)"
            )
        return context
    for path in filter(None, (certfile, keyfile)):
        try:
            Path(path).open("rb").close()
        except OSError as exc:
            raise InvalidOption(
                f"{'certificate' if path == certfile else 'key'} file {path}: {exc.strerror}"
            ) from None
    try:
        context.load_cert_chain(certfile, keyfile, password=refuse_password)
    except (ssl.SSLError, ValueError) as exc:
        if keyfile is None and b"PRIVATE KEY-----" not in Path(certfile).read_bytes():
            raise InvalidOption(
                f"certificate file {certfile}: its key is not in it; name the key's file, too "
                "(--keyfile; on Spark tls.key)"
            ) from None
        if keyfile is None:
            raise InvalidOption(
                f"certificate file {certfile}: it is no certificate and its key: "
                f"{getattr(exc, 'reason', None) or exc}"
            ) from None
        raise InvalidOption(fault_of(Path(certfile), Path(keyfile), exc)) from None
    return context


C = TypeVar("C")

# the default of busy_poll_s: any other value warns
_NO_EFFECT_S: Final = 200e-6
DEFAULT_NAME_SERVER = "127.0.0.1:9876"
DEFAULT_NAME_SERVER_PORT = 9876
DEFAULT_GROUP = "ogive-producer"
# a day: anything longer is not a time budget
MAX_TIME_S = 86_400.0

# of annotations: what isinstance takes, and in words
_KINDS: Final[dict[Any, tuple[Any, str]]] = {
    bool: (bool, "True or False"),
    int: (int, "int"),
    int | None: (int | None, "int or None"),
    float: (int | float, "a number of seconds"),
    str: (str, "str"),
    str | None: (str | None, "str or None"),
    Path | None: (Path | None, "a pathlib.Path or None"),
}


def own_config(config: C | None, kind: type[C]) -> C:
    """Return *config*, or the defaults.

    Raises TypeError at once for any other object, rather than at the first message.
    """
    if config is not None and not isinstance(config, kind):
        raise TypeError(f"config must be an ogive.{kind.__name__}, not {type(config).__name__}")
    return kind() if config is None else config


def check_type(name: str, value: object, kind: Any, words: str) -> None:
    """Raise TypeError, which says in *words* what to write instead, unless *value* is of this
    kind.
    """
    # True is an int to isinstance, and here a mistake
    mistaken = isinstance(value, bool) and bool not in (get_args(kind) or (kind,))
    if mistaken or not isinstance(value, kind):
        raise TypeError(f"{name} must be {words}, not {type(value).__name__}")


def check_types(config: Any) -> None:
    """Check the fields of plain types; all floats are seconds.

    Raises TypeError, and InvalidOption for infinity and NaN.
    """
    for field in fields(config):
        if field.type in _KINDS:
            value = getattr(config, field.name)
            check_type(field.name, value, *_KINDS[field.type])
            if field.type is float and not math.isfinite(value):
                raise InvalidOption(f"{field.name} is {value}: must be a finite number of seconds")


def check_time(name: str, seconds: float) -> float:
    """Return *seconds* if it is a valid time budget.

    Raises InvalidOption, also for infinity and NaN; TypeError.
    """
    check_type(name, seconds, int | float, "a number of seconds")
    if not 0 < seconds <= MAX_TIME_S:
        raise InvalidOption(
            f"{name} is {seconds}: must be above 0 and at most {MAX_TIME_S:.0f} seconds"
        )
    return seconds


def parse_name_servers(text: str) -> tuple[str, ...]:
    """Return the addresses in *text*, separated by ``;``, each as ``host:port``; the default port
    is 9876.

    Raises InvalidOption.
    """
    servers = [word.strip().removeprefix("http://") for word in text.split(";") if word.strip()]
    if not servers:
        raise InvalidOption("no name server is given: host:port, or several joined by ;")
    try:
        return tuple(
            [join_address(*split_address(server, DEFAULT_NAME_SERVER_PORT)) for server in servers]
        )
    except ConnectError as exc:
        raise InvalidOption(f"name server {exc.args[0]}; several are joined by ;") from None


def address_source(text: str) -> str | None:
    """Return *text* if it is the URL of a list of name servers, None for addresses.
    ``http://host:port`` is an address.
    """
    text = text.strip()
    if not text.startswith(("http://", "https://")) or ";" in text:
        return None
    try:
        parts = urlsplit(text)
        if not parts.path.strip("/"):
            return None
        if not parts.hostname:
            raise ConnectError("it names no host", text)
        # an invalid host or port would only be noticed when the list is fetched
        split_address(join_address(parts.hostname, 80 if parts.port is None else parts.port))
    except (ValueError, ConnectError) as exc:
        raise InvalidOption(
            f"name server {text!r} is not the URL of a list of name servers: {exc}"
        ) from None
    return text


@explains
@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """Address and settings of a cluster.

    *name_server* is ``host:port``, or several separated by ``;``; the default port is 9876. It may
    also be the URL of such a list, as in ``http://config.example:8080/rocketmq/nsaddr``, which is
    fetched at the start and again every *name_server_period_s*.
    """

    name_server: str = DEFAULT_NAME_SERVER
    """Addresses as ``host:port``, joined by ``;``, or the URL of a list. Java: namesrvAddr."""
    instance_name: str | None = None
    """Part of the client id; None: unique to this object. Java: instanceName."""
    request_timeout_s: float = 3.0
    """Time budget of a request without one of its own. Java: mqClientApiTimeout."""
    connect_timeout_s: float = 3.0
    """Time budget of a connection attempt, with the TLS handshake."""
    heartbeat_period_s: float = 30.0
    """Time between two heartbeats to each broker. Java: heartbeatBrokerInterval."""
    route_period_s: float = 30.0
    """Time between two updates of the routes. Java: pollNameServerInterval."""
    name_server_period_s: float = 120.0
    """Time between two fetches of the list, if name_server is the URL of one. Java:
    fetchNameServerAddr."""
    ssl: tls.SSLContext | bool = False
    """Encrypt connections. True: certificates and host names are checked against the system's
    authorities. Java: useTLS."""
    credentials: Credentials | None = None
    """Keys for a cluster with access control. Java: AclClientRPCHook."""
    namespace: str | None = None
    """Namespace of 4.x: a prefix of topics and groups on the wire, "shop%Orders"."""
    namespace_v2: str | None = None
    """namespaceV2 of 5.x: in the header of every request."""

    def __post_init__(self) -> None:
        check_type("name_server", self.name_server, str, "str, several joined by ;")
        check_types(self)
        check_type(
            "ssl",
            self.ssl,
            bool | tls.SSLContext,
            'True, False or an ssl.SSLContext (ssl.create_default_context(cafile="ca.pem"))',
        )
        check_type(
            "credentials",
            self.credentials,
            Credentials | None,
            "ogive.Credentials(access_key=..., secret_key=...)",
        )
        validate_namespace(self.namespace)
        validate_namespace(self.namespace_v2)
        if address_source(self.name_server) is None:
            parse_name_servers(self.name_server)
        for name in (
            "request_timeout_s",
            "connect_timeout_s",
            "heartbeat_period_s",
            "route_period_s",
            "name_server_period_s",
        ):
            check_time(name, getattr(self, name))

    @property
    def request_fields(self) -> dict[str, str]:
        """Return the fields in every request's header. Source: NamespaceRpcHook.java, 5.3."""
        return {} if self.namespace_v2 is None else {"ns": self.namespace_v2, "nsd": "true"}

    @property
    def name_servers(self) -> tuple[str, ...]:
        """Addresses, each as ``host:port``; empty if they are fetched from a URL."""
        return () if self.name_server_source else parse_name_servers(self.name_server)

    @property
    def name_server_source(self) -> str | None:
        """URL that the list of name servers is fetched from, or None."""
        return address_source(self.name_server)


def tls_context(ssl: tls.SSLContext | bool) -> tls.SSLContext | None:
    if isinstance(ssl, bool):
        return tls.create_default_context() if ssl else None
    return ssl


@explains
@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """Settings of a producer."""

    group: str = DEFAULT_GROUP
    """Producer group; transactions are checked with its members. Java: producerGroup."""
    send_timeout_s: float = 3.0
    """Time budget of a whole call: waiting for room, finding the route, connecting, and every
    attempt. Java: sendMsgTimeout."""
    retries: int = 2
    """Further attempts after a failed one, each at another broker if there is one. Java:
    retryTimesWhenSendFailed."""
    retry_when_not_stored_ok: bool = False
    """Treat any status but SEND_OK as a failed attempt. Java: retryAnotherBrokerWhenNotStoreOK."""
    avoid_slow_brokers: bool = False
    """For a while, send nothing to a broker that was slow or failed. Java: sendLatencyFaultEnable.
    """
    compress_over_bytes: int | None = 4096
    """Compress bodies from this size on; None: never. Java: compressMsgBodyOverHowmuch."""
    compression: CompressionType = "zlib"
    """Format of compressed bodies; "lz4" and "zstd" need ogive[compression], and consumers from 5.0
    on. Java: compressType."""
    compress_level: int = 5
    """Level of compression; lz4 has none. Java: rocketmq.message.compressLevel."""
    max_in_flight: int = 8192
    """Limit of unfinished sends; beyond it a send waits. Java:
    backPressureForAsyncSendNum, 1024."""
    max_in_flight_bytes: int = 32 * 1024 * 1024
    """Limit of bytes in unfinished sends. Java: backPressureForAsyncSendSize, 100 MiB."""
    max_requests: int = 4
    """Limit of requests in flight to each broker; beyond it, messages without a sharding key wait
    and leave as batches."""
    max_batch_bytes: int = 256 * 1024
    """Size limit of one request; brokers take 4 MiB (maxMessageSize)."""
    linger_s: float = 0.0
    """Time that submitted messages wait for others to share a request; 0: only while requests are
    on their way. A full batch does not wait.
    """
    whole_batches: bool = False
    """Give each batch of send_batch a key of its own, as Java's client does. Needed for topics of
    batches, which brokers from 5.0 on have."""
    # brokers of 4.9 give that key to all messages of a batch, in place of their own
    default_topic_queues: int = 4
    """Queues of a topic that a send creates; the broker has a limit, usually 8. Java:
    defaultTopicQueueNums."""
    check_threads: int = 4
    """Concurrent calls of the transaction check. Java: checkThreadPoolMaxSize, 1."""
    max_checks_waiting: int = 2000
    """Limit of waiting transaction checks; beyond it they are dropped, and the broker asks again.
    Java: checkRequestHoldMax."""
    busy_poll_s: float = _NO_EFFECT_S
    """Without effect: a blocking send waits for its answer on ogive's loop. Deprecated."""
    hooks: tuple[SendHook, ...] = ()
    """Objects that are called before and after each send; the first is the outermost. Java:
    sendMessageHookList."""
    trace: bool = False
    """Record every send in RMQ_SYS_TRACE_TOPIC. Java: enableTrace."""

    def __post_init__(self) -> None:
        validate_group(self.group)
        check_types(self)
        hooks = "a tuple of objects with before_send and after_send"
        check_type("hooks", self.hooks, Sequence, hooks)
        for hook in self.hooks:
            if not (
                callable(getattr(hook, "before_send", None))
                and callable(getattr(hook, "after_send", None))
            ):
                raise TypeError(f"hooks must be {hooks}, and {hook!r} is none")
        check_time("send_timeout_s", self.send_timeout_s)
        if not 0 <= self.linger_s < self.send_timeout_s:
            raise InvalidOption(
                f"linger_s {self.linger_s} must be at least 0 and less than send_timeout_s"
            )
        if self.retries < 0:
            raise InvalidOption("retries must not be negative")
        if self.compression not in get_args(CompressionType):
            raise InvalidOption(
                f"compression {self.compression!r} is not one of "
                f"{', '.join(get_args(CompressionType))}"
            )
        require(self.compression)
        if not 0 <= self.compress_level <= 9:
            raise InvalidOption(f"compress_level {self.compress_level} is outside 0..9")
        if (
            min(
                self.max_in_flight,
                self.max_in_flight_bytes,
                self.max_requests,
                self.default_topic_queues,
            )
            < 1
        ):
            raise InvalidOption(
                "max_in_flight, max_in_flight_bytes, max_requests and default_topic_queues must be "
                "at least 1"
            )
        if min(self.check_threads, self.max_checks_waiting) < 1:
            raise InvalidOption("check_threads and max_checks_waiting must be at least 1")
        if self.busy_poll_s != _NO_EFFECT_S:
            warnings.warn(
                "ProducerConfig(busy_poll_s=) has no effect and will be removed in the "
                "next release; a broker still has one (ogive up --busy-poll)",
                DeprecationWarning,
                # the caller of the class, which is called through ``explains``
                stacklevel=4,
            )
        if not 1024 <= self.max_batch_bytes <= MAX_BODY_BYTES:
            raise InvalidOption(
                f"max_batch_bytes {self.max_batch_bytes} is outside 1024..{MAX_BODY_BYTES}"
            )
