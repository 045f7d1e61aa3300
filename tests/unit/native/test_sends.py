"""native/sends.c beside ogive.broker.sends.send and its answers."""

from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ogive.broker.replies import Rejected
from ogive.broker.sends.checks import CLIENT_FLAGS
from ogive.broker.sends.send import _LONG, _SHORT, _Names, handle
from ogive.errors import ProtocolError
from ogive.native import Native
from ogive.store.types import NewMessage
from ogive.wire.command import RemotingCommand

OWN = "MSG_REGION\x01Default\x02TRACE_ON\x01true\x02CLUSTER\x01ü\x02"
USUAL = {"b": "T", "e": "1", "g": "1700000000000", "i": "UNIQ_KEY\x01AB12\x02"}
NO_BATCH = ("false", "0")

odd_numbers = [
    "",
    "-",
    "-0",
    "007",
    "+5",
    " 5",
    "5 ",
    "1_000",
    "٣",
    "5.0",
    "0x1",
    "5\0",
    "9" * 18,
    "9" * 19,
    str(2**63),
    "-" + "9" * 18,
]
numbers = st.one_of(
    st.integers(-3, 9).map(str),
    st.integers(-(2**33), 2**33).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(odd_numbers),
)
flags = st.one_of(st.integers(0, 0xFFF).map(str), numbers)
words = st.sampled_from(
    [
        "UNIQ_KEY",
        "XUNIQ_KEY",
        "DELAY",
        "XDELAY",
        "TRAN_MSG",
        "TIMER_",
        "TIMER",
        "TIMER_DELAY_MS",
        "POP_CK",
        "1ST_POP_TIME",
        "CLUSTER",
        "INNER_NUM",
        "WAIT",
        "KEYS",
        "\x01",
        "\x02",
        "\x01UNIQ_KEY",
        "\x02UNIQ_KEY\x01",
        "A",
        "ü",
        "\ud800",
        "",
        "_",
    ]
)
pairs = st.tuples(st.one_of(words, st.just("UNIQ_KEY")), st.one_of(words, st.text(max_size=5)))
texts = st.one_of(
    st.lists(pairs, max_size=4).map(
        lambda found: "".join([f"{name}\x01{value}\x02" for name, value in found])
    ),
    st.lists(words, max_size=8).map("".join),
    st.lists(pairs, min_size=1, max_size=4).map(
        lambda found: "\x02".join([f"{name}\x01{value}" for name, value in found])
    ),
)


@st.composite
def headers(draw: st.DrawFn) -> dict[str, str]:
    fields = {
        "b": draw(st.sampled_from(["T", "T", "%RETRY%g", "", "ü"])),
        "e": draw(numbers),
        "f": draw(flags),
        "g": draw(numbers),
        "h": draw(numbers),
        "i": draw(texts),
        "j": draw(numbers),
        "m": draw(st.sampled_from(["false", "false", "true", "1", "", "True", "0"])),
        "k": "false",
        "n": "broker-a",
    }
    usual = draw(st.sets(st.sampled_from(sorted(USUAL))))
    without = draw(st.sets(st.sampled_from(sorted(fields)), max_size=2))
    return {
        name: USUAL[name] if name in usual else value
        for name, value in fields.items()
        if name not in without
    }


class More(Exception):
    """The handler does more than store it, or refuses it."""


