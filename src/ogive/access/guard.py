"""Check every request before anything else is done with it.

Source: auth/authentication and auth/authorization, 5.5.

Behaviour
- Every request, one-way ones too, must carry a user's access key and signature. Super users may do
  everything; others may do what their policies allow, by the table in permissions.py. A code
  without a row there is for super users only.
- A denied request is answered NO_PERMISSION. It is counted and logged, see refusals.py.

Differs from Java
- The name server checks requests, too.
- Neither an address nor a request code is exempt.
- An unknown user, a disabled one and a wrong signature get the same text, so that guessing reveals
  nothing; the log distinguishes them.
"""

import shlex
from collections.abc import Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Final

from ogive.access.audit import shown
from ogive.access.permissions import (
    CREATE,
    DELETE,
    GET,
    LIST,
    PUB,
    RULES,
    SUB,
    SUPER_ONLY,
    UPDATE,
    Facts,
    to_send,
    topic_of_offset,
)
from ogive.access.policy import AccessRefused, Address, Need, is_allowed
from ogive.access.user_table import AccessTable
from ogive.model import MAX_RESOURCE_LENGTH
from ogive.wire.bodies.acls import ANY, CUSTOM, DENY, ENABLED, SUPER, USER_SUBJECT, Acl, User
from ogive.wire.command import RemotingCommand
from ogive.wire.sends import End, Send
from ogive.wire.signing import ACCESS_KEY

_PURPOSE: Final = {
    PUB: "send",
    SUB: "receive",
    GET: "look at it",
    CREATE: "create it",
    UPDATE: "change it",
    DELETE: "delete it",
    LIST: "list",
}


def advice(acl: Acl | None, username: str, need: Need) -> str:
    """Return the command with which an administrator can allow the request.

    The command keeps the actions of the user's rule for the same resource, because the new rule
    replaces it. Return "" if no rule can allow the request. If a rule for the same resource denies
    it, or is for other addresses, return the command that lists the rules, because that was
    intended.
    """
    if (
        not need.name
        or len(need.name) > MAX_RESOURCE_LENGTH
        or need == SUPER_ONLY
        or ANY in need.name.removesuffix(ANY)
    ):
        return ""
    if need.name != ANY and need.name.endswith(ANY):
        # a rule for that name would be a rule for a prefix
        return ""
    resource = f"{need.kind}:{need.name}"
    policies = acl.policies if acl is not None else ()
    same = [
        entry
        for policy in policies
        if policy.policy_type == CUSTOM
        for entry in policy.entries
        if str(entry.resource) == resource
    ]
    if any(entry.decision == DENY or entry.source_ips for entry in same):
        return f"; an administrator: `ogive acl list {shlex.quote(username)}`"
    actions = ",".join([*(action for entry in same for action in entry.actions), need.actions[0]])
    command = (
        f"; an administrator: `ogive acl allow {shlex.quote(username)} "
        f"{shlex.quote(resource)} {actions}`"
    )
    first, *others = (f"{action} to {_PURPOSE[action]}" for action in need.actions)
    return f"{command} ({first}; or {', '.join(others)})" if others else command


MAX_DECISIONS: Final = 50_000
NO_CREDENTIALS: Final = "this server asks for credentials: access key and signature are missing"
NOBODY_KNOWN: Final = "the user is unknown or disabled, or the signature is wrong"


