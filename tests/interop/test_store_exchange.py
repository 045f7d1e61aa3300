"""A store that one broker wrote opens in the other: every message is served from its place, keys
are found, groups go on where they were, and what waits for its time comes.

Apache's broker is started with the apache-broker.conf that ours wrote into the directory.
"""

import asyncio
import re
import time
from collections.abc import Callable
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.store import MessageStore, StoreConfig
from ogive.store.consumequeue import ENTRY
from ogive.store.types import APACHE_CONF
from ogive.store.verify import verify
from ogive.wire import java_json
from ogive.wire.bodies.json_fields import dumps, loads_object
from ogive.wire.codes import RequestCode
from tests.interop import apache
from tests.interop.apache import VERSION, Apache
from tests.peers import RunningBroker, our_broker
from tests.raw_client import RawClient, messages

pytestmark = [pytest.mark.waits(30), pytest.mark.alone]


ends = pytest.mark.parametrize(
    "end",
    [
        pytest.param(methodcaller("stop"), id="stopped", marks=pytest.mark.nightly),
        pytest.param(methodcaller("kill"), id="killed"),
    ],
)

LEVELS = "1s 2s 30s " + " ".join(["1s"] * 15)
# the level of a message that is due after the exchange
LATE = 3
WAIT_S = 60.0


def fill(name_server: str) -> None:
    """Every way to store a message; group "early" has consumed what was there before the last ten
    were sent.
    """
    apache.send(name_server, "Plain", 50, tags="a,b")
    apache.send(name_server, "Ordered", 50, mode="orderly", binary_headers=True)
    apache.send(name_server, "Batched", 50, mode="batch")
    apache.send(name_server, "Large", 5, size=100_000)
    apache.consume(name_server, "Plain", "early", 50)
    apache.send(name_server, "Plain", 10, first=50)


def everything(name_server: str, group: str) -> set[tuple[Any, ...]]:
    """Place, id, tag, key and body of each message that *fill* sent."""
    lines = apache.consume(name_server, "Plain,Ordered,Batched,Large", group, 60 + 50 + 50 + 5)
    found = {
        (
            line["topic"],
            line["queueId"],
            line["queueOffset"],
            line["id"],
            line.get("tags"),
            line["keys"],
            line["body"],
        )
        for line in lines
    }
    assert len(found) == len(lines)
    return found


def by_key(name_server: str) -> set[str]:
    """The bodies under keys of all ways to send, and under a unique key, from the broker's index;
    it follows the log by a moment.
    """
    ends_at = time.monotonic() + WAIT_S
    with ogive.Admin(name_server) as admin:
        while True:
            found = [
                m
                for topic in ("Plain", "Ordered", "Batched")
                for m in admin.messages(topic, key="key-7")
            ]
            if len(found) == 3 or time.monotonic() > ends_at:
                break
            time.sleep(0.2)
        return {f"{m.topic} {m.body.decode()}" for m in found} | {
            admin.message(m.id, topic=m.topic).body.decode() for m in found
        }


KEYED = {"Plain message 7", "Ordered message 7", "Batched message 7", "message 7"}


def continued(name_server: str) -> set[str]:
    """What group "early" gets next."""
    return {line["body"] for line in apache.consume(name_server, "Plain", "early", 10)}


def delayed(name_server: str) -> set[str]:
    """The late messages, each when its time has come."""
    return {line["body"] for line in apache.consume(name_server, "Late", "patient", 3)}


def send_late(name_server: str) -> int:
    """What is due after the exchange; sent last, for programs take their time to start.

    Returns how many came too soon for that.
    """
    apache.send(name_server, "Late", 3, delay=LATE)
    with ogive.Admin(name_server) as admin:
        return len(admin.messages("Late"))


def wait_until_saved(data: Path) -> None:
    """Brokers save progress every few seconds; a kill before that would take it back."""

    def saved() -> bool:
        file = data / "config" / "consumerOffset.json"
        table = java_json.loads(file.read_text()) if file.exists() else {}
        return bool(sum(table.get("offsetTable", {}).get("Plain@early", {}).values()) == 50)

    ends_at = time.monotonic() + WAIT_S
    while not saved():
        assert time.monotonic() < ends_at, "the progress was not saved"
        time.sleep(0.2)


def new_apache(
    folder: Path, version: str = VERSION, *, levels: str = LEVELS, **more: str
) -> Apache:
    """With the settings that ours left in the store, or, where it has none yet, with other sizes
    than ours has; and with *more*.
    """
    file = folder / "store" / APACHE_CONF
    settings = {
        "messageDelayLevel": levels,
        "mappedFileSizeCommitLog": str(32 * 1024 * 1024),
        "mappedFileSizeConsumeQueue": "2000000",
        "mapperFileSizeBatchConsumeQueue": "4600000",
        "maxHashSlotNum": "10000",
        "maxIndexNum": "40000",
    }
    if file.exists():
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        settings = dict(line.split("=", 1) for line in lines)
        assert settings["storePathRootDir"] == str(folder / "store")
    return Apache(folder, settings | more, version=version)


