"""Log of denied requests: how many, by which user and for which reason."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ogive.access.audit import MAX_LENGTH, shown
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import ACCESS_KEY

log = logging.getLogger(__name__)

TOLD_AGAIN_S: Final = 60.0
# limit for users with addresses and reasons, about 500 bytes each
MAX_KNOWN: Final = 1_000
# limit for those from one address, so that there is room for others
MAX_OF_ONE: Final = 100
_NAMING: Final = (
    "topic",
    "b",
    "group",
    "consumerGroup",
    "groupName",
    "username",
    "subject",
    "brokerName",
    "namespace",
)


@dataclass(slots=True)
class _More:
    """Denials that were counted, but not logged yet."""

    user: str | None
    since: float
    count: int = 0


class Refusals:
    """Log of denials: the first one of a user at an address for a reason is logged at once.

    Equal ones are counted, and logged once a minute. Servers that share their users share this log.
    Event-loop only. ``tell`` must be called from time to time.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._known: dict[tuple[str, str, str], _More] = {}
        self._hosts: Counter[str] = Counter()
        """Number of known refusals per address."""
        self._others = 0
        """Denials that did not fit into the table."""
        self._others_told_at = now()
        self.count = 0

    def note(self, command: RemotingCommand, host: str, server: str, reason: str) -> None:
        """Record a denial. *reason* may say more than the answer did.

        The user is the one that the request claims, which may be false.
        """
        self.count += 1
        name = command.ext_fields.get(ACCESS_KEY)
        user = f"user {shown(name)}" if name else "a request without a user"
        key = (user, host, reason[: 2 * MAX_LENGTH])
        known = self._known.get(key)
        if known is not None:
            known.count += 1
        elif len(self._known) >= MAX_KNOWN or self._hosts[host] >= MAX_OF_ONE:
            self._others += 1
        else:
            self._hosts[host] += 1
            self._known[key] = _More(name and name[:MAX_LENGTH], self._now())
            asked = _asked(command)
            fields = {
                "by": name and name[:MAX_LENGTH],
                "from": host,
                "at": server,
                "operation": asked,
                "reason": key[2],
            }
            log.warning(
                "%s from %s, at %s, was refused %s: %s",
                user,
                host,
                server,
                asked,
                key[2],
                extra={"fields": fields},
            )

    def tell(self) -> None:
        """Log how often each denial was repeated in a minute that is over.

        A denial that was not repeated is forgotten, and logged when it occurs again.
        """
        now = self._now()
        for key, more in list(self._known.items()):
            if now - more.since < TOLD_AGAIN_S:
                continue
            user, host, reason = key
            if not more.count:
                del self._known[key]
                continue
            fields = {"by": more.user, "from": host, "reason": reason, "count": more.count}
            log.warning(
                "%s from %s was refused %d more times: %s",
                user,
                host,
                more.count,
                reason,
                extra={"fields": fields},
            )
            self._known[key] = _More(more.user, now)
        self._hosts = Counter(host for _, host, _ in self._known)
        if self._others and now - self._others_told_at >= TOLD_AGAIN_S:
            log.warning(
                "%d more requests were refused, by other users, from other addresses or for other "
                "reasons",
                self._others,
            )
            self._others, self._others_told_at = 0, now


def _asked(command: RemotingCommand) -> str:
    """Return the request's code, its name, and the names in its header."""
    try:
        name = f"{RequestCode(command.code).name} ({command.code})"
    except ValueError:
        name = f"request {command.code}"
    return " ".join(
        [name, *(shown(text) for at in _NAMING if (text := command.ext_fields.get(at)))]
    )
