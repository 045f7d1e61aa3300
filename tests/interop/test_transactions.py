"""Transactions between the two worlds: Apache's Java producer on our broker, and a store with open
transactions that changes hands.
"""

import re
from collections import Counter
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.testing import Broker
from tests.interop import apache
from tests.interop.apache import VERSION, Apache
from tests.interop.test_store_exchange import new_apache
from tests.interop.test_store_exchange_load import OLD
from tests.peers import APACHES_CHECKS, RunningBroker, our_broker
from tests.processes import wait_until

pytestmark = pytest.mark.alone


def transact(
    name_server: str,
    topic: str,
    group: str,
    count: int,
    *,
    binary_headers: bool = False,
    **options: object,
) -> list[dict[str, Any]]:
    """Run java/Transact.java to its end; its lines."""
    system = apache.BINARY_HEADERS if binary_headers else None
    with apache.JavaClient(
        "Transact",
        system=system,
        nameServer=name_server,
        topic=topic,
        group=group,
        count=count,
        **options,
    ) as client:
        run = client.wait()
    assert run.code == 0, f"{run.lines}\n{run.other}"
    return list(run.lines)


def bodies(name_server: str, topic: str, group: str, count: int) -> list[str]:
    """The first *count* messages, sorted."""
    return sorted(line["body"] for line in apache.consume(name_server, topic, group, count))


@pytest.mark.parametrize("binary_headers", [False, True], ids=["json", "binary"])
def test_javas_transactions_end_as_its_listener_says(
    ogive_broker: Broker, topic: str, group: str, binary_headers: bool
) -> None:
    """Committed, rolled back, settled by the first question, and by the second.

    A question is repeated while its answer is on its way.
    """
    lines = transact(
        ogive_broker.name_server, topic, f"P{group}", 10, checks=6, binary_headers=binary_headers
    )
    sent, asked = (
        [line for line in lines if "state" in line],
        [line for line in lines if "asked" in line],
    )
    assert [line["status"] for line in sent] == ["SEND_OK"] * 10
    times = Counter(line["asked"] for line in asked)
    assert times.keys() == {
        "check-commit 2",
        "check-rollback 3",
        "check-twice 4",
        "check-commit 7",
        "check-rollback 8",
        "check-twice 9",
    }
    assert min(times["check-twice 4"], times["check-twice 9"]) >= 2
    assert {line["topic"] for line in asked} == {topic}
    ids = {line["body"]: line["id"] for line in sent}
    assert all(line["transactionId"] == ids[line["asked"]] for line in asked)
    expected = sorted(
        [
            "commit 0",
            "check-commit 2",
            "check-twice 4",
            "commit 5",
            "check-commit 7",
            "check-twice 9",
        ]
    )
    assert bodies(ogive_broker.name_server, topic, group, 6) == expected
    with ogive.Admin(ogive_broker.name_server) as admin:
        assert sum(row.max_offset for row in admin.offsets(topic)) == 6


def test_another_java_producer_answers_for_one_that_died(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    name_server = ogive_broker.name_server
    with apache.JavaClient(
        "Transact",
        nameServer=name_server,
        topic=topic,
        group=f"P{group}",
        count=6,
        plans="check-commit,check-rollback",
        hang="true",
    ) as victim:
        victim.wait_for("hanging")
    # a Java producer that sends nothing is unknown
    transact(name_server, topic, f"P{group}", 1, plans="commit", first=100, checks=6)
    assert bodies(name_server, topic, group, 4) == [
        "check-commit 0",
        "check-commit 2",
        "check-commit 4",
        "commit 100",
    ]


def test_apaches_load_generator_is_asked_nothing_unexpected(tmp_path: Path) -> None:
    """Its checks that it did not ask for, or has answered before, are counted; so are messages that
    arrive against its will.

    A broker of its own, which asks after five seconds: in these a decision has arrived, also on a
    busy machine.
    """
    with Broker(
        data=tmp_path / "store",
        options=("--transaction-timeout", "5", "--transaction-check-interval", "5"),
    ) as broker:
        load(broker.name_server)


def load(name_server: str) -> None:
    apache.admin(name_server, "updateTopic -c DefaultCluster -t BenchTx -r 4 -w 4")
    arguments = [
        "-n",
        name_server,
        "-t",
        "BenchTx",
        "-w",
        "4",
        "-s",
        "512",
        "-sr",
        "0.1",
        "-su",
        "0.2",
        "-cr",
        "0.1",
        "-cu",
        "0.2",
    ]

    def reports(client: apache.JavaClient) -> list[re.Match[str]]:
        return list(
            re.finditer(
                r"Check: (\d+) .*?UnexpectedCheck: (\d+) .*?DuplicatedCheck: (\d+)",
                client.printed().other,
            )
        )

    with apache.JavaClient(
        "org.apache.rocketmq.example.benchmark.TransactionProducer", *arguments
    ) as client:

        def asked_about_again() -> bool:
            """A later round of questions, about those that the first one left open, is among
            them.
            """
            return sum(int(report[1]) > 0 for report in reports(client)) >= 3

        wait_until(
            asked_about_again, client._process, client._output, "third report of checks", 200.0
        )
        for report in reports(client):
            assert (report[2], report[3]) == ("0", "0"), client.printed().other


# --- a store that changes hands -------------------------------------------------------------------

STOP, KILL = methodcaller("stop"), methodcaller("kill")
WAYS = pytest.mark.parametrize(
    ("version", "end"),
    [
        pytest.param(version, end, id=f"{version} {'stopped' if end is STOP else 'killed'}")
        for version in (VERSION, OLD)
        for end in (STOP, KILL)
    ],
)


def leave_open(name_server: str) -> None:
    """Six transactions: four end as they say, two stay open for the next broker to ask about."""
    with apache.JavaClient(
        "Transact",
        nameServer=name_server,
        topic="Tx",
        group="shop",
        count=6,
        plans="commit,rollback,check-commit",
        hang="true",
    ) as client:
        client.wait_for("hanging")
    assert bodies(name_server, "Tx", "before", 2) == ["commit 0", "commit 3"]


def settle(name_server: str) -> None:
    """The next producer of the group commits what is open, and nothing comes twice."""
    lines = transact(name_server, "Tx", "shop", 1, plans="commit", first=100, checks=2)
    assert {line["asked"] for line in lines if "asked" in line} == {
        "check-commit 2",
        "check-commit 5",
    }
    assert bodies(name_server, "Tx", "after", 5) == [
        "check-commit 2",
        "check-commit 5",
        "commit 0",
        "commit 100",
        "commit 3",
    ]
    with ogive.Admin(name_server) as admin:
        assert sum(row.max_offset for row in admin.offsets("Tx")) == 5


@WAYS
def test_apache_settles_what_is_open_in_our_store(
    tmp_path: Path, version: str, end: Callable[[RunningBroker], None]
) -> None:
    with our_broker(tmp_path) as ours:
        leave_open(ours.name_server)
        end(ours)
    with new_apache(tmp_path, version, **APACHES_CHECKS) as theirs:
        settle(theirs.name_server)


@WAYS
def test_we_settle_what_is_open_in_apaches_store(
    tmp_path: Path, version: str, end: Callable[[RunningBroker], None]
) -> None:
    """A kill takes the marks that Apache's 5.x collects for 3 s: the commits themselves show what
    is settled.
    """
    with Apache(tmp_path, APACHES_CHECKS, version=version) as theirs:
        leave_open(theirs.name_server)
        end(theirs)
    with our_broker(tmp_path) as ours:
        settle(ours.name_server)
