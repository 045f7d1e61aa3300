"""T12: `ogive up` on a directory that it cannot use: one sentence with the way out, the code of a
failure, and nothing is touched.

`ogive store verify` and `repair` say it as well.
"""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from ogive.cli.exits import EXIT_ERROR, EXIT_TRY_LATER
from ogive.testing import Broker
from tests.figures import figures
from tests.raw_client import RawClient, messages

pytestmark = pytest.mark.rel

ROOT: Final = os.geteuid() == 0
SOMEBODY_ELSE: Final = 65_534
NOT_ALLOWED: Final = 77
WAY_OUT: Final = "; fix that, or choose another directory with --data\n"

# Root may read and write everything: the right to do so is given up before the program begins, in
# which the user stays the same, so that Python's own files can be read wherever they are.
_BOUND = f"""
import ctypes
import os
import sys

if os.geteuid() == 0:
    PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
    for right in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0):
            sys.exit({NOT_ALLOWED})
os.execv(sys.executable, [sys.executable, "-m", "ogive", *sys.argv[1:]])
"""


def ogive(*words: str) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end, of a user whom permissions bind."""
    if ROOT and sys.platform != "linux":
        pytest.skip("only on Linux can root give up its right to pass over permissions")
    ended = subprocess.run(
        [sys.executable, "-c", _BOUND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if ended.returncode == NOT_ALLOWED:
        pytest.skip("root is not allowed here to give up its right to pass over permissions")
    return ended


def start(data: Path) -> subprocess.CompletedProcess[str]:
    return ogive("up", "--data", str(data), "--name-server-port", "0", "--broker-port", "0")


def tree(top: Path) -> dict[str, tuple[object, ...]]:
    """What is there below a directory, and when it was changed."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *sorted(top.rglob("*"))):
        is_ = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(is_.st_mode) else b""
        found[str(path)] = (
            is_.st_mode,
            is_.st_uid,
            is_.st_size,
            is_.st_mtime_ns,
            is_.st_ctime_ns,
            content,
        )
    return found


def refused(top: Path, data: Path) -> str:
    """Why `ogive up` did not want *data*, below *top*, where nothing is another afterwards."""
    before = tree(top)
    with figures("T12 directories", attempts=1):
        ended = start(data)
    assert ended.returncode == EXIT_ERROR, ended
    assert ended.stdout == ""
    assert ended.stderr.startswith("ogive: ")
    assert ended.stderr.endswith(WAY_OUT)
    assert ended.stderr.count("\n") == 1
    assert tree(top) == before
    return ended.stderr.removeprefix("ogive: ").removesuffix(WAY_OUT)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    if not ROOT or shutil.which("mount") is None:
        pytest.skip("only root may mount a file system")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode()[:200]}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def stopped_store(folder: Path) -> Path:
    with Broker(data=folder, options=("--segment-size", "1048576")):
        return folder


@pytest.mark.parametrize("kind", ["a store", "nothing", "nothing below"])
def test_a_read_only_file_system_is_named(disk: Path, kind: str) -> None:
    data = disk / "store"
    match kind:
        case "a store":
            stopped_store(data)
        case "nothing":
            data.mkdir()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert (
        refused(disk, data) == f"the store cannot be kept in {data}: its file system is read-only"
    )


def given_away(path: Path, mode: int) -> None:
    """To somebody else where that can be done; the permissions are for everybody, this user too."""
    path.chmod(mode)
    if ROOT:
        os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)


@pytest.fixture
def theirs(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "theirs"
    folder.mkdir()
    yield folder
    # so that an ordinary user can clear it away
    folder.chmod(0o700)


def test_a_directory_in_which_nothing_can_be_made_is_named(theirs: Path) -> None:
    given_away(theirs, 0o555)
    assert (
        refused(theirs, theirs)
        == f"the store cannot be kept in {theirs}: this user has no permission for {theirs}"
    )
    below = theirs / "store"
    assert (
        refused(theirs, below)
        == f"the store cannot be kept in {below}: this user has no permission for {below}"
    )


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "config"])
def test_a_part_of_a_store_in_which_nothing_can_be_made_is_named(theirs: Path, part: str) -> None:
    """Ready, it would refuse topics and groups, or messages, and say so only then."""
    stopped_store(theirs)
    (theirs / part).chmod(0o555)
    assert (
        refused(theirs, theirs)
        == f"the store cannot be kept in {theirs}: this user has no permission for {theirs / part}"
    )
    (theirs / part).chmod(0o755)


