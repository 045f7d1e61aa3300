"""Changes that the console offers: for each a form, and a preview of what it will do.

A preview only reads. It names the command that does the same, and holds the function that carries
the change out once somebody has confirmed it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast, get_args

from ogive.client.admin import Admin, SettingChange
from ogive.client.admin.effects import (
    ResetEffect,
    check_new_topic,
    check_queues,
    first_position,
    queue_notes,
    reset_words,
    unread_messages,
)
from ogive.client.admin.records import Permission, ResetTarget, SettingValue
from ogive.client.admin.redrive import LetterFilter, choose_letters, send_letters
from ogive.client.config import ClientConfig
from ogive.client.producer import Producer
from ogive.console.forms import moment, sql_filter, whole_number
from ogive.errors import GroupNotExist, InvalidOption, NoRoute
from ogive.model import (
    Message,
    MessageType,
    check_tag,
    parse_tags,
    validate_group,
    validate_topic,
)
from ogive.text import pluralize

Given = Mapping[str, str]
"""Values of a form's fields, empty ones included."""

# dead letters of one action, and the time for which it sends
MAX_LETTERS: Final = 500
SEND_S: Final = 20.0
# dead letters read at a time, with their bodies
LETTERS_READ: Final = 100
# rows of a preview
MAX_ROWS: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a form. *choices*: pairs of a value and its label, for the kind ``choice``."""

    name: str
    label: str
    note: str = ""
    kind: Literal["text", "number", "time", "choice", "lines", "check"] = "text"
    required: bool = False
    choices: tuple[tuple[str, str], ...] = ()
    value: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Effect of an action. *about*: topic and group, for links and the audit log. *carry_out*
    does it and returns a sentence; None if there is nothing to do. *rows* are the first of
    *row_count*.
    """

    will: tuple[str, ...]
    command: tuple[object, ...]
    about: Mapping[str, str]
    carry_out: Callable[[ClientConfig], Awaitable[str]] | None
    warnings: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    row_count: int = 0


@dataclass(frozen=True, slots=True)
class Action:
    """A change. *operation* names it in the audit log, *button* on the page."""

    title: str
    operation: str
    button: str
    text: str
    fields: tuple[Field, ...]
    preview: Callable[[Admin, Given], Awaitable[Preview]]


def _flag(name: str, value: object) -> tuple[str, ...]:
    """Return an option of a command with its value; none for an empty value."""
    text = "" if value is None else str(value)
    return () if not text else (f"{name}={text}",) if text.startswith("-") else (name, text)


def _number(given: Given, name: str) -> int | None:
    return whole_number(name.replace("_", " "), given[name]) if given[name] else None


def _instant(at: datetime | None) -> str | None:
    return None if at is None else f"{at.isoformat(timespec='milliseconds')[:23]}Z"


# --- a test message -------------------------------------------------------------------------------


async def _preview_send(admin: Admin, given: Given) -> Preview:
    # a browser ends the lines of a form with CR and LF
    name, body = given["topic"], given["body"].replace("\r\n", "\n")
    tag, keys = given["tag"] or None, tuple(given["keys"].split(" ")) if given["keys"] else ()
    if tag is not None:
        check_tag(tag)
    message = Message(name, body.encode(), tag=tag, keys=keys)
    topic = await admin.topic(name)

    async def carry_out(client: ClientConfig) -> str:
        async with Producer(client=client) as producer:
            sent = await producer.send(message)
        return f"stored in {sent.queue} at offset {sent.queue_offset}, id {sent.id}"

    readers = ", ".join(topic.groups)
    return Preview(
        will=(
            f"Store a message of {pluralize(len(message.body), 'byte')} in topic {name}.",
            f"These groups consume it: {readers}." if readers else "No group consumes it yet.",
        ),
        command=(
            *("send", name),
            *(_flag("--body", body) or ("--body", "")),
            *_flag("--tag", tag),
            *(word for key in keys for word in _flag("--key", key)),
        ),
        about={"topic": name},
        carry_out=carry_out,
    )


# --- progress of a group --------------------------------------------------------------------------


