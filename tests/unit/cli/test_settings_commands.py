"""What ``ogive apply`` says of a file that it does not take."""

from pathlib import Path
from typing import Any

import pytest

from ogive import aio
from ogive.cli.main import main
from ogive.client.admin import AccessRule, BrokerTopic, Topic
from ogive.errors import BrokerBusy, GroupNotExist, NoRoute, ResponseCode

RULE = """
[[rules]]
user = "ann"
resource = "Topic:Orders"
actions = ["Pub"]
allowed = true
source_ips = ["10.0.0.1"]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[topics", "is not TOML"),
        ("[topic.Orders]", "there is no topic; a file has topics, groups and rules"),
        (
            "[topics.Orders]\nqueues = 4",
            "topics.Orders: there is no queues; there are: read_queues",
        ),
        ("[topics.Orders]\nread_queues = true", "topics.Orders: read_queues must be of type int"),
        ("[groups]\nbilling = 3", "groups.billing: a table is expected"),
        ("[rules]\nuser = 'ann'", "rules begin with [[rules]]"),
        ("[[rules]]\nuser = 'ann'", "rules, number 0: actions, allowed, resource is missing"),
        # what only a broker would refuse, after other changes were made
        ("[topics.Orders]\nperm = 'x'", "topics.Orders: permission 'x' is not one of rw, r, w"),
        ("[topics.Orders]\nwrite_queues = 0", "topics.Orders: queues is 0: must be at least 1"),
        ("[topics.Orders]\nmessage_type = 'OLD'", "message type 'OLD' is not one of"),
        ("[topics.'a b']\nread_queues = 1", "topic name 'a b' may hold only"),
        ("[groups.billing]\nmax_retries = -1", "groups.billing: max_retries is -1"),
        (RULE.replace("Pub", "Publish"), "rules, number 0: action 'Publish' is not one of"),
        (RULE.replace("Topic:", "Subject:"), "rules, number 0: "),
        (RULE.replace("10.0.0.1", "ten"), "rules, number 0: 'ten' is neither an address nor"),
        (RULE + RULE, "rules, number 1: ann has another rule on Topic:Orders"),
    ],
)
def test_a_wrong_file_is_one_line_with_its_place(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    # nothing is connected before the file is read
    assert main(["apply", str(file), "-n", "127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert f"{file}" in err
    assert said in err
    assert err.count("\n") == 1


def test_a_file_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "no-such.toml", "-n", "127.0.0.1:1"]) == 1
    assert "no-such.toml cannot be read: " in capsys.readouterr().err


class Cluster:
    """What a cluster's administration is asked for, and answers."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.rules: list[AccessRule] = []
        self.topics: dict[str, Topic] = {}
        self.busy = ""

    def __call__(self, **_: Any) -> "Cluster":
        return self

    async def __aenter__(self) -> "Cluster":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise NoRoute(name)
        return self.topics[name]

    async def create_topic(self, name: str, **settings: Any) -> None:
        if name == self.busy:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "busy", "a:1")
        self.calls.append(("topic", name, settings))

    async def update_topic(self, *_: object, **__: Any) -> list[Any]:
        return []

    async def create_group(self, name: str, **settings: Any) -> None:
        self.calls.append(("group", name, settings))

    async def update_group(self, name: str, *, dry_run: bool = False, **settings: Any) -> None:
        if dry_run:
            raise GroupNotExist(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, name, "a:1")
        self.calls.append(("update", name, settings))

    async def access_rules(self) -> list[AccessRule]:
        return self.rules

    async def allow(self, *rule: object, **more: object) -> None:
        self.calls.append(("allow", *rule, more))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(aio, "Admin", cluster)
    return cluster


def apply(tmp_path: Path, text: str) -> int:
    (tmp_path / "cluster.toml").write_text(text)
    return main(["apply", str(tmp_path / "cluster.toml"), "--yes"])


def test_who_is_stopped_in_the_middle_hears_how_far_it_got(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.busy = "Second"
    text = "".join(f"[topics.{name}]\nread_queues = 1\n" for name in ("First", "Second", "Third"))
    assert apply(tmp_path, text) == 1
    assert [name for _, name, _ in cluster.calls] == ["First"]
    err = capsys.readouterr().err
    assert "stopped at topic Second, which may be changed in part; 2 of 6 changes are made" in err


def test_a_setting_that_is_not_named_is_no_fault(cluster: Cluster, tmp_path: Path) -> None:
    """Even one that cannot be changed."""
    row = BrokerTopic(
        broker="b",
        cluster="c",
        address="a:1",
        read_queues=8,
        write_queues=8,
        perm="rw",
        order=False,
        attributes={"queue.type": "BatchCQ"},
    )
    cluster.topics["Orders"] = Topic(
        name="Orders", kind="application", message_type=None, brokers=(row,), groups=()
    )
    assert apply(tmp_path, "[topics.Orders]\nread_queues = 8\n") == 0
    assert apply(tmp_path, "[topics.Orders]\nwhole_batches = false\n") == 1


def test_a_new_group_gets_the_order_of_its_file(cluster: Cluster, tmp_path: Path) -> None:
    assert apply(tmp_path, "[groups.billing]\nmax_retries = 3\norderly = true\n") == 0
    assert cluster.calls == [
        ("group", "billing", {"max_retries": 3}),
        ("update", "billing", {"orderly": True}),
    ]


@pytest.mark.parametrize("other", [(), (AccessRule("ann", "Topic:Orders", ("Sub",), True),)])
def test_a_rule_is_compared_as_brokers_show_it_and_with_each_of_them(
    other: tuple[AccessRule, ...], cluster: Cluster, tmp_path: Path
) -> None:
    cluster.rules = [*other, AccessRule("ann", "Topic:Orders", ("Pub",), True, ("10.0.0.1/32",))]
    assert apply(tmp_path, RULE.replace("Pub", "pub")) == 0
    assert len(cluster.calls) == len(other)
