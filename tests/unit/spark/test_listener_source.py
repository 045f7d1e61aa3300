"""What of a listener job is decided without a broker: sizes, tasks, and listeners that travel."""

import asyncio
import base64
import ssl
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import ogive
from ogive.client.config import ClientConfig
from ogive.errors import BrokerInternalError, InvalidOption, ResponseCode
from ogive.model import MessageQueue, retry_topic
from ogive.testing.fake_broker import FakeBroker, error
from ogive.wire.bodies.json_fields import loads_object
from ogive.wire.bodies.stats import TopicOffset
from ogive.wire.codes import RequestCode

pytest.importorskip("pyspark")

from ogive.spark import group_progress, listener_source
from ogive.spark.cluster_options import Access
from ogive.spark.compat import ReadAllAvailable
from ogive.spark.failures import reason
from ogive.spark.jobs import check, prepare
from ogive.spark.listener_source import (
    LARGEST_BATCH,
    LONG_S,
    ListenerReader,
    Work,
    import_modules,
    modules_with_telemetry,
    next_size,
    options_of,
    spread,
)
from ogive.spark.offsets import Positions, Spans, to_offset
from ogive.spark.options import access_of
from ogive.spark.ranges import QueueRange
from tests.telemetry import instrumented


def test_a_batch_grows_while_it_is_short_and_full() -> None:
    assert next_size(1000, 1000, 0.2, 1) == 2000
    assert next_size(1000, 400, 0.2, 1) == 1000
    assert next_size(1000, 1000, 3.0, 1) == 1000
    assert next_size(LARGEST_BATCH, LARGEST_BATCH, 0.2, 1) == LARGEST_BATCH


def test_a_batch_that_took_long_is_followed_by_a_smaller_one() -> None:
    assert next_size(1000, 1000, 50.0, 1) == 100
    assert next_size(1000, 100, 50.0, 1) == 10
    assert next_size(1, 1, 500.0, 1) == 1


