"""Handles of submitted messages: as good as futures for whoever waits."""

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from unittest import mock

import pytest

import ogive
from ogive.client.config import ClientConfig, ProducerConfig
from ogive.client.instance import ClientInstance
from ogive.client.producer import Producer
from ogive.client.sending.accumulator import Accumulator
from ogive.client.sending.handle import SendHandle
from ogive.client.sending.pending import PendingSend
from ogive.errors import (
    BrokerBusy,
    IllegalStateError,
    MessageIllegal,
    NoRoute,
    ResponseCode,
    SendFailed,
    SendTimeout,
)
from ogive.model import MAX_BODY_BYTES, SendStatus
from ogive.testing.fake_broker import HANG_UP, WAIT_S, FakeBroker, error
from ogive.wire.command import RemotingCommand
from ogive.wire.message import decode_batch, decode_properties
from tests.unit.client.serving import on_a_thread
from tests.unit.client.test_producer import BATCH, BUSY, SEND, producing


async def test_asyncio_waits_for_handles_as_for_futures() -> None:
    async with producing("Orders") as (producer, [broker]):
        broker.hold(SEND)
        first = await producer.submit("Orders", b"1")
        with pytest.raises(asyncio.InvalidStateError):
            first.result()
        with pytest.raises(asyncio.InvalidStateError):
            first.exception()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.01)
        assert (first.done(), first.running(), first.cancelled(), first.cancel()) == (
            False,
            True,
            False,
            False,
        )
        second = await producer.submit("Orders", b"2", sharding_key="a")
        broker.release(SEND)
        done, left = await asyncio.wait([first, second], timeout=WAIT_S)  # type: ignore[type-var]
        assert (done, left) == ({first, second}, set())
        results = list(await asyncio.gather(first, second))
        assert results == [first.result(), second.result()]
        assert await first == results[0]


async def test_callbacks_hear_of_the_handle_once_whenever_they_were_added() -> None:
    heard: list[object] = []
    async with producing("Orders", config=ProducerConfig(max_requests=1)) as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.hold(SEND)
        handles = [await producer.submit("Orders", b"", on_done=heard.append) for _ in range(3)]
        handles.append(await producer.submit("Orders", b"", tag="a", on_done=heard.append))
        handles.append(await producer.submit("Orders", b"", delay_level=1, on_done=heard.append))
        dropped: Callable[[SendHandle], object] = lambda _: heard.append("dropped")  # noqa: E731
        handles[0].add_done_callback(dropped)
        assert handles[0].remove_done_callback(dropped) == 1
        assert handles[0].remove_done_callback(dropped) == 0
        broker.release(SEND)
        await producer.flush()
        assert sorted(map(id, heard)) == sorted(map(id, handles))
        handles[0].add_done_callback(heard.append)
        assert heard[-1] is handles[0]


async def test_each_message_of_a_batch_has_its_id_and_its_place() -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        handles = [await producer.submit("Orders", b"%d" % i, keys=f"k{i}") for i in range(40)]
        results = await asyncio.gather(*handles)
        assert len(broker.of(BATCH)) == 1
        assert [result.queue_offset for result in results] == list(range(1, 41))
        assert len({result.id for result in results}) == 40
        assert len({result.offset_id for result in results}) == 40
        assert all(result.id.isalnum() and len(result.id) == 32 for result in results)


