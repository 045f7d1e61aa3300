"""Unknown keyword arguments: the error names the argument to use, and signatures stay as they are
written.
"""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import ogive
import ogive.testing
from ogive import aio
from ogive.keywords import OF_LISTENERS

CONSTRUCTORS = {
    "bootstrap_servers": "name_server=",
    "servers": "name_server=",
    "hosts": "name_server=",
    "address": "name_server=",
    "namesrv_addr": "name_server=",
    "endpoints": "name_server=",
    "brokers": "name_server=",
    "nameServer": "name_server=",
    "name_servr": "name_server=",
    "credentials": "client=ClientConfig(credentials=...)",
    "secret_key": "client=ClientConfig(credentials=...)",
    "request_timeout": "client=ClientConfig(request_timeout_s=...)",
}
SENDS = {
    "headers": "properties=",
    "attributes": "properties=",
    "value": "body=",
    "payload": "body=",
    "message": "body=",
    "key": "keys= or sharding_key=",
    "partition_key": "sharding_key=",
    "message_group": "sharding_key=",
    "hash_key": "sharding_key=",
    "partition": "queue=",
    "tags": "tag=",
    "timeout": "timeout_s=",
    "delay": "delay_level= or delay_s=",
    "delay_time_level": "delay_level=",
    "delay_seconds": "delay_s=",
    "delivery_timestamp": "deliver_at=",
    "shardingkey": "sharding_key=",
    "delaylevel": "delay_level=",
}
LISTENERS = {
    "consumer_group": "group=",
    "group_id": "group=",
    "tag": "tags=",
    "auto_offset_reset": "start=",
    "max_reconsume_times": "max_retries=",
    "concurrency": "threads=",
    "filter": "tags= or sql=",
    "deserializer": "as_=",
    "topics": "topic=",
}


def said(call: Callable[..., Any], word: str, *args: Any, **others: Any) -> str:
    with pytest.raises(TypeError) as caught:
        call(*args, **{word: "x"}, **others)
    words, _, advice = str(caught.value).partition(": ")
    assert words.endswith(f"() got an unexpected keyword argument {word!r}")
    return advice


@pytest.mark.parametrize(("word", "ours"), CONSTRUCTORS.items())
@pytest.mark.parametrize(
    "kind",
    [ogive.Producer, ogive.PushConsumer, ogive.PullConsumer, ogive.Admin, aio.Producer, aio.Admin],
)
def test_constructors_name_their_own_option(kind: type, word: str, ours: str) -> None:
    assert ours in said(kind, word)


async def test_a_run_of_listeners_goes_by_the_name_that_was_called() -> None:
    run: Callable[..., Any] = aio.run
    with pytest.raises(TypeError, match=r"^run\(\) got .*: use name_server="):
        await run(bootstrap_servers="h:1")


@pytest.mark.parametrize(
    ("word", "ours"), [("group_name", "group="), ("retries", "config=ProducerConfig(retries=...)")]
)
@pytest.mark.parametrize("kind", [ogive.Producer, aio.Producer])
def test_a_setting_of_a_configuration_is_named_with_it(kind: type, word: str, ours: str) -> None:
    assert said(kind, word) == f"use {ours}"


@pytest.mark.parametrize(("word", "ours"), SENDS.items())
@pytest.mark.parametrize("name", ["send", "submit"])
def test_sends_name_their_own_argument(name: str, word: str, ours: str) -> None:
    assert ours in said(getattr(ogive.Producer(), name), word, "Orders")


@pytest.mark.parametrize("name", ["send", "submit", "send_oneway", "request"])
async def test_sends_for_asyncio_do_so_as_well(name: str) -> None:
    producer = aio.Producer()
    with pytest.raises(
        TypeError,
        match=f"Producer.{name}.. got an unexpected keyword argument 'headers': use properties=",
    ):
        await getattr(producer, name)("Orders", b"x", headers={})


@pytest.mark.parametrize(("word", "ours"), LISTENERS.items())
def test_listener_names_its_own_argument(word: str, ours: str) -> None:
    assert ours in said(ogive.listener, word, "Orders", group="billing")
    if ours != "topic=":
        assert ours in said(ogive.PushConsumer, word, "Orders", group="billing") or ours in (
            "threads=",
            "as_=",
        )


