"""The configuration by which Apache's broker opens a directory of ours;
tests/interop/test_store_exchange.py starts it with this file.
"""

from pathlib import Path

from ogive.store.index_file import Sizes
from ogive.store.types import APACHE_CONF
from tests.raw_client import RawClient
from tests.unit.broker.conftest import StartBroker


def read(directory: Path) -> dict[str, str]:
    lines = (directory / APACHE_CONF).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


async def test_file_says_the_sizes_that_the_files_have(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    """Also where the configuration of a later start says others."""
    server = await start_broker(delay_levels="1s 5s")
    async with await RawClient.open(server.address) as client:
        await client.send("T", b"x", {"UNIQ_KEY": "A"})
    await server.stop()
    written = read(tmp_path / "store")
    assert written["mappedFileSizeCommitLog"] == "1048576"
    assert (written["storePathRootDir"], written["messageDelayLevel"]) == (
        str(tmp_path / "store"),
        "1s 5s",
    )
    (log,) = [path for path in (tmp_path / "store" / "commitlog").iterdir() if int(path.name) == 0]
    (queue,) = (tmp_path / "store" / "consumequeue" / "T" / "0").iterdir()
    (index,) = (tmp_path / "store" / "index").iterdir()
    assert log.stat().st_size == int(written["mappedFileSizeCommitLog"])
    assert queue.stat().st_size == int(written["mappedFileSizeConsumeQueue"])
    assert (
        index.stat().st_size
        == Sizes(int(written["maxHashSlotNum"]), int(written["maxIndexNum"])).file_bytes
    )
    await (await start_broker(segment_bytes=4 * 1024 * 1024, flush="async")).stop()
    again = read(tmp_path / "store")
    assert again | {"messageDelayLevel": "1s 5s"} == written | {"flushDiskType": "ASYNC_FLUSH"}