def check_files(data: Path, ours: str) -> None:
    """Ours finds nothing to complain about: a look at the directory with the sizes that Apache's
    broker was started with.
    """
    store = MessageStore.open(StoreConfig(root=data))
    try:
        assert store.stats().damaged == 0, ours
    finally:
        store.close()


@ends
def test_apache_opens_our_store_and_we_open_it_again(
    tmp_path: Path, end: Callable[[RunningBroker], None]
) -> None:
    with our_broker(tmp_path, delay_levels=LEVELS) as ours:
        fill(ours.name_server)
        written = everything(ours.name_server, "ours")
        assert by_key(ours.name_server) == KEYED
        wait_until_saved(ours.data)
        early = send_late(ours.name_server)
        end(ours)
    with new_apache(tmp_path) as theirs:
        assert by_key(theirs.name_server) == KEYED
        assert everything(theirs.name_server, "theirs") == written
        assert continued(theirs.name_server) == {f"message {index}" for index in range(50, 60)}
        assert delayed(theirs.name_server) == {"message 0", "message 1", "message 2"}
        assert early == 0, (
            "the machine was too slow for this test: what should be delivered late was there "
            "before the exchange"
        )
        apache.send(theirs.name_server, "Plain", 4, first=60)
        end(theirs)
    with our_broker(tmp_path, delay_levels=LEVELS) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 64)) == 64
        assert by_key(again.name_server) == KEYED


@ends
def test_we_open_apaches_store_and_apache_opens_it_again(
    tmp_path: Path, end: Callable[[RunningBroker], None]
) -> None:
    with new_apache(tmp_path) as theirs:
        fill(theirs.name_server)
        written = everything(theirs.name_server, "theirs")
        wait_until_saved(theirs.data)
        early = send_late(theirs.name_server)
        end(theirs)
    with our_broker(tmp_path, delay_levels=LEVELS) as ours:
        assert by_key(ours.name_server) == KEYED
        assert everything(ours.name_server, "ours") == written
        assert continued(ours.name_server) == {f"message {index}" for index in range(50, 60)}
        assert delayed(ours.name_server) == {"message 0", "message 1", "message 2"}
        assert early == 0, (
            "the machine was too slow for this test: what should be delivered late was there "
            "before the exchange"
        )
        apache.send(ours.name_server, "Plain", 4, first=60)
        end(ours)
    with new_apache(tmp_path) as again:
        assert len(apache.consume(again.name_server, "Plain", "again", 64)) == 64
        assert by_key(again.name_server) == KEYED
    check_files(tmp_path / "store", "what Apache's broker left")


async def ids_sent(address: str, count: int, first: int) -> set[str]:
    """Unique keys that were acknowledged; the answer to the last one is the end."""
    async with await RawClient.open(address) as client:
        keys = {f"{number:032X}": number for number in range(first, first + count)}
        for key, number in keys.items():
            await client.send("Plain", b"m%d" % number, {"UNIQ_KEY": key}, queue=number % 4)
        return set(keys)


async def ids_held(address: str) -> set[str]:
    async with await RawClient.open(address) as client:
        found: set[str] = set()
        for queue in range(4):
            offset, end = (
                0,
                int(
                    (
                        await client.call(RequestCode.GET_MAX_OFFSET, topic="Plain", queueId=queue)
                    ).ext_fields["offset"]
                ),
            )
            while offset < end:
                answer = await client.pull("looker", "Plain", offset, queue=queue)
                offset = int(answer.ext_fields["nextBeginOffset"])
                found.update(message.properties["UNIQ_KEY"] for message in messages(answer))
        return found


@pytest.mark.parametrize("release", [VERSION, "4.9.7"])
@ends
def test_what_apache_acknowledged_in_our_store_outlives_its_kill(
    tmp_path: Path, release: str, end: Callable[[RunningBroker], None]
) -> None:
    """At once: its checkpoint is not written by then, nor, where ours was stopped, another one than
    ours.
    """
    with our_broker(tmp_path) as ours:
        sent = asyncio.run(ids_sent(ours.address, 60, 0))
        end(ours)
    with new_apache(tmp_path, release) as theirs:
        sent |= asyncio.run(ids_sent(theirs.address, 20, 60))
        theirs.kill()
    with our_broker(tmp_path) as again:
        assert asyncio.run(ids_held(again.address)) == sent
        sent |= asyncio.run(ids_sent(again.address, 4, 80))
        again.kill()
    with our_broker(tmp_path) as again:
        assert asyncio.run(ids_held(again.address)) == sent
    assert verify(tmp_path / "store").problems == []