class Guard:
    """Access control of one server. Broker and name server share the table. Event-loop only."""

    def __init__(
        self,
        table: AccessTable,
        *,
        cluster: str,
        server: str = "the server",
        topic_at: Callable[[int], str | None] = lambda _: None,
        topics_to_clone: Callable[[str], Iterable[str]] = lambda _: (),
    ) -> None:
        """Guard *server*, a name for the log.

        *topic_at* finds the topic of the message at a commit-log offset. *topics_to_clone*: see
        OffsetTable.
        """
        self.table = table
        self.server = server
        self._facts = Facts(
            cluster=cluster,
            is_super=table.is_super,
            topic_at=topic_at,
            topics_to_clone=topics_to_clone,
        )
        self._decisions: dict[tuple[str, str, Need], bool] = {}
        self._decided_for = table.version

    def check(self, command: RemotingCommand, remote_address: str) -> None:
        """Return if the request may be carried out.

        Raises AccessRefused, and ProtocolError if its body cannot be read.
        """
        try:
            user = self._user(command)
            if user.user_type != SUPER:
                self._authorize(user, command, remote_address)
        except AccessRefused as exc:
            self.table.refusals.note(command, _host(remote_address), self.server, exc.why)
            raise

    def admits(self, sends: Sequence[Send | End], remote_address: str) -> bool:
        """Return True if all of these requests are allowed; if not, check() gives the reason."""
        host = _host(remote_address)
        # most sends of one read go to one topic: 0.05 µs each instead of 1 for the look-up
        allowed: set[tuple[str, str]] = set()
        for send in sends:
            signed = send.signed
            if signed is None or (found := self.table.find(signed.access_key)) is None:
                return False
            user, credentials = found
            if user.status != ENABLED or not credentials.has_made(
                signed.signature, signed.values, send.body
            ):
                return False
            if user.user_type == SUPER:
                continue
            topic = (
                topic_of_offset(self._facts, send.ending.commitlog_offset)
                if isinstance(send, End)
                else send.message.topic
            )
            if topic is None:
                return False
            if (user.username, topic) not in allowed:
                if not self._is_allowed(user.username, host, to_send(topic)):
                    return False
                allowed.add((user.username, topic))
        return True

    def may(self, username: str, remote_address: str, need: Need) -> bool:
        """Return True if a user who was authenticated before may do this now.

        Messages that the server sends on its own are checked, too.
        """
        found = self.table.find(username)
        if found is None or found[0].status != ENABLED:
            return False
        return found[0].user_type == SUPER or self._is_allowed(
            found[0].username, _host(remote_address), need
        )

    def _user(self, command: RemotingCommand) -> User:
        name = command.ext_fields.get(ACCESS_KEY)
        if not name:
            raise AccessRefused(NO_CREDENTIALS)
        found = self.table.find(name)
        if found is None:
            raise AccessRefused(NOBODY_KNOWN, why="there is no such user")
        user, credentials = found
        if user.status != ENABLED:
            raise AccessRefused(NOBODY_KNOWN, why="the user is disabled")
        if not credentials.has_signed(command.ext_fields, command.body, command.version):
            raise AccessRefused(NOBODY_KNOWN, why="the signature is wrong")
        return user

    def _authorize(self, user: User, command: RemotingCommand, remote_address: str) -> None:
        rule = RULES.get(command.code)
        if rule is None:
            raise AccessRefused(f"request {command.code} is for super users")
        host = _host(remote_address)
        for need in rule(command, self._facts):
            if not self._is_allowed(user.username, host, need):
                what = f"User:{user.username} has no permission: {need} is needed, from {host}"
                why = (
                    f"User:{shown(user.username)} has no permission: "
                    f"{need._replace(name=shown(need.name))} is needed, from {host}"
                )
                raise AccessRefused(
                    what
                    + advice(
                        self.table.acls.get(USER_SUBJECT + user.username), user.username, need
                    ),
                    why=why,
                )

    def _is_allowed(self, username: str, host: str, need: Need) -> bool:
        if self._decided_for != self.table.version or len(self._decisions) >= MAX_DECISIONS:
            self._decisions.clear()
            self._decided_for = self.table.version
        # no resource has such a name, so the decision is not cached
        if len(need.name) > MAX_RESOURCE_LENGTH:
            return is_allowed(self.table.acls.get(USER_SUBJECT + username), need, _address(host))
        key = (username, host, need)
        allowed = self._decisions.get(key)
        if allowed is None:
            allowed = self._decisions[key] = is_allowed(
                self.table.acls.get(USER_SUBJECT + username), need, _address(host)
            )
        return allowed


def _host(remote_address: str) -> str:
    return remote_address.rpartition(":")[0].strip("[]")


def _address(host: str) -> Address | None:
    """Return the address; None if *host* is not an IP address. Then no entry with source addresses
    matches.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
