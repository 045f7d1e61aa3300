"""Users and policies as requests carry them."""

import json
from typing import Any

import pytest

from ogive.errors import ProtocolError
from ogive.wire.bodies.acls import (
    MAX_ENTRIES,
    MAX_SECRET_LENGTH,
    MAX_SOURCE_IPS,
    Acl,
    Resource,
    User,
    acls_dumps,
    acls_loads,
    users_dumps,
    users_loads,
)

ENTRY = {"resource": "Topic:Orders", "actions": ["Pub", "sub"], "decision": "allow"}


def encoded(entry: Any, *, entries: int = 1, policies: int = 1) -> bytes:
    policy = {"policyType": "custom", "entries": [entry] * entries}
    return json.dumps({"subject": "User:billing", "policies": [policy] * policies}).encode()


def test_words_are_read_in_any_case_and_written_as_java_writes_them() -> None:
    acl = Acl.decode(encoded(ENTRY | {"sourceIps": ["10.0.0.1", "10.1.0.0/16", "fe80::1"]}))
    (read,) = acls_loads(acls_dumps([acl]))
    assert read == acl
    assert acl.to_json()["policies"] == [
        {
            "policyType": "Custom",
            "entries": [
                {
                    "resource": "Topic:Orders",
                    "actions": ["Pub", "Sub"],
                    "sourceIps": ["10.0.0.1", "10.1.0.0/16", "fe80::1"],
                    "decision": "Allow",
                }
            ],
        }
    ]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (encoded(ENTRY | {"resource": "Orders"}), "neither \\* nor of the form"),
        (encoded(ENTRY | {"resource": f"Topic:{'x' * 256}"}), "neither \\* nor of the form"),
        (encoded(ENTRY | {"resource": "Topic:a*b"}), "can only stand at the end"),
        (encoded(ENTRY | {"resource": "Queue:a"}), "kind of resource 'Queue' is not one of"),
        (encoded(ENTRY | {"actions": []}), "names no action"),
        (encoded(ENTRY | {"actions": ["Fly"]}), "action 'Fly' is not one of"),
        (encoded(ENTRY | {"actions": [5]}), "not text"),
        (encoded(ENTRY | {"decision": "Perhaps"}), "decision 'Perhaps' is not one of"),
        (encoded(ENTRY | {"sourceIps": ["10.0.0"]}), "neither an IP address nor a network"),
        (encoded(ENTRY | {"sourceIps": ["::1"] * (MAX_SOURCE_IPS + 1)}), "over the limit"),
        (encoded([]), "policy entry is not a JSON object"),
        (encoded(ENTRY, entries=0), "policy with 0 entries"),
        (encoded(ENTRY, entries=MAX_ENTRIES + 1), f"policy with {MAX_ENTRIES + 1} entries"),
        (encoded(ENTRY, policies=3), "acl with 3 policies"),
    ],
)
def test_a_policy_that_is_not_understood_is_refused(body: bytes, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        Acl.decode(body)


@pytest.mark.parametrize(
    ("name", "asked", "covered"),
    [
        ("*", "a", True),
        ("*", "*", True),
        ("a*", "ab", True),
        ("a*", "b", False),
        ("a*", "*", False),
        ("a", "a", True),
        ("a", "", False),
        ("*", "SCHEDULE_TOPIC_XXXX", False),
        ("SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX", True),
    ],
)
def test_a_resource_covers_what_its_pattern_names(name: str, asked: str, covered: bool) -> None:
    """Messages of all topics wait in some topics: a pattern does not cover those."""
    assert Resource.parse(f"Topic:{name}").matches("Topic", asked) is covered
    assert not Resource.parse(f"Group:{name}").matches("Topic", asked)
    assert Resource.parse("*").matches("Topic", asked)


def test_users_are_listed_without_passwords() -> None:
    user = User(username="billing", password="secret", user_type="Super", status="enable")
    listed = users_dumps([user])
    assert b"secret" not in listed
    assert users_loads(listed) == [
        User(username="billing", password=None, user_type="Super", status="enable")
    ]
    assert "secret" not in repr(user)


@pytest.mark.parametrize(
    ("member", "value", "fault"),
    [
        ("password", "x" * (MAX_SECRET_LENGTH + 1), "password of 1025 characters"),
        ("userType", "Root", "user type 'Root' is not one of"),
        ("userStatus", "away", "user status 'away' is not one of"),
        ("username", 5, "username is not of type str"),
    ],
)
def test_a_user_that_is_not_understood_is_refused(member: str, value: object, fault: str) -> None:
    with pytest.raises(ProtocolError, match=fault):
        User.decode(json.dumps({"username": "billing", member: value}).encode())


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not a JSON list"):
        users_loads(b"{}")
    with pytest.raises(ProtocolError, match="not a JSON list"):
        acls_loads(b"5")
