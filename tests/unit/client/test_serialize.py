"""Values instead of bodies: what a producer makes of them, and what a listener gets."""

import asyncio
import enum
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

import ogive
from ogive import aio
from ogive.client.listener import AnyListener
from ogive.client.serialize import reader, to_json
from ogive.errors import BodyUnreadable, InvalidOption
from ogive.model import Message, MessageExt
from ogive.testing.fake_broker import FakeBroker
from ogive.wire.codes import RequestCode
from tests.unit.client.consumer.test_push_consumer import QUICK, RETRY, SEND_BACK


class Currency(enum.Enum):
    EUR = "EUR"


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal
    currency: Currency = Currency.EUR


@dataclass(frozen=True)
class Order:
    id: UUID
    placed_at: datetime
    lines: list[Line]
    kind: Literal["web", "shop"] = "web"
    note: str | None = None
    weights: dict[str, float] = field(default_factory=dict)
    parent: "Order | None" = None
    tags: tuple[str, ...] = ()


class Model(pydantic.BaseModel):
    id: str
    amount: int


class Struct(msgspec.Struct):
    id: str
    amount: int


ORDER = Order(
    id=UUID(int=7),
    placed_at=datetime(2026, 11, 22, 12, tzinfo=UTC),
    lines=[Line("espresso", Decimal("2.20"))],
    weights={"kg": 0.5},
    parent=Order(
        id=UUID(int=6),
        placed_at=datetime(2026, 11, 21, tzinfo=UTC),
        lines=[],
        kind="shop",
        note="äöü",
    ),
    tags=("a", "b"),
)


@pytest.fixture
async def broker() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 1, RETRY: 1}) as broker:
        yield broker


@pytest.mark.parametrize(
    "value",
    [ORDER, Model(id="1", amount=2), Struct(id="1", amount=2)],
    ids=["dataclass", "pydantic", "msgspec"],
)
def test_what_was_written_is_read_again(value: Any) -> None:
    assert reader(type(value))(to_json(value)) == value


class Color(enum.Enum):
    RED = "red"
    GREEN = "green"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Rate(enum.Enum):
    FULL = Decimal("0.19")
    PAIR = (1, 2)


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Sets:
    colors: set[Color] = field(default_factory=set)
    lines: frozenset[Line] = frozenset()
    levels: set[Level] = field(default_factory=set)
    ids: set[UUID] = field(default_factory=set)
    mixed: frozenset[int | str | None] = frozenset()
    nested: frozenset[frozenset[Color]] = frozenset()
    rates: tuple[Rate, ...] = ()
    rights: Rights = Rights.READ
    choice: Literal[1, Color.RED, "1"] = 1


SETS = [
    Sets(colors=set(Color)),
    Sets(lines=frozenset({Line("a", Decimal(2)), Line("b", Decimal(1)), Line("a", Decimal(10))})),
    Sets(levels=set(Level), ids={UUID(int=n) for n in range(5)}),
    Sets(mixed=frozenset({1, "1", None, "x"})),
    Sets(nested=frozenset({frozenset({Color.RED, Color.BLUE}), frozenset(Color), frozenset()})),
    Sets(rates=(Rate.PAIR, Rate.FULL), rights=Rights.READ | Rights.WRITE, choice=Color.RED),
    Sets(choice="1"),
]


@pytest.mark.parametrize("value", SETS, ids=range(len(SETS)))
def test_sets_and_members_of_enums_are_read_as_they_were_written(value: Sets) -> None:
    read = reader(Sets)(to_json(value))
    assert read == value
    assert type(read.choice) is type(value.choice)


def test_sets_are_written_in_an_order_of_their_own() -> None:
    assert to_json({3, 10, 2}) == b"[2,3,10]"
    assert to_json(set(Color)) == b'["blue","green","red"]'
    assert to_json({Decimal(2), Decimal("NaN")}) == b'["2","NaN"]'


