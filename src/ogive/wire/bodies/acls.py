"""Users, and policies that say what a user may do.

Source: UserInfo.java, AclInfo.java, auth/authorization/model, 5.5.

A resource is ``*`` (anything), or a kind and a name: ``Topic:Orders``, ``Group:billing*`` (a
prefix), ``Cluster:*`` (all of the kind).
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Self

from ogive.errors import ProtocolError
from ogive.model import WAITING_TOPICS
from ogive.wire import java_json
from ogive.wire.bodies.json_fields import (
    as_object,
    as_text,
    dumps,
    get_field,
    get_list,
    loads_object,
)

SUPER, NORMAL = "Super", "Normal"
ENABLED, DISABLED = "enable", "disable"
CUSTOM, DEFAULT = "Custom", "Default"
ALLOW, DENY = "Allow", "Deny"
ACTIONS: Final = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
KINDS: Final = ("Cluster", "Namespace", "Topic", "Group")
ANY: Final = "*"
USER_SUBJECT: Final = "User:"
TOPIC: Final = "Topic"

MAX_NAME_LENGTH: Final = 255
MAX_SECRET_LENGTH: Final = 1024
# limit for the entries of a policy
MAX_ENTRIES: Final = 1_000
MAX_SOURCE_IPS: Final = 100


def _one_of(text: str, words: Iterable[str], what: str) -> str:
    """Return the word that equals *text* in any case, as Java compares. Raises ProtocolError."""
    for word in words:
        if word.lower() == text.lower():
            return word
    raise ProtocolError(f"{what} {text[:40]!r} is not one of {', '.join(words)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user in a request; None means that the request does not have the field.

    The password is not in the repr.
    """

    username: str
    password: str | None = field(default=None, repr=False)
    # Super or Normal
    user_type: str | None = None
    # enable or disable
    status: str | None = None

    def to_json(self, *, with_password: bool) -> dict[str, Any]:
        members = {
            "username": self.username,
            "password": self.password if with_password else None,
            "userType": self.user_type,
            "userStatus": self.status,
        }
        return {name: value for name, value in members.items() if value is not None}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "user")
        user_type = get_field(obj, "userType", str, "")
        status = get_field(obj, "userStatus", str, "")
        password = get_field(obj, "password", str, "")
        if len(password) > MAX_SECRET_LENGTH:
            raise ProtocolError(
                f"a password of {len(password)} characters is over the limit of {MAX_SECRET_LENGTH}"
            )
        return cls(
            username=get_field(obj, "username", str, ""),
            password=password or None,
            user_type=_one_of(user_type, (SUPER, NORMAL), "user type") if user_type else None,
            status=_one_of(status, (ENABLED, DISABLED), "user status") if status else None,
        )

    @classmethod
    def decode(cls, body: bytes) -> Self:
        return cls.from_json(loads_object(body))


