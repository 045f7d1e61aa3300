"""Audit log of the console: one line for each action, whatever its result.

The lines have level INFO, or WARNING if the action failed; they are always shown, and none is
suppressed.
"""

import logging
from collections.abc import Mapping

from ogive.access.audit import RequestSource, shown

log = logging.getLogger(__name__)


def record(
    source: RequestSource, operation: str, about: Mapping[str, str], result: str, *, done: bool
) -> None:
    """Log an action. *about*: topic and group by kind; *result*: a sentence without a full stop."""
    names = ", ".join(f"{kind} {shown(name)}" for kind, name in about.items())
    log.log(
        logging.INFO if done else logging.WARNING,
        "%s, at the console: %s, %s: %s%s",
        source,
        operation,
        names,
        "" if done else "failed: ",
        result,
        extra={
            "fields": {
                "by": source.user,
                "from": source.address,
                "at": "the console",
                "operation": operation,
                **about,
                "done": done,
                "result": result,
            }
        },
    )
