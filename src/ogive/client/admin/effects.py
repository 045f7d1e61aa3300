"""Effects of changes on senders and groups: what the command line and the console say before a
change is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ogive.client.admin import Admin, BrokerTopic, OffsetReset, Topic
from ogive.client.admin.records import topic_kind
from ogive.errors import InvalidOption
from ogive.model import RETRY_PREFIX
from ogive.text import pluralize


def check_new_topic(name: str) -> None:
    """Raise InvalidOption for a name that brokers use themselves."""
    if topic_kind(name) == "system":
        raise InvalidOption(
            f"topic {name}: the name is one of the brokers' own, which `ogive topic list` "
            "leaves out"
        )


def check_queues(rows: Sequence[BrokerTopic], reads: int | None, writes: int | None) -> None:
    """Raise InvalidOption if senders would use queues that are not read."""
    if reads is None and writes is None:
        return
    for row in rows:
        to_read, to_write = reads or row.read_queues, writes or row.write_queues
        if to_write > to_read:
            raise InvalidOption(
                f"{to_write} queues to write and {to_read} to read on {row.broker}: nobody would "
                "get what is sent to the others. "
                "--queues changes both; to have fewer, take --write-queues down first"
            )


def queue_notes(topic: Topic, reads: int | None, writes: int | None) -> list[str]:
    """Return notes for the user about these numbers of queues."""
    said = []
    if writes is not None and any(row.write_queues != writes for row in topic.brokers):
        said.append(
            "with another number of queues a sharding key may go to another queue, while its older "
            "messages are not consumed yet"
        )
    if writes is not None and any(row.write_queues < writes for row in topic.brokers):
        said.append("groups that run take over new queues within about a minute")
    if (
        writes is not None
        and reads is None
        and any(row.write_queues > writes for row in topic.brokers)
    ):
        said.append(
            f"what the queues from {writes} on hold is still consumed. When `ogive lag GROUP` "
            "shows nothing there: "
            f"`ogive topic update {topic.name} --read-queues {writes}`"
        )
    if (
        writes is not None
        and reads is not None
        and any(reads < row.read_queues and writes < row.write_queues for row in topic.brokers)
    ):
        said.append(
            "senders that know the old queues are refused there for up to 30 s; to avoid that, "
            "change --write-queues first and --read-queues later"
        )
    return said


async def unread_messages(admin: Admin, topic: Topic, reads: int) -> str:
    """Describe the unread messages in queues from *reads* on; empty if there are none."""
    if all(row.read_queues <= reads for row in topic.brokers):
        return ""
    where = f"in the queues from {reads} on"
    if not topic.groups:
        held = sum(
            r.max_offset - r.min_offset
            for r in await admin.offsets(topic.name)
            if r.queue.queue_id >= reads
        )
        return f"{pluralize(held, 'message')} {where}, consumed by nobody yet" if held else ""
    behind = {
        group: sum(
            row.lag
            for row in await admin.lag(group, topic.name, members=False)
            if row.queue.queue_id >= reads
        )
        for group in topic.groups
    }
    said = ", ".join(f"{lag:,} by {group}" for group, lag in behind.items() if lag)
    return f"messages {where} are not consumed yet ({said})" if said else ""


@dataclass(frozen=True, slots=True)
class ResetEffect:
    """Effect of a reset: the number of messages that the group skips, and that it gets again."""

    skipped: int
    repeated: int

    @classmethod
    def from_plan(cls, plan: Sequence[OffsetReset]) -> "ResetEffect":
        moves = [row.after - row.before for row in plan if row.before is not None]
        return cls(sum(max(0, move) for move in moves), sum(max(0, -move) for move in moves))

    def sentences(self, group: str, topic: str) -> list[str]:
        """Return what happens to the messages, each in the imperative."""
        said = []
        if self.skipped:
            said.append(
                f"skip {pluralize(self.skipped, 'message')} of {topic} that group {group} has not "
                "consumed"
            )
        if self.repeated:
            said.append(
                f"deliver {pluralize(self.repeated, 'message')} of {topic} to group {group} again"
            )
        return said


def reset_words(row: OffsetReset) -> str:
    """Return the effect of a reset in one queue; empty if the group had no position there."""
    if row.before is None:
        return ""
    moved = row.after - row.before
    return f"{moved:,} skipped" if moved > 0 else f"{-moved:,} again" if moved else "stays"


async def first_position(admin: Admin, group: str, topic: str, plan: Sequence[OffsetReset]) -> str:
    """Return a question if the group gets its first position in a topic that it does not consume:
    it would be behind in that topic for ever. Return "" otherwise.
    """
    if any(row.before is not None for row in plan):
        return ""
    consumed = {
        row.queue.topic
        for row in await admin.lag(group, members=False)
        if not row.queue.topic.startswith(RETRY_PREFIX)
    }
    if not consumed or topic in consumed:
        return ""
    names = " ".join(sorted(consumed))
    return (
        f"group {group} has never consumed {topic}, but {names}: give it a position there for good?"
    )
