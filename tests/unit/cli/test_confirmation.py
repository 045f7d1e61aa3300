"""Commands that take access away or send again, without a broker: they look and ask first."""

import asyncio
import dataclasses
import io
import json
import signal
from datetime import UTC, datetime
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import pytest

from ogive import aio
from ogive.cli import dead_letter_commands
from ogive.cli.main import main
from ogive.client.admin import OffsetReset
from ogive.errors import BrokerError, GroupNotExist, ResponseCode
from ogive.model import MessageExt, MessageQueue
from ogive.testing import message


def letter(name: str, day: int, offset: int = 0, **settings: Any) -> MessageExt:
    """Return a dead letter of November."""
    one = message("%DLQ%payd", b"x", queue_offset=offset or day, **settings)
    return dataclasses.replace(
        one,
        properties={**one.properties, "UNIQ_KEY": name},
        store_timestamp_ms=int(datetime(2026, 11, day, tzinfo=UTC).timestamp() * 1000),
    )


class Cluster:
    """An Admin that notes what it is told to do."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.letters = [
            letter("p1", 16, tag="paid", properties={"amount": "7"}),
            letter("p2", 23, tag="late", properties={"amount": "40"}),
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    async def access_rules(self) -> list[Any]:
        return [
            SimpleNamespace(
                user="billing",
                resource="Topic:Pay",
                actions=("Pub",),
                allowed=True,
                source_ips=(),
                default=False,
            )
        ]

    async def forget_rules(self, user: str, resource: str | None = None) -> None:
        self.done.append((user, resource))

    async def allow(self, *words: Any, source_ips: tuple[str, ...]) -> None:
        if words[0] == "biling":
            raise BrokerError(ResponseCode.USER_NOT_EXIST, "The user is not exist: biling", "h:1")
        self.done.append(words)

    async def users(self) -> list[Any]:
        return [
            SimpleNamespace(name=name, super_user=False, enabled=True)
            for name in ("billing", "guest")
        ]

    async def create_user(self, name: str, *_: Any, **__: Any) -> None:
        self.done.append((name,))

    async def update_user(self, name: str, *_: Any, **__: Any) -> None:
        self.done.append((name,))

    async def dead_letters(
        self, group: str, *, start: datetime | None, end: datetime | None = None, limit: int
    ) -> list[MessageExt]:
        return [one for one in self.letters if start is None or start <= one.stored_at][:limit]

    async def was_sent_again(self, group: str, letter: MessageExt) -> bool:
        return (group, letter.id) in self.done

    async def reset_offsets(self, *_: Any, **__: Any) -> None:
        raise GroupNotExist(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group biling not exist!")

    async def group(self, name: str) -> None:
        raise GroupNotExist(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            "no broker knows it. Similar groups: billing.",
        )

    async def send_again(self, group: str, letter: Any) -> None:
        self.done.append((group, letter.id))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    one = Cluster()
    monkeypatch.setattr(aio, "Admin", lambda **_: one)
    monkeypatch.delenv("OGIVE_CONTEXT", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    return one


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["acl", "delete", "billing", "Topic:Pya"],
            "user billing has no rule for Topic:Pya. Similar: Topic:Pay (ogive acl list billing)",
        ),
        (["acl", "delete", "biling"], "no rules for user biling"),
        (
            ["acl", "delete", "billing"],
            "delete all rules for user billing: Topic:Pay? There is nobody to ask here: add --yes",
        ),
        (
            ["acl", "allow", "biling", "Topic:Pay", "Sub"],
            "there is no user biling (ogive user list)",
        ),
        (["acl", "list", "biling"], "there is no user biling (ogive user list)"),
        (["user", "update", "biling", "--disable"], "there is no user biling (ogive user list)"),
        (["user", "delete", "biling", "--yes"], "there is no user biling (ogive user list)"),
        (
            ["dead-letter", "redrive", "payd", "--all"],
            "give 2 dead letters, the oldest of 2026-11-16, to payd again?",
        ),
    ],
)
def test_nothing_is_done_that_was_not_meant(
    words: list[str], said: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-n", "h:1"]) == 1
    assert said in capsys.readouterr().err
    assert not cluster.done


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["acl", "delete", "billing", "Topic:Pay"], [("billing", "Topic:Pay")]),
        (["acl", "delete", "billing", "--yes"], [("billing", None)]),
        (["dead-letter", "send", "payd", "--all", "--yes"], [("payd", "p1"), ("payd", "p2")]),
        (["dead-letter", "send", "payd", "p2"], [("payd", "p2")]),
        (["acl", "delete", "billing", "--json", "Topic:Pay"], [("billing", "Topic:Pay")]),
        (["dead-letter", "send", "payd", "--yes", "p2"], [("payd", "p2")]),
        (["dead-letter", "send", "payd", "p1", "--json", "p2"], [("payd", "p1"), ("payd", "p2")]),
        (["dead-letter", "redrive", "payd", "--tag", "paid || new", "-y"], [("payd", "p1")]),
        (["dead-letter", "redrive", "payd", "--where", "amount > 7", "-y"], [("payd", "p2")]),
        (["dead-letter", "redrive", "payd", "--where", "cost > 7", "-y"], []),
        (["dead-letter", "redrive", "payd", "--limit", "1", "-y"], [("payd", "p1")]),
        (["dead-letter", "redrive", "payd", "--since", "2026-11-20", "-y"], [("payd", "p2")]),
        (["dead-letter", "redrive", "payd", "--all", "--dry-run"], []),
        (
            ["dead-letter", "redrive", "payd", "--all", "--rate", "1000", "-y"],
            [("payd", "p1"), ("payd", "p2")],
        ),
    ],
)
def test_what_was_meant_is_done(
    words: list[str], done: list[tuple[Any, ...]], cluster: Cluster
) -> None:
    assert main([*words, "-n", "h:1"]) == 0
    assert cluster.done == done


@pytest.mark.parametrize("resource", ["Topic:Pay", "topic:Pay"])
def test_a_new_rule_says_what_it_took_the_place_of(
    resource: str, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "allow", "billing", resource, "Sub", "-n", "h:1"]) == 0
    assert capsys.readouterr().out == f"user billing may Sub on {resource} (before: Pub)\n"


@pytest.mark.parametrize(
    ("words", "record"),
    [
        (
            ["acl", "allow", "billing", "Topic:Pay", "Sub"],
            {"user": "billing", "resource": "Topic:Pay", "actions": ["Sub"], "allowed": True},
        ),
        (
            ["acl", "delete", "billing", "Topic:Pay"],
            {"user": "billing", "resource": "Topic:Pay", "deleted": True},
        ),
        (
            ["dead-letter", "redrive", "payd", "p2"],
            {"group": "payd", "sent": 1, "sent_before": 0, "dry_run": False},
        ),
    ],
)
def test_programs_are_told_what_was_done(
    words: list[str], record: dict[str, Any], cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json", "-n", "h:1"]) == 0
    assert json.loads(capsys.readouterr().out) == record


@pytest.mark.usefixtures("cluster")
def test_a_dry_run_lists_the_letters_for_programs_too(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["dead-letter", "list", "payd", "--json", "-n", "h:1"]
    assert main(asked) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["id"] for line in listed] == ["p1", "p2"]
    assert main(["dead-letter", "redrive", "payd", "--all", "--dry-run", *asked[3:]]) == 0
    *letters, last = capsys.readouterr().out.splitlines()
    assert letters == listed
    assert json.loads(last) == {"group": "payd", "sent": 2, "sent_before": 0, "dry_run": True}


def test_a_dead_letter_is_not_sent_twice_unless_that_is_meant(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    redrive = ["dead-letter", "redrive", "payd", "-n", "h:1", "-y"]
    assert main([*redrive, "p2"]) == 0
    assert main([*redrive, "--all"]) == 0
    assert cluster.done == [("payd", "p2"), ("payd", "p1")]
    assert "1 dead letter left out, sent before: --again" in capsys.readouterr().err
    assert main([*redrive, "p2", "--again"]) == 0
    assert cluster.done[2:] == [("payd", "p2")]


def test_dead_letters_are_read_in_pages(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dead_letter_commands, "PAGE", 3)
    redrive = ["dead-letter", "redrive", "payd", "--all", "-n", "h:1", "-y"]
    # three days with two letters each: each page but the first begins with one that was read
    cluster.letters = [letter(f"p{n}", 10 + n // 2, offset=1 + n) for n in range(6)]
    assert main(redrive) == 0
    assert cluster.done == [("payd", f"p{n}") for n in range(6)]
    cluster.done.clear()
    cluster.letters = [letter(f"p{n}", 10, offset=1 + n) for n in range(3)]
    assert main(redrive) == 1
    assert "over 3 dead letters were stored at 2026-11-10" in capsys.readouterr().err
    assert not cluster.done


def test_ctrl_c_lets_the_send_come_to_its_end_and_says_how_many_were_sent(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def send_again(group: str, letter: MessageExt) -> None:
        signal.raise_signal(signal.SIGINT)
        # the event loop handles it some iterations later
        for _ in range(10):
            await asyncio.sleep(0)
        cluster.done.append((group, letter.id))

    monkeypatch.setattr(cluster, "send_again", send_again)
    assert main(["dead-letter", "redrive", "payd", "--all", "-n", "h:1", "-y"]) == 130
    assert cluster.done == [("payd", "p1")]
    said = capsys.readouterr()
    assert said.err == "ogive: sent 1 of 2 dead letters; the same command sends the rest\n"
    assert said.out == "1 dead letter was given to payd again; it stays in the list\n"


@pytest.mark.parametrize(
    ("again", "rest"), [([], "the rest"), (["--again"], "all once more, because of --again")]
)
def test_an_error_in_the_middle_says_how_many_were_sent(
    again: list[str],
    rest: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def send_again(group: str, letter: MessageExt) -> None:
        if letter.id == "p2":
            raise BrokerError(ResponseCode.SYSTEM_ERROR, "the disk is full", "h:1")

    monkeypatch.setattr(cluster, "send_again", send_again)
    assert main(["dead-letter", "redrive", "payd", "--all", *again, "-n", "h:1", "-y"]) == 1
    assert f"sent 1 of 2 dead letters; the same command sends {rest}\n" in capsys.readouterr().err


def test_a_reset_of_an_unknown_group_names_those_spelt_alike(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["group", "reset", "biling", "Pay", "--to", "earliest", "-n", "h:1"]) == 1
    assert "Similar groups: billing." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "meant"), [("consume", "tail or run"), ("produce", "send"), ("publish", "send")]
)
def test_words_of_other_tools_lead_to_the_command(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([word, "Orders"])
    assert f"did you mean {meant}?" in capsys.readouterr().err


def test_a_misspelt_context_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    monkeypatch.setenv("OGIVE_CONTEXT", "nope")
    assert main(["topic", "list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("ogive: there is no context 'nope'")
    assert said.count("\n") == 1


def test_who_may_do_nothing_has_an_empty_list(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["acl", "list", "guest", "-n", "h:1"]) == 0
    assert capsys.readouterr().out.split() == ["USER", "RULE", "RESOURCE", "ACTIONS", "FROM"]


def test_a_user_that_exists_is_not_made_again(
    cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("secret\n"))
    assert main(["user", "create", "billing", "-n", "h:1"]) == 1
    assert (
        "user billing exists already: `ogive user update billing` changes it"
        in capsys.readouterr().err
    )
    assert not cluster.done


def test_a_dead_letter_that_lacks_properties_says_which_and_where_they_are(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    properties = {
        "RETRY_TOPIC": "Orders",
        "OGIVE_REMOVED_PROPERTIES": "baggage",
        "ORIGIN_MESSAGE_ID": "AB" * 16,
    }
    letter = dataclasses.replace(
        message("%DLQ%billing", b"x"), properties=properties, reconsume_times=3
    )

    async def dead_letters(*_: Any, **__: Any) -> list[Any]:
        return [letter]

    monkeypatch.setattr(cluster, "dead_letters", dead_letters)
    assert main(["dead-letter", "list", "billing", "-n", "h:1"]) == 0
    shown = capsys.readouterr().out
    assert (
        "from Orders after 3 tries (without its properties baggage; whole: `ogive message "
        f"{'AB' * 16}`) x" in shown
    )


PLAN = [OffsetReset(MessageQueue("Orders", "broker-a", 0), 7, 3)]
TABLE = "BROKER    QUEUE  BEFORE  AFTER  MESSAGES\nbroker-a      0  7           3  4 again\n"
RECORD = (
    '{"topic": "Orders", "broker": "broker-a", "queue": 0, "before": 7, "after": 3, '
    '"dry_run": false}\n'
)
QUESTION = "deliver 4 messages of Orders to group billing again? [y/N] "


@pytest.mark.parametrize(
    ("options", "before", "after"),
    [
        ([], (TABLE, QUESTION), ("group billing is moved\n", "")),
        (["--json"], ("", TABLE + QUESTION), (RECORD, "")),
    ],
    ids=["text", "json"],
)
def test_a_move_is_shown_once_before_the_question(
    options: list[str],
    before: tuple[str, str],
    after: tuple[str, str],
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In standard output, or where that holds JSON, in standard error."""
    seen = []

    async def reset_offsets(*_: Any, dry_run: bool) -> list[OffsetReset]:
        return PLAN

    def agree(*_: str) -> str:
        seen.append(capsys.readouterr())
        return "y"

    monkeypatch.setattr(cluster, "reset_offsets", reset_offsets)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", agree)
    assert (
        main(["group", "reset", "billing", "Orders", "--to", "earliest", "-n", "h:1", *options])
        == 0
    )
    assert seen == [before]
    assert capsys.readouterr() == after