async def _preview_reset(admin: Admin, given: Given) -> Preview:
    group, topic = given["group"], given["topic"]
    at = moment(given["at"])
    if (given["to"] == "time") != (at is not None):
        raise InvalidOption("a time is needed to move to a time, and for nothing else")
    to: ResetTarget = at or ("earliest" if given["to"] == "earliest" else "latest")
    await admin.group(group)
    plan = await admin.reset_offsets(group, topic, to, dry_run=True)
    effect = ResetEffect.from_plan(plan)

    async def carry_out(client: ClientConfig) -> str:
        async with Admin(client=client) as admin:
            done = ResetEffect.from_plan(await admin.reset_offsets(group, topic, to))
        return f"{done.skipped:,} messages skipped, {done.repeated:,} delivered again"

    question = await first_position(admin, group, topic, plan)
    sentences = [f"{text[0].upper()}{text[1:]}." for text in effect.sentences(group, topic)]
    rows = [
        (row.queue.broker_name, row.queue.queue_id, row.before, row.after, reset_words(row))
        for row in plan
    ]
    return Preview(
        will=tuple(sentences) or ("No message is skipped or delivered again.",),
        command=("group", "reset", group, topic, "--to", _instant(at) or given["to"], "--yes"),
        about={"group": group, "topic": topic},
        carry_out=carry_out,
        warnings=(question,) if question else (),
        heads=("Broker", "Queue", "Next now", "Next then", "Effect"),
        rows=tuple(rows[:MAX_ROWS]),
        row_count=len(rows),
    )


# --- dead letters ---------------------------------------------------------------------------------


async def _preview_redrive(admin: Admin, given: Given) -> Preview:
    group, ids = given["group"], tuple(given["ids"].split())
    limit = _number(given, "limit") or MAX_LETTERS
    if not 1 <= limit <= MAX_LETTERS:
        raise InvalidOption(f"limit {limit}: must be between 1 and {MAX_LETTERS}")
    wanted = LetterFilter(
        ids=frozenset(ids),
        start=moment(given["since"]),
        end=moment(given["until"]),
        tags=parse_tags(given["tag"]) if given["tag"] else (),
        where=sql_filter(given["where"]),
        limit=limit,
        again=bool(given["again"]),
    )
    found = await choose_letters(admin, group, wanted, page=LETTERS_READ)
    count = len(found.letters)
    # the letters themselves may be large, so that they are read again after the confirmation
    chosen = LetterFilter(
        ids=frozenset(letter.id for letter in found.letters),
        start=found.letters[0].stored_at if count else None,
        end=wanted.end,
        limit=max(1, count),
        again=wanted.again,
    )

    async def carry_out(client: ClientConfig) -> str:
        stop = asyncio.Event()
        timer = asyncio.get_running_loop().call_later(SEND_S, stop.set)
        try:
            async with Admin(client=client) as admin:
                letters = (await choose_letters(admin, group, chosen, page=LETTERS_READ)).letters
                sent = await send_letters(admin, group, letters, stop)
        finally:
            timer.cancel()
        of = "" if sent == len(letters) else f" of {len(letters):,}, the others in the next turn"
        return f"{pluralize(sent, 'dead letter')}{of} given to {group} again"

    warnings = [f"{found.sent_before:,} left out: sent before."] if found.sent_before else []
    if found.full:
        warnings.append(f"There may be more than these {limit:,}: they follow in the next turn.")
    return Preview(
        will=(
            f"Give {pluralize(count, 'dead letter')} to {group} again, with all retries. The list "
            "of dead letters stays as it is. The group also gets what it has consumed meanwhile."
            if count
            else f"Group {group} has no such dead letters.",
        ),
        command=(
            *("dead-letter", "redrive", group, *ids),
            *_flag("--since", _instant(wanted.start)),
            *_flag("--until", _instant(wanted.end)),
            *_flag("--tag", given["tag"]),
            *_flag("--where", given["where"]),
            *(() if ids else ("--limit", limit, "--yes")),
            *(("--again",) if wanted.again else ()),
        ),
        about={"group": group},
        carry_out=carry_out if count else None,
        warnings=tuple(warnings),
        heads=("Id", "Stored", "Tag", "Tries", "Size in bytes"),
        rows=tuple(
            (
                letter.id,
                _instant(letter.stored_at),
                letter.tag,
                letter.reconsume_times,
                len(letter.body),
            )
            for letter in found.letters[:MAX_ROWS]
        ),
        row_count=len(found.letters),
    )


# --- topics and groups ----------------------------------------------------------------------------

_CHANGES: Final = ("Broker", "Setting", "Now", "Then")


def _change_rows(changes: list[SettingChange]) -> tuple[tuple[object, ...], ...]:
    return tuple(
        (row.broker, row.setting.replace("_", " "), _word(row.before), _word(row.after))
        for row in changes
    )


def _word(value: SettingValue | None) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


async def _masters(admin: Admin) -> str:
    names = sorted({row.name for row in await admin.brokers() if row.broker_id == 0})
    return ", ".join(names)


