"""What of a listener job is decided without a broker: sizes, tasks, and listeners that travel."""

import asyncio
import base64
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.client.config import ClientConfig
from ogive.errors import BrokerInternalError, InvalidOption, ResponseCode
from ogive.model import MessageQueue, retry_topic
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.bodies import loads_object
from ogive.wire.codes import RequestCode

pytest.importorskip("pyspark")

from ogive.spark.access import Access
from ogive.spark.failures import reason
from ogive.spark.jobs import check, prepare
from ogive.spark.listening import LARGEST_BATCH, Work, next_size, options_of, spread
from ogive.spark.options import access_of
from ogive.spark.ranges import QueueRange


def test_a_batch_grows_while_it_is_short_and_full() -> None:
    assert next_size(1000, 1000, 0.2) == 2000
    assert next_size(1000, 400, 0.2) == 1000
    assert next_size(1000, 1000, 3.0) == 1000
    assert next_size(LARGEST_BATCH, LARGEST_BATCH, 0.2) == LARGEST_BATCH


def test_a_batch_that_took_long_is_followed_by_a_smaller_one() -> None:
    assert next_size(1000, 1000, 50.0) == 100
    assert next_size(1000, 100, 50.0) == 10
    assert next_size(1, 1, 500.0) == 1


def test_a_queue_goes_to_one_task_whole() -> None:
    ranges = [QueueRange(MessageQueue("T", "b", i), 0, length) for i, length in enumerate((10, 90, 30, 40))]
    groups = spread(ranges, 2)
    assert sorted(one for group in groups for one in group) == sorted(ranges)
    assert sorted(sum(map(len, group)) for group in groups) == [80, 90]
    assert len(spread(ranges[:1], 8)) == 1
    assert spread([], 8) == []


def test_listeners_travel_with_what_they_close_over() -> None:
    seen = ["kept"]

    @ogive.listener("T", group="G", batch=3)
    def note(messages: list[ogive.MessageExt]) -> None:
        seen.append(str(len(messages)))

    work = Work.loads(Work(ClientConfig(name_server="127.0.0.1:1"), (note,), 2).dumps())
    assert (work.group, work.topics, work.listeners[0].config.batch) == ("G", ("T", "%RETRY%G"), 3)


def test_a_listener_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    @ogive.listener("T", group="G")
    def guarded(message: ogive.MessageExt) -> None:
        with lock:
            pass

    with pytest.raises(InvalidOption, match="guarded cannot be sent to executors"):
        Work(ClientConfig(), (guarded,), 1).dumps()


@pytest.mark.parametrize("settings", [{"broadcast": True}, {"orderly": True, "auto_commit": False}])
def test_what_a_batch_cannot_do_is_for_the_local_engine(settings: dict[str, Any]) -> None:
    @ogive.listener("T", group="G", **settings)
    def show(message: ogive.MessageExt) -> None: ...

    with pytest.raises(InvalidOption, match="--engine local"):
        check([show])


def test_names_are_in_the_namespace_on_the_wire() -> None:
    @ogive.listener("T", group="G")
    def show(message: ogive.MessageExt) -> None: ...

    work = Work(ClientConfig(namespace="shop"), (show,), 1)
    assert (work.group, work.topics) == ("shop%G", ("shop%T", "%RETRY%shop%G"))


def test_a_secret_travels_under_a_name_that_spark_hides(tmp_path: Path) -> None:
    @ogive.listener("T", group="G")
    def show(message: ogive.MessageExt) -> None: ...

    access = Access.of(ClientConfig(credentials=ogive.Credentials(access_key="me", secret_key="very secret", security_token="token")))
    options = options_of(Work(ClientConfig(), (show,), 1), access, tmp_path / "stop")
    holding = {name for name, text in options.items() if any(word in text for word in ("very secret", "token"))}
    assert holding == {"secretKey", "securityToken"}
    assert b"very secret" not in base64.b64decode(options["work"])
    assert access_of({name: text for name, text in options.items() if name not in ("work", "stopFile")}) == access


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ssl": ssl.create_default_context()}, "tls_ca"),
        ({"namespace_v2": "shop"}, "--engine local"),
        ({"name_server": "http://config.example:8080/rocketmq/nsaddr"}, "host:port;host:port"),
    ],
)
def test_what_cannot_be_sent_to_executors_is_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Access.of(ClientConfig(**settings))


async def test_a_broker_that_cannot_filter_in_sql_is_told_of_before_the_job_starts() -> None:
    """Else each task would fail on its first pull, again and again."""

    @ogive.listener("Orders", group="billing", sql="amount > 100")
    def show(message: ogive.MessageExt) -> None: ...

    @ogive.listener("Prices", group="billing", tags="a")
    def tagged(message: ogive.MessageExt) -> None: ...

    async with FakeBroker({"Orders": 1, "Prices": 1, retry_topic("billing"): 1}) as broker:
        client = ClientConfig(name_server=broker.address)
        await asyncio.to_thread(prepare, client, [tagged, show])
        (asked,) = broker.of(RequestCode.CHECK_CLIENT_CONFIG)
        body = loads_object(asked.body)
        assert body["group"] == "billing"
        assert (body["subscriptionData"]["topic"], body["subscriptionData"]["subString"]) == ("Orders", "amount > 100")
        broker.on(RequestCode.CHECK_CLIENT_CONFIG, error(ResponseCode.SYSTEM_ERROR, "The broker does not support SQL92"))
        with pytest.raises(BrokerInternalError, match="does not support SQL92"):
            await asyncio.to_thread(prepare, client, [show])


def test_of_a_failure_our_sentence_is_told() -> None:
    text = "Job aborted\n  File x\nogive.errors.NoRoute: topic 'T' has no route\n\n\tat org.apache.spark"
    assert reason(text) == "topic 'T' has no route"
    assert reason("[SOME_CODE] plain\n\tat x") == "[SOME_CODE] plain"
    assert reason("") == "Spark failed without saying why"
