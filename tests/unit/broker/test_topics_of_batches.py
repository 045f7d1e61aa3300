"""Topics of batches (queue.type=BatchCQ) over a socket: which batches are one record, how they are
answered, what such a topic takes.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import Broker
from ogive.errors import ResponseCode
from ogive.model import MessageExt
from ogive.store.types import NewMessage
from ogive.store.verify import repair, verify
from ogive.wire.codes import RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.message import (
    MAX_BATCH_MESSAGES,
    MAX_INNER_MESSAGES,
    WRAPPED,
    BatchItem,
    decode_some,
    encode_batch,
    encode_properties,
)
from tests.raw_client import RawClient, messages
from tests.unit.broker.conftest import StartBroker

B = "Batches"


async def create(
    client: RawClient, topic: str = B, attributes: str = "+queue.type=BatchCQ"
) -> RemotingCommand:
    return await client.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        topic=topic,
        defaultTopic="TBW102",
        readQueueNums=1,
        writeQueueNums=1,
        perm=6,
        topicFilterType="SINGLE_TAG",
        topicSysFlag=0,
        order=False,
        attributes=attributes,
    )


@pytest.fixture
async def client(server: Broker) -> AsyncIterator[RawClient]:
    """Where the topic is there."""
    async with await RawClient.open(server.address) as client:
        assert (await create(client)).code == ResponseCode.SUCCESS
        yield client


async def records(client: RawClient, topic: str = B) -> list[MessageExt]:
    """As they stand in the log."""
    return messages(await client.pull("looker", topic, 0))


def places(found: list[MessageExt]) -> list[tuple[int, bytes]]:
    return [(message.queue_offset, message.body) for message in found]


async def contents(client: RawClient, topic: str = B) -> list[tuple[int, bytes]]:
    """Message by message."""
    return places(decode_some((await client.pull("looker", topic, 0)).body)[0])


async def test_a_batch_with_a_key_of_its_own_is_one_record(client: RawClient) -> None:
    first = await client.send_batch(B, [b"0", b"1", b"2"], UNIQ_KEY="BATCH1", WAIT="true")
    await client.send(B, b"3")
    last = await client.send_batch(B, [b"4", b"5"], UNIQ_KEY="BATCH2")
    one, single, two = await records(client)
    assert first.ext_fields == {
        "queueId": "0",
        "queueOffset": "0",
        "msgId": one.offset_id,
        "transactionId": "BATCH1",
        "batchUniqId": "BATCH1",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
    }
    assert (last.ext_fields["queueOffset"], last.ext_fields["msgId"]) == ("4", two.offset_id)
    added = {
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "INNER_NUM": "3",
        "INNER_BASE": "0",
    }
    assert {name: value for name, value in one.properties.items() if name != "__CRC32#"} == {
        "UNIQ_KEY": "BATCH1",
        "WAIT": "true",
    } | added
    assert [(record.queue_offset, record.sys_flag & WRAPPED) for record in (one, single, two)] == [
        (0, WRAPPED),
        (3, 0),
        (4, WRAPPED),
    ]
    assert await contents(client) == [(n, b"%d" % n) for n in range(6)]


async def test_a_batch_without_a_key_of_its_own_is_as_many_records(client: RawClient) -> None:
    answer = await client.send_batch(B, [b"0", b"1"])
    found = await records(client)
    assert (answer.ext_fields["msgId"], answer.ext_fields.get("batchUniqId")) == (
        ",".join(each.offset_id for each in found),
        None,
    )
    assert [(each.queue_offset, each.sys_flag & WRAPPED) for each in found] == [(0, 0), (1, 0)]


async def test_a_batch_for_any_other_topic_is_as_many_records(client: RawClient) -> None:
    await create(client, "T", "")
    answer = await client.send_batch("T", [b"0", b"1"], UNIQ_KEY="BATCH1")
    assert (answer.ext_fields["transactionId"], answer.ext_fields.get("batchUniqId")) == (
        "BATCH1",
        None,
    )
    assert places(await records(client, "T")) == [(0, b"0"), (1, b"1")]


async def test_a_one_way_batch_is_stored_whole_and_not_answered(client: RawClient) -> None:
    client.oneway(
        320,
        encode_batch([BatchItem(0, b"0", b"")] * 2),
        **(client.send_fields(B, 0, "UNIQ_KEY\x01A\x02") | {"m": True}),
    )
    assert (await client.send(B, b"x")).ext_fields["queueOffset"] == "2"


@pytest.mark.parametrize(
    "own",
    [{"DELAY": "3"}, {"TRAN_MSG": "true"}, {"TIMER_DELAY_SEC": "3"}, {"TIMER_DELIVER_MS": "3"}],
)
async def test_a_whole_batch_is_neither_delayed_nor_transactional(
    client: RawClient, own: dict[str, Any]
) -> None:
    """Apache's broker refuses it, too: where it would have to wait is no topic of batches."""
    assert (
        await client.send_batch(B, [b"0"], UNIQ_KEY="A", **own)
    ).code == ResponseCode.MESSAGE_ILLEGAL
    assert (await client.pull("looker", B, 0)).code == ResponseCode.PULL_NOT_FOUND


