"""The directory of an earlier release's broker opens with all that it holds.

test_spark_checkpoints.py goes on with the checkpoints that were made beside it.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ogive
from tests import golden_broker as golden


def test_there_is_a_directory_of_a_release() -> None:
    assert golden.ARCHIVES
    assert all(path.stat().st_size <= 200_000 for path in golden.ARCHIVES)


@pytest.mark.parametrize("archive", golden.ARCHIVES, ids=golden.NAMES)
def test_a_directory_of_a_release_opens_with_all_that_it_holds(
    archive: Path,
    tmp_path: Path,
) -> None:
    with golden.opened(archive, tmp_path) as (server, facts):
        check_tables(server)
        check_messages(server)
        check_progress(server, tmp_path)
        check_what_waited(server, facts)
        check_users(server)


def check_tables(server: str) -> None:
    with ogive.Admin(client=golden.client(server)) as admin:
        topics = {topic.name: topic.read_queues for topic in admin.topics()}
        assert topics.items() >= {"Orders": 2, "Payments": 1, "Whole": 1, "Fixed": 3}.items()
        assert admin.topic("Orders").message_type == "MIXED"
        assert admin.topic("Whole").whole_batches
        assert [row.perm for row in admin.topic("Fixed").brokers] == ["r"]
        assert admin.group("billing").max_retries == 3
        assert not admin.group("closed").enabled


def check_messages(server: str) -> None:
    orders = [message for message in golden.held(server, "Orders") if message.queue.queue_id == 0]
    assert [message.body for message in orders] == list(golden.BODIES)
    for number, message in enumerate(orders):
        assert message.tag == ("odd" if number % 2 else "even")
        assert message.keys == (f"key-{number}", "all")
        assert message.properties["number"] == str(number)
    with ogive.Admin(client=golden.client(server)) as admin:
        assert [found.id for found in admin.messages("Orders", key="key-3")] == [orders[3].id]
        assert len(admin.messages("Orders", key="all")) == len(orders)
    assert [message.body for message in golden.held(server, "Whole")] == [b"one", b"two", b"three"]


def check_users(server: str) -> None:
    with ogive.Admin(client=golden.client(server)) as admin:
        users = {user.name: user.super_user for user in admin.users()}
        assert users == {golden.ROOT.access_key: True, golden.ANN.access_key: False}
    with ogive.Producer(client=golden.client(server, golden.ANN)) as producer:
        place = golden.queue("Orders", 1)
        assert producer.send("Orders", b"by ann", queue=place).status is ogive.SendStatus.SEND_OK
        with pytest.raises(ogive.NoPermission):
            producer.send("Payments", b"by ann")


def check_progress(server: str, folder: Path) -> None:
    bodies: list[bytes] = []
    tries: list[tuple[bytes, int]] = []

    @ogive.listener("Orders", group="billing", start="latest")
    def bill(message: ogive.MessageExt) -> None:
        bodies.append(message.body)

    @ogive.listener("Orders", group="failing", start="latest")
    def fail(message: ogive.MessageExt) -> None:
        tries.append((message.body, message.reconsume_times))

    with ogive.Admin(client=golden.client(server)) as admin:
        (letter,) = admin.dead_letters("failing")
        assert letter.body == b"text"
    expected = list(golden.BODIES[golden.CONSUMED :])
    with ogive.PushConsumer(bill, fail, client=golden.client(server)):
        golden.wait_until(lambda: len(bodies) >= len(expected), f"billing goes on: {bodies}")
        golden.wait_until(lambda: (b"\x00\xff", 1) in tries, f"the retry comes: {tries}")
    assert sorted(bodies) == sorted(expected)
    rest = sorted([*golden.SECOND, *golden.THIRD] * len(golden.QUEUES))
    assert golden.broadcast(server, folder / "offsets", len(rest)) == rest


def check_what_waited(server: str, facts: dict[str, Any]) -> None:
    def bodies() -> Counter[bytes]:
        return Counter(message.body for message in golden.held(server, "Payments"))

    client = golden.client(server)
    with ogive.Producer(client=client, group="payments", check=lambda _: True) as producer:
        expected = {b"committed": 1, b"by level": 1, b"by time": 1, b"left open": 1}
        golden.wait_until(lambda: bodies() == expected, f"what was due: {bodies()}")
        recalled = producer.recall("Payments", facts["far_handle"])
        assert (recalled.id, recalled.recalled) == (facts["far"], True)