def test_sets_of_sets_are_written_in_the_same_order_by_every_process() -> None:
    words = [chr(ord("a") + n) * 3 for n in range(20)]
    assert (
        to_json({frozenset({word}) for word in words})
        == json.dumps([[word] for word in words], separators=(",", ":")).encode()
    )


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: x,
        lambda x: [x],
        lambda x: Order(UUID(int=1), ORDER.placed_at, [], weights={"kg": x}),
        lambda x: {x},
    ],
)
def test_numbers_that_json_does_not_have_are_refused(
    number: float, wrap: Callable[[float], Any]
) -> None:
    with pytest.raises(
        ValueError, match=r"has no form in JSON.*: replace NaN and infinity by None or a text"
    ):
        to_json(wrap(number))


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity"])
def test_a_body_that_is_only_almost_json_is_not_read(text: bytes) -> None:
    for as_ in (float, list[float], dict, Order):
        with pytest.raises(BodyUnreadable, match="is not JSON"):
            reader(as_)(b'{"id":"1","weights":{"kg":%b}}' % text)
    with pytest.raises(BodyUnreadable, match="beyond the range of float"):
        reader(list[float])(b"[1e999]")


def test_models_and_structs_may_be_inside_of_other_values() -> None:
    assert json.loads(to_json([Model(id="1", amount=2), Struct(id="2", amount=3)])) == [
        {"id": "1", "amount": 2},
        {"id": "2", "amount": 3},
    ]
    assert reader(list[Model])(to_json([Model(id="1", amount=2)])) == [Model(id="1", amount=2)]
    assert reader(dict[str, Struct])(to_json({"a": Struct(id="1", amount=2)})) == {
        "a": Struct(id="1", amount=2)
    }
    with pytest.raises(BodyUnreadable, match="amount"):
        reader(list[Model])(b'[{"id":"1","amount":"x"}]')


def test_bodies_are_plain_json() -> None:
    assert json.loads(to_json(Line("espresso", Decimal("2.20")))) == {
        "article": "espresso",
        "price": "2.20",
        "currency": "EUR",
    }
    assert to_json({"a": [1, None]}) == b'{"a":[1,null]}'
    with pytest.raises(TypeError, match="a object has no form in JSON"):
        to_json(object())
    with pytest.raises(
        TypeError,
        match=r"a bytes has no form in JSON: a body that is bytes already goes as ogive\.Message",
    ):
        to_json(b"ready")


def test_what_a_newer_sender_adds_is_ignored_and_what_has_a_default_may_be_missing() -> None:
    body = (
        b'{"id":"00000000-0000-0000-0000-000000000007","placed_at":"2026-11-22T12:00:00+00:00",'
        b'"lines":[],"colour":"red"}'
    )
    assert reader(Order)(body) == Order(id=UUID(int=7), placed_at=ORDER.placed_at, lines=[])


@pytest.mark.parametrize(
    ("as_", "body", "said"),
    [
        (
            Line,
            b'{"article":1,"price":"2"}',
            "a body of 25 bytes cannot be read as Line: ValueError: article: str is expected, "
            "and 1 came",
        ),
        (
            Line,
            b'{"article":"a","price":"2","currency":"USD"}',
            "currency: 'USD' is not a valid Currency",
        ),
        (Line, b'{"article":"a"}', "missing 1 required positional argument: 'price'"),
        (Line, b"[]", "dict is expected"),
        (Line, b"\xff", "cannot be read as Line: UnicodeDecodeError"),
        (Order, b'{"lines":[{"article":"a","price":{}}]}', "lines: price: "),
        (Model, b'{"id":"1","amount":"x"}', "cannot be read as Model: ValidationError"),
        (Struct, b'{"id":"1"}', "cannot be read as Struct: ValidationError"),
        (str, b"\xff", "cannot be read as str: UnicodeDecodeError"),
        (dict, b"[]", "cannot be read as dict: TypeError"),
    ],
)
def test_a_body_that_is_something_else_says_what_is_wrong(as_: Any, body: bytes, said: str) -> None:
    with pytest.raises(BodyUnreadable) as failed:
        reader(as_)(body)
    assert said in str(failed.value)


