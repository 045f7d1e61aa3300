"""Jobs that run again and again."""

import asyncio
import contextlib
import logging

import pytest

from ogive.errors import ConnectError, NoNameServer, OgiveError
from ogive.transport.event_loop import every


async def test_a_job_that_fails_is_one_line_until_it_works_or_fails_otherwise(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The texts of an outage differ in the number of tries."""
    outcomes: list[OgiveError | None] = [
        *(
            NoNameServer("tried 7 times"),
            NoNameServer("tried 6 times"),
            ConnectError("refused"),
            None,
        ),
        *(None, NoNameServer("again")),
    ]

    async def job() -> None:
        if not outcomes:
            raise asyncio.CancelledError
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    with caplog.at_level(logging.INFO), contextlib.suppress(asyncio.CancelledError):
        await every(0.0, job, name="routes")
    assert caplog.messages == [
        "routes: failed, tried again every 0.0 s: tried 7 times",
        "routes: failed, tried again every 0.0 s: refused",
        "routes: works again",
        "routes: failed, tried again every 0.0 s: again",
    ]