async def _preview_new_topic(admin: Admin, given: Given) -> Preview:
    name, queues = validate_topic(given["topic"]), _number(given, "queues") or 8
    check_new_topic(name)
    message_type = _message_type(given)
    try:
        known = ", ".join(row.broker for row in (await admin.topic(name)).brokers)
    except NoRoute:
        known = ""

    async def carry_out(client: ClientConfig) -> str:
        async with Admin(client=client) as admin:
            await admin.create_topic(name, queues=queues, message_type=message_type)
        return f"the topic has {pluralize(queues, 'queue')} on each broker"

    return Preview(
        will=(
            f"Create topic {name} with {pluralize(queues, 'queue')} on each of "
            f"{await _masters(admin)}.",
        ),
        command=(
            *("topic", "create", name, "--queues", queues),
            *_flag("--message-type", message_type),
        ),
        about={"topic": name},
        carry_out=carry_out,
        warnings=(f"It exists on {known}: its settings must be the same there.",) if known else (),
    )


async def _preview_topic(admin: Admin, given: Given) -> Preview:
    name = given["topic"]
    reads, writes = _number(given, "read_queues"), _number(given, "write_queues")
    perm = cast("Permission | None", given["perm"] or None)
    wanted: dict[str, Any] = {
        "read_queues": reads,
        "write_queues": writes,
        "perm": perm,
        "message_type": _message_type(given),
    }
    topic = await admin.topic(name)
    check_queues(topic.brokers, reads, writes)
    changes = await admin.update_topic(name, **wanted, dry_run=True)
    lost = "" if reads is None else await unread_messages(admin, topic, reads)

    async def carry_out(client: ClientConfig) -> str:
        async with Admin(client=client) as admin:
            done = await admin.update_topic(name, **wanted)
        return f"{pluralize(len(done), 'setting')} changed"

    return Preview(
        will=(f"Change topic {name}." if changes else f"Topic {name} is like that already.",),
        command=(
            *("topic", "update", name),
            *_flag("--read-queues", reads),
            *_flag("--write-queues", writes),
            *_flag("--perm", perm),
            *_flag("--message-type", wanted["message_type"]),
            *(("--yes",) if lost else ()),
        ),
        about={"topic": name},
        carry_out=carry_out if changes else None,
        warnings=(
            *((f"{lost}: they will not be consumed any more.",) if lost else ()),
            *queue_notes(topic, reads, writes),
        ),
        heads=_CHANGES,
        rows=_change_rows(changes),
    )


def _message_type(given: Given) -> MessageType | None:
    return cast("MessageType | None", given["message_type"] or None)


async def _preview_new_group(admin: Admin, given: Given) -> Preview:
    name, retries = validate_group(given["group"]), _number(given, "max_retries")
    retries = 16 if retries is None else retries
    try:
        known = ", ".join((await admin.group(name)).brokers)
    except GroupNotExist:
        known = ""

    async def carry_out(client: ClientConfig) -> str:
        async with Admin(client=client) as admin:
            await admin.create_group(name, max_retries=retries)
        return f"its messages have {retries} retries on each broker"

    return Preview(
        will=(
            f"Create group {name} on each of {await _masters(admin)}; after {retries} retries a "
            "message becomes a dead letter.",
        ),
        command=("group", "create", name, "--max-retries", retries),
        about={"group": name},
        carry_out=carry_out,
        warnings=(f"It exists on {known}: its settings must be the same there.",) if known else (),
    )


async def _preview_group(admin: Admin, given: Given) -> Preview:
    name = given["group"]
    enabled, broadcast = _yes_or_no(given, "enabled"), _yes_or_no(given, "broadcast")
    wanted: dict[str, Any] = {
        "max_retries": _number(given, "max_retries"),
        "retry_queues": _number(given, "retry_queues"),
        "enabled": enabled,
        "broadcast": broadcast,
    }
    changes = await admin.update_group(name, **wanted, dry_run=True)

    async def carry_out(client: ClientConfig) -> str:
        async with Admin(client=client) as admin:
            done = await admin.update_group(name, **wanted)
        return f"{pluralize(len(done), 'setting')} changed"

    return Preview(
        will=(f"Change group {name}." if changes else f"Group {name} is like that already.",),
        command=(
            *("group", "update", name),
            *_flag("--max-retries", wanted["max_retries"]),
            *_flag("--retry-queues", wanted["retry_queues"]),
            *(() if enabled is None else ("--enable" if enabled else "--disable",)),
            *(() if broadcast is None else ("--broadcast" if broadcast else "--no-broadcast",)),
        ),
        about={"group": name},
        carry_out=carry_out if changes else None,
        warnings=("Its members get nothing until it is enabled again.",)
        if enabled is False
        else (),
        heads=_CHANGES,
        rows=_change_rows(changes),
    )