async def test_counts_are_the_broker_s(client: RawClient) -> None:
    """What a client says of them is passed over."""
    await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A", INNER_NUM="40000", INNER_BASE="7")
    (record,) = await records(client)
    assert (record.properties["INNER_NUM"], record.properties["INNER_BASE"]) == ("2", "0")


async def test_a_record_has_no_more_messages_than_a_short_can_say(client: RawClient) -> None:
    """That is what Apache's broker keeps the count in.

    Any other batch has the limit of all topics.
    """
    over = [(MAX_INNER_MESSAGES + 1, {"UNIQ_KEY": "A"}), (MAX_BATCH_MESSAGES + 1, {})]
    for count, own in over:
        body = encode_batch([BatchItem(0, b"", b"")] * count)
        fields = client.send_fields(B, 0, encode_properties(own).decode()) | {"m": True}
        refused = await client.call(320, body, **fields)
        assert (refused.code != ResponseCode.SUCCESS, "more than" in (refused.remark or "")) == (
            True,
            True,
        )
    most = encode_batch([BatchItem(0, b"", b"")] * MAX_INNER_MESSAGES)
    stored = await client.ok(
        320, most, **(client.send_fields(B, 0, "UNIQ_KEY\x01A\x02") | {"m": True})
    )
    assert (stored.ext_fields["queueOffset"], (await client.send(B)).ext_fields["queueOffset"]) == (
        "0",
        str(MAX_INNER_MESSAGES),
    )
    inside = await client.pull("looker", B, 20_000, count=1)
    assert inside.ext_fields["nextBeginOffset"] == str(MAX_INNER_MESSAGES)
    assert len(decode_some(inside.body)[0]) == MAX_INNER_MESSAGES


async def test_single_messages_may_not_say_that_they_are_batches(client: RawClient) -> None:
    for flags, properties in (
        (WRAPPED, {"INNER_NUM": "1", "UNIQ_KEY": "A"}),
        (0, {"INNER_NUM": "1", "UNIQ_KEY": "A"}),
    ):
        body = encode_batch([BatchItem(0, b"0", b"")])
        assert (
            await client.start_send(B, body, properties, f=int(flags))
        ).code == ResponseCode.MESSAGE_ILLEGAL
    fields = client.send_fields(B, 0, "UNIQ_KEY\x01A\x02") | {
        "m": True,
        "f": int(SysFlag.COMPRESSED),
    }
    answer = await client.call(320, encode_batch([BatchItem(0, b"0", b"")]), **fields)
    assert (answer.code, "compressed" in (answer.remark or "")) == (
        ResponseCode.MESSAGE_ILLEGAL,
        True,
    )


async def test_a_held_pull_gets_the_batch_that_arrives(client: RawClient) -> None:
    held = client.start_pull("looker", B, 0, suspend_ms=15_000)
    await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
    answer = await held
    assert (answer.ext_fields["nextBeginOffset"], answer.ext_fields["maxOffset"]) == ("2", "2")
    inside = await client.pull("looker", B, 1, count=1)
    assert (inside.body, inside.ext_fields["nextBeginOffset"]) == (answer.body, "2")


