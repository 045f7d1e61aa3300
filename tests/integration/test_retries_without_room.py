"""Messages with properties, keys and bodies up to the limits, and a listener that always fails:
none may stop its group.
"""

import asyncio
import itertools
import os
import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import ogive
from ogive import aio
from ogive.errors import ResponseCode
from ogive.model import MAX_BODY_BYTES, MessageExt
from ogive.wire.codes import SysFlag
from ogive.wire.compression import compress
from ogive.wire.message import encode_properties
from tests.peers import RunningBroker
from tests.raw_client import RawClient, unique_key

ADDED = len("MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02")
MAX_RETRIES = 1
WAIT_S = 150.0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Shape:
    """A message with so many bytes of properties fewer than fit, most of them in the property
    *name*.
    """

    name: str
    missing: int
    body: int = 10
    small: int = 0
    tries: int = 0
    inflated: bool = False


SHAPES = st.builds(
    Shape,
    name=st.sampled_from(
        ["baggage", "KEYS", "TAGS", "UNIQ_KEY", "RETRY_TOPIC", "ORIGIN_MESSAGE_ID", "n" * 15_000]
    ),
    missing=st.one_of(st.integers(0, 400), st.integers(0, 16_000)),
    body=st.one_of(st.integers(1, 2_000), st.sampled_from([MAX_BODY_BYTES - 1, MAX_BODY_BYTES])),
    small=st.sampled_from([0, 0, 10, 400]),
    tries=st.sampled_from([0, 0, 0, 16, 0x7FFFFFFF]),
    inflated=st.booleans(),
)
WORST = [Shape(name, 0) for name in ("baggage", "KEYS", "UNIQ_KEY")] + [
    Shape("baggage", 0, MAX_BODY_BYTES),
    Shape("baggage", 60, MAX_BODY_BYTES, 900),
    Shape("baggage", 0, 20_000_000, inflated=True),
    Shape("baggage", 0, tries=0x7FFFFFFF),
]


def properties_of(shape: Shape, number: int) -> dict[str, str]:
    small = {f"p{i:03}": "v" * 20 for i in range(shape.small)}
    rest = {"UNIQ_KEY": unique_key(), "number": str(number)} | small
    rest.pop(shape.name, None)
    room = 32_767 - ADDED - shape.missing - len(encode_properties(rest)) - len(shape.name) - 2
    return {**rest, shape.name: "v" * room} if room > 0 else rest


@settings(
    max_examples=3,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
        HealthCheck.too_slow,
    ],
)
@given(st.lists(SHAPES, min_size=8, max_size=24))
@example(WORST)
def test_each_rests_in_the_dead_letters_after_its_retries_and_progress_reaches_the_end(
    broker: RunningBroker, shapes: list[Shape]
) -> None:
    asyncio.run(both_ways(broker, shapes))


async def both_ways(broker: RunningBroker, shapes: list[Shape]) -> None:
    """Concurrent and orderly, of one topic."""
    topic = f"Full{os.getpid()}x{next(_numbers)}"
    async with (
        aio.Admin(broker.name_server) as admin,
        await RawClient.open(broker.address) as sender,
    ):
        await admin.create_topic(topic, queues=1)
        for number, shape in enumerate(shapes):
            body, flag = bytes(shape.body), 0
            if shape.inflated:
                body, flag = compress(body)
            answer = await sender.start_send(
                topic,
                body,
                properties_of(shape, number),
                f=flag & ~SysFlag.MULTI_TAGS,
                j=shape.tries,
            )
            assert answer.code == ResponseCode.SUCCESS, (shape, answer)
        await asyncio.gather(
            *(one_way(broker, admin, topic, shapes, orderly) for orderly in (False, True))
        )


async def one_way(
    broker: RunningBroker, admin: aio.Admin, topic: str, shapes: list[Shape], orderly: bool
) -> None:
    group = f"{topic}-{'orderly' if orderly else 'concurrent'}"
    tried: dict[str, list[int]] = {}

    settings: dict[str, Any] = {"orderly": True, "suspend_s": 0.01} if orderly else {}

    @ogive.listener(topic, group=group, start="earliest", max_retries=MAX_RETRIES, **settings)
    def refuse(message: MessageExt) -> Any:
        tried.setdefault(message.properties["number"], []).append(len(message.body))
        return ogive.LATER

    async with aio.PushConsumer(refuse, name_server=broker.name_server), asyncio.timeout(WAIT_S):
        while sum([row.lag for row in await admin.lag(group)]) or await held(admin, group) < len(
            shapes
        ):
            await asyncio.sleep(0.2)
    letters = {
        letter.properties["number"]: letter
        for letter in await admin.dead_letters(group, limit=1_000)
    }
    assert len(letters) == len(shapes)
    for number, shape in enumerate(shapes):
        letter = letters[str(number)]
        calls = 1 if shape.tries > MAX_RETRIES else MAX_RETRIES + 1
        assert letter.body == bytes(shape.body)
        assert tried[str(number)] == [shape.body] * calls, (shape, orderly)
        removed = letter.properties.get("OGIVE_REMOVED_PROPERTIES")
        if removed and shape.name not in ("RETRY_TOPIC", "ORIGIN_MESSAGE_ID"):
            original = await admin.message(letter.properties["ORIGIN_MESSAGE_ID"])
            assert (original.properties["number"], shape.name in original.properties) == (
                str(number),
                True,
            )


async def held(admin: aio.Admin, group: str) -> int:
    try:
        return len(await admin.dead_letters(group, limit=1_000))
    except ogive.errors.TopicNotExist:
        return 0


REAL = "REAL_TOPIC\x01{topic}\x02REAL_QID\x010\x02"
KINDS: dict[str, tuple[dict[str, str], str, int]] = {
    "plain": ({}, "", 0),
    "delay level": ({"DELAY": "5"}, REAL, 0),
    "timer": ({"TIMER_DELAY_SEC": "60"}, REAL + "TIMER_OUT_MS\x011795230231000\x02", 0),
    "time": ({"TIMER_DELIVER_MS": "{soon}"}, REAL + "TIMER_OUT_MS\x011795230231000\x02", 0),
    "half message": (
        {"TRAN_MSG": "true", "PGROUP": "shop"},
        REAL + "__transactionId__\x01{key}\x02",
        SysFlag.TRANSACTION_PREPARED,
    ),
}
"""Everything that makes it one, that brokers add to it, and its flag."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_broker_takes_as_many_bytes_of_properties_as_apaches(
    broker: RunningBroker, topic: str, kind: str
) -> None:
    """And not one more, however often a property is given."""
    given, added, flag = KINDS[kind]
    key = unique_key()
    own = {"UNIQ_KEY": key} | {
        name: value.format(soon=time.time_ns() // 1_000_000 + 60_000)
        for name, value in given.items()
    }
    room = (
        32_767
        - ADDED
        - len(encode_properties(own))
        - len(added.format(topic=topic, key=key))
        - len("bag\x01\x02")
    )
    async with (
        aio.Admin(broker.name_server) as admin,
        await RawClient.open(broker.address) as sender,
    ):
        await admin.create_topic(topic, queues=1)
        too_many = await sender.start_send(topic, b"x", own | {"bag": "v" * (room + 1)}, f=flag)
        assert too_many.code == ResponseCode.MESSAGE_ILLEGAL, too_many
        just = encode_properties(own | {"bag": "v" * room}).decode()
        for text in (just, f"bag\x01{'w' * 20_000}\x02none\x01\x02{just}"):
            answer = await sender.start_send(topic, b"x", f=flag, i=text)
            assert answer.code == ResponseCode.SUCCESS, answer
