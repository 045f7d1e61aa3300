"""Transactions over a socket: half messages, their ends, and the broker's questions.

Periods are scaled down by configuration.
"""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from ogive.access.user_table import AccessTable
from ogive.broker import Broker, startup
from ogive.broker.off_loop_reads import MAX_TRIES
from ogive.broker.startup import transaction_checks
from ogive.broker.transactions.checks import KEEPS, RETURN_S
from ogive.broker.transactions.state import ReadyMessages
from ogive.errors import ResponseCode, StoreError
from ogive.model import CHECKED_TOO_OFTEN_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, MessageExt
from ogive.store.clock import now_ms
from ogive.store.file_reader import Cold
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User
from ogive.wire.bodies.clients import HeartbeatData
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.codes import Decision, Flag, RequestCode, SysFlag
from ogive.wire.command import RemotingCommand
from ogive.wire.message import (
    MAX_PROPERTIES_BYTES,
    decode_messages,
    encode_properties,
    parse_offset_message_id,
)
from ogive.wire.signing import Credentials
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker.conftest import StartBroker

QUICK = {"transaction_timeout_s": 0.001, "transaction_check_interval_s": 0.02}
HOUR_S = 3600.0
HOUR_MS = 3_600_000
END = RequestCode.END_TRANSACTION
CHECK = RequestCode.CHECK_TRANSACTION_STATE


async def send_half(
    client: RawClient, body: bytes = b"paid", topic: str = "T", queue: int = 2, **own: str
) -> dict[str, str]:
    properties = {"UNIQ_KEY": unique_key(), "TAGS": "a", "TRAN_MSG": "true", "PGROUP": "shop"} | own
    answer = await client.send(
        topic, body, properties, queue=queue, f=SysFlag.TRANSACTION_PREPARED, h=7
    )
    return answer.ext_fields


def ending(
    half: dict[str, str], decision: int = Decision.COMMIT, **changed: object
) -> dict[str, object]:
    fields: dict[str, object] = {
        "producerGroup": "shop",
        "tranStateTableOffset": half["queueOffset"],
        "commitLogOffset": parse_offset_message_id(half["msgId"])[1],
        "commitOrRollback": int(decision),
        "msgId": half["transactionId"],
        "transactionId": half["transactionId"],
    }
    return fields | changed


async def end(
    client: RawClient, half: dict[str, str], decision: int = Decision.COMMIT, **changed: object
) -> RemotingCommand:
    return await client.call(END, **ending(half, decision, **changed))


async def stored(client: RawClient, topic: str, queue: int = 0) -> list[MessageExt]:
    answer = await client.pull("looker", topic, 0, queue=queue)
    return [] if answer.code == ResponseCode.PULL_NOT_FOUND else messages(answer)


async def marks(client: RawClient, count: int) -> list[bytes]:
    """The places that are marked first."""
    found: list[bytes] = []
    offset = 0
    while len(found) < count:
        some = messages(await client.pull("looker", OP_HALF_TOPIC, offset, suspend_ms=15_000))
        found += [mark.body for mark in some]
        offset += len(some)
    return found


async def beat(client: RawClient, *groups: str) -> None:
    await client.ok(
        RequestCode.HEART_BEAT, HeartbeatData(client_id=f"p{id(client)}", producers=groups).encode()
    )


def answer_of(check: RemotingCommand) -> dict[str, str]:
    """A check's offsets in the form that a send's answer has."""
    fields = check.ext_fields
    return {
        "queueOffset": fields["tranStateTableOffset"],
        "msgId": fields["offsetMsgId"],
        "transactionId": fields["transactionId"],
    }


# --- half messages and their ends -----------------------------------------------------------------


async def test_a_half_message_waits_where_no_consumer_looks(client: RawClient) -> None:
    half = await send_half(client)
    assert await stored(client, "T", 2) == []
    [message] = await stored(client, HALF_TOPIC)
    assert (message.body, message.flag, message.sys_flag) == (b"paid", 7, 0)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "2")
    assert message.properties["__transactionId__"] == half["transactionId"] == message.id
    assert (half["queueId"], half["queueOffset"], half["msgId"]) == ("2", "0", message.offset_id)


