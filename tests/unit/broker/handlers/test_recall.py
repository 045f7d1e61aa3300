"""Timer messages over a socket: answered with a handle, delivered in time, taken back by it
(370).
"""

import asyncio
import base64
import time
from collections.abc import Callable
from functools import partial

import pytest

from ogive.broker import Broker, startup
from ogive.errors import ResponseCode
from ogive.model import TIMER_TOPIC
from ogive.store import NewMessage
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient, messages, unique_key
from tests.unit.broker.conftest import StartBroker


async def until_delivered(client: RawClient, topic: str, count: int) -> list[bytes]:
    async with asyncio.timeout(60):
        while True:
            answer = await client.pull("G", topic, 0, suspend_ms=200)
            if answer.code == 0 and len(messages(answer)) >= count:
                return [message.body for message in messages(answer)]


async def recall(
    client: RawClient, handle: str, topic: str = "T", group: str = "P"
) -> tuple[int, str]:
    answer = await client.call(
        RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, producerGroup=group
    )
    return answer.code, answer.remark or answer.ext_fields.get("msgId", "")


async def is_recalled(client: RawClient, handle: str, key: str) -> bool:
    """Recall with success, and return whether a message was waiting."""
    answer = await client.ok(
        RequestCode.RECALL_MESSAGE, topic="T", recallHandle=handle, producerGroup="P"
    )
    assert answer.ext_fields["msgId"] == key
    return {"true": True, "false": False}[answer.ext_fields["recalled"]]


async def test_a_timer_message_comes_when_it_is_due(client: RawClient) -> None:
    deliver_ms = time.time_ns() // 1_000_000 + 1000
    answer = await client.send(
        "T", b"later", {"TIMER_DELIVER_MS": str(deliver_ms), "UNIQ_KEY": "K"}, queue=2
    )
    assert answer.ext_fields["queueId"] == "2"
    words = base64.urlsafe_b64decode(answer.ext_fields["recallHandle"]).decode().split(" ")
    assert (words[:3], words[4]) == (["v1", "T", "broker-a"], "K")
    await client.send("T", b"now", queue=2)
    async with asyncio.timeout(60):
        while (answer := await client.pull("G", "T", 1, queue=2, suspend_ms=500)).code:
            pass
    (message,) = messages(answer)
    assert message.body == b"later"
    assert time.time_ns() // 1_000_000 >= deliver_ms


async def test_a_message_is_taken_back_once(client: RawClient) -> None:
    key = unique_key()
    later = {"TIMER_DELAY_MS": "2500"}
    handle = (await client.send("T", b"taken", later | {"UNIQ_KEY": key})).ext_fields[
        "recallHandle"
    ]
    await client.send("T", b"kept", later | {"UNIQ_KEY": unique_key()})
    assert await is_recalled(client, handle, key)
    assert not await is_recalled(client, handle, key)
    await client.send("T", b"last", {"TIMER_DELAY_MS": "2600", "UNIQ_KEY": unique_key()})
    assert await until_delivered(client, "T", 2) == [b"kept", b"last"]


async def test_a_message_with_a_long_key_waits_under_its_digest_and_is_taken_back(
    server: Broker, client: RawClient
) -> None:
    """Ten thousand keys of 30,000 characters took 390 MiB."""
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    key = "x" * 12_000
    handles = [
        (await client.send("T", b"x", due | {"UNIQ_KEY": key + end})).ext_fields["recallHandle"]
        for end in "ab"
    ]
    assert await recall(client, handles[0]) == (ResponseCode.SUCCESS, key + "a")
    async with asyncio.timeout(60):
        while len(server.context.timers) > 1:
            await asyncio.sleep(0.01)
    (left,) = server.context.timers._waiting.values()
    assert max(map(len, left.name)) < 100
    assert await recall(client, handles[1]) == (ResponseCode.SUCCESS, key + "b")


@pytest.mark.parametrize(
    "group",
    [
        "g\x02TIMER_DEL_UNIQKEY\x01OTHER\x02INNER_NUM\x01x",
        "g\x02TIMER_OUT_MS\x01never",
        "a b",
        "g" * 300,
        "\ufffd",
    ],
)
async def test_a_group_that_cannot_be_one_takes_nothing_back(
    server: Broker, client: RawClient, group: str
) -> None:
    """Neither the message that is named, nor another that the name of the group speaks of; and
    nothing is stored.
    """
    due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
    handle, other = [
        (await client.send("T", b"x", due | {"UNIQ_KEY": key})).ext_fields["recallHandle"]
        for key in ("NAMED", "OTHER")
    ]
    code, remark = await recall(client, handle, group=group)
    assert (code, "group" in remark) == (ResponseCode.INVALID_PARAMETER, True)
    assert server.context.store.max_offset(TIMER_TOPIC, 0) == len(server.context.timers) == 2
    assert await recall(client, handle) == (ResponseCode.SUCCESS, "NAMED")
    assert await recall(client, other) == (ResponseCode.SUCCESS, "OTHER")


