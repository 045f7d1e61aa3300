"""Code of the application that runs around each send: to add properties, measure, or write a log of one's own.

Behaviour
- ``before_send`` runs where the message is handed over: in the caller's thread and context, before the message waits for anything.
- ``after_send`` runs once per message, when its outcome is known: on ogive's loop, so it must not block. A message that is refused as such
  (a bad topic name, say) has none.
- A hook that raises is logged, and changes nothing.

Differs from Java: once per message, not once per try; the hook gets each message of a batch by itself.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from ogive.model import Message, SendResult

log = logging.getLogger(__name__)


class SendHook(Protocol):
    """What ``ProducerConfig.hooks`` holds."""

    def before_send(self, message: Message) -> Message | None:
        """The message to send instead, made with ``dataclasses.replace``; None: this one."""

    def after_send(self, message: Message, result: SendResult | None, error: BaseException | None) -> None:
        """*result* of a message that is stored, *error* of one that is not, or perhaps not; neither of one that was sent one-way."""


def run_before(hooks: Sequence[SendHook], message: Message) -> Message:
    """*message*, as the hooks leave it; each gets what the one before it made."""
    for hook in hooks:
        try:
            changed = hook.before_send(message)
        except Exception:  # user code: it must not break the send
            log.exception("before_send of %r failed, and the message for %s is sent without it", hook, message.topic)
            continue
        if isinstance(changed, Message):
            message = changed
        elif changed is not None:
            log.error("before_send of %r returned %.200r, which is neither a Message nor None: it is ignored", hook, changed)
    return message


def run_after(hooks: Sequence[SendHook], message: Message, result: SendResult | None, error: BaseException | None) -> None:
    """In the opposite order, so that the first hook is the outermost."""
    for hook in reversed(hooks):
        try:
            hook.after_send(message, result, error)
        except Exception:  # user code: it must not break the send
            log.exception("after_send of %r failed", hook)