def by_python(ext: dict[str, str], names: _Names) -> tuple[Any, ...] | None:
    """What the handler stores, and the key that it answers with."""
    put: list[tuple[NewMessage, Any]] = []

    def more(*args: Any, **named: Any) -> NoReturn:
        raise More

    topic = SimpleNamespace(
        name=ext.get(names.topic), write_queues=8, filter_type="SINGLE_TAG", attributes={}
    )
    ctx: Any = SimpleNamespace(
        sends_waiting=0,
        config=SimpleNamespace(max_sends_waiting=9, max_message_bytes=9),
        topics={topic.name: topic},
        own_properties=OWN,
        born_hosts={None: bytes(8)},
        store_host=bytes(8),
        loop=SimpleNamespace(time=float),
        duplicates=None,
        put=lambda messages, topic, done: put.append((messages[0], done)),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ogive.broker.sends.send.native", None)
        patch.setattr("ogive.broker.sends.send._redirect", more)
        patch.setattr("ogive.broker.sends.send.put_batch", more)
        patch.setattr("ogive.broker.sends.send.check_queue", lambda queue_id, config: queue_id)
        try:
            handle(ctx, cast(Any, None), RemotingCommand(310 if names is _SHORT else 10, ext))
        except (More, ProtocolError, Rejected, IndexError):
            # a topic without a name is refused before
            return None
    [(message, done)] = put
    assert [message.topic] == done.args[4]
    sent = (
        message.sys_flag,
        message.born_timestamp_ms,
        message.flag,
        message.reconsume_times,
        message.properties,
    )
    return (*message[:2], *sent, done.args[3][0].key)


@given(headers())
@example(USUAL)
@example(USUAL | {"i": "UNIQ_KEY\x01\x02"})
@example(USUAL | {"i": "UNIQ_KEY\x01A"})
@example(USUAL | {"i": "KEYS\x01ü\x02UNIQ_KEY\x01ö"})
@example(USUAL | {"i": "UNIQ_KEY\x01A\x01B\x02UNIQ_KEY\x01C\x02"})
@example(USUAL | {"i": "XUNIQ_KEY\x01A\x02UNIQ_KEY\x01C\x02"})
@example(USUAL | {"i": "UNIQ_KEY\x01A\x02UNIQ_KEY\x01B\x02"})
@example(USUAL | {"f": "4", "i": "UNIQ_KEY\x01A\x02TRAN_MSG\x01true\x02"})
def test_usual_sends_are_what_python_makes_of_them(compiled: Native, ext: dict[str, str]) -> None:
    found, twin = compiled.usual_send(ext, _SHORT, OWN), by_python(ext, _SHORT)
    if found is not None:
        assert found == twin
        assert [type(value) for value in found] == [str, int, int, int, int, int, bytes, str]
    elif twin is not None and ext.get("m", "false") in NO_BATCH:
        # only a second key, and numbers that are written in another way, or are too long
        assert ext["i"].count("UNIQ_KEY\x01") > 1 or any(
            ext.get(name, "0").strip("-") not in map(str, range(10**6)) for name in "efghj"
        )
    long = {
        getattr(_LONG, name): ext[short] for name, short in _SHORT._asdict().items() if short in ext
    }
    assert compiled.usual_send(long, _LONG, OWN) == found


@pytest.mark.parametrize("name", "efghj")
def test_each_number_is_read_as_by_python(compiled: Native, name: str) -> None:
    plain = ["0", "-0", "007", "7", "-7", "9" * 17, "9" * 18, "-" + "9" * 18, "4", str(0x733)]
    plain += [str(number) for number in (2**31 - 1, 2**31, 1 - 2**31, -(2**31))]
    for number in [*plain, *odd_numbers, "/", ":", "1/", "1:", "--1", "1-"]:
        found = compiled.usual_send(USUAL | {name: number}, _SHORT, OWN)
        assert found == (by_python(USUAL | {name: number}, _SHORT) if number in plain else None), (
            number
        )


@pytest.mark.parametrize("value", ["true", "1", "false", "0", "", "True", "true ", "11"])
def test_what_may_be_a_batch_is_left_to_python(compiled: Native, value: str) -> None:
    twin = by_python(USUAL | {"m": value}, _SHORT)
    assert compiled.usual_send(USUAL | {"m": value}, _SHORT, OWN) == (
        twin if value in NO_BATCH else None
    )
    assert (twin is None) == (value in ("true", "True", "1"))


@pytest.mark.parametrize(
    "name",
    [
        "DELAY",
        "TRAN_MSG",
        "TIMER_",
        "TIMER",
        "TIMER_DELAY_MS",
        "POP_CK",
        "CLUSTER",
        "INNER_NUM",
        "CLUSTER2",
        "_",
    ],
)
def test_names_that_say_more_are_found_wherever_they_stand(compiled: Native, name: str) -> None:
    for before in ("", "X", "KEYS\x01", "KEYS\x01a\x02"):
        for other in (f"{before}{name}\x01v\x02", f"{before}{name}\x02"):
            for text in (
                f"{other}UNIQ_KEY\x01A\x02",
                f"UNIQ_KEY\x01A\x02{other}",
                f"UNIQ_KEY\x01A\x02{other[:-1]}",
                other,
            ):
                assert compiled.usual_send(USUAL | {"i": text}, _SHORT, OWN) == by_python(
                    USUAL | {"i": text}, _SHORT
                ), text


@pytest.mark.parametrize(
    "fields",
    [
        {"b": ""},
        {"b": "%T"},
        {"b": "T%"},
        {"b": "ü"},
        {"b": "\ud800"},
        {"i": ""},
        {"i": "UNIQ_KEY"},
        {"i": "UNIQ_KEY\x01\ud800"},
    ],
)
def test_topics_and_texts_are_read_as_by_python(compiled: Native, fields: dict[str, str]) -> None:
    ext = USUAL | fields
    assert compiled.usual_send(ext, _SHORT, OWN) == (
        None if "\ud800" in ext["b"] else by_python(ext, _SHORT)
    )
    for name in fields:
        del ext[name]
        assert compiled.usual_send(ext, _SHORT, OWN) is None


@given(
    st.integers(-(10**10), 10**18 - 1),
    st.integers(0, 0xFFF),
    st.integers(0, 10**18 - 1),
    st.integers(-(2**32), 2**32),
)
@example(0, 0x733, 0, 2**31 - 1)
@example(0, 0, 0, 2**31)
@example(0, 0, 0, -(2**31))
@example(0, 0, 0, 1 - 2**31)
def test_plain_numbers_in_range_are_compiled(
    compiled: Native, queue_id: int, sys_flag: int, born_ms: int, number: int
) -> None:
    for name in "hj":
        ext = USUAL | {"e": str(queue_id), "f": str(sys_flag), "g": str(born_ms), name: str(number)}
        assert compiled.usual_send(ext, _SHORT, OWN) == by_python(ext, _SHORT)


@pytest.mark.parametrize(
    "size",
    [32767 - 90, 32767 - len(OWN.encode()) - 9, 32767 - len(OWN.encode()) - 10, 32767, 40000],
)
def test_properties_over_the_limit_are_left_to_python(compiled: Native, size: int) -> None:
    ext = USUAL | {"i": "UNIQ_KEY\x01" + "A" * size}
    assert compiled.usual_send(ext, _SHORT, OWN) == by_python(ext, _SHORT)
    ext = USUAL | {"i": "UNIQ_KEY\x01" + "A" * size + "\x02"}
    assert compiled.usual_send(ext, _SHORT, OWN) == by_python(ext, _SHORT)


def test_flags_are_those_of_clients(compiled: Native) -> None:
    taken = [
        flag
        for flag in range(0x1000)
        if compiled.usual_send(USUAL | {"f": str(flag)}, _SHORT, OWN) is not None
    ]
    assert taken == [flag for flag in range(0x1000) if not flag & ~CLIENT_FLAGS]


def test_only_a_dict_and_names_are_taken(compiled: Native) -> None:
    wrong: list[Any] = [
        ([], _SHORT, OWN),
        ({}, _SHORT[:-1], OWN),
        ({}, list(_SHORT), OWN),
        ({}, _SHORT, OWN.encode()),
        ({}, _SHORT),
    ]
    for arguments in wrong:
        with pytest.raises(TypeError, match="names: tuple of 12"):
            compiled.usual_send(*arguments)
    assert compiled.usual_send(USUAL | {"e": 1}, _SHORT, OWN) is None  # type: ignore[arg-type]


def test_fields_that_vanish_while_others_are_looked_up_are_still_there(compiled: Native) -> None:
    class Odd:
        def __hash__(self) -> int:
            return hash("m")

        def __eq__(self, other: object) -> bool:
            fields.clear()
            # where those were
            behind.extend(["x" * len(value) for value in USUAL.values()])
            return False

    behind: list[str] = []
    # nobody else has these texts
    fields: dict[Any, str] = {name: value[:1] + value[1:] for name, value in USUAL.items()}
    fields[Odd()] = ""
    assert compiled.usual_send(fields, _SHORT, OWN) == compiled.usual_send(dict(USUAL), _SHORT, OWN)
    assert fields == {}


def test_what_the_comparison_of_names_raises_comes_out(compiled: Native) -> None:
    class Odd:
        def __hash__(self) -> int:
            return hash("g")

        def __eq__(self, other: object) -> bool:
            raise LookupError("not this one")

    fields: Any = {Odd(): "", **{name: value for name, value in USUAL.items() if name != "g"}}
    with pytest.raises(LookupError, match="not this one"):
        compiled.usual_send(fields, _SHORT, OWN)
