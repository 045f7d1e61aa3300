"""What a failed attempt means for a message, and what all its attempts amount to.

Pure functions.
"""

from ogive.client.sending.outgoing import Outgoing
from ogive.errors import (
    BrokerBusy,
    BrokerError,
    NoNameServer,
    OgiveError,
    ProtocolError,
    SendFailed,
    SendTimeout,
)


def is_refusal(error: OgiveError) -> bool:
    """The broker does not want what the request carries, and no other one would."""
    return isinstance(error, BrokerError) and not error.retry_other_broker


def is_final(error: OgiveError) -> bool:
    """No other try can end otherwise."""
    return isinstance(error, ProtocolError) or is_refusal(error)


def may_try_again(outgoing: Outgoing, error: OgiveError, retries: int, now: float) -> bool:
    """Whether the message, whose last try ended with *error*, has another one.

    A busy broker is asked as long as the budget lasts.
    """
    allowed = retries > 0 if isinstance(error, BrokerBusy) else outgoing.tries <= retries
    return allowed and now < outgoing.deadline


def outcome_of(outgoing: Outgoing, now: float, name_servers: object) -> OgiveError:
    """The error that says what happened to a message that is not stored, or perhaps not; all its
    tries together.
    """
    error = outgoing.error
    if isinstance(error, ProtocolError) or (
        outgoing.tries == 0 and isinstance(error, NoNameServer)
    ):
        return error
    waited = f"within {now - outgoing.started:.1f} s"
    tried = sorted(outgoing.tried or ())
    tries = (
        f"{_counted(outgoing.tries, 'try', 'tries')} on {_counted(len(tried), 'broker', 'brokers')}"
    )
    if outgoing.unknown:
        return SendTimeout(
            f"no answer from {', '.join(tried)} {waited} after {tries}: {error}. "
            f"The message may or may not be stored: its id is {first_key(outgoing)}."
        )
    if outgoing.tries == 0:
        return SendFailed(
            f"message for {outgoing.topic} was not sent {waited}: "
            f"{error or f'no name server answered at {name_servers}'}"
        )
    if isinstance(error, BrokerError) and (outgoing.tries == 1 or is_refusal(error)):
        return error
    failed = SendFailed(
        f"message for {outgoing.topic} was not stored after {tries} {waited}; at last: {error}"
    )
    failed.__cause__ = error
    return failed


def first_key(outgoing: Outgoing) -> str:
    """The message's unique key; of a batch, that of its first message."""
    return outgoing.key.partition(",")[0]


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
