"""``ogive run --engine spark`` before Spark starts."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.client.listener import AnyListener
from ogive.errors import InvalidOption, NoRoute, OgiveError
from ogive.spark import jobs
from ogive.testing.fake_broker import FakeBroker
from ogive.wire.codes import RequestCode


@ogive.listener("Orders", group="billing")
def bill(message: ogive.MessageExt) -> None:
    """Never called."""


@ogive.listener("Orders", group="billing", broadcast=True)
def everywhere(message: ogive.MessageExt) -> None:
    """Not for Spark."""


@ogive.listener("Orders", group="billing", mode="pop")
def any_worker(message: ogive.MessageExt) -> None:
    """Not for Spark either."""


@ogive.listener("Orders", group="ledger", orderly=True)
def book(message: ogive.MessageExt) -> None:
    """Never called."""


class Speculating:
    """Of a Spark session what is looked at before a job starts.

    An orderly listener gets as far as the brokers.
    """

    def __init__(self) -> None:
        self.dataSource = self.sparkContext = self
        self.defaultParallelism = 2

    def register(self, _: type) -> None: ...

    def getConf(self) -> dict[str, str]:  # noqa: N802
        return {"spark.speculation": "true"}


async def test_a_second_task_beside_a_slow_one_is_refused_where_it_would_call_the_listener_twice(
    tmp_path: Path,
) -> None:
    async with FakeBroker({}) as broker:
        for listener, error, why in (
            (bill, InvalidOption, "bill would be called twice"),
            (book, NoRoute, "Orders"),
        ):
            with pytest.raises(error, match=why):
                await asyncio.to_thread(
                    partial(
                        jobs.run_listeners,
                        cast(Any, Speculating()),
                        [listener],
                        client=ogive.ClientConfig(name_server=broker.address),
                        checkpoint=tmp_path,
                        stop=cast(Any, None),
                        say=print,
                    )
                )


@pytest.mark.parametrize(
    ("listener", "error"),
    [(bill, NoRoute), (everywhere, InvalidOption), (any_worker, InvalidOption)],
)
async def test_what_cannot_run_is_told_before_spark_starts(
    listener: AnyListener, error: type[OgiveError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobs, "own_session", start)
    async with FakeBroker({}) as broker:
        client = ogive.ClientConfig(name_server=broker.address)
        with pytest.raises(error):
            await asyncio.to_thread(
                partial(jobs.serve, [listener], client=client, checkpoint=tmp_path, say=said.append)
            )
    assert not said


async def test_a_job_makes_the_retry_topic_of_its_group_once() -> None:
    async with FakeBroker({"Orders": 1}) as broker:
        client = ogive.ClientConfig(name_server=broker.address)
        await asyncio.to_thread(jobs.prepare, client, [bill])
        (made,) = broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert (
            made.ext_fields["topic"],
            made.ext_fields["readQueueNums"],
            made.ext_fields["writeQueueNums"],
        ) == (
            "%RETRY%billing",
            "1",
            "1",
        )
    async with FakeBroker({"Orders": 1, "%RETRY%billing": 1}) as broker:
        await asyncio.to_thread(
            jobs.prepare, ogive.ClientConfig(name_server=broker.address), [bill]
        )
        assert broker.of(RequestCode.UPDATE_AND_CREATE_TOPIC) == []
