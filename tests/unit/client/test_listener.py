"""What a listener is."""

import functools
from datetime import UTC, datetime
from typing import Any

import pytest

from ogive.client.listener import UNLIMITED_RETRIES, Later, Reply, Suspend, listener
from ogive.errors import InvalidOption


def test_a_listener_is_still_the_function() -> None:
    @listener("Orders", group="billing", tags="paid || refunded")
    def bill(message: str, times: int = 1) -> Reply:
        return Reply(message.encode() * times)

    assert bill("a", times=3) == Reply(b"aaa")
    assert bill.config.topic == "Orders"
    assert bill.config.subscription(7).tags == ("paid", "refunded")
    assert not bill.is_async
    assert "bill" in bill.name


@pytest.mark.parametrize(
    ("expression", "tags"),
    [("*", ()), (" * ", ()), ("paid", ("paid",)), ("paid||refunded || paid", ("paid", "refunded"))],
)
def test_tags_that_a_listener_may_name(expression: str, tags: tuple[str, ...]) -> None:
    assert (
        listener("Orders", group="billing", tags=expression)(print).config.subscription(0).tags
        == tags
    )


def test_async_functions_are_recognised() -> None:
    async def ship(message: Any, note: str = "") -> None: ...

    class Shipping:
        async def __call__(self, message: Any) -> None: ...

    make = listener("Orders", group="shipping")
    assert make(ship).is_async
    assert make(functools.partial(ship, note="by night")).is_async
    assert make(Shipping()).is_async
    assert not make(print).is_async


@pytest.mark.parametrize(
    ("settings", "retries"),
    [
        ({}, 16),
        ({"max_retries": 0}, 0),
        ({"orderly": True}, UNLIMITED_RETRIES),
        ({"orderly": True, "max_retries": 3}, 3),
    ],
)
def test_how_often_a_message_comes_again(settings: dict[str, Any], retries: int) -> None:
    assert listener("Orders", group="billing", **settings)(print).config.retries == retries


@pytest.mark.feature(20)
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"topic": "no spaces"}, "may hold only"),
        ({"group": ""}, "group name"),
        ({"tags": "|| paid"}, r"tags '\|\| paid': expected a tag, several separated by"),
        ({"tags": "paid ||"}, "expected a tag"),
        ({"tags": "paid || || refunded"}, "expected a tag"),
        ({"tags": "paid | refunded"}, "expected a tag"),
        ({"tags": "paid || *"}, "expected a tag"),
        ({"tags": ""}, "expected a tag"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": 2000}, "batch is 2000"),
        ({"threads": 0}, "threads is 0"),
        ({"consume_timeout_s": 0}, "above zero"),
        ({"max_retries": -1}, "negative"),
        ({"suspend_s": 60}, "suspend_s is 60"),
        ({"suspend_s": 3}, "suspend_s is for orderly listeners"),
        ({"start": "yesterday"}, "yesterday"),
        ({"start": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001  the naive time is the fault
        ({"broadcast": True, "max_retries": 3}, "no meaning with broadcast"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_at_once(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        listener(**{"topic": "Orders", "group": "billing", **settings})


def _nothing() -> None: ...


def _two(message: Any, more: Any) -> None: ...


def _three(value: Any, message: Any, more: Any) -> None: ...


def _yields(message: Any) -> Any:
    yield message


async def _yields_later(message: Any) -> Any:
    yield message


class Service:
    def handle(self, message: Any) -> None: ...


@pytest.mark.parametrize(
    ("settings", "function", "says"),
    [
        ({}, _nothing, "too many positional arguments.*called with the message"),
        ({}, _two, "missing a required argument: 'more'"),
        ({}, Service.handle, r"Service.handle\(self, message.*service.method"),
        (
            {"as_": dict},
            _three,
            "missing a required argument: 'more'.*with the value, and the message",
        ),
        ({}, _yields, "_yields yields"),
        ({}, _yields_later, "yields"),
        ({}, "bill", "'bill' is none"),
    ],
)
def test_a_function_that_could_not_be_called_is_refused_at_once(
    settings: dict[str, Any], function: Any, says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        listener("Orders", group="billing", **settings)(function)


@pytest.mark.parametrize(
    "function",
    [
        Service().handle,
        lambda *messages: None,
        lambda message, times=1: None,
        functools.partial(_two, more=1),
        int,
    ],
)
def test_whatever_takes_a_message_may_listen(function: Any) -> None:
    assert listener("Orders", group="billing")(function).function is function


@pytest.mark.parametrize("function", [_nothing, _three])
def test_with_a_value_one_or_two_arguments_are_given(function: Any) -> None:
    make = listener("Orders", group="billing", as_=dict)
    make(lambda value: None)
    make(_two)
    with pytest.raises(InvalidOption, match="cannot be a listener"):
        make(function)


@pytest.mark.parametrize("settings", [{"group": None}, {"topic": None}, {"tags": ["paid"]}])
def test_settings_of_a_wrong_type_are_named(settings: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"(group|topic|tags) must be str"):
        listener(**{"topic": "Orders", "group": "billing", **settings})


def test_a_start_time_needs_its_zone() -> None:
    assert listener("Orders", group="billing", start=datetime(2026, 1, 1, tzinfo=UTC))(
        print
    ).config.start


def test_results_that_cannot_be() -> None:
    for make in (
        lambda: Later(-2),
        lambda: Later(done=-1),
        lambda: Suspend(-1.0),
        lambda: Suspend(float("nan")),
    ):
        with pytest.raises(InvalidOption):
            make()