async def test_a_failure_of_a_batch_is_logged_once_with_the_number_of_those_nobody_looked_at(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with producing("Orders", config=ProducerConfig(retries=0)) as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.script(BATCH, BUSY)
        handles = [await producer.submit("Orders", b"") for _ in range(10)]
        await producer.flush()
        looked_at = [handles[0].exception(), handles[1].exception()]
        assert str(looked_at[0]) == str(looked_at[1])
        assert isinstance(looked_at[0], ogive.BrokerError)
        with pytest.raises(ogive.BrokerError):
            handles[2].result()
        with caplog.at_level(logging.ERROR):
            del handles
            gc.collect()
    [record] = [one.message for one in caplog.records if "never retrieved" in one.message]
    assert record.startswith("7 submitted messages failed, and the exceptions of their handles")


async def test_a_refused_batch_leaves_the_waiters_with_their_messages() -> None:
    refused = error(ResponseCode.MESSAGE_ILLEGAL, "this one")
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.script(BATCH, refused)
        broker.on(SEND, lambda request: refused if request.body == b"3" else None)
        handles = [await producer.submit("Orders", b"%d" % i) for i in range(6)]
        flushed = asyncio.create_task(producer.flush())
        outcomes = await asyncio.gather(*handles, return_exceptions=True)
        await flushed
        assert producer.in_flight == 0
        items = {request.body: request for request in broker.of(SEND)}
    assert [type(outcome) is MessageIllegal for outcome in outcomes] == [i == 3 for i in range(6)]
    for i, outcome in enumerate(outcomes):
        if isinstance(outcome, ogive.SendResult):
            assert f"UNIQ_KEY\x01{outcome.id}\x02" in items[b"%d" % i].ext_fields["i"]


async def test_a_refused_batch_that_an_earlier_try_stored_is_a_success() -> None:
    config = ProducerConfig(retry_when_not_stored_ok=True)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"")
        ids = ",".join(f"{i:032X}" for i in range(5))
        broker.script(
            BATCH,
            RemotingCommand(
                ResponseCode.FLUSH_DISK_TIMEOUT, {"msgId": ids, "queueId": "0", "queueOffset": "7"}
            ),
            error(ResponseCode.MESSAGE_ILLEGAL),
        )
        broker.on(SEND, error(ResponseCode.MESSAGE_ILLEGAL))
        handles = [await producer.submit("Orders", b"%d" % i) for i in range(5)]
        results = await asyncio.gather(*handles)
    assert {result.status for result in results} == {SendStatus.FLUSH_DISK_TIMEOUT}
    assert [result.queue_offset for result in results] == list(range(7, 12))
    assert len({result.id for result in results}) == 5


async def test_a_body_over_the_limit_is_refused_at_once_also_where_nothing_is_compressed() -> None:
    config = ProducerConfig(compress_over_bytes=2 * MAX_BODY_BYTES)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"")
        with pytest.raises(MessageIllegal):
            await producer.submit("Orders", bytes(MAX_BODY_BYTES + 1))
        assert len(broker.of(SEND)) == 1


async def test_the_unknown_outcome_of_a_batch_names_the_ids_of_all_its_messages() -> None:
    config = ProducerConfig(retries=0)
    async with producing("Orders", config=config) as (producer, [broker]):
        await producer.send("Orders", b"")
        broker.script(BATCH, HANG_UP)
        handles = [await producer.submit("Orders", b"%d" % i) for i in range(5)]
        outcomes = await asyncio.gather(*handles, return_exceptions=True)
        keys = [
            decode_properties(item.properties)["UNIQ_KEY"]
            for item in decode_batch(broker.of(BATCH)[0].body)
        ]
    assert {type(outcome) for outcome in outcomes} == {SendTimeout}
    assert str(outcomes[3]).endswith(
        f"The 5 messages that went together may or may not be stored: their ids are {keys[0]} to "
        f"{keys[4]}."
    )


async def test_a_callback_that_submits_again_ends_when_the_client_is_closed() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        client = ClientInstance(ClientConfig(name_server=broker.address))
        await client.start()
        async with Producer(client=client) as producer:
            await producer.send("Orders", b"")
            publisher = producer.publisher
            again: list[SendHandle | PendingSend] = []

            def submit_again(_: SendHandle) -> None:
                if len(again) < 100:
                    now = publisher.clock()
                    again.append(
                        publisher.inboxes.offer(
                            "Orders",
                            b"",
                            None,
                            (),
                            None,
                            None,
                            None,
                            0,
                            None,
                            None,
                            None,
                            None,
                            now,
                            submit_again,
                        )
                    )

            await client.close()
            handle = await producer.submit("Orders", b"", on_done=submit_again)
            with pytest.raises(IllegalStateError, match="closed"):
                await handle
            assert [type(one) for one in again] == [PendingSend]
            with pytest.raises(IllegalStateError, match="closed"):
                await producer.submit("Orders", b"")


async def test_a_failure_while_a_batch_is_formed_leaves_the_inbox_to_the_next_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with producing("Orders") as (producer, [broker]):
        await producer.send("Orders", b"")
        form = producer.publisher.inboxes.form
        monkeypatch.setattr(producer.publisher.inboxes, "form", mock.Mock(side_effect=MemoryError))
        first = await producer.submit("Orders", b"first")
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        await asyncio.sleep(0)
        monkeypatch.setattr(producer.publisher.inboxes, "form", form)
        second = await producer.submit("Orders", b"second")
        await asyncio.wait_for(asyncio.gather(first, second), WAIT_S)
        assert broker.bodies("Orders")[0] == [b"", b"first", b"second"]


