"""Users and their permissions, at brokers with the access control of 5.x."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

from ogive.client import rpc
from ogive.client.admin.base import AdminBase
from ogive.client.admin.records import AccessRule, UserRow
from ogive.errors import InvalidOption, ProtocolError
from ogive.transport.event_loop import each
from ogive.wire.bodies.acls import (
    ACTIONS,
    ALLOW,
    CUSTOM,
    DENY,
    DISABLED,
    ENABLED,
    NORMAL,
    SUPER,
    USER_SUBJECT,
    Acl,
    Policy,
    PolicyEntry,
    Resource,
    User,
)


class AccessCalls(AdminBase):
    async def create_user(self, name: str, password: str, *, super_user: bool = False) -> None:
        """Create a user at every broker.

        A super user may do everything, others nothing until ``allow``.
        """
        user = User(
            username=name,
            password=password,
            user_type=SUPER if super_user else NORMAL,
            status=ENABLED,
        )
        if not name or not password:
            raise InvalidOption("a user needs a name and a password")
        for address in (await self._masters()).values():
            await rpc.create_user(self.client.pool, address, user, timeout_s=self._timeout_s)

    async def update_user(
        self,
        name: str,
        *,
        password: str | None = None,
        super_user: bool | None = None,
        enabled: bool | None = None,
    ) -> None:
        """Change the settings that are given."""
        kinds = {None: None, True: SUPER, False: NORMAL}
        states = {None: None, True: ENABLED, False: DISABLED}
        user = User(
            username=name, password=password, user_type=kinds[super_user], status=states[enabled]
        )
        for address in (await self._masters()).values():
            await rpc.update_user(self.client.pool, address, user, timeout_s=self._timeout_s)

    async def delete_user(self, name: str) -> None:
        """Delete a user and all rules about them. An unknown name is no error."""
        for address in (await self._masters()).values():
            await rpc.delete_user(self.client.pool, address, name, timeout_s=self._timeout_s)

    async def users(self) -> list[UserRow]:
        """Return the users of all brokers, by name."""
        answers = await each(
            (await self._masters()).values(),
            lambda address: rpc.list_users(self.client.pool, address, timeout_s=self._timeout_s),
        )
        found = {user.username: user for users in answers for user in users}
        return [
            UserRow(name=name, super_user=user.user_type == SUPER, enabled=user.status != DISABLED)
            for name, user in sorted(found.items())
        ]

    async def allow(
        self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()
    ) -> None:
        """Allow *actions* (``Pub``, ``Sub``, ...) on *resource* (``Topic:Orders``) to *user*.

        Replaces an earlier rule on that resource.
        """
        await self._say(ALLOW, user, resource, actions, source_ips)

    async def deny(
        self, user: str, resource: str, actions: Sequence[str], *, source_ips: Sequence[str] = ()
    ) -> None:
        """Forbid *actions* on *resource*, even if a wider rule allows them.

        Replaces an earlier rule on that resource.
        """
        await self._say(DENY, user, resource, actions, source_ips)

    async def _say(
        self,
        decision: str,
        user: str,
        resource: str,
        actions: Sequence[str],
        source_ips: Sequence[str],
    ) -> None:
        entry = _entry(decision, resource, actions, source_ips)
        acl = Acl(
            subject=USER_SUBJECT + user, policies=(Policy(policy_type=CUSTOM, entries=(entry,)),)
        )
        for address in (await self._masters()).values():
            await rpc.update_acl(self.client.pool, address, acl, timeout_s=self._timeout_s)

    async def forget_rules(self, user: str, resource: str | None = None) -> None:
        """Delete the rules for *user*, on one resource or on all."""
        for address in (await self._masters()).values():
            await rpc.delete_acl(
                self.client.pool, address, USER_SUBJECT + user, resource, timeout_s=self._timeout_s
            )

    async def access_rules(self) -> list[AccessRule]:
        """Return all rules, as the brokers know them, by user."""
        answers = await each(
            (await self._masters()).values(),
            lambda address: rpc.list_acls(self.client.pool, address, timeout_s=self._timeout_s),
        )
        found = {
            _rule(
                acl.subject.removeprefix(USER_SUBJECT),
                entry,
                default=policy.policy_type != CUSTOM,
            )
            for acls in answers
            for acl in acls
            for policy in acl.policies
            for entry in policy.entries
        }
        return sorted(found, key=lambda rule: (rule.user, rule.resource, rule.default))


def access_rule(
    user: str, resource: str, actions: Sequence[str], *, allowed: bool, source_ips: Sequence[str]
) -> AccessRule:
    """Return a rule as brokers show it. Raises InvalidOption for one that they do not take."""
    return _rule(user, _entry(ALLOW if allowed else DENY, resource, actions, source_ips))


def _rule(user: str, entry: PolicyEntry, *, default: bool = False) -> AccessRule:
    return AccessRule(
        user=user,
        resource=str(entry.resource),
        actions=entry.actions,
        allowed=entry.decision == ALLOW,
        source_ips=tuple(map(str, entry.source_ips)),
        default=default,
    )


def _entry(
    decision: str, resource: str, actions: Sequence[str], source_ips: Sequence[str]
) -> PolicyEntry:
    """Raises InvalidOption."""
    try:
        entry = PolicyEntry(
            resource=Resource.parse(resource),
            actions=tuple(dict.fromkeys(_action(word) for word in actions)),
            decision=decision,
            source_ips=tuple(map(_network, source_ips)),
        )
    except (ProtocolError, ValueError) as exc:
        raise InvalidOption(str(exc)) from None
    if not entry.actions:
        raise InvalidOption(f"no action is given; there are: {', '.join(ACTIONS)}")
    return entry


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise InvalidOption(
            f"{text[:64]!r} is neither an address nor a network such as 10.0.0.0/24"
        ) from None


def _action(word: str) -> str:
    for action in ACTIONS:
        if action.lower() == word.strip().lower():
            return action
    raise InvalidOption(f"action {word[:40]!r} is not one of {', '.join(ACTIONS)}")