@pytest.mark.parametrize(
    "own", [{}, {"REAL_TOPIC": "elsewhere", "zone": "a"}], ids=["plain", "with the broker's names"]
)
async def test_a_commit_is_answered_when_the_message_is_there(
    client: RawClient, own: dict[str, Any]
) -> None:
    half = await send_half(client, **own)
    assert (await end(client, half)).code == ResponseCode.SUCCESS
    [message] = await stored(client, "T", 2)
    [waiting] = await stored(client, HALF_TOPIC)
    assert (message.body, message.tag, message.flag, message.id) == (
        b"paid",
        "a",
        7,
        half["transactionId"],
    )
    assert message.sys_flag == SysFlag.TRANSACTION_COMMIT
    assert message.prepared_transaction_offset == waiting.commitlog_offset
    assert (message.born_timestamp_ms, message.born_host) == (
        waiting.born_timestamp_ms,
        waiting.born_host,
    )
    expected = {
        name: value
        for name, value in waiting.properties.items()
        if name not in ("REAL_TOPIC", "REAL_QID")
    }
    assert dict(message.properties) == expected
    [mark] = messages(await client.pull("looker", OP_HALF_TOPIC, 0, suspend_ms=15_000))
    assert (mark.body, mark.tag) == (b"0", "d")


async def test_a_rolled_back_message_is_only_marked(server: Broker, client: RawClient) -> None:
    await send_half(client)
    half = await send_half(client)
    assert (await end(client, half, Decision.ROLLBACK)).code == ResponseCode.SUCCESS
    assert await stored(client, "T", 2) == []
    assert [mark.body for mark in await stored(client, OP_HALF_TOPIC)] == [b"1"]
    assert len(server.context.transactions) == 1


async def test_a_oneway_end_counts_too(client: RawClient) -> None:
    half = await send_half(client)
    client.oneway(END, **ending(half))
    [message] = messages(await client.pull("looker", "T", 0, queue=2, suspend_ms=15_000))
    assert message.body == b"paid"


async def test_ending_twice_is_ending_once(client: RawClient) -> None:
    half = await send_half(client)
    both = [client.start(END, **ending(half)), client.start(END, **ending(half))]
    assert [(await one).code for one in both] == [ResponseCode.SUCCESS] * 2
    assert (await end(client, half)).code == ResponseCode.SUCCESS
    assert (await end(client, half, Decision.ROLLBACK)).code == ResponseCode.ILLEGAL_OPERATION
    assert len(await stored(client, "T", 2)) == 1
    assert await marks(client, 1) == [b"0"]


async def test_a_second_decision_that_differs_is_refused_while_the_first_is_carried_out(
    client: RawClient,
) -> None:
    half = await send_half(client)
    both = [client.start(END, **ending(half)), client.start(END, **ending(half, Decision.ROLLBACK))]
    assert [(await one).code for one in both] == [
        ResponseCode.SUCCESS,
        ResponseCode.ILLEGAL_OPERATION,
    ]
    assert len(await stored(client, "T", 2)) == 1


@pytest.mark.parametrize("decision", [Decision.COMMIT, Decision.ROLLBACK])
async def test_an_end_is_known_after_a_restart(
    start_broker: StartBroker, decision: Decision
) -> None:
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        open_one, half = await send_half(client), await send_half(client, b"other")
        await end(client, half, decision)
    await server.stop()
    server = await start_broker(port=0)
    assert len(server.context.transactions) == 1
    async with await RawClient.open(server.address) as client:
        again = await end(client, half)
        assert (again.code, "ended before" in (again.remark or "")) == (
            ResponseCode.ILLEGAL_OPERATION,
            True,
        )
        assert (await end(client, open_one)).code == ResponseCode.SUCCESS
        expected = [b"other", b"paid"] if decision is Decision.COMMIT else [b"paid"]
        assert [message.body for message in await stored(client, "T", 2)] == expected


async def test_a_half_message_that_was_sent_twice_is_one_transaction(
    server: Broker, client: RawClient
) -> None:
    key = unique_key()
    first = await send_half(client, UNIQ_KEY=key)
    second = await send_half(client, UNIQ_KEY=key)
    assert len(server.context.transactions) == 1
    assert (await end(client, second)).code == ResponseCode.SUCCESS
    assert (await end(client, first)).code == ResponseCode.SUCCESS
    assert await marks(client, 2) == [b"1", b"0"]
    late = await send_half(client, UNIQ_KEY=key)
    assert (await end(client, late)).code == ResponseCode.SUCCESS
    assert len(await stored(client, "T", 2)) == 1
    assert await marks(client, 3) == [b"1", b"0", b"2"]


