"""Meaning of a listener's result for its messages.

Pure, and the same for concurrent and orderly groups.
"""

import inspect
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ogive.client.listener import AnyListener, Later, OrderlyEnd, Reply, Suspend
from ogive.errors import BodyUnreadable
from ogive.model import MessageExt

log = logging.getLogger(__name__)

ASKED: Final = "its listener asked for another try"
GIVEN_UP: Final = "its listener gave it up"
BROKEN: Final = "its call was broken off"


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure of a batch: its first *done* messages are finished, the others are delivered
    again.
    """

    done: int = 0
    # as in Later
    delay_level: int = 0
    suspend_s: float | None = None
    why: str = field(default=ASKED, compare=False)


Verdict = Failure | Reply | OrderlyEnd | None


def read(listener: AnyListener, count: int, answer: Any) -> tuple[Verdict, bool]:
    """Return the meaning of *answer* for a batch of *count* messages (None: success), and False if
    it makes no sense.
    """
    if answer is None:
        return None, True
    orderly = listener.config.orderly
    if isinstance(answer, OrderlyEnd) and orderly:
        return (None, False) if listener.config.auto_commit else (answer, True)
    if isinstance(answer, Reply) and not orderly and listener.config.batch == 1:
        return answer, True
    if (
        isinstance(answer, Later)
        and answer.done <= count
        and (answer.delay_level <= 0 or not orderly)
    ):
        why = GIVEN_UP if answer.delay_level < 0 else ASKED
        return (
            Failure(answer.done, answer.delay_level, None, why) if answer.done < count else None
        ), True
    if isinstance(answer, Suspend) and orderly and answer.done <= count:
        return (Failure(answer.done, 0, answer.seconds) if answer.done < count else None), True
    return Failure(why=f"its listener returned {shown(answer)}, which is not a result"), False


def judge(listener: AnyListener, messages: Sequence[MessageExt], answer: Any) -> Verdict:
    """Return the meaning of *answer*: None for success. A Reply is a success that leaves work to
    do.

    An answer that makes no sense is logged, and is a failure.

    COMMIT and ROLLBACK of a listener whose messages commit themselves are logged, and are success:
    both as in Java.
    """
    failure, sensible = read(listener, len(messages), answer)
    if not sensible and failure is None:
        log.warning(
            "listener %s returned %s, which requires auto_commit=False: its %d message(s) count "
            "as finished",
            listener.name,
            answer.name,
            len(messages),
        )
    elif not sensible:
        orderly = listener.config.orderly
        log.error(
            "listener %s returned %s, which is not a result of %s listener, for %d message(s): "
            "they will be delivered again. Return None for success, or %s",
            listener.name,
            shown(answer),
            "an orderly" if orderly else "a concurrent",
            len(messages),
            _results(listener),
        )
    return failure


def _results(listener: AnyListener) -> str:
    if listener.config.orderly:
        return "LATER, DEAD_LETTER or suspend(...)" + (
            "" if listener.config.auto_commit else ", COMMIT or ROLLBACK"
        )
    return (
        "LATER, later(...), DEAD_LETTER or Reply(...)"
        if listener.config.batch == 1
        else "LATER, later(...) or DEAD_LETTER"
    )


def failed(listener: AnyListener, messages: Sequence[MessageExt], error: BaseException) -> Failure:
    """Log that the listener raised, and return the failure.

    The traceback is logged when a message fails for the first time, one line when it fails again.
    A body that is no value of the listener's class has none: the error says what is wrong with it.
    """
    first = messages[0]
    is_body = isinstance(error, BodyUnreadable) and not inspect.isroutine(listener.config.as_)
    log.warning(
        "listener %s failed on %s/%d (try %d, id %s): %s",
        listener.name,
        first.queue,
        first.queue_offset,
        first.reconsume_times + 1,
        first.id,
        shown(error),
        exc_info=error if first.reconsume_times == 0 and not is_body else None,
    )
    return Failure(why=shown(error))


def shown(value: object) -> str:
    """Return the beginning of the value's repr.

    That is code of the application's as well: a row of a session that was closed has none, for one.
    """
    try:
        return f"{value!r:.200}"
    except Exception as exc:  # noqa: BLE001  user code, and the line that names it must come out
        return f"<{type(value).__name__}, whose repr raises {type(exc).__name__}>"
