"""The application's own code around each send: to add properties, to measure, or to log.

Behaviour
- ``before_send`` runs where the message is handed over: in the caller's thread and context, before
  the message waits for anything.
- ``after_send`` runs once per message, when its outcome is known: on ogive's loop, so it must not
  block. A message that is refused as such (a bad topic name, say) has none.
- A hook that raises is logged, and changes nothing.

Differs from Java: once per message, not once per try; the hook gets each message of a batch by
itself.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from ogive.client.user_code import call_in_fresh_context, must_pass
from ogive.model import Message, SendResult

log = logging.getLogger(__name__)


class SendHook(Protocol):
    """Runs around every send, see ``ProducerConfig.hooks``.

    What it raises is logged, and does not affect the send.
    """

    def before_send(self, message: Message) -> Message | None:
        """Called in the sender's thread.

        Returns the message to send instead, from ``dataclasses.replace``, or None for this one.
        """

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        """Called on ogive's loop, so it must not block.

        *result* if it is stored, *error* if not or unknown, neither if one-way.
        """


def run_before(hooks: Sequence[SendHook], message: Message) -> Message:
    """*message*, as the hooks leave it; each gets what the one before it made."""
    for hook in hooks:
        try:
            changed = hook.before_send(message)
        except Exception:
            # user code: it must not break the send
            log.exception(
                "before_send of %r failed, and the message for %s is sent without it",
                hook,
                message.topic,
            )
            continue
        if isinstance(changed, Message):
            message = changed
        elif changed is not None:
            log.error(
                "before_send of %r returned %.200r, which is neither a Message nor None: it is "
                "ignored",
                hook,
                changed,
            )
    return message


def run_after(
    hooks: Sequence[SendHook],
    message: Message,
    result: SendResult | None,
    error: BaseException | None,
) -> None:
    """In the opposite order, so that the first hook is the outermost."""
    for hook in reversed(hooks):
        try:
            call_in_fresh_context(hook.after_send, message, result, error)
        except BaseException as exc:
            # user code: it must not break the send, nor those whose outcome comes with this one's
            if must_pass(exc, None):
                raise
            log.exception("after_send of %r failed", hook)