@pytest.mark.parametrize("changed", [{"body": b"else"}, {"topic": "U"}, {"PGROUP": "market"}])
async def test_equal_keys_alone_do_not_make_two_transactions_one(
    server: Broker, client: RawClient, changed: dict[str, Any]
) -> None:
    """Clients in containers have been seen to give out equal keys."""
    key = unique_key()
    await send_half(client, UNIQ_KEY=key)
    await send_half(client, UNIQ_KEY=key, **changed)
    assert len(server.context.transactions) == 2


@pytest.mark.parametrize(
    ("changed", "remark"),
    [
        ({"commitLogOffset": 1}, "Find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 60}, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
        ({"producerGroup": "thief"}, "The producer group wrong"),
        ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
    ],
)
async def test_an_end_that_does_not_fit_its_half_message_is_refused(
    client: RawClient, changed: dict[str, Any], remark: str
) -> None:
    half = await send_half(client)
    answer = await end(client, half, **changed)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert await stored(client, "T", 2) == []


async def test_an_ordinary_message_cannot_be_committed(client: RawClient) -> None:
    sent = (await client.send("T", b"x", {"UNIQ_KEY": "AB", "PGROUP": "shop"})).ext_fields
    assert (await end(client, sent)).remark == "Find prepared transaction message failed"


@pytest.mark.parametrize(
    ("decision", "code"), [(Decision.UNKNOWN, ResponseCode.SUCCESS), (5, ResponseCode.SYSTEM_ERROR)]
)
async def test_unknown_changes_nothing_and_no_decision_is_refused(
    server: Broker, client: RawClient, decision: int, code: ResponseCode
) -> None:
    half = await send_half(client)
    assert (await end(client, half, decision)).code == code
    assert len(server.context.transactions) == 1
    assert await stored(client, OP_HALF_TOPIC) == []


async def test_a_consumers_second_try_of_a_committed_message_is_an_ordinary_message(
    server: Broker, client: RawClient
) -> None:
    await client.heartbeat("c", "G", "T")
    properties = {"UNIQ_KEY": "AB", "TRAN_MSG": "true", "PGROUP": "shop"}
    await client.send("%RETRY%G", b"again", properties, j=1)
    assert len(server.context.transactions) == 0
    assert [message.body for message in await stored(client, "%RETRY%G")] == [b"again"]


async def test_more_open_transactions_than_allowed_are_refused(start_broker: StartBroker) -> None:
    server = await start_broker(max_open_transactions=2)
    async with await RawClient.open(server.address) as client:
        half = await send_half(client)
        await send_half(client)
        properties = {"UNIQ_KEY": "AB", "TRAN_MSG": "true", "PGROUP": "shop"}
        assert (await client.start_send("T", b"x", properties)).code == ResponseCode.SYSTEM_BUSY
        await end(client, half, Decision.ROLLBACK)
        key = unique_key()
        await send_half(client, UNIQ_KEY=key)
        again = {"UNIQ_KEY": key, "TRAN_MSG": "true", "PGROUP": "shop"}
        assert (await client.start_send("T", b"paid", again)).code == ResponseCode.SYSTEM_BUSY


async def test_progress_needs_no_room_in_a_full_table_of_offsets(start_broker: StartBroker) -> None:
    """What has ended is not read again at every start, and a broker with a full table starts."""
    server = await start_broker(max_offsets=1)
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"x")
        await client.heartbeat("c", "G", "T")
        await client.ok(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="G",
            topic="T",
            queueId=0,
            commitOffset=0,
        )
        await end(client, await send_half(client))
        await marks(client, 1)
    await server.stop()
    server = await start_broker(max_offsets=1)
    assert server.context.offsets.get("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0) == 1
    await server.stop()
    server = await start_broker(max_offsets=1)
    assert (len(server.context.transactions), len(server.context.offsets)) == (0, 3)


# --- questions ------------------------------------------------------------------------------------


async def test_a_half_message_that_cannot_be_read_is_asked_about_when_it_can(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails to read decides nothing: the transaction stays open."""
    server = await start_broker(**QUICK)
    store = server.context.store
    refused: list[int] = []
    read = store.record_at

    def record_at(commitlog_offset: int) -> bytes | None:
        if len(refused) < 2:
            refused.append(commitlog_offset)
            raise StoreError("Input/output error")
        if len(refused) == 2:
            refused.append(commitlog_offset)
            raise Cold(server.config.data / "commitlog" / f"{0:020d}", commitlog_offset, 100)
        return read(commitlog_offset)

    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        monkeypatch.setattr(store, "record_at", record_at)
        await send_half(client)
        [message] = decode_messages((await client.next_request(CHECK)).body)
        assert (message.body, len(refused)) == (b"paid", 3)


async def test_an_end_waits_for_the_disk_where_it_stands_once_it_was_tried_too_often(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be so short that what was brought in is gone each time."""
    server = await start_broker()
    disk, tries = server.context.store._disk, []
    read = disk.read_log

    def gone(path: Path, size: int, offset: int) -> bytes:
        if not (disk.waits or disk.must_wait):
            tries.append(offset)
            if len(tries) > 2 * MAX_TRIES:
                raise OSError(errno.EIO, "tried without end")
            raise Cold(path, offset, size)
        return read(path, size, offset)

    async with await RawClient.open(server.address) as client:
        half = await send_half(client)
        monkeypatch.setattr(disk, "read_log", gone)
        monkeypatch.setattr(server.context.transactions, "_ready", ReadyMessages())
        for kept in (server.context.store._log.hot._chunks, server.context.store._log.hot._starts):
            kept.clear()
        assert (await end(client, half)).code == ResponseCode.SUCCESS
        bodies = [one.body for one in await stored(client, "T", 2)]
        # the first try, and one after each wait
        assert (len(tries), bodies) == (1 + MAX_TRIES, [b"paid"])


async def test_a_producer_is_asked_and_its_answer_counts(start_broker: StartBroker) -> None:
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "other", "shop")
        half = await send_half(client)
        check = await client.next_request(CHECK)
        assert check.flag & Flag.ONEWAY
        fields = check.ext_fields
        assert (fields["topic"], fields["msgId"], fields["transactionId"]) == (
            HALF_TOPIC,
            half["transactionId"],
            half["transactionId"],
        )
        assert fields["bname"] == "broker-a"
        [message] = decode_messages(check.body)
        assert (message.topic, message.queue.queue_id, message.body) == ("T", 2, b"paid")
        assert (str(message.queue_offset), message.offset_id) == (
            fields["tranStateTableOffset"],
            fields["offsetMsgId"],
        )
        assert (message.properties["TRANSACTION_CHECK_TIMES"], message.properties["PGROUP"]) == (
            "1",
            "shop",
        )
        assert parse_offset_message_id(fields["offsetMsgId"])[1] == int(fields["commitLogOffset"])
        answer = await end(client, answer_of(check), fromTransactionCheck=True)
        assert answer.code == ResponseCode.SUCCESS
        assert [one.body for one in await stored(client, "T", 2)] == [b"paid"]
        # on a slow machine it was asked again before it answered
        assert (await marks(client, 2))[:2] == [b"0", b"1"]


async def test_the_producers_own_end_counts_after_it_was_asked(start_broker: StartBroker) -> None:
    """The local transaction took longer than the broker waited: both answers come, one message is
    stored.
    """
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        half = await send_half(client)
        check = await client.next_request(CHECK)
        assert (await end(client, half)).code == ResponseCode.SUCCESS
        assert (
            await end(client, answer_of(check), fromTransactionCheck=True)
        ).code == ResponseCode.SUCCESS
        assert len(await stored(client, "T", 2)) == 1


async def test_producers_of_a_group_are_asked_in_turn_and_others_never(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(**QUICK)
    async with (
        await RawClient.open(server.address) as one,
        await RawClient.open(server.address) as two,
        await RawClient.open(server.address) as stranger,
    ):
        await beat(one, "shop")
        await beat(two, "shop")
        await beat(stranger, "market")
        await send_half(stranger)
        await one.next_request(CHECK)
        await two.next_request(CHECK)
        assert stranger.requests.empty()


async def test_after_the_last_question_the_message_is_put_aside(start_broker: StartBroker) -> None:
    server = await start_broker(transaction_check_max=3, **QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        half = await send_half(client)
        for times in ("1", "2", "3"):
            [message] = decode_messages((await client.next_request(CHECK)).body)
            assert message.properties["TRANSACTION_CHECK_TIMES"] == times
        [given_up] = messages(
            await client.pull("looker", CHECKED_TOO_OFTEN_TOPIC, 0, suspend_ms=15_000)
        )
        assert (given_up.body, given_up.id, given_up.properties["REAL_TOPIC"]) == (
            b"paid",
            half["transactionId"],
            "T",
        )
        assert (await end(client, half)).code == ResponseCode.ILLEGAL_OPERATION
        assert await stored(client, "T", 2) == []
        assert client.requests.empty()
        assert await marks(client, 4) == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize(
    "own", [{}, {"CHECK_IMMUNITY_TIME_IN_SECONDS": "0"}], ids=["usual", "with a time of its own"]
)
async def test_a_half_message_as_large_as_can_be_is_asked_about_and_committed_whole(
    start_broker: StartBroker, own: dict[str, Any]
) -> None:
    """Apache's broker takes it, too. The count of questions takes the place of what brokers add."""
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        await send_half(client, **own)
        [half] = await stored(client, HALF_TOPIC)
        most = MAX_PROPERTIES_BYTES - len(encode_properties({**half.properties, "zone": ""}))
        properties = {
            "UNIQ_KEY": unique_key(),
            "TAGS": "a",
            "TRAN_MSG": "true",
            "PGROUP": "shop",
            **own,
        }
        refused = await client.start_send(
            "T",
            b"paid",
            properties | {"zone": "z" * (most + 1)},
            queue=2,
            f=SysFlag.TRANSACTION_PREPARED,
        )
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        longest = await send_half(client, zone="z" * most, **own)
        await beat(client, "shop")
        asked: list[RemotingCommand] = []
        while len(asked) < 2:
            check = await client.next_request(CHECK)
            if check.ext_fields["msgId"] == longest["transactionId"]:
                asked.append(check)
        assert (await end(client, answer_of(asked[-1]))).code == ResponseCode.SUCCESS
        [message] = await stored(client, "T", 2)
        assert (message.id, message.properties["zone"]) == (longest["transactionId"], "z" * most)


async def test_a_time_of_its_own_keeps_a_transaction_from_its_first_check_only(
    start_broker: StartBroker,
) -> None:
    """Later checks come with each round, so those of the first transaction overtake the first check
    of the second one.
    """
    server = await start_broker(transaction_timeout_s=HOUR_S, transaction_check_interval_s=0.02)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        first = await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        await client.next_request(CHECK)
        await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="1")
        asked = [(await client.next_request(CHECK)).ext_fields["msgId"] for _ in range(5)]
    assert asked == [first["transactionId"]] * 5


@pytest.mark.parametrize("seconds", ["00000000000000000000", "+0", "-7", "\u0660"])
async def test_a_time_of_its_own_is_read_as_java_reads_a_long(
    start_broker: StartBroker, seconds: str
) -> None:
    server = await start_broker(transaction_timeout_s=HOUR_S, transaction_check_interval_s=0.02)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        half = await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        assert (await client.next_request(CHECK)).ext_fields["msgId"] == half["transactionId"]


async def test_a_round_at_its_limit_goes_on_as_answers_come(start_broker: StartBroker) -> None:
    """That a producer does not know yet is an answer, too."""
    server = await start_broker(max_unanswered_checks=2, transaction_check_interval_s=3600.0)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        halves = [await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="0") for _ in range(5)]
        checks = asyncio.create_task(transaction_checks(server.context).run())
        asked = []
        for decision in (
            Decision.UNKNOWN,
            Decision.COMMIT,
            Decision.ROLLBACK,
            Decision.UNKNOWN,
            Decision.UNKNOWN,
        ):
            check = await client.next_request(CHECK)
            asked.append(check.ext_fields["msgId"])
            assert client.requests.qsize() <= 1
            client.oneway(END, **ending(answer_of(check), decision))
        await checks
    assert asked == [half["transactionId"] for half in halves]


async def test_a_round_goes_on_without_answers_after_an_interval(start_broker: StartBroker) -> None:
    server = await start_broker(
        max_unanswered_checks=2, transaction_timeout_s=3600.0, transaction_check_interval_s=0.02
    )
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        halves = {
            (await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="0"))["transactionId"]
            for _ in range(5)
        }
        while halves:
            halves.discard((await client.next_request(CHECK)).ext_fields["msgId"])


