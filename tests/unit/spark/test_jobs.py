"""``ogive run --engine spark`` before Spark starts."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.client.listener import AnyListener
from ogive.errors import InvalidOption, NoRoute, OgiveError
from ogive.spark import jobs
from ogive.testing.fake_broker import FakeBroker


@ogive.listener("Orders", group="billing")
def bill(message: ogive.MessageExt) -> None:
    """Never called."""


@ogive.listener("Orders", group="billing", broadcast=True)
def everywhere(message: ogive.MessageExt) -> None:
    """Not for Spark."""


@pytest.mark.parametrize(("listener", "error"), [(bill, NoRoute), (everywhere, InvalidOption)])
async def test_what_cannot_run_is_told_before_spark_starts(
    listener: AnyListener, error: type[OgiveError], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []

    def start(*_: object, **__: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(jobs, "session", start)
    async with FakeBroker({}) as broker:
        client = ogive.ClientConfig(name_server=broker.address)
        with pytest.raises(error):
            await asyncio.to_thread(partial(jobs.serve, [listener], client=client, checkpoint=tmp_path, say=said.append))
    assert not said
