"""Renewed leases, with a link in place of a broker."""

import asyncio
import time
from collections.abc import Iterable

from ogive.client.rpc import PopAnswer
from ogive.errors import ConnectError, ResponseCode
from ogive.proxy.backend import Ack, Releases
from ogive.proxy.renewals import Renewals
from ogive.wire.codes import Flag
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.codec import Header, encode_header
from ogive.wire.headers.pull import ChangeInvisibleTimeResponse, PopMessageRequest
from ogive.wire.pop import PopHandle

KEY = ("g", "id", "first")
NOW_MS = time.time_ns() // 1_000_000
HANDLE = PopHandle(0, NOW_MS, 11_000, 1, 0, "broker-a", 2, 7)


class FakeLink:
    """Answers each change with a new lease, or with *error*."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.changed: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.released: asyncio.Queue[tuple[str, list[Ack], int]] = asyncio.Queue()
        self.closed = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def call(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        self.changed.put_nowait(command)
        await self.answers.wait()
        if self.error:
            return RemotingCommand(self.error, {}, flag=Flag.RESPONSE, remark="over")
        answer = ChangeInvisibleTimeResponse(
            pop_time_ms=NOW_MS + 5,
            invisible_time_ms=int(command.ext_fields["invisibleTime"]),
            revive_queue_id=3,
        )
        return RemotingCommand(ResponseCode.SUCCESS, encode_header(answer), flag=Flag.RESPONSE)

    async def release(
        self, address: str, group: str, acks: Iterable[Ack], invisible_ms: int
    ) -> None:
        self.released.put_nowait((group, list(acks), invisible_ms))

    async def pop(self, address: str, header: PopMessageRequest) -> PopAnswer:
        raise ConnectError("not used here")

    def check(self, header: Header) -> None: ...

    def close(self) -> None: ...


async def test_a_lease_is_renewed_before_it_ends() -> None:
    link = FakeLink()
    renewals = Renewals(link, Releases())
    renewals.add(KEY, "T", HANDLE, 1000)
    command = await link.changed.get()
    assert command.ext_fields["invisibleTime"] == "60000"
    assert command.ext_fields["extraInfo"] == str(HANDLE)
    newest = await renewals.newest(KEY, HANDLE)
    assert (newest.start, newest.pop_time_ms, newest.invisible_ms) == (7, NOW_MS + 5, 60_000)
    # one that is not renewed stands for itself
    assert await renewals.newest(("g", "other", "first"), HANDLE) == HANDLE
    renewals.close()


async def test_a_lease_that_is_over_is_forgotten() -> None:
    link = FakeLink(ResponseCode.NO_MESSAGE)
    renewals = Renewals(link, Releases())
    renewals.add(KEY, "T", HANDLE, 1000)
    await link.changed.get()
    assert await renewals.newest(KEY, HANDLE) == HANDLE
    assert len(renewals) == 0


async def test_leases_of_a_client_that_goes_end_soon() -> None:
    link = FakeLink()
    renewals = Renewals(link, Releases())
    renewals.add(KEY, "T", HANDLE, 1000)
    renewals.close()
    assert await link.released.get() == ("g", [("T", HANDLE)], 1000)
    assert len(renewals) == 0


async def test_a_client_that_goes_during_a_renewal_gives_up_the_new_lease() -> None:
    link = FakeLink()
    link.answers.clear()
    renewals = Renewals(link, Releases())
    renewals.add(KEY, "T", HANDLE, 1000)
    await link.changed.get()
    renewals.close()
    link.answers.set()
    _, [(_, handle)], _ = await link.released.get()
    assert handle.pop_time_ms == NOW_MS + 5
