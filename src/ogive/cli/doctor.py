"""``ogive doctor``: checks of this machine, this client, the cluster and a broker's directory.

Each check may take CHECK_S seconds, and runs whatever the others find. Nothing is changed or
created. Checks that can block, for example on a network file system that does not answer, run on
threads for which the end of the process does not wait.
"""

import argparse
import asyncio
import errno
import os
import platform
import re
import resource
import shutil
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from ogive import __version__, aio
from ogive.broker.maintenance import disk_used
from ogive.cli import up_checks
from ogive.cli.broker_clock import skew_s
from ogive.cli.connect import advice_for, client_config, is_there, place, source
from ogive.cli.exits import EXIT_FINDINGS
from ogive.cli.options import check_port
from ogive.cli.output import print_json
from ogive.cli.parser import build_parser
from ogive.client.admin.records import BrokerStatus
from ogive.client.config import ClientConfig
from ogive.errors import ConnectError, InvalidOption, NoPermission, OgiveError
from ogive.native import build, native
from ogive.text import escape, pluralize
from ogive.transport.connection import (
    is_loopback,
    join_address,
    reason_of,
    split_listed_address,
)

CHECK_S: Final = 5.0
MAX_SKEW_S: Final = 5.0
"""Difference of clocks above which delays, retention and traces are noticeably wrong."""
CLIENT_FILES: Final = 256
SERVER_FILES: Final = 4096
FULL: Final = 0.85
"""Used share of a disk above which brokers delete messages before their retention time ends."""
MIN_FREE_BYTES: Final = 2 * 1024**3
"""Size of two files of the commit log."""
OLDEST: Final = (4, 9)
"""The oldest release of Apache's brokers that ogive is tested with."""

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check. *way_out* says how to fix it; empty if it is ok."""

    check: str
    level: Level
    text: str
    way_out: str = ""


Check = Callable[[argparse.Namespace], Sequence[Finding]]


async def examine(options: argparse.Namespace) -> int:
    """Print the findings. Return 0 if all are ok, else EXIT_FINDINGS."""
    _check_options(options)
    checks: dict[str, Check] = {"client": _client, "open files": _open_files}
    if options.data is not None:
        checks |= {"directory": _directory, "disk": _disk, "ports": _ports}
    findings: list[Finding] = []
    for name, check in checks.items():
        findings += await _bounded(name, _on_thread(check, options), options)
    if options.data is None or options.topic is not None or _names_cluster(options):
        findings += await _cluster(options)
    for one in findings:
        if options.json:
            print_json(asdict(one))
        else:
            print(f"{one.level:<8} {one.check}: {escape(one.text)}")
            if one.way_out:
                print(f"{'':<8} {escape(one.way_out)}")
    return EXIT_FINDINGS if any(one.level != "ok" for one in findings) else 0


def _names_cluster(options: argparse.Namespace) -> bool:
    """Return True if an option, the environment or a context names a cluster.

    Before the first start of a broker there is none.
    """
    return options.name_server is not None or source(options) != ""


def _check_options(options: argparse.Namespace) -> None:
    """Raise InvalidOption for a port out of range, and for options that need --data."""
    for name in ("host", "name_server_port", "broker_port"):
        option = f"--{name.replace('_', '-')}"
        if getattr(options, name) is not None and options.data is None:
            raise InvalidOption(
                f"{option} has no effect without --data DIR: add it, or leave it out"
            )
        if name != "host":
            check_port(option, getattr(options, name))


async def _on_thread(check: Check, options: argparse.Namespace) -> Sequence[Finding]:
    """Return the findings of a check. Its thread is a daemon, because the end of the process waits
    for the threads of asyncio.to_thread.
    """
    outcome: Future[Sequence[Finding]] = Future()
    outcome.set_running_or_notify_cancel()

    def work() -> None:
        try:
            outcome.set_result(check(options))
        # it is raised where the check is awaited
        except BaseException as exc:  # noqa: BLE001
            outcome.set_exception(exc)

    threading.Thread(target=work, name="ogive-doctor", daemon=True).start()
    return await asyncio.wrap_future(outcome)


async def _bounded(
    name: str, check: Awaitable[Sequence[Finding]], options: argparse.Namespace
) -> Sequence[Finding]:
    """Return the findings of a check. A check that fails is a finding, too."""
    try:
        async with asyncio.timeout(CHECK_S):
            return await check
    except TimeoutError:
        text = f"not finished within {CHECK_S:g} s"
        return [Finding(name, "error", text, "Find out what does not answer: a disk, a server")]
    except OgiveError as exc:
        return [Finding(name, "error", str(exc).rstrip("."), advice_for(exc, options))]
    except OSError as exc:
        return [Finding(name, "error", reason_of(exc), "Check that this user may read it")]


def _client(options: argparse.Namespace) -> Sequence[Finding]:
    found = [
        Finding(
            "client", "ok", f"ogive {__version__} ({build}), Python {platform.python_version()}"
        )
    ]
    if native is None:
        found.append(
            Finding(
                "client",
                "warning",
                "the compiled part is missing, so everything is slower",
                "Install a C compiler, then install ogive again",
            )
        )
    return found


def _open_files(options: argparse.Namespace) -> Sequence[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # `ogive up` raises its own limit to the hard one
    limit, least = (soft, CLIENT_FILES) if options.data is None else (hard, SERVER_FILES)
    if limit != resource.RLIM_INFINITY and limit < least:
        return [
            Finding(
                "open files",
                "warning",
                f"a process may open {limit} files and connections, at least {least} are needed",
                "Raise the limit: ulimit -n, or LimitNOFILE of systemd",
            )
        ]
    return [Finding("open files", "ok", f"the limit is {_number(limit, resource.RLIM_INFINITY)}")]


def _number(limit: int, infinity: int) -> str:
    return "infinite" if limit == infinity else f"{limit:,}"


# --- the directory of a broker on this machine ----------------------------------------------------


def _directory(options: argparse.Namespace) -> Sequence[Finding]:
    up_checks.check_data(options.data)
    up_checks.check_place(options)
    parent = _existing(options.data)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        return [
            Finding(
                "directory",
                "error",
                f"{parent} is not a directory that this user may write to",
                "Name another directory, or give this one to the broker's user",
            )
        ]
    kind = "a store" if is_there(Path(options.data) / "commitlog") else "no store yet"
    return [Finding("directory", "ok", f"{options.data} is writable, and holds {kind}")]


def _disk(options: argparse.Namespace) -> Sequence[Finding]:
    directory = _existing(options.data)
    used, free = disk_used(directory), shutil.disk_usage(directory).free
    text = f"{used:.0%} used, {free / 1024**3:,.1f} GiB free"
    if free < MIN_FREE_BYTES:
        return [Finding("disk", "error", text, "Free space, or use another disk for --data")]
    return [_of_disk("disk", used, text)]


def _of_disk(check: str, used: float, text: str) -> Finding:
    if used > FULL:
        return Finding(
            check,
            "warning",
            f"{text}: messages are deleted before their time",
            "Free space, or keep messages for a shorter time (--keep-hours)",
        )
    return Finding(check, "ok", text)


def _existing(name: str) -> Path:
    """Return the directory, or the nearest directory above it that exists."""
    path = Path(name).absolute()
    while not is_there(path) and path != path.parent:
        path = path.parent
    return path


def _ports(options: argparse.Namespace) -> Sequence[Finding]:
    defaults = build_parser(["up"]).parse_args(["up"])
    host = defaults.host if options.host is None else options.host
    found = []
    for name in ("name_server_port", "broker_port"):
        port = getattr(defaults, name) if getattr(options, name) is None else getattr(options, name)
        option = f"--{name.replace('_', '-')}"
        try:
            up_checks.check_port_is_free(host, port)
        except ConnectError as exc:
            cause = exc.__context__
            if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
                level: Level = "warning"
                way_out = (
                    "If that is not this broker itself: stop the other process, or choose another "
                    f"port with {option}"
                )
            else:
                level = "error"
                way_out = (
                    f"Name an address of this machine with --host, or another port with {option}"
                )
            found.append(Finding("ports", level, str(exc), way_out))
        else:
            found.append(Finding("ports", "ok", f"{join_address(host, port)} is free"))
    return found


# --- a cluster ------------------------------------------------------------------------------------


async def _cluster(options: argparse.Namespace) -> Sequence[Finding]:
    try:
        config = client_config(options)
    except InvalidOption as exc:
        return [Finding("settings", "error", str(exc).rstrip("."), advice_for(exc, options))]
    found = []
    if config.credentials is not None and not config.ssl and not _is_near(config):
        found.append(
            Finding(
                "tls",
                "warning",
                "requests are signed but not encrypted: anyone on the network path can read them",
                "Use TLS: --cafile FILE",
            )
        )
    async with aio.Admin(client=config) as admin:
        brokers: list[BrokerStatus] = []
        found += await _bounded("name server", _brokers(admin, options, brokers), options)
        for one in sorted({broker.address for broker in brokers}):
            found += await _bounded("names", _name(one, config), options)
        if options.topic is not None:
            found += await _bounded("topic", _topic(options.topic, config), options)
    return found


async def _brokers(
    admin: aio.Admin, options: argparse.Namespace, brokers: list[BrokerStatus]
) -> Sequence[Finding]:
    """Check all brokers that the name server knows, and add them to *brokers*."""
    before = time.time()
    brokers += await admin.brokers()
    after = time.time()
    address = place(options).name_server
    if not brokers:
        return [
            Finding(
                "name server",
                "error",
                f"{address} knows no broker",
                "Start one, and give it this name server (--name-servers)",
            )
        ]
    known = pluralize(len(brokers), "broker")
    found = [Finding("name server", "ok", f"{address} answers, and knows {known}")]
    for broker in brokers:
        found += _of_broker(broker, before, after)
    return found


def _is_near(config: ClientConfig) -> bool:
    """Return True if all name servers are on this machine."""
    return all(_is_loopback(address) for address in config.name_servers)


def _is_loopback(address: str) -> bool:
    host = split_listed_address(address)[0]
    try:
        return is_loopback(host)
    except ValueError:
        return False


def _of_broker(broker: BrokerStatus, before: float, after: float) -> list[Finding]:
    name = f"broker {broker.name}"
    if broker.trouble is not None:
        return [
            Finding(
                name,
                "error",
                broker.trouble.rstrip("."),
                "Look at its log, and check that this machine can connect to "
                f"{broker.address}; if it is an old entry, it goes when the broker stops cleanly",
            )
        ]
    found = [Finding(name, "ok", f"{broker.address} answers, version {broker.version}")]
    numbers = re.match(r"(\d+)\.(\d+)", broker.version or "")
    if numbers and tuple(map(int, numbers.groups())) < OLDEST:
        found[0] = Finding(
            name,
            "warning",
            f"version {broker.version} is not tested with ogive",
            "Upgrade to 4.9 or later",
        )
    if broker.disk_used is not None:
        found.append(_of_disk(name, broker.disk_used, f"its disk is {broker.disk_used:.0%} used"))
    skew = skew_s(broker, before, after)
    if skew is not None and abs(skew) > MAX_SKEW_S:
        where = "ahead of" if skew > 0 else "behind"
        found.append(
            Finding(
                name,
                "warning",
                f"its clock is {abs(skew):,.0f} s {where} the clock of this machine",
                "Let NTP set both (chrony, systemd-timesyncd)",
            )
        )
    return found


async def _name(address: str, config: ClientConfig) -> Sequence[Finding]:
    """Check a broker's address as the name server gives it to clients."""
    host, port = split_listed_address(address)
    way_out = "or set --advertised-host (brokerIP1) of the broker to an address that clients reach"
    try:
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as exc:
        return [
            Finding(
                "names",
                "error",
                f"a broker advertises {address}, and this machine does not know {host}: "
                f"{exc.strerror}",
                f"Add the name to DNS or /etc/hosts, {way_out}",
            )
        ]
    if _is_loopback(address) and not _is_near(config):
        return [
            Finding(
                "names",
                "error",
                f"a broker advertises {address}, which is the own machine of each client",
                f"Run this client on the broker's machine, {way_out}",
            )
        ]
    return [Finding("names", "ok", f"{address} can be resolved")]


async def _topic(topic: str, config: ClientConfig) -> Sequence[Finding]:
    """Read the topic as a consumer does, without a group."""
    try:
        async with aio.PullConsumer(client=config) as consumer:
            queues = await consumer.queues(topic)
            for queue in {queue.broker_name: queue for queue in queues}.values():
                await consumer.pull(queue, await consumer.beginning_offset(queue), max_messages=1)
    except NoPermission as exc:
        return [
            Finding(
                "topic",
                "error",
                str(exc).rstrip("."),
                f"Ask an administrator for `ogive acl allow USER Topic:{topic} Sub`",
            )
        ]
    return [
        Finding("topic", "ok", f"{topic} has {pluralize(len(queues), 'queue')}, and can be read")
    ]
