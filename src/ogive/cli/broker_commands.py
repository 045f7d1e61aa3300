"""``ogive broker``, ``ogive store`` and ``ogive errors``.

``ogive broker ...``: the brokers of a cluster and the figures that they report.

``ogive store``: copy, check and repair the directory of a broker.

``ogive errors CODE``: the meaning of a code in the answer of a broker or name server, and what to
do.
"""

import argparse
import asyncio
import dataclasses
import difflib
from pathlib import Path
from typing import Final

from ogive import aio
from ogive.broker import Broker, BrokerConfig
from ogive.cli.connect import client_config
from ogive.cli.logs import filter_repeated_warnings
from ogive.cli.output import print_json, print_rows, print_table, utc_text
from ogive.client.admin import BrokerStatus
from ogive.errors import InvalidOption, ResponseCode, broker_error
from ogive.model import instant
from ogive.store.backup import back_up
from ogive.store.fs import reason
from ogive.store.types import APACHE_CONF
from ogive.store.verify import Report
from ogive.store.verify import repair as repair_store
from ogive.store.verify import verify as verify_store
from ogive.text import pluralize
from ogive.wire.java_properties import parse_properties


async def list_brokers(options: argparse.Namespace) -> int:
    """List the brokers. Return 1 if one of them does not answer."""
    rows = await _brokers(options)
    known = ("cluster", "broker", "id", "address", "version")
    heads = (*known, "in/s", "out/s", "in today", "out today", "disk", "")
    print_rows(options, heads, [(_record(row), _line(row)) for row in rows])
    return 1 if any(row.trouble for row in rows) else 0


async def show_broker(options: argparse.Namespace) -> int:
    """Show all figures of a broker. Return 1 if it does not answer."""
    rows = await _brokers(options)
    found = [row for row in rows if options.broker in (row.name, row.address)]
    if not found:
        there = ", ".join(sorted({row.name for row in rows}))
        raise InvalidOption(
            f"there is no broker {options.broker}; there are: {there}. `ogive broker list` shows "
            "their addresses, too"
        )
    for row in found:
        if options.json:
            print_json(_record(row) | {"figures": dict(row.figures)})
            continue
        print(
            f"broker {row.name} (id {row.broker_id}) at {row.address}, cluster {row.cluster}, "
            f"version {row.version or 'unknown'}"
        )
        if row.trouble:
            print(f"does not answer: {row.trouble}")
            continue
        if row.oldest_message_ms is not None:
            print(f"oldest message {utc_text(instant(row.oldest_message_ms))}")
        print()
        print_table(("figure", "value"), sorted(row.figures.items()))
    return 1 if any(row.trouble for row in found) else 0


async def _brokers(options: argparse.Namespace) -> list[BrokerStatus]:
    async with aio.Admin(client=client_config(options)) as admin:
        return await admin.brokers()


def _line(row: BrokerStatus) -> tuple[object, ...]:
    return (
        row.cluster,
        row.name,
        row.broker_id,
        row.address,
        row.version,
        row.puts_per_s,
        row.gets_per_s,
        row.puts_today,
        row.gets_today,
        None if row.disk_used is None else f"{row.disk_used:.0%}",
        row.trouble,
    )


def _record(row: BrokerStatus) -> dict[str, object]:
    return {
        "cluster": row.cluster,
        "broker": row.name,
        "id": row.broker_id,
        "address": row.address,
        "version": row.version,
        "puts_per_s": row.puts_per_s,
        "gets_per_s": row.gets_per_s,
        "puts_today": row.puts_today,
        "gets_today": row.gets_today,
        "disk_used": row.disk_used,
        "oldest_message_ms": row.oldest_message_ms,
        "trouble": row.trouble,
    }


EXIT_DAMAGED: Final = 3


def verify(options: argparse.Namespace) -> int:
    """Check a store. Return 0 if nothing is wrong, 3 if something is.

    Raises StoreLocked, StoreUnusable, StoreCorrupt.
    """
    filter_repeated_warnings(again=False)
    report = verify_store(Path(options.directory))
    if options.json:
        print_json(_damage_record(report))
    else:
        _show(report)
    return 0 if report.is_sound else EXIT_DAMAGED


def backup(options: argparse.Namespace) -> int:
    """Copy a store beside its broker. Return 0, or 3 if the copy is damaged.

    Raises InvalidOption, StoreUnusable, StoreCorrupt.
    """
    filter_repeated_warnings(again=False)
    done = back_up(Path(options.directory), Path(options.to))
    report = verify_store(Path(options.to)) if options.verify else None
    if options.json:
        print_json(
            dataclasses.asdict(done)
            | ({} if report is None else {"verified": _damage_record(report)})
        )
    else:
        again = f", {done.reused} of them from before" if done.reused else ""
        print(
            f"{done.directory}: the log from {done.log_start:,} to {done.log_end:,}, "
            f"{pluralize(done.segments, 'file')}{again}"
        )
        if report is not None:
            _show(report)
    return EXIT_DAMAGED if report is not None and not report.is_sound else 0