@pytest.mark.parametrize(("call_s", "threads"), [(6.0, 1280), (1.2, 40)])
def test_a_batch_keeps_every_thread_busy_however_long_a_call_takes(
    call_s: float, threads: int
) -> None:
    """It takes as long as one call: with fewer messages it would not end sooner.

    It grows again where that helps.
    """
    size = next_size(1000, 1000, 900.0, threads)
    for _ in range(50):
        size = next_size(size, size, -(-size // threads) * call_s, threads)
    assert size >= threads
    assert size > threads or call_s > LONG_S


def test_a_queue_goes_to_one_task_whole() -> None:
    ranges = [
        QueueRange(MessageQueue("T", "b", i), 0, length)
        for i, length in enumerate((10, 90, 30, 40))
    ]
    groups = spread(ranges, 2)
    assert sorted(one for group in groups for one in group) == sorted(ranges)
    assert sorted(sum(map(len, group)) for group in groups) == [80, 90]
    assert len(spread(ranges[:1], 8)) == 1
    assert spread([], 8) == []


def test_listeners_travel_with_what_they_close_over() -> None:
    seen = ["kept"]

    @ogive.listener("T", group="G", batch=3)
    def note(messages: list[ogive.MessageExt]) -> None:
        seen.append(str(len(messages)))

    work = Work.loads(Work(ClientConfig(name_server="127.0.0.1:1"), (note,), 2).dumps())
    assert (work.group, work.topics, work.listeners[0].config.batch) == ("G", ("T", "%RETRY%G"), 3)


def test_modules_that_set_up_telemetry_are_imported_on_executors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @ogive.listener("T", group="G")
    def show(message: ogive.MessageExt) -> None: ...

    show.function.__module__ = "set_up_telemetry"
    assert modules_with_telemetry([show]) == ()
    with instrumented():
        assert modules_with_telemetry([show, show]) == ("set_up_telemetry",)
        show.function.__module__ = "__main__"
        assert modules_with_telemetry([show]) == ()
    with pytest.raises(InvalidOption, match=r"module set_up_telemetry .* --py-files"):
        import_modules(["set_up_telemetry"])
    (tmp_path / "set_up_telemetry.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    import_modules(["set_up_telemetry"])
    assert "set_up_telemetry" in sys.modules
    monkeypatch.delitem(sys.modules, "set_up_telemetry")


def test_a_listener_that_cannot_travel_is_named() -> None:
    lock = threading.Lock()

    @ogive.listener("T", group="G")
    def guarded(message: ogive.MessageExt) -> None:
        with lock:
            pass

    with pytest.raises(InvalidOption, match="guarded cannot be sent to executors"):
        Work(ClientConfig(), (guarded,), 1).dumps()


@pytest.mark.parametrize("settings", [{"broadcast": True}, {"orderly": True, "auto_commit": False}])
def test_what_a_batch_cannot_do_is_for_the_local_engine(settings: dict[str, Any]) -> None:
    @ogive.listener("T", group="G", **settings)
    def show(message: ogive.MessageExt) -> None: ...

    with pytest.raises(InvalidOption, match="--engine local"):
        check([show])


def test_names_are_in_the_namespace_on_the_wire() -> None:
    @ogive.listener("T", group="G")
    def show(message: ogive.MessageExt) -> None: ...

    work = Work(ClientConfig(namespace="shop"), (show,), 1)
    assert (work.group, work.topics) == ("shop%G", ("shop%T", "%RETRY%shop%G"))


def test_a_secret_travels_under_a_name_that_spark_hides(tmp_path: Path) -> None:
    @ogive.listener("T", group="G")
    def show(message: ogive.MessageExt) -> None: ...

    access = Access.of(
        ClientConfig(
            credentials=ogive.Credentials(
                access_key="me", secret_key="very secret", security_token="token"
            )
        )
    )
    options = options_of(Work(ClientConfig(), (show,), 1), access, tmp_path / "stop")
    holding = {
        name
        for name, text in options.items()
        if any(word in text for word in ("very secret", "token"))
    }
    assert holding == {"secretKey", "securityToken"}
    assert b"very secret" not in base64.b64decode(options["work"])
    assert (
        access_of(
            {name: text for name, text in options.items() if name not in ("work", "stopFile")}
        )
        == access
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"ssl": ssl.create_default_context()}, "tls_ca"),
        ({"namespace_v2": "shop"}, "--engine local"),
        ({"name_server": "http://config.example:8080/rocketmq/nsaddr"}, "host:port;host:port"),
    ],
)
def test_what_cannot_be_sent_to_executors_is_named(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        Access.of(ClientConfig(**settings))


async def test_a_broker_that_cannot_filter_in_sql_is_told_of_before_the_job_starts() -> None:
    """Else each task would fail on its first pull, again and again."""

    @ogive.listener("Orders", group="billing", sql="amount > 100")
    def show(message: ogive.MessageExt) -> None: ...

    @ogive.listener("Prices", group="billing", tags="a")
    def tagged(message: ogive.MessageExt) -> None: ...

    async with FakeBroker({"Orders": 1, "Prices": 1, retry_topic("billing"): 1}) as broker:
        client = ClientConfig(name_server=broker.address)
        await asyncio.to_thread(prepare, client, [tagged, show])
        (asked,) = broker.of(RequestCode.CHECK_CLIENT_CONFIG)
        body = loads_object(asked.body)
        assert body["group"] == "billing"
        assert (body["subscriptionData"]["topic"], body["subscriptionData"]["subString"]) == (
            "Orders",
            "amount > 100",
        )
        broker.on(
            RequestCode.CHECK_CLIENT_CONFIG,
            error(ResponseCode.SYSTEM_ERROR, "The broker does not support SQL92"),
        )
        with pytest.raises(BrokerInternalError, match="does not support SQL92"):
            await asyncio.to_thread(prepare, client, [show])


def test_of_a_failure_our_sentence_is_told() -> None:
    text = (
        "Job aborted\n  File x\nogive.errors.NoRoute: topic 'T' has no route\n\n\tat "
        "org.apache.spark"
    )
    assert reason(text) == "topic 'T' has no route"
    assert reason("[SOME_CODE] plain\n\tat x") == "[SOME_CODE] plain"
    assert reason("") == "Spark failed without saying why"


# --- queues that come, and queues that lose messages ----------------------------------------------

OLD, NEW = MessageQueue("Old", "broker-a", 0), MessageQueue("New", "broker-a", 0)


@ogive.listener("Old", group="G")
def old(message: ogive.MessageExt) -> None: ...


@ogive.listener("New", group="G")
def new(message: ogive.MessageExt) -> None: ...


class FixedCluster:
    """Queues that begin at 0 and end where the test says, and a group's offsets."""

    def __init__(
        self, ends: dict[MessageQueue, int], committed: dict[MessageQueue, int] | None = None
    ) -> None:
        self.ends, self.of_group = dict(ends), dict(committed or {})
        self.without_master: set[str] = set()
        # store time of every message of a queue, and where queues end that their topic has lost
        self.stored_at: dict[MessageQueue, int] = {}
        self.removed: dict[MessageQueue, int] = {}

    def stored_ms(self, offsets: Positions, _: str) -> Positions:
        return {queue: self.stored_at[queue] for queue in offsets if queue in self.stored_at}

    def end_of(self, queue: MessageQueue) -> int:
        return self.removed[queue]

    def spans(self, topics: Iterable[str]) -> Spans:
        there = {queue: end for queue, end in self.ends.items() if queue.topic in topics}
        return {
            queue: TopicOffset(
                min_offset=0, max_offset=end, last_update_timestamp=self.stored_at.get(queue, 0)
            )
            for queue, end in there.items()
        }

    def committed(self, _: str, queues: Iterable[MessageQueue]) -> Positions:
        return {queue: self.of_group[queue] for queue in queues if queue in self.of_group}

    def start_copy(self, _: str, positions: Positions) -> "Future[None]":
        self.of_group.update(positions)
        stored: Future[None] = Future()
        stored.set_result(None)
        return stored


class Job:
    """A reader, and the offset that Spark's checkpoint holds."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, there: FixedCluster, *listeners: ogive.Listener
    ) -> None:
        monkeypatch.setattr(group_progress, "cluster", lambda _: there)
        monkeypatch.setattr(listener_source, "SETTLE_S", 0.0)
        self.reader = ListenerReader(
            Work(ClientConfig(), listeners, 2), Access.of(ClientConfig()), None
        )
        self.at: dict[str, Any] = {}

    def stands(self, positions: Positions) -> "Job":
        self.at = to_offset(positions, self.reader._owner)
        return self

    def step(self) -> list[QueueRange]:
        """What the next batch consumes."""
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        planned = sorted(one for part in self.reader.partitions(self.at, end) for one in part.value)
        self.at = end
        return planned

    def steps(self) -> list[QueueRange]:
        return [one for _ in range(3) for one in self.step()]


def test_a_topic_that_is_added_begins_where_its_listener_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not with all that was ever sent to it."""
    there = FixedCluster({OLD: 60, NEW: 10_000})
    job = Job(monkeypatch, there, old, new).stands({OLD: 50})
    assert job.steps() == [QueueRange(OLD, 50, 60)]
    there.ends[NEW] = 10_002
    assert job.steps() == [QueueRange(NEW, 10_000, 10_002)]


def test_a_queue_that_is_added_to_a_topic_is_consumed_from_its_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = MessageQueue("Old", "broker-a", 1)
    assert Job(monkeypatch, FixedCluster({OLD: 50, more: 7}), old).stands({OLD: 50}).steps() == [
        QueueRange(more, 0, 7)
    ]


def test_a_queue_whose_broker_was_away_goes_on_where_the_group_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away = MessageQueue("Old", "broker-b", 0)
    there = FixedCluster({OLD: 50, away: 1003}, {away: 1000})
    assert Job(monkeypatch, there, old).stands({OLD: 50}).steps() == [QueueRange(away, 1000, 1003)]


def test_a_topic_that_was_made_anew_is_consumed_from_its_first_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = FixedCluster({OLD: 7})
    job = Job(monkeypatch, there, old).stands({OLD: 50})
    assert job.steps() == [QueueRange(OLD, 0, 7)]
    assert "ends at 7, but group G had consumed up to 50" in caplog.text
    there.ends[OLD] = 60
    assert job.steps() == [QueueRange(OLD, 7, 60)]


@pytest.mark.parametrize("after", [7, 50, 90])
@pytest.mark.parametrize(("committed", "first"), [(None, 0), (50, 0), (3, 3)])
def test_a_topic_that_was_made_again_is_told_from_the_one_that_was_consumed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    after: int,
    committed: int | None,
    first: int,
) -> None:
    """Also where it is longer now, and whether or not the broker forgot where the group was."""
    there = FixedCluster({OLD: 50})
    there.stored_at[OLD] = 1000
    job = Job(monkeypatch, there, old).stands({OLD: 10})
    assert job.steps() == [QueueRange(OLD, 10, 50)]
    there.ends[OLD], there.stored_at[OLD] = after, 2000
    there.of_group = {} if committed is None else {OLD: committed}
    again = Job(monkeypatch, there, old)
    again.at = job.at
    assert again.steps() == [QueueRange(OLD, first, after)]
    assert (
        "was deleted and recreated: group G had consumed its earlier messages up to 50. The job "
        f"continues at {first}" in caplog.text
    )