def _yes_or_no(given: Given, name: str) -> bool | None:
    text = given[name]
    if text not in ("", "yes", "no"):
        raise InvalidOption(f"{name} {text[:80]!r}: yes or no is expected")
    return None if not text else text == "yes"


# --- forms ----------------------------------------------------------------------------------------

_TOPIC: Final = Field(name="topic", label="Topic", required=True)
_GROUP: Final = Field(name="group", label="Group", required=True)
_TYPE: Final = Field(
    name="message_type",
    label="Message type",
    kind="choice",
    choices=(("", "as it is"), *((name, name) for name in get_args(MessageType))),
)
_YES_NO: Final = (("", "as it is"), ("yes", "yes"), ("no", "no"))
_RETRIES: Final = Field(
    name="max_retries", label="Retries", note="then the dead letters", kind="number"
)

ACTIONS: Final[Mapping[str, Action]] = {
    "send": Action(
        "Send a test message",
        "send a message",
        "Send it",
        "The message is an ordinary one: groups that consume the topic get it.",
        (
            _TOPIC,
            Field(name="tag", label="Tag"),
            Field(name="keys", label="Keys", note="separated by spaces"),
            Field(name="body", label="Body", note="at most 1,024 characters", kind="lines"),
        ),
        _preview_send,
    ),
    "reset-group": Action(
        "Reset the progress of a group",
        "reset a group",
        "Move the group",
        "Members may be online: they go on at the new place within seconds.",
        (
            _GROUP,
            _TOPIC,
            Field(
                name="to",
                label="Go on at",
                kind="choice",
                choices=(
                    ("latest", "the end: skip what is not consumed"),
                    ("earliest", "the oldest message"),
                    ("time", "the first message stored at the time below"),
                ),
            ),
            Field(name="at", label="Time", note="UTC", kind="time"),
        ),
        _preview_reset,
    ),
    "redrive": Action(
        "Give dead letters to their group again",
        "redrive dead letters",
        "Give them to the group",
        "Those that were sent before, and have not failed since, are left out.",
        (
            _GROUP,
            Field(name="ids", label="Ids", note="separated by spaces"),
            Field(name="since", label="Stored from", note="UTC", kind="time"),
            Field(name="until", label="To", note="UTC, excluded", kind="time"),
            Field(name="tag", label="Tag"),
            Field(name="where", label="SQL92 filter of properties"),
            Field(name="limit", label="At most", kind="number", value="100"),
            Field(name="again", label="Also those that were sent before", kind="check"),
        ),
        _preview_redrive,
    ),
    "create-topic": Action(
        "Create a topic",
        "create a topic",
        "Create it",
        "It is made on each broker that lacks it.",
        (
            _TOPIC,
            Field(name="queues", label="Queues on each broker", kind="number", value="8"),
            Field(
                name="message_type",
                label="Message type",
                kind="choice",
                choices=(("", "not declared"), *_TYPE.choices[1:]),
            ),
        ),
        _preview_new_topic,
    ),
    "update-topic": Action(
        "Change a topic",
        "change a topic",
        "Change it",
        "To have fewer queues, lower those to write first, and those to read once the others are "
        "consumed. An empty field stays as it is.",
        (
            _TOPIC,
            Field(name="write_queues", label="Queues to write", kind="number"),
            Field(name="read_queues", label="Queues to read", kind="number"),
            Field(
                name="perm",
                label="Permission",
                kind="choice",
                choices=(
                    ("", "as it is"),
                    ("rw", "read and write"),
                    ("r", "read only"),
                    ("w", "write only"),
                ),
            ),
            _TYPE,
        ),
        _preview_topic,
    ),
    "create-group": Action(
        "Create a group",
        "create a group",
        "Create it",
        "It is made on each broker that lacks it.",
        (
            _GROUP,
            Field(
                name="max_retries",
                label="Retries",
                note="then the dead letters",
                kind="number",
                value="16",
            ),
        ),
        _preview_new_group,
    ),
    "update-group": Action(
        "Change a group",
        "change a group",
        "Change it",
        "An empty field stays as it is.",
        (
            _GROUP,
            _RETRIES,
            Field(name="retry_queues", label="Retry queues on each broker", kind="number"),
            Field(name="enabled", label="Enabled", kind="choice", choices=_YES_NO),
            Field(name="broadcast", label="Broadcasting allowed", kind="choice", choices=_YES_NO),
        ),
        _preview_group,
    ),
}