def export_leases(options: argparse.Namespace) -> int:
    """Write leases as checkpoints: start a broker that nobody uses, and stop it. Return 0.

    Raises InvalidOption, StoreError.
    """
    filter_repeated_warnings(again=False)
    directory = Path(options.directory)
    try:
        conf = parse_properties((directory / APACHE_CONF).read_bytes())
    except OSError as exc:
        raise InvalidOption(
            f"{directory} is not the directory of a broker of ogive: {reason(exc)}"
        ) from None
    config = BrokerConfig(
        data=directory,
        port=0,
        cluster=conf["brokerClusterName"],
        name=conf["brokerName"],
        delay_levels=conf["messageDelayLevel"],
    )
    count = asyncio.run(_exported(config))
    if options.json:
        print_json({"directory": str(directory), "leases": count})
    else:
        print(f"{directory}: {pluralize(count, 'lease')} written as checkpoints")
    return 0


async def _exported(config: BrokerConfig) -> int:
    broker = Broker(config)
    await broker.start()
    leases = broker.context.leases
    await broker.stop()
    if error := broker.unsaved or broker.unexported:
        raise error
    return len(leases)


def repair(options: argparse.Namespace) -> int:
    """Repair a store. Return 0 if it is good now, 3 if some damage is left.

    Raises StoreLocked, StoreUnusable, StoreCorrupt.
    """
    filter_repeated_warnings(again=False)
    before, after = repair_store(Path(options.directory))
    if options.json:
        print_json({"before": _damage_record(before), "after": _damage_record(after)})
    else:
        print("found:")
        _show(before)
        print("after the repair:")
        _show(after)
    return 0 if after.is_sound else EXIT_DAMAGED


def _damage_record(report: Report) -> dict[str, object]:
    return {"sound": report.is_sound, **dataclasses.asdict(report)}


def _show(report: Report) -> None:
    held = f"{pluralize(report.records, 'record')} in {pluralize(report.queues, 'queue')}"
    print(f"{report.directory}: {held}, log {report.log_start:,} to {report.log_end:,}")
    if not report.clean:
        behind = (
            f", and {pluralize(report.queues_behind, 'queue')} behind the log"
            if report.queues_behind
            else ""
        )
        print(
            f"  of a broker that was running or did not stop cleanly{behind}: the next start "
            "completes it"
        )
    for sentence in (*report.notes, *report.problems):
        print(f"  {sentence}")
    print(
        "  nothing is wrong"
        if report.is_sound
        else f"  {pluralize(len(report.problems), 'problem')}"
    )


R = ResponseCode