async def test_what_waits_elsewhere_first_comes_as_single_messages(client: RawClient) -> None:
    """Delayed and transactional messages are ordinary ones when they reach the topic."""
    await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
    await client.send(B, b"late", {"UNIQ_KEY": "L", "TIMER_DELAY_MS": "1"})
    assert places(messages(await client.pull("looker", B, 2, suspend_ms=15_000))) == [(2, b"late")]
    half = await client.send(
        B, b"paid", {"UNIQ_KEY": "H", "TRAN_MSG": "true", "PGROUP": "raw-producer"}, f=4
    )
    found = await client.ok(
        RequestCode.VIEW_MESSAGE_BY_ID, offset=int(half.ext_fields["msgId"][16:], 16)
    )
    (stored,) = decode_some(found.body)[0]
    await client.ok(
        RequestCode.END_TRANSACTION,
        producerGroup="raw-producer",
        tranStateTableOffset=stored.queue_offset,
        commitLogOffset=stored.commitlog_offset,
        commitOrRollback=8,
        fromTransactionCheck=False,
        msgId="H",
        transactionId="H",
    )
    assert places(messages(await client.pull("looker", B, 3, suspend_ms=15_000))) == [(3, b"paid")]


async def test_a_message_of_a_batch_is_not_sent_back_with_all_others(client: RawClient) -> None:
    """Java's client then sends it to the retry topic, as it does with Apache's broker."""
    await client.heartbeat("c1", "G", B)
    await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
    (record,) = await records(client)
    answer = await client.call(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        offset=record.commitlog_offset,
        group="G",
        delayLevel=0,
        originMsgId=record.id,
        originTopic=B,
    )
    assert (answer.code, "send the message to %RETRY%G instead" in (answer.remark or "")) == (
        ResponseCode.SYSTEM_ERROR,
        True,
    )


async def test_a_repeated_batch_is_known_by_its_key_and_body(start_broker: StartBroker) -> None:
    items = encode_batch(
        BatchItem(0, body, encode_properties({"UNIQ_KEY": body.decode()})) for body in (b"0", b"1")
    )
    for _ in range(2):
        server = await start_broker(duplicate_window_s=600.0)
        async with await RawClient.open(server.address) as client:
            await create(client)
            fields = client.send_fields(B, 0, "UNIQ_KEY\x01A\x02") | {"m": True}
            answers = [await client.call(320, items, **fields) for _ in range(2)]
            assert [(answer.code, answer.ext_fields["queueOffset"]) for answer in answers] == [
                (0, "0")
            ] * 2
            assert await contents(client) == [(0, b"0"), (1, b"1")]
        await server.stop()


async def test_offsets_times_and_entries_over_the_wire(client: RawClient) -> None:
    await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
    await client.send_batch(B, [b"2", b"3", b"4"], UNIQ_KEY="B")
    bounds = [
        await client.ok(code, topic=B, queueId=0)
        for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    ]
    assert [answer.ext_fields["offset"] for answer in bounds] == ["0", "5"]
    by_time = await client.ok(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, topic=B, queueId=0, timestamp=0
    )
    assert by_time.ext_fields["offset"] == "0"
    entries = await client.ok(
        RequestCode.QUERY_CONSUME_QUEUE, topic=B, queueId=0, index=1, count=10
    )
    assert entries.body.count(b"physicOffset") == 2


async def test_the_type_is_decided_when_the_topic_is_made(
    client: RawClient, server: Broker
) -> None:
    await create(client, "T", "")
    assert (await create(client, "T")).code == ResponseCode.INVALID_PARAMETER
    assert (await create(client, B, "+queue.type=SimpleCQ")).code == ResponseCode.INVALID_PARAMETER
    assert (await create(client, B, "-queue.type")).code == ResponseCode.INVALID_PARAMETER
    assert (await create(client, B, "+message.type=NORMAL")).code == ResponseCode.SUCCESS
    for attributes, count in (("", 2), ("+queue.type=BatchCQ", 1)):
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic=B)
        assert (await create(client, B, attributes)).code == ResponseCode.SUCCESS
        await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
        assert len(await records(client)) == count
        assert await contents(client) == [(0, b"0"), (1, b"1")]


async def test_it_is_there_after_a_restart(start_broker: StartBroker, tmp_path: Path) -> None:
    sent = 0
    for _ in range(3):
        server = await start_broker()
        async with await RawClient.open(server.address) as client:
            await create(client)
            await client.send_batch(B, [b"%d" % n for n in range(sent, sent + 3)], UNIQ_KEY="A")
            sent += 3
            assert await contents(client) == [(n, b"%d" % n) for n in range(sent)]
        await server.stop()
    assert verify(tmp_path / "store").problems == []
    assert (
        "mapperFileSizeBatchConsumeQueue=13800000"
        in (tmp_path / "store" / "apache-broker.conf").read_text()
    )


