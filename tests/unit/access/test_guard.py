"""The check of a request: who asks, and whether that user may."""

import pytest

from ogive.access.guard import NOBODY_KNOWN, Guard, advice
from ogive.access.permissions import SUPER_ONLY
from ogive.access.policy import AccessRefused, Need
from ogive.access.user_table import AccessTable, on_behalf
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import Credentials

HERE = "127.0.0.1:4711"
ROOT = Credentials(access_key="root", secret_key="root-secret")
ALICE = Credentials(access_key="alice", secret_key="alice-secret")


@pytest.fixture
async def guard() -> Guard:
    table = AccessTable()
    await table.create_user(User(username="root", password="root-secret", user_type="Super"))
    await table.create_user(User(username="alice", password="alice-secret"))
    await allow(table, "Topic:T", ["Pub"])
    return Guard(table, cluster="C")


async def allow(
    table: AccessTable,
    resource: str,
    actions: list[str],
    ips: tuple[str, ...] = (),
    decision: str = "Allow",
) -> None:
    entry = PolicyEntry.from_json(
        {"resource": resource, "actions": actions, "decision": decision, "sourceIps": list(ips)}
    )
    await table.put_acl(Acl(subject="User:alice", policies=(Policy(entries=(entry,)),)))


def send(user: Credentials, topic: str = "T", body: bytes = b"x", **more: str) -> RemotingCommand:
    return RemotingCommand(310, user.sign({"b": topic, "e": "0", **more}, body), body)


def test_a_signed_request_of_a_user_who_may_passes(guard: Guard) -> None:
    guard.check(send(ALICE), HERE)
    guard.check(send(ROOT, "anything"), HERE)
    guard.check(send(guard.table.internal, "anything"), HERE)
    assert guard.table.refusals.count == 0


async def test_a_super_user_signs_on_behalf_of_a_user_and_gets_only_their_rights(
    guard: Guard,
) -> None:
    as_alice = on_behalf(ROOT, "alice")
    guard.check(send(as_alice), HERE)
    assert guard.may(as_alice.access_key, HERE, Need("Topic", "T", ("Pub",)))
    with pytest.raises(AccessRefused, match="User:alice has no permission"):
        guard.check(send(as_alice, "U"), HERE)
    assert not guard.may(as_alice.access_key, HERE, Need("Topic", "U", ("Pub",)))
    for other in (on_behalf(ALICE, "root"), on_behalf(ALICE, "alice"), on_behalf(ROOT, "nobody")):
        with pytest.raises(AccessRefused, match=NOBODY_KNOWN):
            guard.check(send(other), HERE)
    second = User(username="second", password="second-secret", user_type="Super")
    await guard.table.create_user(second)
    await guard.table.update_user(User(username="root", status="disable"))
    with pytest.raises(AccessRefused, match=NOBODY_KNOWN):
        guard.check(send(as_alice), HERE)


def changed(command: RemotingCommand, **fields: str) -> RemotingCommand:
    command.ext_fields |= fields
    return command


@pytest.mark.parametrize(
    "command",
    [
        send(Credentials(access_key="alice", secret_key="guessed")),
        send(Credentials(access_key="nobody", secret_key="alice-secret")),
        changed(send(ALICE), b="T2"),
        changed(send(ALICE), added="1"),
        changed(send(ALICE), Signature=""),
        changed(send(ALICE), Signature="ü"),
        changed(send(ALICE), AccessKey="root"),
        RemotingCommand(310, send(ALICE).ext_fields, b"another body"),
        RemotingCommand(310, {"AccessKey": "alice", "b": "T"}, b"x"),
    ],
)
def test_what_the_user_did_not_sign_is_refused_in_words_that_tell_nothing(
    guard: Guard, command: RemotingCommand
) -> None:
    with pytest.raises(AccessRefused) as refused:
        guard.check(command, HERE)
    assert refused.value.remark == NOBODY_KNOWN
    assert guard.table.refusals.count == 1


def test_a_request_without_credentials_is_told_so(guard: Guard) -> None:
    with pytest.raises(AccessRefused, match="asks for credentials"):
        guard.check(RemotingCommand(310, {"b": "T"}), HERE)


def test_names_that_are_longer_than_any_cost_no_memory(guard: Guard) -> None:
    """Decisions are remembered; each could hold as much as a whole header, or a body."""
    for n in range(3):
        with pytest.raises(AccessRefused, match="no permission"):
            guard.check(send(ALICE, "x" * 200_000 + str(n)), HERE)
    guard.check(send(ALICE), HERE)
    assert [need.name for _, _, need in guard._decisions] == ["T"]


