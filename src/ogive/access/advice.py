"""What an administrator can do about a request that a user has no permission for."""

import shlex
from typing import Final

from ogive.access.decision import Need
from ogive.access.needs import CREATE, DELETE, GET, LIST, PUB, SUB, SUPER_ONLY, UPDATE
from ogive.model import MAX_RESOURCE_LENGTH
from ogive.wire.bodies.access import ANY, CUSTOM, DENY, Acl

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
    """The command by which an administrator allows it, with what the user's rule for the same
    resource allows, whose place it takes.

    Empty where no rule can allow it, or where one for the very resource denies, or is for other
    addresses: that is meant.
    """
    if (
        not need.name
        or len(need.name) > MAX_RESOURCE_LENGTH
        or need == SUPER_ONLY
        or ANY in need.name.removesuffix(ANY)
    ):
        return ""
    if need.name != ANY and need.name.endswith(ANY):
        # a rule for that name would be one for a prefix
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
