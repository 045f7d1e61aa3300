"""Binary headers of which one is like the other: what is known by its bytes reads as if it were read."""

import random

import pytest

from ogive.errors import ProtocolError
from ogive.wire import command as module
from ogive.wire.codes import RequestCode, SerializeType
from ogive.wire.command import RemotingCommand, decode_command, encode_command

UNREPEATED = 999  # a code whose headers are read in full, every time
SEND = int(RequestCode.SEND_MESSAGE_V2)


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test starts, and leaves the others, without headers that came before."""
    monkeypatch.setattr(module, "_REPEATED", {SEND: module._Repetition()})


def frame(code: int, entries: bytes, body: bytes) -> bytes:
    head = encode_command(RemotingCommand(code, serialize_type=SerializeType.ROCKETMQ))[4:-4]
    header = head[4:] + len(entries).to_bytes(4) + entries
    return (SerializeType.ROCKETMQ << 24 | len(header)).to_bytes(4) + header + body


def entry(name: str, value: str) -> bytes:
    return len(name.encode()).to_bytes(2) + name.encode() + len(value.encode()).to_bytes(4) + value.encode()


def read(code: int, entries: bytes, body: bytes = b"body") -> dict[str, str] | str:
    try:
        command = decode_command(frame(code, entries, body))
    except ProtocolError as exc:
        return str(exc)
    assert command.body == body
    return command.ext_fields


def send(number: int, group: str = "group", **changed: str) -> bytes:
    fields = {"a": group, "b": "Topic", "c": "TBW102", "d": "4", "e": str(number % 8), "f": "0", "g": str(10**12 + number), "h": "0",
              "i": f"UNIQ_KEY\x01{number:032X}\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a"} | changed  # fmt: skip
    return b"".join([entry(name, value) for name, value in fields.items()])


def test_what_headers_have_in_common_is_found_and_each_reads_as_before() -> None:
    for number in range(300):
        assert read(SEND, send(number)) == read(UNREPEATED, send(number))
    ends = module._REPEATED[SEND].ends
    assert list(ends.start_fields) == ["a", "b", "c", "d"]
    assert list(ends.end_fields) == ["j", "k", "m", "n"]


@pytest.mark.parametrize(
    "entries",
    [
        send(5, "other"),
        send(5, b="Topic2"),
        send(5, n="broker-b"),
        send(5, j="1"),
        send(5, i="UNIQ_KEY\x01" + send(1)[-40:].decode()),  # a value that ends like the header
        send(5)[: -len(entry("n", "broker-a"))],
        send(5) + entry("a", "another"),
        send(5) + entry("z", ""),
        entry("a", "group") + entry("b", "Topic") + entry("c", "TBW102") + entry("d", "4"),
        entry("a", "group") + entry("b", "Topic"),
        entry("j", "0") + entry("k", "false") + entry("m", "false") + entry("n", "broker-a"),
        send(5, a="", g="\u00e9\u4e2d"),
        b"",
    ],
)
def test_a_header_that_differs_reads_as_if_none_had_come_before(entries: bytes) -> None:
    for number in range(300):
        read(SEND, send(number))
    assert module._REPEATED[SEND].ends.start
    assert read(SEND, entries) == read(UNREPEATED, entries)
    for cut in range(1, len(entries)):
        assert read(SEND, entries[:cut]) == read(UNREPEATED, entries[:cut])
        assert read(SEND, entries[cut:]) == read(UNREPEATED, entries[cut:])


def test_values_that_look_like_the_known_end_are_values() -> None:
    for number in range(300):
        read(SEND, send(number))
    ends = module._REPEATED[SEND].ends
    entries = ends.start + entry("i", "x" + ends.end.decode("ascii"))
    assert read(SEND, entries) == read(UNREPEATED, entries)
    assert list(read(UNREPEATED, entries)) == ["a", "b", "c", "d", "i"]


def test_a_known_end_that_begins_within_the_known_start_is_none() -> None:
    inside, last = entry("m", "1"), entry("n", "2")
    start = entry("a", "x" + inside.decode("ascii"))
    for number in range(300):
        read(SEND, start + entry("g", str(number)) + inside + last)
    assert module._REPEATED[SEND].ends[0::2] == (start, inside + last)
    assert read(SEND, start + last) == read(UNREPEATED, start + last)
    assert list(read(UNREPEATED, start + last)) == ["a", "n"]


def test_a_header_that_ends_before_the_known_start_does_is_not_read_into_its_body() -> None:
    for number in range(300):
        read(SEND, send(number))
    start = module._REPEATED[SEND].ends.start
    for cut in range(len(start)):
        assert read(SEND, start[:cut], start[cut:] + b"rest") == read(UNREPEATED, start[:cut], start[cut:] + b"rest")


def test_empty_entries_are_known_too() -> None:
    for number in range(300):
        for entries in (send(number) + entry("", ""), entry("", "") + send(number)):
            assert read(SEND, entries) == read(UNREPEATED, entries)


def test_headers_of_any_kind_in_any_order_read_alike() -> None:
    """Clients that take turns, repeated and empty names, values that look like entries, and bytes that are no header."""
    chance = random.Random(8)
    words = ["", "a", "b", "n", "name", "\u00e9", "x" * 130, entry("n", "1").decode("latin-1")]
    pool = [entry(chance.choice(words), chance.choice(words)) for _ in range(12)]
    learned = set()
    for _ in range(4000):
        entries = b"".join(pool[: chance.randrange(4)] + chance.choices(pool, k=chance.randrange(4)) + pool[chance.randrange(9, 13) :])
        if chance.random() < 0.1:
            at = chance.randrange(len(entries) + 1)
            entries = entries[:at] + bytes((chance.randrange(256),)) + entries[at + 1 :]
        assert read(SEND, entries) == read(UNREPEATED, entries)
        learned.add(module._REPEATED[SEND].ends[0::2])
    assert len(learned) > 2


def test_clients_that_take_turns_do_not_have_the_common_parts_looked_for_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    cut = module._cut

    def counted(entries: bytes) -> list[bytes]:
        looked.append(entries)
        return cut(entries)

    monkeypatch.setattr(module, "_cut", counted)
    for number in range(640):
        read(SEND, send(number, f"group{number}"))
    assert len(looked) == 20  # two each time, once in 64
    for number in range(640):
        read(SEND, send(number, "g" * 2000))
    assert len(looked) == 20  # long ones are not kept