async def test_a_recall_whose_record_takes_nothing_back_holds_no_message_for_ever(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was damaged before it was read."""
    key = unique_key()
    handle = (
        await client.send("T", b"x", {"TIMER_DELAY_SEC": "3600", "UNIQ_KEY": key})
    ).ext_fields["recallHandle"]
    with monkeypatch.context() as patch:
        patch.setattr(server.context.timers, "_take_back", lambda *_: None)
        await recall(client, handle)
    assert (len(server.context.timers), await recall(client, handle)) == (
        1,
        (ResponseCode.SUCCESS, key),
    )


async def test_a_handle_may_lack_its_padding(client: RawClient) -> None:
    """Java's decoder takes it either way."""
    for key in ("K", "KK", "KKK"):
        answer = await client.send("T", b"x", {"TIMER_DELAY_MS": "60000", "UNIQ_KEY": key})
        assert await is_recalled(client, answer.ext_fields["recallHandle"].rstrip("="), key)


@pytest.mark.parametrize("seconds", [-3600, 3600])
async def test_a_time_for_which_no_message_can_wait_is_refused(
    server: Broker, client: RawClient, seconds: int
) -> None:
    due_ms = (
        time.time_ns() // 1_000_000 + round(server.config.timer_max_delay_s * 1000) + seconds * 1000
    )
    handle = base64.urlsafe_b64encode(f"v1 T broker-a {due_ms} K".encode()).decode()
    await client.send("T", b"x")
    code, remark = await recall(client, handle)
    assert (code, remark) == (
        (0, "K")
        if seconds < 0
        else (ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    )


@pytest.mark.parametrize("key", ["order 7", " 7 ", "a\x01b"])
async def test_a_message_with_a_key_that_holds_a_separator_is_taken_back(
    server: Broker, client: RawClient, key: str
) -> None:
    own = f"UNIQ_KEY\x01{key}\x02TIMER_DELAY_MS\x0160000\x02"
    handle = (await client.start_send("T", i=own)).ext_fields["recallHandle"]
    assert await recall(client, handle) == (ResponseCode.SUCCESS, key)
    assert len(server.context.timers) == 0


async def test_messages_are_taken_back_after_the_clock_was_set_back(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's clock is then an hour ahead of the machine's: neither kind of message counts as
    delivered, or as too far away.
    """
    ahead_ms = 3_600_000

    def now_ms() -> int:
        return time.time_ns() // 1_000_000 + ahead_ms

    monkeypatch.setattr(startup, "now_ms", now_ms)
    server = await start_broker()
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"an hour fast")
        ahead_ms = 0
        longest_ms = round(server.config.timer_max_delay_s * 1000)
        for waits in (
            {"TIMER_DELIVER_MS": str(now_ms() + 1_800_000)},
            {"TIMER_DELAY_MS": str(longest_ms)},
        ):
            key = unique_key()
            handle = (await client.send("T", b"taken", waits | {"UNIQ_KEY": key})).ext_fields[
                "recallHandle"
            ]
            assert await recall(client, handle) == (ResponseCode.SUCCESS, key)
        assert len(server.context.timers) == 0


async def test_a_message_that_apaches_broker_keeps_to_a_tenth_of_a_second_is_taken_back(
    server: Broker, client: RawClient
) -> None:
    """timerPrecisionMs=100: TIMER_OUT_MS of a store that moved here is no whole second."""
    await client.send("T")
    key, ctx = unique_key(), server.context
    deliver_ms = ctx.now_ms() // 1000 * 1000 + 2_450
    properties = {
        "TIMER_DELIVER_MS": deliver_ms,
        "TIMER_OUT_MS": deliver_ms - 50,
        "UNIQ_KEY": key,
        "REAL_TOPIC": "T",
        "REAL_QID": 0,
    }
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ctx.put(
        (NewMessage(TIMER_TOPIC, 0, b"taken", text, 0, 0, 0, ctx.store_host, ctx.store_host),),
        "T",
        done.set_result,
    )
    await done
    handle = base64.urlsafe_b64encode(
        f"v1 T {server.config.name} {deliver_ms - 49} {key}".encode()
    ).decode()
    assert await recall(client, handle) == (ResponseCode.SUCCESS, key)
    await client.send(
        "T", b"last", {"TIMER_DELIVER_MS": str(deliver_ms + 100), "UNIQ_KEY": unique_key()}
    )
    assert await until_delivered(client, "T", 2) == [b"x", b"last"]
    assert len(ctx.timers) == 0


async def test_a_send_that_takes_back_a_message_needs_no_room(start_broker: StartBroker) -> None:
    server = await start_broker(timer_max_waiting=1)
    async with await RawClient.open(server.address) as client:
        due = {"TIMER_DELIVER_MS": str(time.time_ns() // 1_000_000 + 3_600_000)}
        await client.send("T", b"taken", due | {"UNIQ_KEY": "K"})
        full = await client.start_send("T", b"x", due | {"UNIQ_KEY": "L"})
        assert full.code == ResponseCode.SYSTEM_BUSY
        await client.send("T", b"0", due | {"UNIQ_KEY": "M", "TIMER_DEL_UNIQKEY": "T+K"})
        assert len(server.context.timers) == 0
        await client.send("T", b"x", due | {"UNIQ_KEY": "L"})


async def test_a_bad_handle_is_refused_with_the_reason(client: RawClient) -> None:
    await client.send("T")

    def handle(*words: object) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, words)).encode()).decode()

    soon = time.time_ns() // 1_000_000 + 60_000
    for topic, text, code, reason in [
        (
            "Nowhere",
            handle("v1", "Nowhere", "broker-a", soon, "K"),
            ResponseCode.TOPIC_NOT_EXIST,
            "not exist",
        ),
        ("T", "nonsense", ResponseCode.ILLEGAL_OPERATION, "handle is invalid"),
        (
            "T",
            handle("v1", "Other", "broker-a", soon, "K"),
            ResponseCode.ILLEGAL_OPERATION,
            "topic not match",
        ),
        ("T", handle("v1", "T", "broker-b", soon, "K"), ResponseCode.ILLEGAL_OPERATION, "broker-b"),
        (
            "T",
            handle("v1", "T", "broker-a", 1, "K"),
            ResponseCode.ILLEGAL_OPERATION,
            "timestamp invalid",
        ),
    ]:
        found, remark = await recall(client, text, topic)
        assert (found, reason in remark) == (code, True), remark


async def test_a_recall_of_what_does_not_wait_succeeds_and_says_so(
    server: Broker, client: RawClient
) -> None:
    """As Apache's broker answers, whose clients raise for any other code."""
    await client.send("T")
    words = f"v1 T broker-a {time.time_ns() // 1_000_000 + 60_000} NEVER-SENT"
    assert not await is_recalled(
        client, base64.urlsafe_b64encode(words.encode()).decode(), "NEVER-SENT"
    )
    assert server.context.store.max_offset(TIMER_TOPIC, 0) == 0


async def test_a_restarted_broker_delivers_what_fell_due(start_broker: StartBroker) -> None:
    first = await start_broker()
    async with await RawClient.open(first.address) as client:
        await client.send("T", b"early", {"TIMER_DELAY_MS": "20", "UNIQ_KEY": "A"})
        await until_delivered(client, "T", 1)
        await client.send("T", b"missed", {"TIMER_DELAY_MS": "400", "UNIQ_KEY": "B"})
    await first.stop()
    second = await start_broker()
    async with await RawClient.open(second.address) as client:
        assert await until_delivered(client, "T", 2) == [b"early", b"missed"]


async def test_nobody_sends_into_the_timer_topic(server: Broker, client: RawClient) -> None:
    assert server.context.topics.get("rmq_sys_wheel_timer") is not None
    assert (await client.start_send("rmq_sys_wheel_timer")).code == ResponseCode.NO_PERMISSION


async def test_of_two_recalls_of_one_message_the_second_waits_for_the_first_and_finds_nothing(
    server: Broker, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the record of the second could not be stored, the message was delivered, though the
    first was answered with success.
    """
    key = unique_key()
    handle = (
        await client.send("T", b"taken", {"TIMER_DELAY_MS": "2500", "UNIQ_KEY": key})
    ).ext_fields["recallHandle"]
    ctx, held = server.context, list[Callable[[], None]]()
    store_put = ctx.store.put
    monkeypatch.setattr(
        ctx.store, "put", lambda messages, done: held.append(partial(store_put, messages, done))
    )
    first = asyncio.create_task(is_recalled(client, handle, key))
    async with asyncio.timeout(60):
        while not held:
            await asyncio.sleep(0)
    second = asyncio.create_task(is_recalled(client, handle, key))
    # answered after the second has begun
    await client.ok(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    assert len(held) == 1
    monkeypatch.undo()
    held[0]()
    # The writer gets it together with the next message.
    await client.send("U")
    async with asyncio.timeout(60):
        assert (await first, await second) == (True, False)
        assert not await is_recalled(client, handle, key)
    assert len(ctx.timers) == 0
