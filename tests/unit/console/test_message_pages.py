"""Bodies as pages show them: readable, bounded, and nothing hidden in them."""

import json

import pytest

from ogive.console.message_pages import MAX_SHOWN_BYTES, PREVIEW_BYTES, body_of, hex_rows, preview


def test_json_is_shown_with_indents_and_can_be_read_as_it_is() -> None:
    body = body_of(b'{"a":[1,"\xc3\xbc"]}')
    assert (body.form, body.forms) == ("json", ("json", "text", "hex"))
    assert body.shown == '{\n  "a": [\n    1,\n    "ü"\n  ]\n}'
    assert body_of(b'{"a":1}', "text").shown == '{"a":1}'
    assert body_of(b'{"a":1}', "hex").shown.startswith("00000000  7b 22 61")


@pytest.mark.parametrize(
    "raw", [b"plain", b"12", b"{", b"[" * 30_000, b'{"a": ' + b"9" * 5000 + b"}", b""]
)
def test_what_is_no_json_is_text(raw: bytes) -> None:
    assert body_of(raw).form == "text"
    assert body_of(raw, "json").form == "text"


def test_what_is_no_text_is_hex() -> None:
    body = body_of(b"\x00\xff" * 20)
    assert (body.form, body.forms) == ("hex", ("hex",))
    assert len(body.shown.splitlines()) == 3


def test_a_large_body_is_cut_and_says_so() -> None:
    raw = "ü".encode() * MAX_SHOWN_BYTES
    body = body_of(b"x" + raw)
    assert (body.size, body.cut, body.form) == (2 * MAX_SHOWN_BYTES + 1, True, "text")
    # the cut goes through a character, which is left out
    assert body.shown == "x" + "ü" * (MAX_SHOWN_BYTES // 2 - 1)


def test_json_whose_indents_would_fill_the_page_is_shown_as_it_is() -> None:
    raw = json.dumps([[1]] * 100).encode()
    for _ in range(400):
        raw = b"[" + raw + b"]"
    assert body_of(raw).form == "text"


def test_characters_that_would_deceive_are_shown_as_escapes() -> None:
    assert body_of("pay\u202e100\x00\n\tend".encode()).shown == "pay\\u202e100\\x00\n\tend"
    assert body_of('{"to": "a\u202eb"}'.encode()).shown == '{\n  "to": "a\\u202eb"\n}'
    assert preview("pay\u202e100".encode()) == "pay\\u202e100"


def test_a_preview_is_one_short_line() -> None:
    assert preview(b"one\ntwo") == "one two"
    assert len(preview(b"x" * 10_000)) == PREVIEW_BYTES + 2
    assert preview(b"\xff\x00") == "ff 00"


def test_hex_rows_line_up() -> None:
    first, last = hex_rows(bytes(range(60, 80))).splitlines()
    assert first.endswith(" <=>?@ABCDEFGHIJK")
    assert last.index("L") == first.index("<")
