"""Reads on threads of their own: whoever waits for one is told, whatever happens to it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ogive.broker.off_loop_reads import ColdReads, JobReads
from ogive.errors import StoreError
from ogive.store.file_reader import Cold, Place
from tests.chaos.recorder import MemoryFs
from tests.stores import Driver, small

COLD = Cold(Path("/store/commitlog/0"), 0, 4096)


class Reads:
    """ColdReads whose disk answers with *failure*."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.cold = ColdReads(self._bring_in, asyncio.get_running_loop())

    def _bring_in(self, _: Place) -> bytes:
        if self.failure is not None:
            raise self.failure
        return b"read"


@pytest.fixture
async def reads() -> AsyncIterator[Reads]:
    reads = Reads()
    yield reads
    reads.cold.close()


def no_thread(*_: Any) -> "Future[None]":
    raise RuntimeError("can't start new thread")


async def woken(reads: Reads) -> tuple[JobReads, StoreError | None]:
    """A job that needs the disk, and what it is told."""
    told: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
    with Driver(small(Path("/store")), MemoryFs(), threaded=False) as driver:
        job = JobReads(driver.store, reads.cold.fetch, told.set_result)
        job.bring_in(COLD)
        async with asyncio.timeout(60.0):
            return job, await told


async def test_what_is_read_wakes_the_job(reads: Reads) -> None:
    job, error = await woken(reads)
    assert (error, job.pending, reads.cold.waiting) == (None, False, 0)


@pytest.mark.parametrize(
    "failure",
    [StoreError("the disk"), MemoryError("no room"), ValueError("a bug")],
    ids=["store", "memory", "bug"],
)
async def test_a_read_that_fails_wakes_the_job_whatever_the_error(
    reads: Reads, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    reads.failure = failure
    job, error = await woken(reads)
    assert isinstance(error, StoreError)
    assert str(failure) in str(error)
    assert (job.pending, reads.cold.waiting) == (False, 0)
    expected = not isinstance(failure, StoreError)
    assert (
        any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)
        is expected
    )


async def test_a_machine_without_a_thread_to_spare_refuses_the_read_and_counts_nothing(
    reads: Reads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads.cold._threads, "submit", no_thread)
    with pytest.raises(StoreError, match="cannot be read from the disk: can't start new thread"):
        await reads.cold.bring_in(COLD)
    assert reads.cold.waiting == 0
    job, error = await woken(reads)
    assert "can't start new thread" in str(error)
    assert not job.pending
    monkeypatch.undo()
    assert (await woken(reads))[1] is None


async def test_a_read_after_the_end_is_refused(reads: Reads) -> None:
    reads.cold.close()
    with pytest.raises(StoreError):
        await reads.cold.bring_in(COLD)
    assert reads.cold.waiting == 0
