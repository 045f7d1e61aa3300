"""What the log tells of who administered a broker or a name server."""

import json
from collections.abc import Iterable

import pytest

from ogive.access.audit import (
    MAX_LENGTH,
    MAX_SHOWN,
    AuditEntry,
    Change,
    RequestSource,
    Secret,
    requester,
    shown,
)
from ogive.access.permissions import RULES, Facts
from ogive.access.user_table import AccessTable
from ogive.broker.routes import CHANGES as OF_BROKER
from ogive.broker.routes import ROUTES as BROKER
from ogive.cli import logs
from ogive.errors import ProtocolError, ResponseCode
from ogive.namesrv.handlers import CHANGES as OF_NAME_SERVER
from ogive.namesrv.handlers import ROUTES as NAME_SERVER
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.unit.audit import LOGGER, lines


def entry(
    before: dict[str, object], after: dict[str, object], **about: str
) -> AuditEntry[dict[str, object]]:
    now = dict(before)
    change: Change[dict[str, object]] = Change(
        "change", lambda _: {kind: (name,) for kind, name in about.items()}, lambda ctx, _: ctx
    )
    made = AuditEntry(change, now, RemotingCommand(1), RequestSource(None, "10.0.0.1:5"), "here")
    made.begin()
    now.clear()
    now.update(after)
    return made


# --- one line -------------------------------------------------------------------------------------


def test_a_line_says_what_is_different(told: pytest.LogCaptureFixture) -> None:
    entry({"perm": 6, "gone": 1, "same": 2}, {"perm": 4, "same": 2, "new": ""}, topic="T").tell(
        ResponseCode.SUCCESS
    )
    entry({"perm": 6}, {"perm": 6}, topic="T").tell(ResponseCode.SUCCESS)
    entry({"perm": 6}, {"perm": 6}, topic="T").tell(ResponseCode.SYSTEM_ERROR)
    entry({"perm": 6}, {}, topic="T").tell(ResponseCode.SERVICE_NOT_AVAILABLE)
    assert lines(told) == [
        "10.0.0.1:5, at here: change topic T: perm 6 -> 4, gone 1 -> none, new none -> ''",
        "10.0.0.1:5, at here: change topic T: nothing is different",
        "10.0.0.1:5, at here: change topic T: it was perm=6; it was answered with error 14",
    ]


def test_a_secret_is_compared_and_not_told(told: pytest.LogCaptureFixture) -> None:
    entry({"password": Secret("hunter-old")}, {"password": Secret("hunter-new")}, user="ann").tell(
        ResponseCode.SUCCESS
    )
    assert lines(told) == ["10.0.0.1:5, at here: change user ann: password *** -> ***"]
    assert "hunter" not in repr(told.records[0].__dict__) + repr(Secret("hunter"))


def test_a_name_looks_like_nothing_else_in_its_line(told: pytest.LogCaptureFixture) -> None:
    entry({}, {"a\nb": "c, d -> e"}, topic="T: perm 6 -> 4\n2026 ERROR").tell(ResponseCode.SUCCESS)
    assert lines(told) == [
        "10.0.0.1:5, at here: change topic 'T: perm 6 -> 4\\n2026 ERROR': it is now 'a\\nb'='c, d "
        "-> e'"
    ]
    assert len(shown("x" * 10_000)) < 300


def test_a_line_is_bounded(told: pytest.LogCaptureFixture) -> None:
    entry({}, {f"{number}": "v" * 10_000 for number in range(10_000)}, topic="T").tell(
        ResponseCode.SUCCESS
    )
    assert lines(told)[0].endswith(f"and {10_000 - MAX_SHOWN} more")
    assert len(lines(told)[0]) < 15_000


def test_who_asks_is_named_only_where_that_was_checked() -> None:
    command = RemotingCommand(1, {"AccessKey": "ann"})
    assert str(requester(command, "127.0.0.1:5", checked=True)) == "user ann from 127.0.0.1:5"
    assert str(requester(command, "127.0.0.1:5", checked=False)) == "127.0.0.1:5"
    internal = RemotingCommand(1, {"AccessKey": AccessTable().internal.access_key})
    assert str(requester(internal, "?", checked=True)) == "this process itself"