async def test_a_disabled_user_is_out_at_once(guard: Guard) -> None:
    guard.check(send(ALICE), HERE)
    await guard.table.update_user(User(username="alice", status="disable"))
    with pytest.raises(AccessRefused, match="disabled"):
        guard.check(send(ALICE), HERE)


async def test_a_changed_rule_counts_for_the_next_request(guard: Guard) -> None:
    guard.check(send(ALICE), HERE)
    await allow(guard.table, "Topic:T", ["Pub"], decision="Deny")
    with pytest.raises(
        AccessRefused,
        match=r"User:alice has no permission: Pub on Topic:T is needed, from 127\.0\.0\.1",
    ):
        guard.check(send(ALICE), HERE)


def test_a_code_that_nobody_knows_is_for_super_users(guard: Guard) -> None:
    with pytest.raises(AccessRefused, match="4711 is for super users"):
        guard.check(RemotingCommand(4711, ALICE.sign({}, b"")), HERE)
    guard.check(RemotingCommand(4711, ROOT.sign({}, b"")), HERE)


@pytest.mark.parametrize(
    ("address", "passes"),
    [
        ("10.1.2.3:80", True),
        ("[::ffff:10.1.2.3]:80", True),
        ("10.2.0.1:80", False),
        ("[fe80::1%eth0]:80", False),
        ("?", False),
    ],
)
async def test_rules_for_addresses_hold_for_the_connections_address(
    guard: Guard, address: str, passes: bool
) -> None:
    await allow(guard.table, "Topic:T", ["Pub"], ("10.1.0.0/16",))
    if passes:
        guard.check(send(ALICE), address)
    else:
        with pytest.raises(AccessRefused):
            guard.check(send(ALICE), address)


def test_old_clients_leave_one_field_unsigned(guard: Guard) -> None:
    """4.9.3 and before do not sign _UNIQUE_KEY_QUERY; newer ones do."""
    fields = ROOT.sign({"topic": "T", "key": "k"}, b"") | {"_UNIQUE_KEY_QUERY": "true"}
    guard.check(RemotingCommand(12, fields, version=399), HERE)
    with pytest.raises(AccessRefused):
        guard.check(RemotingCommand(12, fields, version=400), HERE)
    guard.check(
        RemotingCommand(
            12, ROOT.sign({"topic": "T", "_UNIQUE_KEY_QUERY": "true"}, b""), version=479
        ),
        HERE,
    )


@pytest.mark.parametrize(
    ("need", "command"),
    [
        (Need("Topic", "Other", ("Pub",)), "ogive acl allow alice Topic:Other Pub`"),
        (
            Need("Topic", "Other", ("Pub", "Sub", "Get")),
            "ogive acl allow alice Topic:Other Pub` (Pub to send; or Sub to receive, Get to look "
            "at it)",
        ),
        (
            Need("Topic", "T", ("Sub", "Get")),
            "ogive acl allow alice Topic:T Pub,Sub` (Sub to receive; or Get to look at it)",
        ),
        (Need("Topic", "*", ("List",)), "ogive acl allow alice 'Topic:*' List`"),
        (Need("Topic", "Denied", ("Pub",)), "ogive acl list alice`"),
        (Need("Topic", "Elsewhere", ("Pub",)), "ogive acl list alice`"),
    ],
)
async def test_a_refusal_names_the_rule_that_would_do(
    guard: Guard, need: Need, command: str
) -> None:
    """It takes the place of the rule for the same resource, so it says what that one allows,
    too.
    """
    await allow(guard.table, "Topic:Denied", ["Sub"], decision="Deny")
    await allow(guard.table, "Topic:Elsewhere", ["Pub"], ips=("10.0.0.0/8",))
    assert (
        advice(guard.table.acls["User:alice"], "alice", need) == f"; an administrator: `{command}"
    )


@pytest.mark.parametrize(
    "need",
    [
        SUPER_ONLY,
        Need("Topic", "", ("Pub",)),
        Need("Topic", "Or*", ("Pub",)),
        Need("Topic", "x" * 300, ("Pub",)),
    ],
)
def test_no_rule_is_named_where_none_can_do_or_it_would_allow_more(need: Need) -> None:
    assert advice(None, "alice", need) == ""


async def test_the_rule_that_a_refusal_names_does(guard: Guard) -> None:
    with pytest.raises(
        AccessRefused,
        match=r"Topic:Other is needed, from 127.0.0.1; an administrator: `ogive acl allow alice "
        r"Topic:Other Pub`",
    ):
        guard.check(send(ALICE, "Other"), HERE)
    await allow(guard.table, "Topic:Other", ["Pub"])
    guard.check(send(ALICE, "Other"), HERE)
