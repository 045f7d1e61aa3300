"""Evaluate policies: may this user do this to that resource?

Source: AclAuthorizationHandler.java, 5.5.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from ogive.errors import Refused, ResponseCode
from ogive.wire.bodies.acls import ANY, CUSTOM, DEFAULT, DENY, Acl, PolicyEntry


class AccessRefused(Refused):
    """Error of a request that access control denies, mostly with NO_PERMISSION.

    *why* is the reason in the log; the answer may say less, or say how to get the permission.
    """

    def __init__(
        self,
        remark: str,
        code: ResponseCode = ResponseCode.NO_PERMISSION,
        *,
        why: str | None = None,
    ) -> None:
        super().__init__(code, remark)
        self.why = why or remark


Address = IPv4Address | IPv6Address


class Need(NamedTuple):
    """Permission that a request needs: any one of *actions* on the resource.

    *name* ``*`` means all resources of the kind. *or_some* is a kind and an action on any resource
    of that kind, which is enough if no entry matches the resource itself.
    """

    kind: str
    name: str
    actions: tuple[str, ...]
    or_some: tuple[str, str] | None = None

    def __str__(self) -> str:
        text = f"{'|'.join(self.actions)} on {self.kind}:{self.name[:128]}"
        return (
            text
            if self.or_some is None
            else f"{text} or {self.or_some[1]} on some {self.or_some[0]}"
        )


def is_allowed(acl: Acl | None, need: Need, address: Address | None) -> bool:
    """Return True if the most specific matching entry allows *need*; without one it is denied.

    Entries of the custom policy precede those of the default one. A denying entry precedes an
    allowing one for the same resource.
    """
    if acl is None:
        return False
    for policy_type in (CUSTOM, DEFAULT):
        fitting = [
            entry
            for policy in acl.policies
            if policy.policy_type == policy_type
            for entry in policy.entries
            if _fits(entry, need, address)
        ]
        if fitting:
            return (
                min(
                    fitting, key=lambda entry: (entry.resource.rank, entry.decision != DENY)
                ).decision
                != DENY
            )
    return need.or_some is not None and any(
        entry.decision != DENY
        and entry.resource.kind in (need.or_some[0], ANY)
        and _covers(entry, (need.or_some[1],), address)
        for policy in acl.policies
        for entry in policy.entries
    )


def _fits(entry: PolicyEntry, need: Need, address: Address | None) -> bool:
    return entry.resource.matches(need.kind, need.name) and _covers(entry, need.actions, address)


def _covers(entry: PolicyEntry, actions: tuple[str, ...], address: Address | None) -> bool:
    if "All" not in entry.actions and not _any_of(actions, entry.actions):
        return False
    return not entry.source_ips or (
        address is not None and any(address in network for network in entry.source_ips)
    )


def _any_of(wanted: Iterable[str], given: Iterable[str]) -> bool:
    return not set(wanted).isdisjoint(given)
