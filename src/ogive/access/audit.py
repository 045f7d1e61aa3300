"""Audit log: who administered a server, one line for each change that was carried out.

A line says who (the user where there is access control, and the address), where, what was done to
what, and the settings that are not what they were. One that was answered with an error is told
where it is in effect all the same, as what could not be saved may be. "Before" is taken when the
change begins, "after" when it is done: of two that are made to one thing at once, both are in
either line. Secrets are told as ``***``. Servers say in a table of theirs, by request code, which
requests are changes (``namesrv/routes.py``).

The lines are of level INFO; ``ogive up`` shows them always, and leaves none of them out.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ogive.wire.codes import ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import ACCESS_KEY

log = logging.getLogger(__name__)

INTERNAL_NAME: Final = "*internal"
"""The user as whom the parts of one process ask each other."""
# names, or differences, in one line
MAX_SHOWN: Final = 50
# characters of each
MAX_LENGTH: Final = 200
_PLAIN: Final = re.compile(r"[\w%|.:*/+@=,-]+", re.ASCII)

Ctx = TypeVar("Ctx")
About = Mapping[str, tuple[str, ...]]
"""Subject of a request: names by kind, such as topic or group."""
State = Mapping[str, object]
"""Settings by name."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is compared, and not told."""

    value: object = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class Change(Generic[Ctx]):
    """A kind of request that changes something.

    *operation*: what it does, in words. *state*: what it may change, looked at before and after;
    None where that is not easy to find out.
    """

    operation: str
    about: Callable[[RemotingCommand], About]
    state: Callable[[Ctx, About], State] | None = None


def named(**fields: str) -> Callable[[RemotingCommand], About]:
    """Return a function that finds the names in a request: *fields* is the header's field by
    kind. A field that is absent is left out.
    """
    return lambda command: {
        kind: (name,) for kind, at in fields.items() if (name := command.ext_fields.get(at))
    }


@dataclass(frozen=True, slots=True)
class RequestSource:
    """Client of a request. *user* is None if no user is required."""

    user: str | None
    address: str

    def __str__(self) -> str:
        if self.user == INTERNAL_NAME:
            return "this process itself"
        return self.address if self.user is None else f"user {shown(self.user)} from {self.address}"


class AuditEntry(Generic[Ctx]):
    """One change that is asked for: ``begin`` just before it is carried out, ``tell`` once it has
    been.
    """

    def __init__(
        self,
        change: Change[Ctx],
        ctx: Ctx,
        command: RemotingCommand,
        requester: RequestSource,
        server: str,
    ) -> None:
        """Read what is asked for. *server* is where. Raises ProtocolError for a body that cannot
        be read.
        """
        self._change, self._ctx = change, ctx
        self._asker, self._server = requester, server
        self._about = change.about(command)
        self._before: State = {}

    def begin(self) -> None:
        """Take what is before the change."""
        self._before = self._state()

    def _state(self) -> State:
        return (
            {} if self._change.state is None else dict(self._change.state(self._ctx, self._about))
        )

    def tell(self, code: int) -> None:
        """Log the change. *code* is that of the answer: a change that was refused and is not in
        effect is not logged.
        """
        try:
            self._tell(code)
        except Exception:
            # the change was made, and who asked for it is to hear of that
            log.exception("could not log a change")

    def _tell(self, code: int) -> None:
        after = self._state()
        different = [
            name for name in {**self._before, **after} if self._before.get(name) != after.get(name)
        ]
        if code != ResponseCode.SUCCESS and not different:
            return
        changes = {
            shown(name): (_text(self._before.get(name)), _text(after.get(name)))
            for name in different[:MAX_SHOWN]
        }
        about = {
            kind: _some([shown(name) for name in names[:MAX_SHOWN]], len(names))
            for kind, names in self._about.items()
        }
        what = " ".join(
            [self._change.operation, ", ".join(f"{kind} {names}" for kind, names in about.items())]
        ).strip()
        details = ""
        if self._change.state is not None:
            details = (
                f": {_told(changes, len(different), was=bool(self._before), remains=bool(after))}"
            )
        if code != ResponseCode.SUCCESS:
            details += f"; it was answered with error {code}"
        fields: dict[str, object] = {
            "by": self._asker.user,
            "from": self._asker.address,
            "at": self._server,
            "operation": self._change.operation,
            **{
                kind: names[0][:MAX_LENGTH] if len(names) == 1 else about[kind]
                for kind, names in self._about.items()
            },
            "changes": {
                name[:MAX_LENGTH]: (
                    _json_value(self._before.get(name)),
                    _json_value(after.get(name)),
                )
                for name in different[:MAX_SHOWN]
            },
        }
        if code != ResponseCode.SUCCESS:
            fields |= {"code": int(code)}
        log.info(
            "%s, at %s: %s%s", self._asker, self._server, what, details, extra={"fields": fields}
        )


def requester(command: RemotingCommand, remote_address: str, *, checked: bool) -> RequestSource:
    """Return the sender of a request.

    *checked*: access control has verified the user.
    """
    return RequestSource(command.ext_fields.get(ACCESS_KEY) if checked else None, remote_address)


def shown(text: str) -> str:
    """Return a name that a client gave in a form that cannot be mistaken for other parts of the
    line.
    """
    return text if len(text) <= MAX_LENGTH and _PLAIN.fullmatch(text) else repr(text[:MAX_LENGTH])


def _some(texts: list[str], total: int) -> str:
    more = f" and {total - len(texts)} more" if total > len(texts) else ""
    return ", ".join(texts) + more


def _text(value: object) -> str | None:
    return None if value is None else shown(str(value))


def _json_value(value: object) -> str | int | float | bool | None:
    """Return *value* as JSON has it; what JSON has no type for as text."""
    if (
        value is None
        or isinstance(value, bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    return str(value)[:MAX_LENGTH]


def _told(
    changes: Mapping[str, tuple[str | None, str | None]], total: int, *, was: bool, remains: bool
) -> str:
    """Describe *changes* by name, from what was to what is, None for nothing.

    There are *total* of them.
    """
    if not changes:
        return "nothing is different"
    if was and remains:
        return _some(
            [f"{name} {old or 'none'} -> {new or 'none'}" for name, (old, new) in changes.items()],
            total,
        )
    return (
        f"{'it was' if was else 'it is now'} "
        f"{_some([f'{name}={old or new}' for name, (old, new) in changes.items()], total)}"
    )
