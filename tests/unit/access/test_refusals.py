"""What the log tells of requests that access control refused."""

import logging

import pytest

from ogive.access.guard import Guard
from ogive.access.policy import AccessRefused
from ogive.access.refusals import MAX_KNOWN, MAX_OF_ONE, TOLD_AGAIN_S, Refusals
from ogive.access.user_table import AccessTable
from ogive.wire.bodies.acls import User
from ogive.wire.command import RemotingCommand
from ogive.wire.signing import Credentials

DELETE = 215


def request(user: str = "ann", topic: str = "T") -> RemotingCommand:
    return RemotingCommand(DELETE, {"AccessKey": user, "topic": topic})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_is_told_at_once_and_those_like_it_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for _ in range(3):
        refusals.note(request(), "10.0.0.1", "broker b", "the signature is wrong")
    refusals.tell()
    first = (
        "user ann from 10.0.0.1, at broker b, was refused DELETE_TOPIC_IN_BROKER (215) T: the "
        "signature is wrong"
    )
    assert caplog.messages == [first]
    clock.now = TOLD_AGAIN_S
    refusals.tell()
    assert caplog.messages[1:] == [
        "user ann from 10.0.0.1 was refused 2 more times: the signature is wrong"
    ]
    clock.now = 2 * TOLD_AGAIN_S
    refusals.tell()
    refusals.note(request(), "10.0.0.1", "broker b", "the signature is wrong")
    assert caplog.messages[2:] == [first]
    assert refusals.count == 4
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_another_user_address_or_reason_is_told_for_itself(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refusals = Refusals(Clock())
    for user, host, reason in (
        ("ann", "h", "r"),
        ("bob", "h", "r"),
        ("ann", "i", "r"),
        ("ann", "h", "s"),
        ("ann", "h", "r"),
    ):
        refusals.note(request(user), host, "b", reason)
    assert len(caplog.messages) == 4


def test_memory_is_bounded_whoever_asks_and_what_found_no_room_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for number in range(MAX_KNOWN + 500):
        refusals.note(
            request(f"user-{number}" + "x" * 10_000), f"10.0.0.{number % 20}", "b", "r" * 100_000
        )
    assert len(caplog.messages) == len(refusals._known) == MAX_KNOWN
    assert max(map(len, caplog.messages)) < 2_000
    clock.now = TOLD_AGAIN_S
    refusals.tell()
    assert caplog.messages[-1].startswith("500 more requests")
    assert not refusals._known
    assert not refusals._hosts


def test_who_makes_names_up_leaves_room_for_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for number in range(MAX_KNOWN):
        refusals.note(request(f"user-{number}"), "10.0.0.1", "b", "r")
    refusals.note(request("ann"), "10.0.0.2", "b", "r")
    assert len(caplog.messages) == MAX_OF_ONE + 1
    assert caplog.messages[-1].startswith("user ann from 10.0.0.2")
    for seconds in (TOLD_AGAIN_S - 1, TOLD_AGAIN_S, TOLD_AGAIN_S + 1):
        clock.now = seconds
        refusals.tell()
    assert [message for message in caplog.messages if "more requests" in message] == [
        f"{MAX_KNOWN - MAX_OF_ONE} more requests were refused, by other users, from other "
        "addresses or for other reasons"
    ]


def test_a_name_cannot_write_a_line_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    Refusals(Clock()).note(request("ann\n2026 ERROR", "T, at broker b"), "h", "b", "r")
    assert caplog.messages == [
        "user 'ann\\n2026 ERROR' from h, at b, was refused DELETE_TOPIC_IN_BROKER (215) 'T, at "
        "broker b': r"
    ]


async def test_the_log_says_more_than_the_answer_and_two_servers_count_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = AccessTable()
    await table.create_user(User(username="ann", password="ann-secret"))
    await table.create_user(User(username="off", password="off-secret", status="disable"))
    broker, name_server = (
        Guard(table, cluster="C", server=server) for server in ("broker b", "the name server")
    )
    ann = Credentials(access_key="ann", secret_key="ann-secret")
    for guard, command in (
        (broker, RemotingCommand(DELETE, {"topic": "T"})),
        (name_server, request("nobody")),
        (broker, request("off")),
        (broker, request("ann")),
        (name_server, RemotingCommand(DELETE, ann.sign({"topic": "T"}, b""))),
        (broker, RemotingCommand(9999, ann.sign({}, b""))),
    ):
        with pytest.raises(AccessRefused):
            guard.check(command, "10.0.0.1:5")
    assert table.refusals.count == 6
    assert caplog.messages == [
        "a request without a user from 10.0.0.1, at broker b, was refused DELETE_TOPIC_IN_BROKER "
        "(215) T: "
        "this server asks for credentials: access key and signature are missing",
        "user nobody from 10.0.0.1, at the name server, was refused DELETE_TOPIC_IN_BROKER (215) "
        "T: there is no such user",
        "user off from 10.0.0.1, at broker b, was refused DELETE_TOPIC_IN_BROKER (215) T: the user "
        "is disabled",
        "user ann from 10.0.0.1, at broker b, was refused DELETE_TOPIC_IN_BROKER (215) T: the "
        "signature is wrong",
        "user ann from 10.0.0.1, at the name server, was refused DELETE_TOPIC_IN_BROKER (215) T: "
        "User:ann has no permission: Delete on Topic:T is needed, from 10.0.0.1",
        "user ann from 10.0.0.1, at broker b, was refused request 9999: request 9999 is for super "
        "users",
    ]


async def test_a_name_that_is_asked_for_stays_a_name_in_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = AccessTable()
    await table.create_user(User(username="ann", password="ann-secret"))
    ann = Credentials(access_key="ann", secret_key="ann-secret")
    with pytest.raises(AccessRefused):
        Guard(table, cluster="C").check(
            RemotingCommand(DELETE, ann.sign({"topic": "T\nuser root"}, b"")), "10.0.0.1:5"
        )
    assert "Delete on Topic:'T\\nuser root' is needed" in caplog.messages[0]
    assert "\n" not in caplog.messages[0]
