"""Dead letters that are sent to their group again: select them, then send one after the other.

No record is kept: the copies in the group's retry topic show which letters were sent before.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from datetime import datetime

from ogive.client.admin import Admin
from ogive.client.admin.message_admin import MAX_MESSAGES
from ogive.errors import InvalidOption
from ogive.model import MessageExt
from ogive.sql92.expression import Expression


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """The dead letters of a group to send again: those that meet all conditions.

    *tags*: one of these, any if empty. *again*: also those that were sent before. *limit*: at most
    so many, the oldest first.
    """

    ids: frozenset[str] = frozenset()
    start: datetime | None = None
    end: datetime | None = None
    tags: tuple[str, ...] = ()
    where: Expression | None = None
    limit: int = MAX_MESSAGES
    again: bool = False

    def matches(self, letter: MessageExt) -> bool:
        return (
            (not self.ids or letter.id in self.ids)
            and (not self.tags or letter.tag in self.tags)
            and (self.where is None or self.where.matches(letter.properties))
        )


@dataclass(frozen=True, slots=True)
class ChosenLetters:
    """Dead letters to send, and the number of others that were sent before.

    *full*: the limit of the filter was reached, so there may be more.
    """

    letters: list[MessageExt]
    sent_before: int
    full: bool


async def choose_letters(
    admin: Admin,
    group: str,
    wanted: LetterFilter,
    *,
    page: int,
    report: Callable[[int, int], None] = lambda read, chosen: None,
) -> ChosenLetters:
    """Return the letters to send, read *page* at a time. *report* is called with the number of
    letters that were read, and that of the chosen ones.

    Raises InvalidOption if an id is not among the dead letters.
    """
    missing, read, sent_before, full = set(wanted.ids), 0, 0, False
    # by id, because a crash may have stored a letter several times
    chosen: dict[str, MessageExt] = {}
    async for letter in _letters(admin, group, wanted, page):
        read += 1
        report(read, len(chosen))
        if not wanted.matches(letter):
            continue
        missing.discard(letter.id)
        if not wanted.again and await admin.was_sent_again(group, letter):
            sent_before += 1
            continue
        chosen[letter.id] = letter
        if len(chosen) == wanted.limit:
            full = True
            break
    if missing:
        raise InvalidOption(
            f"group {group} has no dead letter {min(missing)} (`ogive dead-letter list {group}` "
            "shows their ids)"
        )
    return ChosenLetters(list(chosen.values()), sent_before, full)


async def send_letters(
    admin: Admin,
    group: str,
    letters: Collection[MessageExt],
    stop: asyncio.Event,
    *,
    rate: float | None = None,
    report: Callable[[int], None] = lambda sent: None,
) -> int:
    """Send the letters, at most *rate* a second, and return how many were sent.

    Once *stop* is set, the send that has begun is finished, and no other begins. *report* is called
    with the number that was sent so far.
    """
    loop, sent = asyncio.get_running_loop(), 0
    began = loop.time()
    for letter in letters:
        if rate is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, began + sent / rate - loop.time()))
        if stop.is_set():
            break
        await admin.send_again(group, letter)
        sent += 1
        report(sent)
    return sent


async def _letters(
    admin: Admin, group: str, wanted: LetterFilter, size: int
) -> AsyncIterator[MessageExt]:
    """Yield the dead letters of the wanted time, the oldest first."""
    start = wanted.start
    seen: Collection[object] = ()
    while page := await admin.dead_letters(group, start=start, end=wanted.end, limit=size):
        places = {(letter.queue, letter.queue_offset): letter for letter in page}
        fresh = [letter for place, letter in places.items() if place not in seen]
        for letter in fresh:
            yield letter
        if len(page) < size:
            return
        if not fresh:
            raise InvalidOption(
                f"over {size:,} dead letters were stored at {start}: send them with `ogive "
                "pipeline redrive`"
            )
        # the next page begins at the same time: more letters may have it
        seen, start = places.keys(), page[-1].stored_at