async def test_what_a_table_s_backup_does_not_know_is_made_again_as_what_it_was(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As an ordinary topic it would begin empty; of a topic that got more queues, the last ones
    would be out of reach.
    """
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("Grown", b"x")
        await create(client)
        await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
        backup = (tmp_path / "store" / "config" / "topics.json").read_bytes()
        rows = json.loads(backup)["topicConfigTable"]
        await server.context.topics.saved()
    await server.stop()
    del rows[B]
    rows["Grown"]["readQueueNums"] = 0
    (tmp_path / "store" / "config" / "topics.json").unlink()
    (tmp_path / "store" / "config" / "topics.json.bak").write_text(
        json.dumps({"topicConfigTable": rows})
    )
    report = verify(tmp_path / "store")
    assert any(
        "its backup does not have all: nobody is served the messages of Batches and 1 more" in found
        for found in report.problems
    )
    server = await start_broker()
    assert "the topic table is lost, and its backup is older: 2 topics are recreated" in caplog.text
    assert server.context.topics.all()["Grown"].read_queues == 1
    async with await RawClient.open(server.address) as client:
        await client.send_batch(B, [b"2", b"3"], UNIQ_KEY="B")
        assert len(await records(client)) == 2
        assert await contents(client) == [(n, b"%d" % n) for n in range(4)]
    await server.stop()
    assert verify(tmp_path / "store").problems == []


@pytest.mark.parametrize("by", ["a start", "a repair"])
async def test_topics_of_what_still_waits_are_made_again(
    start_broker: StartBroker, tmp_path: Path, by: str
) -> None:
    """When it is due it goes to a topic that somebody is served from; a topic that was deleted
    meanwhile stays away.
    """
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("Delayed", b"x", {"DELAY": "18"}, queue=1)
        await client.send("Timed", b"x", {"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": "A"})
        await client.send("Gone", b"x", {"DELAY": "18"})
        await client.send("Gone", b"x")
        await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Gone")
    await server.stop()
    for path in (tmp_path / "store" / "config").glob("topics.json*"):
        path.unlink()
    assert any(
        "nobody is served the messages of Delayed and 1 more" in found
        for found in verify(tmp_path / "store").problems
    )
    if by == "a repair":
        assert repair(tmp_path / "store")[1].problems == []
    server = await start_broker()
    topics = server.context.topics.all()
    assert {name: topics[name].read_queues for name in ("Delayed", "Timed")} == {
        "Delayed": 2,
        "Timed": 1,
    }
    assert "Gone" not in topics
    await server.stop()
    assert verify(tmp_path / "store").problems == []


async def test_messages_that_came_after_their_topic_was_deleted_are_noted(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    server = await start_broker()
    server.context.store.put([NewMessage("Late", 0, b"x", b"")], lambda _: None)
    await server.stop()
    report = verify(tmp_path / "store")
    assert (report.problems, len(report.notes)) == ([], 1)
    assert report.notes[0].startswith(
        "no topic has the messages of Late: they came after it was deleted"
    )


async def test_a_table_whose_version_is_no_number_starts(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"x")
    await server.stop()
    path = tmp_path / "store" / "config" / "topics.json"
    table = json.loads(path.read_text())
    table["dataVersion"]["timestamp"] = "noon"
    path.write_text(json.dumps(table))
    server = await start_broker()
    assert "T" in server.context.topics
    assert "topics file: invalid data version, replaced by a new one" in caplog.text
    await server.stop()


async def test_topics_are_made_again_where_no_table_is_left(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await create(client)
        await client.send_batch(B, [b"0", b"1"], UNIQ_KEY="A")
        await client.send("Plain", b"x", queue=2)
    await server.stop()
    for path in (tmp_path / "store" / "config").glob("topics.json*"):
        path.unlink()
    server = await start_broker()
    assert (
        "the topic table is lost, and its backup: 2 topics are recreated from the log, for example"
        in caplog.text
    )
    topics = server.context.topics.all()
    assert [(topics[name].write_queues, topics[name].attributes) for name in (B, "Plain")] == [
        (1, {"queue.type": "BatchCQ"}),
        (3, {}),
    ]
    async with await RawClient.open(server.address) as client:
        assert await contents(client) == [(0, b"0"), (1, b"1")]
    await server.stop()
    assert verify(tmp_path / "store").problems == []