def test_control_c_while_messages_leave_ends_a_loop_without_a_runner() -> None:
    async def submit() -> SendHandle:
        handle = await producer.submit("Orders", b"")
        await asyncio.sleep(0.01)
        return handle

    loop = asyncio.new_event_loop()
    try:
        broker = FakeBroker({"Orders": 1})
        loop.run_until_complete(broker.start())
        producer = Producer(broker.address)
        loop.run_until_complete(producer.start())
        loop.run_until_complete(producer.send("Orders", b""))
        with (
            mock.patch.object(Accumulator, "start", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            loop.run_until_complete(submit())
        with mock.patch.object(Accumulator, "start", side_effect=SystemExit):
            handle = loop.run_until_complete(submit())
        assert isinstance(handle.exception(), SystemExit)
        loop.run_until_complete(producer.send("Orders", b"goes on"))
        loop.run_until_complete(producer.close())
        loop.run_until_complete(broker.stop())
    finally:
        loop.close()


class _Kept:
    """Something that is in memory until nobody holds it."""

    def __call__(self, handle: SendHandle) -> None:
        pass


@pytest.mark.parametrize("how", ["result", "exception", "await"])
async def test_a_failure_that_was_caught_leaves_nothing_in_memory(how: str) -> None:
    held: list[weakref.ref[_Kept]] = []

    async def look_at(handle: SendHandle) -> None:
        kept = _Kept()
        held.append(weakref.ref(kept))
        if how == "result":
            handle.result()
        elif how == "exception":
            error = handle.exception()
            assert error is not None
            raise error
        else:
            await handle

    async with producing("Orders", config=ProducerConfig(retries=0)) as (producer, [broker]):
        broker.on(SEND, BUSY)
        for key in (None, "a"):
            handle = await producer.submit("Orders", b"", sharding_key=key)
            await asyncio.wait([handle])  # type: ignore[type-var]
            with pytest.raises(BrokerBusy) as caught:
                await look_at(handle)
            assert (caught.value.code, caught.value.remark) == (2, BUSY.remark)
            del caught, handle
    gc.collect()
    assert [kept() for kept in held] == [None, None]


async def test_a_submit_that_fails_leaves_nothing_in_memory() -> None:
    async with producing("Orders", config=ProducerConfig(max_in_flight=1)) as (producer, [broker]):
        broker.hold(SEND)
        first = await producer.submit("Orders", b"")
        kept = _Kept()
        held = weakref.ref(kept)
        with pytest.raises(SendFailed, match="max_in_flight"):
            await producer.submit("Orders", b"", sharding_key="a", timeout_s=0.01, on_done=kept)
        del kept
        # CPython 3.13 keeps the frames of the wait until the loop turns
        await asyncio.sleep(0)
        gc.collect()
        assert held() is None
        broker.release(SEND)
        await first


def test_a_handle_may_be_awaited_on_another_loop_than_its_producers() -> None:
    async def results(handles: list[SendHandle]) -> list[object]:
        return await asyncio.gather(*handles, return_exceptions=True)

    with on_a_thread() as broker, ogive.Producer(broker.address) as producer:
        handles = [producer.submit("Orders", b""), producer.submit("Ordres", b"")]
        stored, failed = asyncio.run(results(handles))
        assert isinstance(stored, ogive.SendResult)
        assert isinstance(failed, NoRoute)


def test_what_is_submitted_after_the_end_is_refused_and_what_waits_at_the_end_ends() -> None:
    with on_a_thread() as broker:
        producer = ogive.Producer(broker.address, config=ProducerConfig(max_requests=1))
        producer.start()
        producer.send("Orders", b"")
        broker.hold(SEND)
        handles = [producer.submit("Orders", b"") for _ in range(100)]
        closing = threading.Thread(target=producer.close)
        closing.start()
        broker.release(SEND)
        closing.join(WAIT_S)
        assert all(handle.exception(0) is None for handle in handles)
        with pytest.raises(IllegalStateError, match="closed"):
            producer.submit("Orders", b"")


def test_a_handle_says_when_its_loop_has_ended_without_an_outcome() -> None:
    async def submit() -> SendHandle:
        producer = Producer("127.0.0.1:1")
        await producer.start()
        return await producer.submit("Orders", b"")

    handle = asyncio.run(submit())
    assert not handle.done()
    with pytest.raises(IllegalStateError, match="may or may not be stored"):
        handle.result()