@pytest.mark.parametrize("below", [".", "store", "deep/store"])
def test_a_directory_that_cannot_be_looked_into_is_named(theirs: Path, below: str) -> None:
    (theirs / "deep").mkdir()
    given_away(theirs, 0o000)
    file = theirs / below / "config" / "kvConfig.json"
    assert (
        refused(theirs, theirs / below)
        == f"the KV settings cannot be read: this user has no permission for {file}"
    )
    for word, done in ("verify", "read"), ("repair", "repaired"):
        ended = ogive("store", word, str(theirs / below))
        assert (ended.returncode, ended.stdout) == (EXIT_ERROR, "")
        why = f"this user has no permission for {theirs / below / 'commitlog'}"
        assert ended.stderr == f"ogive: the store in {theirs / below} cannot be {done}: {why}\n"


@pytest.mark.skipif(not ROOT, reason="only root may give files away")
@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_a_store_of_another_user_is_named(theirs: Path, mode: int) -> None:
    stopped_store(theirs)
    for path in theirs.rglob("*"):
        os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    given_away(theirs, mode)
    file = theirs / "config" / "kvConfig.json"
    assert (
        refused(theirs, theirs)
        == f"the KV settings cannot be read: this user has no permission for {file}"
    )
    before = tree(theirs)
    ended = ogive("store", "repair", str(theirs))
    assert (ended.returncode, ended.stdout) == (EXIT_ERROR, "")
    assert ended.stderr == (
        f"ogive: the store in {theirs} cannot be repaired: this user has no permission for "
        f"{theirs / 'lock'}\n"
    )
    assert tree(theirs) == before
    shutil.rmtree(theirs / "config")
    where = theirs if mode == 0o755 else theirs / "lock"
    assert (
        refused(theirs, theirs)
        == f"the store cannot be kept in {theirs}: this user has no permission for {where}"
    )


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("file", "{data} is a file where a directory is needed"),
        ("FIFO", "{data} is a file where a directory is needed"),
        ("link to a file", "{data} is a link that leads to no directory"),
        ("link to nowhere", "{data} is a link that leads to no directory"),
        ("link to itself", "{data}/config/kvConfig.json: Too many levels of symbolic links"),
        ("name that is too long", "{data}/config/kvConfig.json: File name too long"),
    ],
)
def test_a_path_that_is_no_directory_is_named(tmp_path: Path, kind: str, why: str) -> None:
    data = tmp_path / "store"
    match kind:
        case "file":
            data.write_text("x")
        case "FIFO":
            # which waits for a writer where somebody opens it
            os.mkfifo(data)
        case "link to a file":
            (tmp_path / "file").write_text("x")
            data.symlink_to("file")
        case "link to nowhere":
            data.symlink_to("nowhere")
        case "link to itself":
            data.symlink_to("store")
        case _:
            data = tmp_path / ("x" * 300)
    assert refused(tmp_path, data).endswith(": " + why.format(data=data))


async def test_a_link_to_a_directory_is_that_directory(tmp_path: Path) -> None:
    """A store may lie on another disk.

    By whichever name: the second start is refused, and the first is unharmed.
    """
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to("real")
    with Broker(data=link) as broker:
        async with await RawClient.open(broker.address) as client:
            await client.send("T", b"before", queue=0)
            for name in (real, link):
                ended = start(name)
                assert ended.returncode == EXIT_TRY_LATER, ended
                assert ended.stdout == ""
                assert ended.stderr.startswith(
                    f"ogive: the store in {name} is in use by another process; "
                )
                assert ended.stderr.count("\n") == 1
            await client.send("T", b"after", queue=0)
            assert [message.body for message in messages(await client.pull("G", "T", 0))] == [
                b"before",
                b"after",
            ]
    assert link.is_symlink()
    assert (real / "commitlog").is_dir()