@pytest.mark.parametrize("release", [VERSION, "4.9.7"])
def test_messages_of_apache_s_batches_are_found_by_their_ids(tmp_path: Path, release: str) -> None:
    """4.9 stores two unique keys with each, and shows the second one, that of the batch."""
    with new_apache(tmp_path, release) as theirs:
        apache.send(theirs.name_server, "Batched", 20, mode="batch")
        theirs.stop()
    with our_broker(tmp_path) as ours, ogive.Admin(ours.name_server) as admin:
        found = admin.messages("Batched", limit=64)
        assert len(found) == 20
        for message in found:
            assert admin.message(message.id, topic="Batched").id == message.id


GROUP = {
    "groupName": "Full",
    "consumeMessageOrderly": True,
    "consumeTimeoutMinute": 20,
    "groupRetryPolicy": {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 5000, "max": 60_000, "multiplier": 3},
    },
    "groupSysFlag": 3,
    "retryMaxTimes": 5,
    "retryQueueNums": 2,
    "subscriptionDataSet": [
        {"topic": "T", "expressionType": "TAG", "expression": "a", "version": 7}
    ],
}
"""What only brokers of 5.x have is among it."""


def set_group(address: str, attributes: dict[str, str]) -> dict[str, Any]:
    """Asks for GROUP with these changes of its attributes; returns what the broker shows of it
    then.
    """

    async def ask() -> dict[str, Any]:
        async with await RawClient.open(address) as client:
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                dumps(GROUP | {"attributes": attributes}),
            )
            return loads_object(
                (await client.ok(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="Full")).body
            )

    return asyncio.run(ask())


def test_every_setting_of_a_group_goes_from_apache_to_ours_and_back(tmp_path: Path) -> None:
    with new_apache(tmp_path) as theirs:
        shown = set_group(theirs.address, {"+priority.factor": "30", "+lite.sub.model": "Shared"})
        assert shown == shown | GROUP | {
            "attributes": {"priority.factor": "30", "lite.sub.model": "Shared"}
        }
        theirs.stop()
    with our_broker(tmp_path) as ours:
        assert set_group(ours.address, {"+priority.factor": "40"}) == shown | {
            "attributes": shown["attributes"] | {"priority.factor": "40"}
        }
        ours.kill()
    with new_apache(tmp_path) as again:
        assert set_group(again.address, {"-lite.sub.model": ""}) == shown | {
            "attributes": {"priority.factor": "40"}
        }
        (config,) = apache.admin(again.name_server, "getConsumerConfig -g Full")
        assert re.search(r"retryMaxTimes += +5\b", config)


EXTENSION = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}


def filtered(name_server: str, group: str, count: int) -> list[str]:
    """The bodies of tag "a", which the broker chooses by its queues, and as many by SQL92."""
    lines = apache.consume(name_server, "Plain", group, count, expression="a")
    assert {line["tags"] for line in lines} == {"a"}
    by_sql = apache.consume(name_server, "Plain", f"{group}-sql", count, sql="TAGS = 'a'")
    assert sorted(line["body"] for line in by_sql) == sorted(line["body"] for line in lines)
    return [line["body"] for line in lines]


def addresses(data: Path) -> int:
    """Entries of Plain's queues with an address in the extension's files in the place of the tag's
    hash.
    """
    files = [path.read_bytes() for path in (data / "consumequeue" / "Plain").glob("*/*")]
    return sum(
        code < -(2**31) for file in files for _, size, code in ENTRY.iter_unpack(file) if size
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_queues_with_extension_files_go_to_ours_and_back(tmp_path: Path) -> None:
    """Apache's enableConsumeQueueExt.

    Ours makes the queues again, without addresses; Apache's uses its extension for what it gets
    then.
    """
    even = {f"message {index}" for index in range(0, 60, 2)}
    with new_apache(tmp_path, **EXTENSION) as theirs:
        apache.send(theirs.name_server, "Plain", 40, tags="a,b")
        apache.send(theirs.name_server, "Late", 3, delay=LATE)
        theirs.stop()
    assert addresses(tmp_path / "store") == 40
    assert not [
        problem
        for problem in verify(tmp_path / "store").problems
        if "does not say what the log says" in problem
    ]
    with our_broker(tmp_path, delay_levels=LEVELS) as ours:
        assert set(filtered(ours.name_server, "ours", 20)) == even - {
            f"message {index}" for index in range(40, 60)
        }
        apache.send(ours.name_server, "Plain", 10, first=40, tags="a,b")
        assert delayed(ours.name_server) == {"message 0", "message 1", "message 2"}
        ours.stop()
    assert addresses(tmp_path / "store") == 0
    with new_apache(tmp_path, **EXTENSION) as again:
        apache.send(again.name_server, "Plain", 10, first=50, tags="a,b")
        assert set(filtered(again.name_server, "theirs", 30)) == even
        assert addresses(tmp_path / "store") == 10
