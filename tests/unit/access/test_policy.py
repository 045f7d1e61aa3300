"""Which entry decides."""

from ipaddress import ip_address

import pytest

from ogive.access.policy import Need, is_allowed
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry

PUB = Need("Topic", "Orders", ("Pub",))
HERE = ip_address("10.1.2.3")


def entry(
    resource: str, decision: str = "Allow", actions: str = "Pub", ips: tuple[str, ...] = ()
) -> PolicyEntry:
    return PolicyEntry.from_json(
        {
            "resource": resource,
            "actions": actions.split(","),
            "decision": decision,
            "sourceIps": list(ips),
        }
    )


def acl(*entries: PolicyEntry, default: tuple[PolicyEntry, ...] = ()) -> Acl:
    policies = [Policy(entries=entries)] if entries else []
    if default:
        policies.append(Policy(entries=default, policy_type="Default"))
    return Acl(subject="User:u", policies=tuple(policies))


def test_what_nothing_says_is_denied() -> None:
    assert not is_allowed(None, PUB, HERE)
    assert not is_allowed(acl(entry("Topic:Other")), PUB, HERE)
    assert not is_allowed(acl(entry("Group:Orders")), PUB, HERE)
    assert not is_allowed(acl(entry("Topic:Orders", actions="Sub")), PUB, HERE)


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ((), False),
        ((entry("Topic:Replies"),), True),
        ((entry("Group:g", actions="Sub"),), True),
        ((entry("Group:g*", actions="All"),), True),
        ((entry("*", actions="Sub"),), True),
        ((entry("Group:g", actions="Sub", ips=("10.0.0.0/8",)),), True),
        ((entry("Group:g", actions="Sub", ips=("11.0.0.0/8",)),), False),
        ((entry("Group:g", actions="Get"),), False),
        ((entry("Group:g", "Deny", actions="Sub"),), False),
        ((entry("Topic:g", actions="Sub"),), False),
        ((entry("Group:g", actions="Sub"), entry("Topic:Replies", "Deny")), False),
    ],
)
def test_some_resource_of_a_kind_is_enough_where_the_need_says_so(
    entries: tuple[PolicyEntry, ...], allowed: bool
) -> None:
    need = Need("Topic", "Replies", ("Pub",), ("Group", "Sub"))
    assert is_allowed(acl(*entries), need, HERE) is allowed


@pytest.mark.parametrize("resource", ["Topic:Orders", "Topic:Ord*", "Topic:*", "*"])
def test_a_name_a_prefix_all_of_a_kind_and_anything_fit(resource: str) -> None:
    assert is_allowed(acl(entry(resource)), PUB, HERE)
    assert is_allowed(acl(entry(resource, actions="All")), PUB, HERE)


@pytest.mark.parametrize(
    ("closer", "wider"),
    [
        ("Topic:Orders", "Topic:Ord*"),
        ("Topic:Order*", "Topic:Ord*"),
        ("Topic:Ord*", "Topic:*"),
        ("Topic:*", "*"),
    ],
)
def test_the_closer_entry_decides_whatever_it_says(closer: str, wider: str) -> None:
    for order in (1, -1):
        assert not is_allowed(acl(*(entry(closer, "Deny"), entry(wider))[::order]), PUB, HERE)
        assert is_allowed(acl(*(entry(closer), entry(wider, "Deny"))[::order]), PUB, HERE)


def test_of_two_for_the_same_resource_the_denying_one_decides() -> None:
    """As Apache's 5.5.0 sorts them (its text for 5.3 says the opposite)."""
    for order in (1, -1):
        assert not is_allowed(
            acl(*(entry("Topic:Orders", "Deny"), entry("Topic:Orders"))[::order]), PUB, HERE
        )


def test_the_default_policy_counts_where_no_custom_entry_fits() -> None:
    assert is_allowed(acl(entry("Topic:Other"), default=(entry("Topic:Orders"),)), PUB, HERE)
    assert not is_allowed(
        acl(entry("Topic:*", "Deny"), default=(entry("Topic:Orders"),)), PUB, HERE
    )


def test_any_one_of_the_actions_is_enough() -> None:
    need = Need("Topic", "Orders", ("Sub", "Get"))
    assert is_allowed(acl(entry("Topic:Orders", actions="Get")), need, HERE)
    assert not is_allowed(acl(entry("Topic:Orders", actions="Pub,List")), need, HERE)


def test_an_entry_for_some_addresses_fits_only_callers_there() -> None:
    rules = acl(entry("Topic:Orders", ips=("10.1.0.0/16", "192.0.2.7")))
    assert is_allowed(rules, PUB, HERE)
    assert is_allowed(rules, PUB, ip_address("192.0.2.7"))
    assert not is_allowed(rules, PUB, ip_address("192.0.2.8"))
    assert not is_allowed(rules, PUB, None)


def test_all_of_a_kind_at_once_needs_a_rule_for_all_of_the_kind() -> None:
    everything = Need("Topic", "*", ("List",))
    assert not is_allowed(acl(entry("Topic:Ord*", actions="All")), everything, HERE)
    assert is_allowed(acl(entry("Topic:*", actions="List")), everything, HERE)
    assert is_allowed(acl(entry("*", actions="All")), everything, HERE)


def test_a_resource_that_a_request_leaves_out_is_given_by_no_name() -> None:
    assert not is_allowed(
        acl(entry("Topic:Orders", actions="All")), Need("Topic", "", ("Pub",)), HERE
    )