@dataclass
class Odd:
    value: complex


@pytest.mark.parametrize("as_", [Odd, object, 5], ids=str)
def test_what_nobody_can_read_bodies_as_is_refused_with_the_listener(as_: Any) -> None:
    with pytest.raises(InvalidOption, match=r"as_ is|cannot be read as"):
        ogive.listener("Orders", group="billing", as_=as_)


def test_batches_are_refused() -> None:
    with pytest.raises(InvalidOption, match="one message at a time"):
        ogive.listener("Orders", group="billing", as_=Line, batch=2)


def billing(seen: list[Any], kind: str) -> AnyListener:
    @ogive.listener("Orders", group="billing", start="earliest", as_=Line)
    def plain(line: Line) -> None:
        seen.append((line, None))

    @ogive.listener("Orders", group="billing", start="earliest", as_=Line)
    async def on_the_loop(line: Line, message: MessageExt) -> None:
        seen.append((line, message.body))

    return plain if kind == "plain" else on_the_loop


@pytest.mark.parametrize("kind", ["plain", "with the message"])
async def test_a_listener_gets_the_value_and_what_cannot_be_read_comes_again(
    broker: FakeBroker, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    good = Line("espresso", Decimal("2.20"))
    broker.put("Orders", b"poison")
    broker.put("Orders", to_json(good))
    bill = billing(seen, kind)
    async with aio.PushConsumer(bill, name_server=broker.address, config=QUICK):
        await broker.received(SEND_BACK)
        await broker.until(lambda: broker.offsets.get(("billing", "Orders", 0)) == 2)
    assert seen == [(good, None if kind == "plain" else to_json(good))]
    assert [request.ext_fields["offset"] for request in broker.of(SEND_BACK)] == ["0"]
    assert "a body of 6 bytes cannot be read as Line: JSONDecodeError" in caplog.text


def test_a_listener_is_called_with_a_value_in_a_unit_test() -> None:
    seen: list[Any] = []
    good = Line("espresso", Decimal("2.20"))
    billing(seen, "plain")(good)
    assert seen == [(good, None)]


async def test_a_producer_writes_values_everywhere_and_messages_as_they_are(
    broker: FakeBroker,
) -> None:
    line = Line("espresso", Decimal("2.20"))
    producer: aio.Producer[Line] = aio.Producer(
        broker.address, group="shop", check=lambda message: None, serializer=to_json
    )
    async with producer:
        await producer.send("Orders", line)
        await (await producer.submit("Orders", line, keys="k"))
        await producer.send_oneway("Orders", line)
        await producer.send_batch("Orders", [line, Message("Orders", b"raw")])
        async with producer.transaction("Orders", line):
            pass
        await producer.send(Message("Orders", b"raw"))
        await broker.received(RequestCode.SEND_MESSAGE_V2, 5)
    bodies = [message.body for message in broker.stored["Orders", 0]]
    assert sorted(bodies) == sorted([to_json(line)] * 5 + [b"raw"] * 2)


async def test_a_serializer_that_gives_no_bytes_is_named(broker: FakeBroker) -> None:
    wrong: Any = str
    async with aio.Producer(broker.address, serializer=wrong) as producer:
        with pytest.raises(TypeError, match="the serializer gave a str for a int"):
            await producer.send("Orders", 1)
    assert broker.requests == []


@dataclass
class Held:
    lock: asyncio.Lock


@dataclass
class Holder:
    held: list[Held]


def test_a_field_that_cannot_be_read_is_named() -> None:
    with pytest.raises(
        InvalidOption,
        match=r"Holder\.held: Held\.lock: bodies cannot be read as <class 'asyncio\.locks\.Lock'>",
    ):
        reader(Holder)
