"""``ogive group``, ``ogive lag`` and ``ogive check``: groups, their progress, and alerts.

``ogive group ...``: consumer groups, their members, and moving them to other offsets.

``ogive lag``: how far a group is behind.

``ogive check``: conditions as exit codes, for cron and monitoring.
"""

import argparse
import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TextIO

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_ERROR
from ogive.cli.message_commands import named_queue
from ogive.cli.output import (
    confirm,
    end_interrupted_line,
    instant_or_age,
    print_changes,
    print_done,
    print_json,
    print_rows,
    print_table,
    say,
    sparkline,
)
from ogive.client.admin import GroupSummary, OffsetReset, QueueLag, ResetTarget
from ogive.client.admin.effects import ResetEffect, first_position, reset_words
from ogive.client.admin.records import NO_MEMBER, behind_s, how_consumed, queue_record
from ogive.errors import (
    BrokerError,
    GroupNotExist,
    InvalidOption,
    NoNameServer,
    NoPermission,
    NoRoute,
    ProtocolError,
    TransportError,
)
from ogive.model import MessageQueue
from ogive.text import escape_lines, pluralize
from ogive.transport.event_loop import each


async def list_groups(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:

        async def row(group: GroupSummary) -> tuple[dict[str, Any], Sequence[object]]:
            online = await admin.members(group.name)
            record = {
                "group": group.name,
                "members": 0 if online is None else len(online.connections),
                "lag": sum(queue.lag for queue in await admin.lag(group.name, members=False)),
                "max_retries": group.max_retries,
                "enabled": group.enabled,
            }
            cells = (record["group"], record["members"], record["lag"], record["max_retries"])
            return record, (*cells, "" if group.enabled else "disabled")

        rows = await each(await admin.groups(system=options.all), row)
    print_rows(options, ("group", "members", "lag", "retries", ""), rows)
    return 0


async def show_group(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        group = await admin.group(options.group)
    members = [
        {"id": m.client_id, "address": m.address, "language": m.language, "version": m.version}
        for m in group.members
    ]
    if options.json:
        print_json(
            {
                "group": group.name,
                "brokers": list(group.brokers),
                "enabled": group.enabled,
                "broadcast": group.broadcast,
                "orderly": group.orderly,
                "retry_queues": group.retry_queues,
                "max_retries": group.max_retries,
                "members": members,
                "subscriptions": dict(group.subscriptions),
                "message_model": group.message_model,
                "lag": group.lag,
                "messages_per_s": group.messages_per_s,
            }
        )
        return 0
    state = "enabled" if group.enabled else "disabled: its members get nothing"
    print(f"group {group.name} on {' '.join(group.brokers)}, {state}")
    settings = {
        "retry limit": f"{group.max_retries}, then the dead letters; the max_retries of a listener "
        "overrides it",
        "retry queues": group.retry_queues,
        "broadcasting": "allowed" if group.broadcast else "not allowed",
        "orderly": "yes, for clients that use gRPC"
        if group.orderly
        else "no; listeners decide that for themselves",
        "lag": f"{group.lag:,}, {group.messages_per_s:,.1f} messages/s consumed",
    }
    for name, value in settings.items():
        print(f"{name:<13} {value}")
    if not members:
        print("no member is online")
        return 0
    print(f"{'members':<13} {how_consumed(group.message_model, group.consume_type)}")
    print()
    print_table(("topic", "subscription"), list(group.subscriptions.items()))
    print()
    print_table(
        ("member", "address", "language", "version"), [tuple(member.values()) for member in members]
    )
    return 0


async def create_group(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        await admin.create_group(
            options.group, max_retries=options.max_retries, retry_queues=options.retry_queues
        )
    text = f"group {options.group} has {options.max_retries} retries"
    print_done(
        options,
        text,
        group=options.group,
        max_retries=options.max_retries,
        retry_queues=options.retry_queues,
    )
    return 0


async def update_group(options: argparse.Namespace) -> int:
    named = {
        "max_retries": options.max_retries,
        "retry_queues": options.retry_queues,
        "broadcast": options.broadcast,
        "enabled": options.enabled,
        "orderly": options.orderly,
    }
    wanted = {name: value for name, value in named.items() if value is not None}
    mode = options.consume_mode
    if mode is None and (options.topic is not None or options.share_queues is not None):
        raise InvalidOption("--topic and --share-queues go with --consume-mode pop or pull")
    if mode is not None:
        return await _set_consume_mode(options, wanted)
    if not wanted:
        raise InvalidOption(
            "nothing to change: --max-retries, --retry-queues, --broadcast, --no-broadcast, "
            "--enable, --disable, --orderly, --no-orderly or --consume-mode is needed"
        )
    async with aio.Admin(client=client_config(options)) as admin:
        changes = await admin.update_group(options.group, **wanted, dry_run=options.dry_run)
    print_changes(changes, f"group {options.group}", as_json=options.json, dry_run=options.dry_run)
    return 0


async def _set_consume_mode(options: argparse.Namespace, others: Mapping[str, object]) -> int:
    if options.topic is None:
        raise InvalidOption("--consume-mode is set for a topic: add --topic")
    if others or options.dry_run:
        raise InvalidOption(
            "--consume-mode goes alone: brokers do not say which mode is set, so that --dry-run "
            "and changes of other settings have nothing to compare it with"
        )
    share = options.share_queues or 0
    async with aio.Admin(client=client_config(options)) as admin:
        await admin.set_consume_mode(
            options.group, options.topic, options.consume_mode, share_queues=share
        )
    verb = "pop" if options.consume_mode == "pop" else "pull"
    print_done(
        options,
        f"members of {options.group} that ask the brokers {verb} {options.topic} from now on",
        group=options.group,
        topic=options.topic,
        consume_mode=options.consume_mode,
        share_queues=share,
    )
    return 0


async def delete_group(options: argparse.Namespace) -> int:
    confirm(
        f"delete group {options.group}{' and its progress' if options.offsets else ''}?",
        yes=options.yes,
    )
    async with aio.Admin(client=client_config(options)) as admin:
        await admin.delete_group(options.group, offsets=options.offsets)
    text = f"group {options.group} is deleted; its retry and dead-letter topics stay"
    print_done(options, text, group=options.group, deleted=True, offsets=options.offsets)
    return 0


async def reset_group(options: argparse.Namespace) -> int:
    if options.queue is None:
        if options.broker is not None:
            raise InvalidOption("--broker says whose --queue: add --queue")
        return await _reset(options, place(options.to))
    if not options.to.isascii() or not options.to.isdigit():
        raise InvalidOption(f"--to {options.to}: with --queue it is an offset, such as 1234")
    return await _reset(options, int(options.to))


async def skip_backlog(options: argparse.Namespace) -> int:
    return await _reset(options, "latest")


async def clone_group(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        await refuse_unknown(admin, options.source)
        return await _move(
            admin,
            options,
            lambda dry_run: admin.clone_offsets(
                options.source, options.group, options.topic, dry_run=dry_run
            ),
        )


async def _reset(options: argparse.Namespace, target: ResetTarget | int) -> int:
    """Move the group to *target*; a number is an offset in the queue of the options."""
    async with aio.Admin(client=client_config(options)) as admin:
        to = {await named_queue(admin, options): target} if isinstance(target, int) else target
        return await _move(
            admin,
            options,
            lambda dry_run: admin.reset_offsets(options.group, options.topic, to, dry_run=dry_run),
        )


async def _move(
    admin: aio.Admin,
    options: argparse.Namespace,
    move: Callable[[bool], Awaitable[list[OffsetReset]]],
) -> int:
    """Carry out *move*, which changes the offsets of the options' group; called with True it only
    reports the changes.
    """
    agreed: list[OffsetReset] = []
    try:
        if options.dry_run:
            await refuse_unknown(admin, options.group)
        elif not options.yes:
            agreed = await _ask(admin, options, await move(True))
        plan = await move(options.dry_run)
    except GroupNotExist:
        # raises the same error with similar names
        await refuse_unknown(admin, options.group)
        raise
    if options.json:
        for row in plan:
            moved = {"before": row.before, "after": row.after, "dry_run": options.dry_run}
            print_json(queue_record(row.queue) | moved)
        return 0
    if plan == agreed:
        print(f"group {options.group} is moved", flush=True)
    else:
        _print_plan(plan)
    if options.dry_run:
        print("nothing was changed; leave out --dry-run to do it", file=sys.stderr)
    return 0


def _print_plan(plan: list[OffsetReset], file: TextIO | None = None) -> None:
    print_table(
        ("broker", "queue", "before", "after", "messages"), [_row(row) for row in plan], file
    )


async def _ask(
    admin: aio.Admin, options: argparse.Namespace, plan: list[OffsetReset]
) -> list[OffsetReset]:
    """Show the plan and ask, unless the group only gets its first position. Return the plan.

    Raises InvalidOption if the user does not agree, and if the topic is probably not the intended
    one.
    """
    if question := await first_position(admin, options.group, options.topic, plan):
        confirm(question, yes=False)
    questions = ResetEffect.from_plan(plan).sentences(options.group, options.topic)
    if not questions:
        return []
    _print_plan(plan, sys.stderr if options.json else None)
    confirm(f"{', and '.join(questions)}?", yes=False)
    return plan


def _row(row: OffsetReset) -> tuple[object, ...]:
    before = "none" if row.before is None else f"{row.before:,}"
    return row.queue.broker_name, row.queue.queue_id, before, row.after, reset_words(row)


def place(text: str) -> ResetTarget:
    """Return "earliest", "latest", or a time; see instant_or_age. Raises InvalidOption."""
    ends: dict[str, ResetTarget] = {"earliest": "earliest", "latest": "latest"}
    if text in ends:
        return ends[text]
    return instant_or_age(
        "--to",
        text,
        "earliest, latest, a time such as 2026-11-01T08:00, or 2h, is expected; an offset needs "
        "--queue",
    )


WATCH_S = 2.0
CLEAR = "\x1b[2J\x1b[H"
TREND: Final = 12
"""Lags that a sparkline shows, one for each time that the watch looked."""
_Trends = dict[MessageQueue, deque[int]]

_LAG_CELLS: Final = (
    *("topic", "broker", "queue", "offset", "max_offset", "lag", "behind_s", "member"),
)


async def show_lag(options: argparse.Namespace) -> int:
    """Show the lag of a group, and which brokers are away. Return 1 if the group has never
    committed an offset, or no broker knows it.
    """
    async with aio.Admin(client=client_config(options)) as admin:
        rows = await admin.lag(options.group, options.topic)
        if not rows:
            await check_topic(admin, options.topic)
        if options.watch:
            return await _watch(admin, rows, options)
        away = await _away(admin)
    _show(rows, options)
    for name in away:
        say(f"broker {name} is away, and may hold messages of the group")
    return 0 if rows else 1


async def _away(admin: aio.Admin) -> list[str]:
    """Return the names of brokers that are away, or none to users who may not ask for them."""
    try:
        return (await admin.cluster_info()).away
    except NoPermission:
        # whoever may read one group may not be allowed to see the cluster
        return []


async def _watch(admin: aio.Admin, rows: list[QueueLag], options: argparse.Namespace) -> int:
    """Show the lag again and again until Ctrl-C; on a terminal in place, with its trend."""
    terminal = not options.json and sys.stdout.isatty()
    # other encodings have no bars
    utf8 = sys.stdout.encoding.lower().startswith("utf")
    trends: _Trends = {}
    try:
        while True:
            if terminal:
                print(CLEAR, end="")
            if terminal and utf8:
                trends = {row.queue: trends.get(row.queue, deque(maxlen=TREND)) for row in rows}
                for row in rows:
                    trends[row.queue].append(row.lag)
            _show(rows, options, trends)
            await asyncio.sleep(WATCH_S)
            rows = await _rows_again(admin, options)
    except asyncio.CancelledError:
        end_interrupted_line()
        return 0


async def _rows_again(admin: aio.Admin, options: argparse.Namespace) -> list[QueueLag]:
    """Return the lag as soon as there is an answer: the watch continues while a broker restarts."""
    while True:
        try:
            return await admin.lag(options.group, options.topic)
        except (TransportError, NoNameServer, NoRoute) as exc:
            say(escape_lines(str(exc)))
            await asyncio.sleep(WATCH_S)


async def check_topic(admin: aio.Admin, topic: str | None) -> None:
    """Raise TopicNotExist, which names similar topics, if the topic does not exist."""
    if topic is not None:
        await admin.topic(topic)


async def refuse_unknown(admin: aio.Admin, group: str) -> None:
    """Raise GroupNotExist if no broker has the group. If brokers list no groups, do nothing."""
    try:
        await admin.group(group)
    except GroupNotExist:
        raise
    except (BrokerError, ProtocolError):
        pass


def say_nothing_consumed(options: argparse.Namespace) -> None:
    of = f" of {options.topic}" if options.topic else ""
    say(f"group {options.group} has no position in any queue{of}: nothing consumed yet")


def _show(rows: list[QueueLag], options: argparse.Namespace, trends: _Trends | None = None) -> None:
    if not rows:
        say_nothing_consumed(options)
        return
    now_s = time.time()
    records = [
        {
            **queue_record(row.queue),
            "offset": row.consumer_offset,
            "max_offset": row.max_offset,
            "lag": row.lag,
            "behind_s": behind_s(row, now_s),
            "member": row.member,
        }
        for row in rows
    ]
    heads = ["topic", "broker", "queue", "offset", "end", "lag", "seconds", "member"]
    cells = [[record[name] for name in _LAG_CELLS] for record in records]
    if trends:
        heads.insert(-1, "trend")
        for row, line in zip(rows, cells, strict=True):
            line.insert(-1, sparkline(trends[row.queue]))
    print_rows(options, heads, list(zip(records, cells, strict=True)))
    if not options.json:
        print(f"total lag {sum(row.lag for row in rows):,}", flush=True)


EXIT_OVER: Final = 3


async def check_lag(options: argparse.Namespace) -> int:
    """Compare the lag with a limit. Return 0 within it, 3 above it, 1 if the lag is unknown."""
    if options.max < 0:
        raise InvalidOption(f"--max {options.max}: must be 0 or more messages")
    async with aio.Admin(client=client_config(options)) as admin:
        rows = await admin.lag(options.group, options.topic, members=False)
        if not rows:
            await check_topic(admin, options.topic)
            say_nothing_consumed(options)
            return EXIT_ERROR
        gaps = await admin.lag_gaps(
            options.group, options.topic, members=not options.without_members
        )
    total = sum(row.lag for row in rows)
    over = total > options.max
    if options.json:
        record = {"group": options.group, "topic": options.topic, "lag": total, "max": options.max}
        print_json(record | {"over": over, "unknown": gaps})
    else:
        answer = "over" if over else "unknown" if gaps else "ok"
        least = "at least " if gaps else ""
        print(
            f"{answer}: group {options.group} is {least}{pluralize(total, 'message')} behind, "
            f"{options.max:,} are allowed"
        )
        for gap in gaps:
            accepts = "; --without-members accepts that" if gap.startswith(NO_MEMBER) else ""
            say(f"{gap}{accepts}")
    if over:
        return EXIT_OVER
    return EXIT_ERROR if gaps else 0
