"""``ogive broker``, ``bench``, ``trace`` and ``group skip`` on a running broker."""

import json

import pytest

import ogive
from ogive.cli.main import main
from tests.peers import Flavour, RunningBroker
from tests.topics import wait_until_shown

pytestmark = pytest.mark.client_suite


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_brokers_are_listed_and_shown(
    broker: RunningBroker,
    flavour: Flavour,
    release: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["broker", "list", "-n", broker.name_server, "--json"]) == 0
    (row,) = rows(capsys)
    assert (row["broker"], row["address"], row["trouble"]) == ("broker-a", broker.address, None)
    assert row["version"] == (
        f"ogive {ogive.__version__}" if flavour == "ogive" else ".".join(map(str, release))
    )
    assert main(["broker", "list", "-n", broker.name_server]) == 0
    assert broker.address in capsys.readouterr().out
    assert main(["broker", "show", broker.address, "-n", broker.name_server, "--json"]) == 0
    (row,) = rows(capsys)
    assert isinstance(row["figures"], dict)
    assert "msgPutTotalTodayNow" in row["figures"]
    assert main(["broker", "show", "none", "-n", broker.name_server]) == 1
    assert "there is no broker none" in capsys.readouterr().err


def test_what_bench_sends_comes_back(
    broker: RunningBroker, topic: str, group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=4)
    common = [
        "-n",
        broker.name_server,
        "--topic",
        topic,
        "--count",
        "200",
        "--for",
        "60s",
        "--json",
    ]
    assert main(["bench", "produce", *common, "--size", "100", "--in-flight", "4"]) == 0
    sent = rows(capsys)[-1]
    assert sent["last"] is True
    assert sent["messages"] == 200
    assert main(["bench", "consume", *common, "--group", group]) == 0
    received = rows(capsys)[-1]
    assert received["messages"] == 200


def test_a_bench_that_cannot_send_says_why_and_ends(
    broker: RunningBroker, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
        admin.update_topic(topic, perm="r")
    assert (
        main(
            [
                "bench",
                "produce",
                "-n",
                broker.name_server,
                "--topic",
                topic,
                "--for",
                "60s",
                "--in-flight",
                "1",
            ]
        )
        == 1
    )
    assert "1 sends failed, the first with: " in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--for", "soon"], ["--size", "0"], ["--in-flight", "0"]])
def test_wrong_measures_are_said(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "produce", *words]) == 1
    assert words[0] in capsys.readouterr().err


def test_a_group_skips_what_waits(
    broker: RunningBroker,
    topic: str,
    group: str,
    release: tuple[int, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    # 4.9 says that a new group on a young topic stands at its beginning
    nowhere = None if release >= (5,) else 0
    with ogive.Admin(broker.name_server) as admin:
        admin.create_topic(topic, queues=1)
        admin.create_group(group)
    with ogive.Producer(broker.name_server) as producer:
        for _ in range(5):
            producer.send(topic, b"x")
    wait_until_shown(broker.name_server, topic, 5)
    words = ["group", "skip", group, topic, "-n", broker.name_server, "--json"]
    for more in (["--dry-run"], ["--yes"]):
        assert main([*words, *more]) == 0
        (row,) = rows(capsys)
        assert (row["before"], row["after"], row["dry_run"]) == (nowhere, 5, more == ["--dry-run"])
    with ogive.Admin(broker.name_server) as admin:
        assert [row.consumer_offset for row in admin.lag(group, topic)] == [5]