async def test_nothing_counts_while_no_producer_of_the_group_is_there(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(transaction_check_max=1, **QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "market")
        await send_half(client)
        await send_half(client, PGROUP="market")
        # rounds have passed
        for _ in range(2):
            await client.next_request(CHECK)
            await send_half(client, PGROUP="market")
        await beat(client, "shop")
        while True:
            [message] = decode_messages((await client.next_request(CHECK)).body)
            if message.properties["PGROUP"] == "shop":
                break
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_a_transaction_whose_group_never_comes_back_is_put_aside(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(transaction_keep_s=0.001, **QUICK)
    async with await RawClient.open(server.address) as client:
        await send_half(client)
        [given_up] = messages(
            await client.pull("looker", CHECKED_TOO_OFTEN_TOPIC, 0, suspend_ms=15_000)
        )
        assert given_up.body == b"paid"


@pytest.mark.parametrize("restart", [True, False], ids=["downtime", "a step of the clock"])
async def test_neither_downtime_nor_a_step_of_the_clock_gives_up_what_can_be_asked_about(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    """Not even where the producer comes back some rounds later."""
    shift_ms = 0
    monkeypatch.setattr(startup, "now_ms", lambda: now_ms() + shift_ms)
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        half = await send_half(client)
        if restart:
            await server.stop()
    shift_ms = 73 * HOUR_MS
    if restart:
        server = await start_broker(**QUICK)
    await transaction_checks(server.context).run()
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        [message] = decode_messages((await client.next_request(CHECK)).body)
        assert (message.body, message.properties["TRANSACTION_CHECK_TIMES"]) == (b"paid", "1")
        assert (await end(client, half)).code == ResponseCode.SUCCESS
        assert [one.body for one in await stored(client, "T", 2)] == [b"paid"]
        assert await stored(client, CHECKED_TOO_OFTEN_TOPIC) == []


async def test_the_time_without_a_producer_begins_anew_when_one_was_there(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_broker(transaction_check_interval_s=3600.0)
    checks, now_s = transaction_checks(server.context), 0.0
    monkeypatch.setattr(checks, "_now_s", lambda: now_s)
    async with await RawClient.open(server.address) as client:
        await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        for there in (False, True, False):
            if there:
                await beat(client, "shop")
            else:
                await client.ok(
                    RequestCode.UNREGISTER_CLIENT, clientID=f"p{id(client)}", producerGroup="shop"
                )
            await checks.run()
            now_s += 71 * HOUR_S
        await checks.run()
        assert await stored(client, CHECKED_TOO_OFTEN_TOPIC) == []
        now_s += 2 * HOUR_S
        await checks.run()
        [given_up] = messages(
            await client.pull("looker", CHECKED_TOO_OFTEN_TOPIC, 0, suspend_ms=15_000)
        )
        assert given_up.properties["TRANSACTION_CHECK_TIMES"] == "1"


async def test_starts_that_come_often_do_not_keep_a_transaction_and_the_log_for_ever(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_broker(transaction_check_interval_s=3600.0)
    checks, now_s, full_s = transaction_checks(server.context), 0.0, KEEPS * 72 * HOUR_S
    monkeypatch.setattr(checks, "_now_s", lambda: now_s)
    monkeypatch.setattr(checks, "_full_for_s", lambda _: full_s)
    async with await RawClient.open(server.address) as client:
        await send_half(client, CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        await checks.run()
        now_s = RETURN_S + 1
        await checks.run()
        full_s += 1
        now_s = RETURN_S
        await checks.run()
        assert await stored(client, CHECKED_TOO_OFTEN_TOPIC) == []
        now_s = RETURN_S + 1
        await checks.run()
        [given_up] = messages(
            await client.pull("looker", CHECKED_TOO_OFTEN_TOPIC, 0, suspend_ms=15_000)
        )
        assert given_up.body == b"paid"


async def test_a_young_transaction_is_left_alone_and_a_producer_may_ask_for_more_time(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(transaction_timeout_s=3600.0, transaction_check_interval_s=0.02)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        await send_half(client)
        await send_half(client, b"soon", CHECK_IMMUNITY_TIME_IN_SECONDS="0")
        for _ in range(3):
            [message] = decode_messages((await client.next_request(CHECK)).body)
            assert message.body == b"soon"


async def test_questions_go_on_after_a_restart_with_their_count(start_broker: StartBroker) -> None:
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        half = await send_half(client)
        await client.next_request(CHECK)
        await client.next_request(CHECK)
    await server.stop()
    server = await start_broker(port=0, **QUICK)
    async with await RawClient.open(server.address) as client:
        await beat(client, "shop")
        [message] = decode_messages((await client.next_request(CHECK)).body)
        assert int(message.properties["TRANSACTION_CHECK_TIMES"]) >= 3
        assert (await end(client, half)).code == ResponseCode.SUCCESS
        assert len(await stored(client, "T", 2)) == 1


async def test_what_is_settled_is_not_read_again_by_the_next_start(
    start_broker: StartBroker,
) -> None:
    server = await start_broker(**QUICK)
    async with await RawClient.open(server.address) as client:
        halves = [await send_half(client, b"%d" % i) for i in range(10)]
        for i in (0, 1, 2):
            await end(client, halves[i])
        await marks(client, 3)
        marked_by = server.context.store.max_offset(OP_HALF_TOPIC, 0)
        for i in (4, 5):
            await end(client, halves[i])
    offsets = server.context.offsets
    await server.stop()
    assert offsets.queues_of("CID_RMQ_SYS_TRANS", HALF_TOPIC) == {0: 3}
    assert offsets.queues_of("CID_RMQ_SYS_TRANS", OP_HALF_TOPIC) == {0: marked_by}
    server = await start_broker(port=0)
    assert len(server.context.transactions) == 5
    async with await RawClient.open(server.address) as client:
        ended = await asyncio.gather(*(end(client, half) for half in halves))
    codes = [one.code == ResponseCode.SUCCESS for one in ended]
    assert codes == [i not in (0, 1, 2, 4, 5) for i in range(10)]


async def test_only_producers_who_may_send_to_the_topic_are_asked(
    start_broker: StartBroker,
) -> None:
    """The question carries the message, and everybody may say that it produces for a group."""
    table = AccessTable()
    for name in ("alice", "mallory"):
        await table.create_user(User(username=name, password="secret"))
    entry = PolicyEntry.from_json({"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"})
    await table.put_acl(Acl(subject="User:alice", policies=(Policy(entries=(entry,)),)))
    server = await start_broker(table, **QUICK)
    server.context.topics.create_or_update(TopicConfig(name="T"))

    async def ask(
        client: RawClient, user: str, code: int, body: bytes = b"", **fields: object
    ) -> RemotingCommand:
        text = {name: str(value) for name, value in fields.items()}
        return await client.call(
            code, body, **Credentials(access_key=user, secret_key="secret").sign(text, body)
        )

    async with (
        await RawClient.open(server.address) as alice,
        await RawClient.open(server.address) as mallory,
    ):
        for client, user in ((mallory, "mallory"), (alice, "alice")):
            heartbeat = HeartbeatData(client_id=user, consumers=(), producers=("shop",)).encode()
            assert (
                await ask(client, user, RequestCode.HEART_BEAT, heartbeat)
            ).code == ResponseCode.SUCCESS
        properties = f"UNIQ_KEY\x01{unique_key()}\x02TRAN_MSG\x01true\x02PGROUP\x01shop\x02"
        fields = alice.send_fields("T", 0, properties) | {
            "f": SysFlag.TRANSACTION_PREPARED,
            "k": "false",
            "m": "false",
        }
        assert (await ask(alice, "alice", 310, b"paid", **fields)).code == ResponseCode.SUCCESS
        for _ in range(4):
            assert decode_messages((await alice.next_request(CHECK)).body)[0].body == b"paid"
        # its answer comes behind all questions so far
        await ask(mallory, "mallory", RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
        assert mallory.requests.empty()
