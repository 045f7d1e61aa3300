"""Audit log: one line for each administrative change that a server carried out.

A line has the user (if there is access control), the address, the server, the operation, its
object, and the settings that changed. A change that was answered with an error is logged if it is
in effect all the same, for example because only saving it failed. The old settings are read when
the change begins, the new ones when it is done: if two changes to one object overlap, both lines
show both changes. Secrets are written as ``***``. Each server has a table of the request codes that
are changes (``namesrv/handlers.py``).

The lines have level INFO; ``ogive up`` always shows them, and suppresses none.
"""

import json
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
"""The user name for requests between the parts of one process."""
# limit for names, or differences, in one line
MAX_SHOWN: Final = 50
# limit for the characters of each
MAX_LENGTH: Final = 200
_PLAIN: Final = re.compile(r"[\w%|.:*/+@=,-]+", re.ASCII)

Ctx = TypeVar("Ctx")
About = Mapping[str, tuple[str, ...]]
"""Subject of a request: names by kind, such as topic or group."""
State = Mapping[str, object]
"""Settings by name."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A value that is compared, but not shown."""

    value: object = field(repr=False)

    def __str__(self) -> str:
        return "***"


@dataclass(frozen=True, slots=True)
class Change(Generic[Ctx]):
    """A kind of request that changes something.

    *operation*: the description for the log. *state*: reads the settings that may change, before
    and after; None if they are not easy to find.
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
    """One requested change: call ``begin`` just before it is carried out, and ``tell``
    afterwards.
    """

    def __init__(
        self,
        change: Change[Ctx],
        ctx: Ctx,
        command: RemotingCommand,
        requester: RequestSource,
        server: str,
    ) -> None:
        """Read the request. *server* is the name of the server. Raises ProtocolError for a body
        that cannot be read.
        """
        self._change, self._ctx = change, ctx
        self._asker, self._server = requester, server
        self._about = change.about(command)
        self._before: State = {}

    def begin(self) -> None:
        """Read the settings before the change."""
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
            # the change was made, so the client must get its answer
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
    """Return a name that a client gave, quoted so that it cannot be mistaken for other parts of the
    line.
    """
    return text if len(text) <= MAX_LENGTH and _PLAIN.fullmatch(text) else repr(text[:MAX_LENGTH])


def _some(texts: list[str], total: int) -> str:
    more = f" and {total - len(texts)} more" if total > len(texts) else ""
    return ", ".join(texts) + more


def _text(value: object) -> str | None:
    return None if value is None else shown(str(value))


def _json_value(value: object) -> object:
    """Return *value* in a form that JSON has; as text if JSON has no such type, or if it is
    long.
    """
    if (
        value is None
        or isinstance(value, bool | int)
        or (isinstance(value, float) and math.isfinite(value))
    ):
        return value
    if isinstance(value, Mapping | list | tuple):
        plain = dict(value) if isinstance(value, Mapping) else value
        text = json.dumps(plain, default=str, ensure_ascii=False)
        if len(text) <= MAX_LENGTH:
            # JSON has no NaN and no infinity
            return json.loads(text, parse_constant=str)
        return text[:MAX_LENGTH]
    return str(value)[:MAX_LENGTH]


def _told(
    changes: Mapping[str, tuple[str | None, str | None]], total: int, *, was: bool, remains: bool
) -> str:
    """Describe *changes*, each from the old to the new value; None means that there is none.

    There are *total* changes.
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