@dataclass(frozen=True)
class Resource:
    """The subject of a policy entry.

    *kind* is ``*`` for anything, *name* ``*`` for all of a kind, ``abc*`` for a prefix.
    """

    kind: str
    name: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form. Raises ProtocolError."""
        if text == ANY:
            return cls(ANY, ANY)
        kind, colon, name = text.partition(":")
        if not colon or not name or len(name) > MAX_NAME_LENGTH:
            raise ProtocolError(f"resource {text[:80]!r} is neither * nor of the form Topic:name")
        if ANY in name[:-1]:
            raise ProtocolError(f"resource {text[:80]!r}: a * can only stand at the end")
        return cls(_one_of(kind, KINDS, "kind of resource"), name)

    def __str__(self) -> str:
        return ANY if self.kind == ANY else f"{self.kind}:{self.name}"

    def matches(self, kind: str, name: str) -> bool:
        """Return True if this covers the resource *name*; ``*`` means all of the kind at once.

        Without a name, a resource is covered by no name and no prefix. Topics in which messages of
        other topics wait must be named, because their readers read messages of all topics.
        """
        if self.kind == ANY:
            return True
        if self.kind != kind or not name:
            return False
        if kind == TOPIC and name in WAITING_TOPICS:
            return self.name == name
        if not self.name.endswith(ANY):
            return self.name == name
        return name.startswith(self.name[:-1]) if name != ANY else self.name == ANY

    @cached_property
    def rank(self) -> tuple[bool, int, int]:
        """Sort key: the entry with the lowest rank decides.

        A kind precedes ``*``. A name precedes a prefix, which precedes all of a kind. A longer
        prefix precedes a shorter one.
        """
        pattern = 2 if self.name == ANY else 1 if self.name.endswith(ANY) else 0
        return self.kind == ANY, pattern, -len(self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """Rule that allows or denies actions on a resource to callers at these addresses, or at any."""

    resource: Resource
    actions: tuple[str, ...]
    decision: str
    source_ips: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "resource": str(self.resource),
            "actions": list(self.actions),
            "sourceIps": [_ip_text(network) for network in self.source_ips],
            "decision": self.decision,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "policy entry")
        actions = tuple(
            _one_of(text, ACTIONS, "action") for text in get_list(obj, "actions", as_text)
        )
        if not actions:
            raise ProtocolError("a policy entry names no action")
        ips = get_list(obj, "sourceIps", as_text)
        if len(ips) > MAX_SOURCE_IPS:
            raise ProtocolError(
                f"a policy entry with {len(ips)} source addresses is over the limit of "
                f"{MAX_SOURCE_IPS}"
            )
        return cls(
            resource=Resource.parse(get_field(obj, "resource", str, "")),
            actions=tuple(dict.fromkeys(actions)),
            decision=_one_of(get_field(obj, "decision", str, ""), (ALLOW, DENY), "decision"),
            source_ips=tuple(_network(text) for text in ips),
        )


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ProtocolError(
            f"source address {text[:64]!r} is neither an IP address nor a network"
        ) from None


def _ip_text(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    return str(network.network_address) if network.num_addresses == 1 else str(network)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Entries of one type. Default entries count only if no Custom entry matches."""

    entries: tuple[PolicyEntry, ...]
    policy_type: str = CUSTOM

    def to_json(self) -> dict[str, Any]:
        return {
            "policyType": self.policy_type,
            "entries": [entry.to_json() for entry in self.entries],
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "policy")
        entries = get_list(obj, "entries", PolicyEntry.from_json)
        if not 1 <= len(entries) <= MAX_ENTRIES:
            raise ProtocolError(
                f"a policy with {len(entries)} entries: must be between 1 and {MAX_ENTRIES}"
            )
        return cls(
            entries=tuple(entries),
            policy_type=_one_of(
                get_field(obj, "policyType", str, "") or CUSTOM, (CUSTOM, DEFAULT), "policy type"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """All policies of one subject, ``User:name``."""

    subject: str
    policies: tuple[Policy, ...]

    def to_json(self) -> dict[str, Any]:
        return {"subject": self.subject, "policies": [policy.to_json() for policy in self.policies]}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        obj = as_object(value, "acl")
        policies = get_list(obj, "policies", Policy.from_json)
        if not 1 <= len(policies) <= 2:
            raise ProtocolError(
                f"an acl with {len(policies)} policies: must be one or two, Custom and Default"
            )
        return cls(subject=get_field(obj, "subject", str, ""), policies=tuple(policies))

    @classmethod
    def decode(cls, body: bytes) -> Self:
        return cls.from_json(loads_object(body))


def users_dumps(users: Iterable[User]) -> bytes:
    """Return the answer to AUTH_LIST_USER, without passwords."""
    return dumps([user.to_json(with_password=False) for user in users])


def users_loads(body: bytes) -> list[User]:
    return _list_loads(body, User)


def acls_dumps(acls: Iterable[Acl]) -> bytes:
    """Return the answer to AUTH_LIST_ACL."""
    return dumps([acl.to_json() for acl in acls])


def acls_loads(body: bytes) -> list[Acl]:
    return _list_loads(body, Acl)


def _list_loads(body: bytes, kind: Any) -> list[Any]:
    value = java_json.loads(body, bounded=True)
    if not isinstance(value, list):
        raise ProtocolError("body is not a JSON list")
    return [kind.from_json(item) for item in value]