@pytest.mark.parametrize(
    ("call", "word", "ours"),
    [
        (ogive.Message, "headers", "use properties="),
        (ogive.Message, "tags", "use tag="),
        (ogive.ClientConfig, "bootstrap_servers", "use name_server="),
        (ogive.ConsumerConfig, "max_cached_message", "did you mean max_cached_messages=?"),
        (ogive.PullConsumer().poll, "max_records", "use max_messages="),
        (ogive.PullConsumer, "topics", "use *topics, the first arguments, without a name"),
        (ogive.Admin().create_topic, "num_partitions", "use queues="),
        (ogive.Admin().update_topic, "queues", "use read_queues= or write_queues="),
        (ogive.later, "level", "use delay_level="),
        (ogive.run, "nameserver", "use name_server="),
        (ogive.Producer, "producerGroup", "use group="),
        (ogive.Producer, "namesrvAddr", "use name_server="),
        (ogive.PullConsumer, "consumerGroup", "use group="),
        (ogive.Producer().send, "MessageBody", "use body="),
        (ogive.Producer().send, "MessageGroupId", "use sharding_key="),
        (ogive.Producer().send, "QueueUrl", "use topic="),
        (ogive.Producer().send, "userProperties", "use properties="),
        (ogive.PullConsumer().poll, "WaitTimeSeconds", "use timeout_s="),
        (ogive.SimpleConsumer(group="g").receive, "VisibilityTimeout", "use invisible_s="),
        (ogive.SimpleConsumer(group="g").receive, "WaitTimeSeconds", "use wait_s="),
        (ogive.SimpleConsumer(group="g").receive, "max_message_num", "use max_messages="),
        (ogive.SimpleConsumer(group="g").change_invisible, "VisibilityTimeout", "use seconds="),
        (ogive.PullConsumer().seek, "offset", "use to="),
        (ogive.PullConsumer().commit, "offset", "use offsets="),
        (ogive.PullConsumer().pause, "queues", "use *queues, the first arguments, without a name"),
        (ogive.PushConsumer, "consumeThreadMax", "use @ogive.listener(..., threads=...)"),
        (ogive.run, "consumer_group", "use @ogive.listener(..., group=...)"),
        (ogive.Producer().flush, "timeout", "there are no arguments"),
        (ogive.Admin().delete_topic, "name", "use topic="),
        (ogive.Admin().create_user, "username", "use name="),
        (ogive.Credentials, "username", "use access_key="),
        (ogive.MessageQueue, "broker", "use broker_name="),
        (ogive.testing.message, "headers", "use properties="),
        (
            ogive.testing.Broker,
            "directory",
            "there are data=, flush=, name_server_port=, broker_port=, grpc_port=, options=",
        ),
    ],
)
def test_so_do_the_others(call: Callable[..., Any], word: str, ours: str) -> None:
    assert said(call, word) == ours


@pytest.mark.parametrize("module", [ogive, aio])
@pytest.mark.parametrize(
    "name", ["Producer", "PushConsumer", "PullConsumer", "SimpleConsumer", "Admin"]
)
def test_every_public_method_names_its_own_arguments(module: Any, name: str) -> None:
    settings = {"group": "g"} if name == "SimpleConsumer" else {}
    one = (
        getattr(module, name)(**settings)
        if name != "PushConsumer"
        else module.PushConsumer(ogive.listener("T", group="g")(print))
    )
    for method, _ in inspect.getmembers_static(type(one), inspect.isfunction):
        if method.startswith("_"):
            continue
        # a missing argument is reported first
        needed = ["Orders"] if method == "submit" else []
        with pytest.raises(TypeError, match=r"unexpected keyword argument 'zzzz': there are "):
            asyncio.run(getattr(one, method)(*needed, zzzz=1))


def test_what_belongs_to_listeners_is_what_they_have() -> None:
    assert set(OF_LISTENERS) <= set(inspect.signature(ogive.listener).parameters)


def test_a_word_like_none_of_them_lists_what_there_is() -> None:
    assert said(ogive.Admin, "zzzzzz") == "there are name_server=, client="


def test_other_errors_of_type_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match="body must be bytes"):
        ogive.Message("Orders", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'body'"):
        ogive.Message("Orders")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "function",
    [
        ogive.Producer.send,
        aio.Producer.send,
        ogive.listener,
        ogive.Message,
        ogive.Producer,
        aio.PullConsumer,
    ],
)
def test_signatures_show_no_catch_all(function: Callable[..., Any]) -> None:
    kinds = {one.kind for one in inspect.signature(function).parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert function.__doc__


def test_coroutine_functions_are_seen_as_such() -> None:
    """``unittest.mock.create_autospec`` and frameworks look."""
    assert inspect.iscoroutinefunction(aio.Producer.send)
    assert not inspect.iscoroutinefunction(ogive.Producer.send)
