"""``ogive bench``: measure how fast a cluster stores and delivers messages."""

import argparse
import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.options import check_count
from ogive.cli.output import print_json, say
from ogive.client.config import ProducerConfig
from ogive.errors import InvalidOption, OgiveError
from ogive.text import escape_lines

REPORT_S: Final = 1.0
MAX_SIZE: Final = 4 * 1024 * 1024
MAX_IN_FLIGHT: Final = 10_000
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
KEPT_TIMES: Final = 1_000_000
POLL: Final = 1000  # messages


def seconds(text: str) -> float:
    """Parse ``30s``, ``500ms``, ``2m`` or a plain number to seconds. Raises InvalidOption."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    try:
        value = float(text.removesuffix(unit)) * _UNITS.get(unit, 1.0)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise InvalidOption(f"--for {text}: a time such as 30s, 2m or 500ms is expected")
    return value


@dataclass(slots=True)
class Figures:
    """Counts since *started*, and the times of the newest KEPT_TIMES messages (*times_s*)."""

    messages: int = 0
    size: int = 0
    times_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_TIMES))
    started: float = field(default_factory=time.perf_counter)

    def rates(self, until: float) -> dict[str, float | None]:
        elapsed = max(until - self.started, 1e-9)
        times = sorted(self.times_s)

        def share_ms(share: float) -> float | None:
            return (
                round(times[min(int(len(times) * share), len(times) - 1)] * 1000, 3)
                if times
                else None
            )

        return {
            "messages_per_s": round(self.messages / elapsed, 1),
            "mib_per_s": round(self.size / elapsed / 2**20, 2),
            "p50_ms": share_ms(0.5),
            "p99_ms": share_ms(0.99),
            "max_ms": share_ms(1.0),
        }


@dataclass(slots=True)
class Measured:
    """Figures of the whole run, and of the time since the last line."""

    whole: Figures = field(default_factory=Figures)
    since: Figures = field(default_factory=Figures)
    failed: int = 0
    last: float = field(default_factory=time.perf_counter)
    """The time at which the newest message was done."""

    def done(self, size: int, took_s: float | None = None) -> None:
        for figures in (self.whole, self.since):
            figures.messages += 1
            figures.size += size
            if took_s is not None:
                figures.times_s.append(took_s)
        self.last = time.perf_counter()

    def line(self) -> dict[str, object]:
        """Return the counts so far, with the rate since the last line."""
        now = time.perf_counter()
        rates, self.since = self.since.rates(now), Figures(started=now)
        return self._counts(now) | rates

    def total(self) -> dict[str, object]:
        """Return the counts up to the newest message, because a wait after it would lower the
        rate.
        """
        return self._counts(self.last) | self.whole.rates(self.last)

    def _counts(self, until: float) -> dict[str, object]:
        return {
            "seconds": round(until - self.whole.started, 3),
            "messages": self.whole.messages,
            "failed": self.failed,
        }


async def produce(options: argparse.Namespace) -> int:
    """Send messages and show the rate. Return 1 if a send failed."""
    check_count(options.count)
    if not 1 <= options.size <= MAX_SIZE:
        raise InvalidOption(f"--size {options.size}: must be between 1 and {MAX_SIZE} bytes")
    if not 1 <= options.in_flight <= MAX_IN_FLIGHT:
        raise InvalidOption(
            f"--in-flight {options.in_flight}: must be between 1 and {MAX_IN_FLIGHT}"
        )
    measured = Measured()
    body = bytes(options.size)
    ends = time.perf_counter() + seconds(options.duration)
    first: list[OgiveError] = []
    numbers = itertools.count()

    async def send_one_after_the_other(producer: aio.Producer) -> None:
        while (began := time.perf_counter()) < ends and (
            options.count is None or next(numbers) < options.count
        ):
            try:
                await producer.send(options.topic, body)
            except OgiveError as exc:
                measured.failed += 1
                if not first:
                    first.append(exc)
                if measured.whole.messages == 0:
                    # if every send fails, do not try for the whole time
                    return
            else:
                measured.done(len(body), time.perf_counter() - began)

    # compressed, a body of zeros would be almost empty
    plain = ProducerConfig(compress_over_bytes=None)
    async with aio.Producer(client=client_config(options), config=plain) as producer:
        reports = asyncio.create_task(_report(measured, "sent", as_json=options.json))
        try:
            await asyncio.gather(
                *(send_one_after_the_other(producer) for _ in range(options.in_flight))
            )
        finally:
            # also at Ctrl-C
            reports.cancel()
            _show(measured.total(), "sent", as_json=options.json, last=True)
    if first:
        say(escape_lines(f"{measured.failed:,} sends failed, the first with: {first[0]}"))
    return 1 if first else 0


async def consume(options: argparse.Namespace) -> int:
    """Receive messages and show the rate. Return 1 if no message arrived."""
    check_count(options.count)
    measured, ends = Measured(), time.perf_counter() + seconds(options.duration)
    async with aio.PullConsumer(
        options.topic, group=options.group, start="earliest", client=client_config(options)
    ) as consumer:
        reports = asyncio.create_task(_report(measured, "received", as_json=options.json))
        try:
            while (left := ends - time.perf_counter()) > 0 and (
                options.count is None or measured.whole.messages < options.count
            ):
                missing = (
                    POLL
                    if options.count is None
                    else min(options.count - measured.whole.messages, POLL)
                )
                for message in await consumer.poll(min(left, 1.0), max_messages=missing):
                    measured.done(len(message.body))
        finally:
            # also at Ctrl-C
            reports.cancel()
            _show(measured.total(), "received", as_json=options.json, last=True)
    return 0 if measured.whole.messages else 1


async def _report(measured: Measured, verb: str, *, as_json: bool) -> None:
    while True:
        await asyncio.sleep(REPORT_S)
        _show(measured.line(), verb, as_json=as_json, last=False)


def _show(record: dict[str, object], verb: str, *, as_json: bool, last: bool) -> None:
    if as_json:
        print_json(record | {"last": last})
        return
    times = (
        f", p50 {record['p50_ms']} ms, p99 {record['p99_ms']} ms, max {record['max_ms']} ms"
        if record["p50_ms"] is not None
        else ""
    )
    rate, volume = f"{record['messages_per_s']:,} messages/s", f"{record['mib_per_s']} MiB/s"
    failed = f", {record['failed']:,} failed" if record["failed"] else ""
    done = f"{record['messages']:,} {verb}"
    line = (
        f"total: {done} in {record['seconds']:.2f} s"
        if last
        else f"{record['seconds']:.0f} s: {done}"
    )
    print(f"{line}{failed}, {rate}, {volume}{times}", flush=True)
