"""T23: where a group goes on, whatever it finds: a table of starts, stored offsets and kinds of
consumption. Every jump has its rule.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest

from ogive.testing import FakeBroker
from ogive.testing.fake_broker import ok
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import OffsetResponse
from tests.figures import figures
from tests.never.scene import GROUP, PULL, RETRY, TOPIC, Scene, moved, until

# the queue holds 4 to 9: what was before is deleted
LEAST, END = 4, 10
AT_7 = datetime.fromtimestamp(1_700_000_000, tz=UTC)

STORED = {
    "none": None,
    "0, deleted": 0,
    "just deleted": 3,
    "the first": 4,
    "in the middle": 7,
    "the end": 10,
    "beyond the end": 25,
}
STARTS: dict[str, Any] = {"earliest": "earliest", "latest": "latest", "a time": AT_7}


@dataclass(frozen=True, slots=True)
class Row:
    stored: str
    start: str
    kind: str

    @property
    def expected(self) -> tuple[int, bool]:
        """(where the group goes on, whether the broker had to move it there)."""
        offset = STORED[self.stored]
        if offset is None:
            return {"earliest": LEAST, "latest": END, "a time": 7}[self.start], False
        if offset < LEAST:
            return LEAST, True
        return (END, True) if offset > END else (offset, False)


long = pytest.mark.parametrize(
    "nightly", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["quick", "nightly"]
)
"""The table is short: both sizes are the whole of it, and the nightly one is in the results."""
ROWS = [Row(*row) for row in product(STORED, STARTS, ("concurrent", "orderly"))]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with FakeBroker({TOPIC: 1, RETRY: 1}) as broker:
        yield Scene(broker)


def keep_to_the_end(broker: FakeBroker, request: RemotingCommand) -> RemotingCommand | None:
    """Pulls outside of what the queue holds are answered as brokers do."""
    if request.ext_fields["topic"] != TOPIC:
        return None
    offset, end = int(request.ext_fields["queueOffset"]), len(broker.stored[TOPIC, 0])
    if LEAST <= offset <= end:
        return None
    return moved(LEAST if offset < LEAST else end, LEAST, end)


@pytest.mark.rel
@pytest.mark.quick
@long
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.stored}-{row.start}-{row.kind}")
async def test_a_group_goes_on_where_its_rule_says(
    row: Row, nightly: bool, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    broker, (expected, is_moved) = scene.broker, row.expected
    scene.put(END)
    broker.on(PULL, lambda request: keep_to_the_end(broker, request))
    broker.on(
        RequestCode.GET_MIN_OFFSET,
        lambda r: ok(OffsetResponse(offset=LEAST)) if r.ext_fields["topic"] == TOPIC else None,
    )
    broker.on(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        lambda r: ok(OffsetResponse(offset=7)) if r.ext_fields["topic"] == TOPIC else None,
    )
    stored = STORED[row.stored]
    if stored is not None:
        broker.offsets[GROUP, TOPIC, 0] = stored
    known = {
        "attempts": END + 2,
        "acknowledged": END + 2,
        "faults": int(is_moved),
        "row": f"{row.stored}, {row.start}, {row.kind}",
    }
    with figures("T23", nightly=nightly, **known) as line:
        async with scene.consumer(
            scene.listener(start=STARTS[row.start], orderly=row.kind == "orderly")
        ):
            await until(lambda: expected in scene.pulls(), "a pull at the right place")
            scene.put(2)
            await until(lambda: scene.progress() == END + 2, "the end of the queue")
        got = [delivery.offset for delivery in scene.ledger.deliveries]
        assert sorted(got) == list(range(expected, END + 2))
        jumps = [
            record.message for record in caplog.records if "the group goes on at" in record.message
        ]
        assert [f"and not {stored}; the group goes on at {expected}" in jump for jump in jumps] == (
            [True] if is_moved else []
        )
        # a 0 is told to the broker that may have made it up
        told = [offset for offset in scene.commits() if offset != stored]
        assert min(told) >= expected
        line.update(received=len(got), lost=0, duplicates=scene.ledger.duplicates)


@pytest.mark.rel
@pytest.mark.quick
@long
@pytest.mark.parametrize("kind", ["concurrent", "orderly"])
@pytest.mark.parametrize("to", [LEAST, 6])
async def test_a_reset_while_messages_are_consumed_goes_to_its_place_and_on_from_there(
    scene: Scene, kind: str, to: int, nightly: bool
) -> None:
    """What was done before comes again from there on, and nothing else is passed over."""
    scene.put(END)
    with figures(
        "T23",
        nightly=nightly,
        attempts=END + 2,
        acknowledged=END + 2,
        faults=1,
        row=f"reset to {to}, {kind}",
    ) as line:
        async with scene.consumer(scene.listener(orderly=kind == "orderly")) as running:
            await until(lambda: scene.progress() == END, "all messages")
            reset = RemotingCommand(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                {"topic": TOPIC, "group": GROUP, "timestamp": "0", "isForce": "true"},
                b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"%s"}:%d}}'
                % (TOPIC.encode(), to),
            )
            scene.broker.members[GROUP][running.client_id].send_nowait(reset)
            await until(lambda: len(scene.ledger.deliveries) == 2 * END - to, "what comes again")
            scene.put(2)
            await until(lambda: scene.progress() == END + 2, "the end of the queue")
        assert [d.offset for d in scene.ledger.deliveries] == [
            *range(END),
            *range(to, END + 2),
        ] or kind == "concurrent"
        scene.check()
        line.update(received=scene.received, lost=0, duplicates=scene.ledger.duplicates)