_EXPLAINED: Final[dict[ResponseCode, str]] = {
    R.RPC_TIME_OUT: "a broker got no answer from another one; look whether all brokers of the "
    "cluster are up",
    R.RPC_SEND_TO_CHANNEL_FAILED: "a broker could not write to another one; look at the network "
    "between them",
    R.RPC_ADDR_IS_NULL: "a broker does not know another one's address; look whether that one is "
    "registered (`ogive broker list`)",
    R.RPC_UNKNOWN: "a broker's call to another one failed; its log says why",
    R.SUCCESS: "done",
    R.SYSTEM_ERROR: "the broker's catch-all; its remark says why. Without one, look into the "
    "broker's log",
    R.SYSTEM_BUSY: "flow control: the broker has more work than it can do in time. Try later, send "
    "less at once, or add brokers",
    R.REQUEST_CODE_NOT_SUPPORTED: "the server does not know the request: it is of another kind (a "
    "broker for a name server), "
    "or of another release",
    R.TRANSACTION_FAILED: "not used by servers",
    R.FLUSH_DISK_TIMEOUT: "the message is stored, but was not on disk in time: a power cut may "
    "lose it",
    R.SLAVE_NOT_AVAILABLE: "the message is stored at the master; there is no slave to copy it to",
    R.FLUSH_SLAVE_TIMEOUT: "the message is stored at the master; the slave did not confirm in time",
    R.MESSAGE_ILLEGAL: "the message is refused: too long, a bad topic or property. Fix it; trying "
    "again cannot help",
    R.SERVICE_NOT_AVAILABLE: "the broker cannot write: its disk is full or failed, it is a slave, "
    "or it is shutting down",
    R.VERSION_NOT_SUPPORTED: "client and server are of releases that do not go together",
    R.NO_PERMISSION: "access control forbids it, or a permission of topic, group or broker (`ogive "
    "topic show`, `ogive group show`)",
    R.TOPIC_NOT_EXIST: "no such topic: it is misspelt, or must be created (`ogive topic create`)",
    R.TOPIC_EXIST_ALREADY: "there is such a topic already",
    R.PULL_NOT_FOUND: "nothing new in the queue; consumers ask again by themselves",
    R.PULL_RETRY_IMMEDIATELY: "what is new does not match the subscription; consumers go on by "
    "themselves",
    R.PULL_OFFSET_MOVED: "the queue does not hold the offset that was asked for, or the group was "
    "reset; consumers go on by themselves",
    R.QUERY_NOT_FOUND: "nothing under that key, offset or name",
    R.SUBSCRIPTION_PARSE_FAILED: "the filter expression cannot be read: tags are separated by ||, "
    "SQL must be allowed at the broker",
    R.SUBSCRIPTION_NOT_EXIST: "the broker does not know the group's subscription yet; the next "
    "heartbeat fixes it",
    R.SUBSCRIPTION_NOT_LATEST: "the broker has an older subscription of the group; a heartbeat "
    "fixes it. If it stays, members differ",
    R.SUBSCRIPTION_GROUP_NOT_EXIST: "no such consumer group, and the broker makes none by itself "
    "(`ogive group create`)",
    R.FILTER_DATA_NOT_EXIST: "the broker does not know the group's SQL filter yet; the next "
    "heartbeat fixes it",
    R.FILTER_DATA_NOT_LATEST: "the broker has an older SQL filter of the group; the next heartbeat "
    "fixes it",
    R.INVALID_PARAMETER: "an argument is refused; the remark names it",
    R.TRANSACTION_SHOULD_COMMIT: "the transaction is to be committed",
    R.TRANSACTION_SHOULD_ROLLBACK: "the transaction is to be rolled back",
    R.TRANSACTION_STATE_UNKNOW: "the transaction's state is unknown; the broker asks again",
    R.TRANSACTION_STATE_GROUP_WRONG: "the transaction belongs to another producer group",
    R.NO_BUYER_ID: "the message lacks the unit that it belongs to",
    R.NOT_IN_CURRENT_UNIT: "the message belongs to another unit",
    R.CONSUMER_NOT_ONLINE: "no member of the group is connected to the broker (`ogive group show`)",
    R.CONSUME_MSG_TIMEOUT: "the member was asked, and did not answer in time",
    R.NO_MESSAGE: "no message there, or its offset is outside the queue",
    R.POLLING_FULL: "5.x: too many consumers wait for messages. 4.x: the access-control file could "
    "not be changed",
    R.POLLING_TIMEOUT: "5.x: no message came in the time given. 4.x: the access-control entry "
    "could not be deleted",
    R.BROKER_NOT_EXIST: "5.x: no such broker. 4.x: the white list could not be changed",
    R.BROKER_DISPATCH_NOT_COMPLETE: "the broker has not caught up with its own log yet; try later",
    R.BROADCAST_CONSUMPTION: "the group consumes by broadcasting: its offsets live at the members",
    R.FLOW_CONTROL: "flow control: try later, or send less at once",
    R.NOT_LEADER_FOR_QUEUE: "the queue has moved to another broker; clients learn it with the next "
    "route",
    R.ILLEGAL_OPERATION: "too late, or not for this message: a recall or commit that came after "
    "its time",
    R.GO_AWAY: "the server is shutting down; clients connect elsewhere",
    R.LMQ_QUOTA_EXCEEDED: "the broker holds as many light queues as it may",
    R.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: "the client subscribes to as many light topics as it may",
    R.USER_NOT_EXIST: "access control knows no such user",
    R.POLICY_NOT_EXIST: "access control has no such rule",
}


def explain(code: ResponseCode) -> str:
    if code.name.startswith("CONTROLLER_"):
        return "an answer of the controller that elects masters; its remark and log say more"
    return _EXPLAINED[code]


def _code_record(code: ResponseCode) -> dict[str, object]:
    return {"code": code.value, "name": code.name, "meaning": explain(code)}


def explain_errors(options: argparse.Namespace) -> int:
    if options.code is None:
        rows = [
            (_code_record(code), (str(code.value), code.name, explain(code)))
            for code in ResponseCode
        ]
        print_rows(options, ("code", "name", "meaning"), rows)
        return 0
    code = _parse(options.code)
    error = type(broker_error(code, None)).__name__
    if options.json:
        print_json(_code_record(code) | {"exception": error})
    else:
        print(f"{code.value} {code.name}: {explain(code)}")
        if code is not ResponseCode.SUCCESS:
            print(f"raised as ogive.errors.{error}")
    return 0


def _parse(text: str) -> ResponseCode:
    by_name = ResponseCode.__members__.get(text.upper())
    if by_name is not None:
        return by_name
    try:
        return ResponseCode(int(text))
    except ValueError:
        near = [name for name in ResponseCode.__members__ if text and text.upper() in name]
        near = near or difflib.get_close_matches(text.upper(), ResponseCode.__members__)
        known = f": did you mean {' or '.join(near[:3])}?" if near else ""
        raise InvalidOption(
            f"{text} is not a response code{known or '; `ogive errors` lists them'}"
        ) from None
