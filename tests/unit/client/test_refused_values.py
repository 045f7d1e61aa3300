"""A value that no broker would take is refused with one error, whichever way it comes in."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any

import pytest

import ogive
import ogive.testing
from ogive.errors import InvalidOption, MessageIllegal

QUEUE = ogive.MessageQueue("Orders", "broker-a", 0)
REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"tag": " a"}, InvalidOption, "no consumer could select it"),
    ({"keys": ""}, MessageIllegal, "key is empty"),
    ({"keys": None}, TypeError, "keys must be str, or several of them, not NoneType"),
    ({"keys": 5}, TypeError, "keys must be str, or several of them, not int"),
    ({"keys": b"4711"}, TypeError, "keys must be str, or several of them, not bytes"),
    ({"properties": {"a": ""}}, MessageIllegal, "property 'a' is empty"),
]
REFUSED_DELAYS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"delay_level": True}, TypeError, "delay_level must be int, not bool"),
    ({"delay_level": 1.0}, TypeError, "delay_level must be int, not float"),
    ({"delay_level": "3"}, TypeError, "delay_level must be int, not str"),
    ({"delay_level": None}, TypeError, "delay_level must be int, not NoneType"),
    ({"delay_level": -1}, InvalidOption, "delay level -1 is below 0"),
    ({"delay_s": True}, TypeError, "delay_s must be a number of seconds, not bool"),
    (
        {"deliver_at": "2030-01-01"},
        TypeError,
        "deliver_at must be a datetime with a time zone, not str",
    ),
    (
        {"deliver_at": date(2030, 1, 1)},
        TypeError,
        "deliver_at must be a datetime with a time zone, not date",
    ),
]
OFFSETS = [
    (True, TypeError),
    (1.0, TypeError),
    ("1", TypeError),
    (None, TypeError),
    (-1, InvalidOption),
    (2**63, InvalidOption),
]


@pytest.fixture(scope="module")
def producer() -> Iterator[ogive.Producer[bytes]]:
    """One that never gets as far as a name server."""
    with ogive.Producer("127.0.0.1:1", group="refused", check=lambda _: True) as one:
        yield one


@pytest.mark.parametrize(("given", "error", "words"), REFUSED + REFUSED_DELAYS)
@pytest.mark.parametrize("way", ["send", "submit", "Message"])
def test_of_a_message(
    producer: ogive.Producer[bytes],
    way: str,
    given: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    call: Callable[..., Any] = ogive.Message if way == "Message" else getattr(producer, way)
    with pytest.raises(error, match=words):
        call("Orders", b"x", **given)


@pytest.mark.parametrize(("given", "error", "words"), REFUSED)
@pytest.mark.parametrize("way", ["send_oneway", "request", "transaction", "Reply"])
def test_of_a_message_that_cannot_wait(
    producer: ogive.Producer[bytes],
    way: str,
    given: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    call = (
        partial(ogive.Reply, b"x")
        if way == "Reply"
        else partial(getattr(producer, way), "Orders", b"x")
    )
    with pytest.raises(error, match=words):
        call(**given)


@pytest.mark.parametrize(
    ("level", "error"),
    [(True, TypeError), (1.5, TypeError), ("3", TypeError), (None, TypeError), (-2, InvalidOption)],
)
def test_of_a_listeners_answer(level: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="delay"):
        ogive.later(level)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("threads", "2"),
        ("batch", "1"),
        ("max_retries", "3"),
        ("consume_timeout_s", "900"),
        ("suspend_s", None),
        ("threads", True),
        ("max_retries", False),
        ("consume_timeout_s", True),
        ("orderly", "yes"),
        ("broadcast", 1),
        ("auto_commit", None),
        ("tags", ["paid"]),
        ("sql", 5),
        ("topic", ["Orders"]),
        ("group", ["billing"]),
    ],
)
def test_of_a_listeners_setting(setting: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{setting} must be .*, not {type(value).__name__}"):
        ogive.listener(**{"topic": "Orders", "group": "billing"} | {setting: value})


@pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (partial(ogive.listener, "Orders", group="billing"), "consume_timeout_s"),
        (ogive.ConsumerConfig, "pull_suspend_s"),
        (ogive.ConsumerConfig, "await_termination_s"),
        (ogive.ProducerConfig, "send_timeout_s"),
        (ogive.ClientConfig, "connect_timeout_s"),
    ],
)
def test_of_a_time_without_end(kind: Callable[..., Any], setting: str, seconds: float) -> None:
    with pytest.raises(InvalidOption, match=f"{setting} is (nan|inf): must be a finite number"):
        kind(**{setting: seconds})


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (ogive.ConsumerConfig, "pull_batch_size"),
        (ogive.ConsumerConfig, "max_topic_messages"),
        (ogive.ProducerConfig, "retries"),
        (ogive.ProducerConfig, "send_timeout_s"),
    ],
)
def test_of_a_setting_that_is_a_number(kind: Callable[..., Any], setting: str) -> None:
    with pytest.raises(TypeError, match=f"{setting} must be .*, not bool"):
        kind(**{setting: True})


@pytest.mark.parametrize(
    "given", [{"seconds": "1"}, {"seconds": True}, {"done": "1"}, {"done": None}, {"done": True}]
)
def test_of_a_listeners_pause(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"{next(iter(given))} must be"):
        ogive.suspend(**given)


def test_of_a_recall_handle(producer: ogive.Producer[bytes]) -> None:
    """A message that was sent without a delay has None there."""
    with pytest.raises(
        TypeError, match="not NoneType: only a message sent with delay_s= or deliver_at= has one"
    ):
        producer.recall("Orders", None)  # type: ignore[arg-type]


def test_of_a_pull_consumers_arguments() -> None:
    with ogive.PullConsumer(name_server="127.0.0.1:1", group="refused") as consumer:
        calls: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
            ("timeout_s must be a number of seconds or None, not str", consumer.poll, ("5",), {}),
            ("max_messages must be int, not str", consumer.poll, (), {"max_messages": "5"}),
            ("max_messages must be int, not str", consumer.pull, (QUEUE, 0), {"max_messages": "5"}),
            (
                "max_messages must be int, not bool",
                consumer.pull,
                (QUEUE, 0),
                {"max_messages": True},
            ),
            ("timeout_s must be a number of seconds or None, not bool", consumer.poll, (True,), {}),
            (
                "suspend_s must be a number of seconds, not str",
                consumer.pull,
                (QUEUE, 0),
                {"suspend_s": "5"},
            ),
            (
                "queue must be an ogive.MessageQueue.* not tuple",
                consumer.seek,
                (("Orders", 0), 5),
                {},
            ),
            ("queue must be an ogive.MessageQueue.* not str", consumer.assign, ("Orders",), {}),
            (
                "queues must be several ogive.MessageQueue, not MessageQueue",
                consumer.assign,
                (QUEUE,),
                {},
            ),
            ("queue must be an ogive.MessageQueue.* not int", consumer.pause, (0,), {}),
            ("topic must be str, not list", consumer.queues, (["Orders"],), {}),
        ]
        for words, call, arguments, others in calls:
            with pytest.raises(TypeError, match=words):
                call(*arguments, **others)


@pytest.mark.parametrize("seconds", [float("nan"), -1.0])
def test_of_a_pull_consumers_times(seconds: float) -> None:
    with ogive.PullConsumer(name_server="127.0.0.1:1", group="refused") as consumer:
        with pytest.raises(InvalidOption, match=r"timeout_s is (nan|-1.0): must be at least 0"):
            consumer.poll(seconds)
        with pytest.raises(InvalidOption, match=r"suspend_s is (nan|-1.0): must be between 0"):
            consumer.pull(QUEUE, 0, suspend_s=seconds)


def test_of_an_admins_arguments() -> None:
    with ogive.Admin("127.0.0.1:1") as admin:
        calls: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
            (
                "queues must be int or None, not str",
                admin.create_topic,
                ("Orders",),
                {"queues": "8"},
            ),
            (
                "queues must be int or None, not bool",
                admin.create_topic,
                ("Orders",),
                {"queues": True},
            ),
            (
                "max_retries must be int or None, not str",
                admin.create_group,
                ("billing",),
                {"max_retries": "3"},
            ),
            (
                "retry_queues must be int or None, not float",
                admin.update_group,
                ("billing",),
                {"retry_queues": 1.5},
            ),
            ("message_id must be str, not NoneType", admin.message, (None,), {}),
            (
                "message must be one of dead_letters.group., not str",
                admin.send_again,
                ("billing", "7F00"),
                {},
            ),
            ("queue must be an ogive.MessageQueue.* not str", admin.message_at, ("Orders", 0), {}),
        ]
        for words, call, arguments, others in calls:
            with pytest.raises(TypeError, match=words):
                call(*arguments, **others)


def test_of_properties_and_of_a_message_made_for_a_test() -> None:
    with pytest.raises(TypeError, match="properties must be a mapping of str to str, not list"):
        ogive.Message("Orders", b"x", properties=["region"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="body must be bytes, not str"):
        ogive.testing.message("Orders", "4711")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"queue_id": "0"}, TypeError, "queue_id of a queue must be int, not str"),
        ({"queue_id": 0.5}, TypeError, "queue_id of a queue must be int, not float"),
        ({"queue_id": True}, TypeError, "queue_id of a queue must be int, not bool"),
        ({"queue_id": None}, TypeError, "queue_id of a queue must be int, not NoneType"),
        ({"queue_id": -1}, InvalidOption, "queue -1: the number of a queue must be between 0"),
        ({"queue_id": 2**31}, InvalidOption, "the number of a queue must be between 0 and 2147"),
        ({"topic": 5}, TypeError, "topic of a queue must be str, not int"),
        ({"broker_name": None}, TypeError, "broker_name of a queue must be str, not NoneType"),
    ],
)
def test_of_a_queue(
    producer: ogive.Producer[bytes], fields: dict[str, Any], error: type[Exception], words: str
) -> None:
    queue = replace(QUEUE, **fields)
    with (
        ogive.PullConsumer(name_server="127.0.0.1:1", group="refused") as consumer,
        ogive.Admin("127.0.0.1:1") as admin,
    ):
        for call in (
            lambda: producer.send("Orders", b"x", queue=queue),
            lambda: producer.submit("Orders", b"x", queue=queue),
            lambda: producer.send_oneway("Orders", b"x", queue=queue),
            lambda: consumer.pull(queue, 0),
            lambda: consumer.seek(queue, 0),
            lambda: consumer.pause(queue),
            lambda: consumer.resume(queue),
            lambda: consumer.position(queue),
            lambda: consumer.committed(queue),
            lambda: consumer.commit({queue: 0}),
            lambda: consumer.assign([queue]),
            lambda: consumer.end_offset(queue),
            lambda: admin.message_at(queue, 0),
        ):
            with pytest.raises(error, match=words):
                call()


@pytest.mark.parametrize(("offset", "error"), OFFSETS)
def test_of_an_offset(offset: Any, error: type[Exception]) -> None:
    with ogive.PullConsumer(name_server="127.0.0.1:1", group="refused") as consumer:
        for call in (
            lambda: consumer.pull(QUEUE, offset),
            lambda: consumer.commit({QUEUE: offset}),
        ):
            with pytest.raises(error, match="offset"):
                call()
    with ogive.Admin("127.0.0.1:1") as admin, pytest.raises(error, match="offset"):
        admin.message_at(QUEUE, offset)
