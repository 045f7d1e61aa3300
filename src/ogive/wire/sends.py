"""Sends on the wire: the answers to what was stored.

Source: SendMessageResponseHeader.java, 5.3.
"""

import json
from typing import Any, Final, NamedTuple

from ogive.native import native
from ogive.wire.message import offset_message_ids


class SendAnswer(NamedTuple):
    """Answer to a send, except for the place of its messages."""

    # None: it is one-way, and not answered
    opaque: int | None
    queue_id: int
    # the unique key of the message, or of the batch where it has one
    key: str | None
    # how many records hold its messages
    records: int = 1
    # one more field of the header: its name and value
    more: tuple[str, str] | None = None


def encode_answers_in_python(
    answers: list[SendAnswer],
    places: list[Any],
    region: str,
    store_host: bytes,
    version: int,
) -> bytes:
    """The frames of *answers*, one behind the other.

    *places* are those of all their records: queue offset and commit-log offset come first. Raises
    ValueError where they are not as many as the answers say.
    """
    frames: list[bytes] = []
    at = 0
    for opaque, queue_id, key, records, more in answers:
        of_answer = places[at : at + records]
        at += records
        if not 0 < records == len(of_answer):
            raise ValueError("the places are not those of the answers")
        if opaque is None:
            continue
        ids = offset_message_ids(store_host, [place[1] for place in of_answer])
        head = (
            f'{{"code":0,"extFields":{{"queueId":"{queue_id}",'
            + ("" if key is None else f'"transactionId":{_json(key)},')
            + f'"msgId":"{ids}","TRACE_ON":"true","MSG_REGION":{_json(region)},'
            + ("" if more is None else f"{_json(more[0])}:{_json(more[1])},")
            + f'"queueOffset":"{of_answer[0][0]}"}},"flag":1,"language":"PYTHON",'
            f'"opaque":{opaque},"serializeTypeCurrentRPC":"JSON","version":{version}}}'
        ).encode()
        frames.append((4 + len(head)).to_bytes(4) + len(head).to_bytes(4) + head)
    if at != len(places):
        raise ValueError("the places are not those of the answers")
    return b"".join(frames)


def _json(text: str) -> str:
    return f'"{text}"' if text.isascii() and text.isalnum() else json.dumps(text)


encode_answers: Final = encode_answers_in_python if native is None else native.encode_answers