def test_messages_of_queues_that_a_topic_has_lost_are_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    more, ended = MessageQueue("Old", "broker-a", 1), MessageQueue("Old", "broker-a", 2)
    there = FixedCluster({OLD: 60})
    there.removed = {more: 57, ended: 50}
    job = Job(monkeypatch, there, old).stands({OLD: 50, more: 50, ended: 50})
    assert job.steps() == [QueueRange(OLD, 50, 60)]
    assert [record.getMessage() for record in caplog.records] == [
        "Old/broker-a/1 is no longer a queue of its topic: its offsets 50 to 56 are not consumed "
        "by group G unless the topic gets the queue back"
    ]
    assert there.of_group == {OLD: 60}
    there.ends[more] = 58
    assert job.steps() == [QueueRange(more, 50, 58)]


def test_a_queue_that_lost_its_last_messages_goes_on_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker of ours has cut the group's offset to the end, too; one of Apache's keeps it behind
    that.
    """
    for committed in (45, 50):
        there = FixedCluster({OLD: 45}, {OLD: committed})
        job = Job(monkeypatch, there, old).stands({OLD: 50})
        assert job.steps() == []
        assert there.of_group == {OLD: 45}
        there.ends[OLD] = 52
        assert job.steps() == [QueueRange(OLD, 45, 52)]


def test_a_slave_that_is_behind_has_lost_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = FixedCluster({OLD: 48}, {OLD: 50})
    there.without_master = {"broker-a"}
    job = Job(monkeypatch, there, old).stands({OLD: 50})
    assert job.steps() == []
    there.without_master, there.ends[OLD] = set(), 52
    assert job.steps() == [QueueRange(OLD, 50, 52)]
    assert not caplog.records


def test_no_queue_waits_for_ever_while_others_have_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queues = [MessageQueue("Old", "broker-a", i) for i in range(64)]
    job = Job(
        monkeypatch, FixedCluster({queue: 1000 * i + 1 for i, queue in enumerate(queues)}), old
    ).stands(dict.fromkeys(queues, 0))
    job.reader._size = 1
    assert {one.queue for one in job.step()} == set(queues)