def test_a_line_of_json_carries_the_fields(told: pytest.LogCaptureFixture) -> None:
    entry({"perm": 6}, {"perm": 4}, topic="T").tell(ResponseCode.SUCCESS)
    line = json.loads(logs.JsonFormatter().format(told.records[0]))
    assert (
        line.items()
        >= {
            "by": None,
            "from": "10.0.0.1:5",
            "at": "here",
            "operation": "change",
            "topic": "T",
            "changes": {"perm": [6, 4]},
        }.items()
    )


def test_values_in_json_are_json(told: pytest.LogCaptureFixture) -> None:
    before: dict[str, object] = {
        "enabled": True,
        "rate": 0.5,
        "note": None,
        "name": "c, d -> e",
        "password": Secret("old-one"),
        "limit": float("inf"),
        "attributes": {},
        "policy": {"type": "CUSTOMIZED", "next": [1, 2.5, None]},
        "users": ("ann", "bob"),
    }
    after: dict[str, object] = {
        "enabled": False,
        "rate": 2,
        "note": "x\u202e\x9b",
        "name": "Bücher",
        "password": Secret("new-one"),
        "limit": 1,
        "attributes": {"message.type": "Ü"},
        "policy": {"type": "EXPONENTIAL", "max": float("nan"), "key": Secret("k")},
        "users": [f"user-{number}" for number in range(99)],
    }
    entry(before, after, topic="T: \n\x9b", user="ann").tell(ResponseCode.SUCCESS)
    text = logs.JsonFormatter().format(told.records[0])
    changes = json.loads(text)["changes"]
    assert changes.pop("users") == [["ann", "bob"], json.dumps(after["users"])[:MAX_LENGTH]]
    assert changes == {
        "enabled": [True, False],
        "rate": [0.5, 2],
        "note": [None, "x\u202e\x9b"],
        "name": ["c, d -> e", "Bücher"],
        "password": ["***", "***"],
        "limit": ["inf", 1],
        "attributes": [{}, {"message.type": "Ü"}],
        "policy": [
            {"type": "CUSTOMIZED", "next": [1, 2.5, None]},
            {"type": "EXPONENTIAL", "max": "NaN", "key": "***"},
        ],
    }
    assert json.loads(text)["topic"] == "T: \n\x9b"
    assert text.isprintable()


# --- which requests -------------------------------------------------------------------------------

WORK = {
    "of consumers": {RequestCode.UPDATE_CONSUMER_OFFSET},
    "of brokers": {
        RequestCode.REGISTER_BROKER,
        RequestCode.UNREGISTER_BROKER,
        RequestCode.QUERY_DATA_VERSION,
        RequestCode.BROKER_HEARTBEAT,
    },
    "nothing changes": {RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE},
}


def actions(code: int) -> Iterable[str]:
    facts = Facts(
        cluster="C", is_super=lambda _: False, topic_at=lambda _: None, topics_to_clone=lambda _: ()
    )
    body = dumps({"topicConfigList": [{"topicName": "T"}], "groupConfigList": [{"groupName": "G"}]})
    try:
        return [
            action
            for need in RULES[code](RemotingCommand(code, {}, body), facts)
            for action in need.actions
        ]
    except ProtocolError:
        # a body of another kind: of one of the requests that clients send
        return []


@pytest.mark.parametrize(
    ("routes", "changes"), [(BROKER, OF_BROKER), (NAME_SERVER, OF_NAME_SERVER)]
)
def test_every_request_that_needs_a_permission_to_change_something_is_told(
    routes: dict[int, object], changes: dict[int, object]
) -> None:
    changing = {
        code for code in routes if not {"Create", "Update", "Delete"}.isdisjoint(actions(code))
    }
    assert changing - set().union(*WORK.values()) == changes.keys()


def test_the_log_of_ogive_up_knows_the_logger() -> None:
    assert LOGGER in logs.CHANGES
