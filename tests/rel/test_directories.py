"""T12: ``ogive up`` on a directory that it may not have: one sentence, and nothing is changed."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import ogive
from ogive.testing import Broker

pytestmark = [pytest.mark.rel, pytest.mark.quick]

# root may write everywhere unless it gives this up; who is not root may not anyway
_MAY_NOT: tuple[str, ...] = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
_READ_ONLY = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'


def carry_out(*command: str) -> tuple[int, str]:
    """Its exit code, and what it says of what went wrong."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert not done.stdout
    return done.returncode, done.stderr


def start(data: Path, *before: str) -> tuple[int, str]:
    """``ogive up`` as the last words of a command."""
    return carry_out(*before, sys.executable, "-m", "ogive", "up", "--data", str(data), "--name-server-port", "0", "--broker-port", "0")


def shape(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Mode, owner, time of change and content of everything below."""
    found = {}
    for path in sorted((folder, *folder.rglob("*"))):
        about = path.lstat()
        content = path.read_bytes()[:100_000] if path.is_file() else b""
        found[str(path.relative_to(folder))] = (about.st_mode, about.st_uid, about.st_mtime_ns, content)
    return found


def give_away(data: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may give a directory to another user")
    for path in (data, *data.rglob("*")):
        os.chown(path, 65534, 65534)


def close_to_changes(data: Path) -> None:
    data.chmod(0o500)


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A store with a message in it, whose broker has ended."""
    with Broker(data=tmp_path / "store") as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("T", b"kept")
    return tmp_path / "store"


def is_unharmed(data: Path) -> None:
    with Broker(data=data) as broker, ogive.PullConsumer("T", group="G", start="earliest", name_server=broker.name_server) as consumer:
        assert [message.body for message in consumer.poll(60.0)] == [b"kept"]


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="setpriv is needed: permissions do not bind root")
@pytest.mark.parametrize(("spoil", "refused"), [(give_away, ("verify", "repair")), (close_to_changes, ("repair",))])
def test_a_directory_of_another_user_or_closed_to_changes_is_refused(
    used: Path, spoil: Callable[[Path], None], refused: tuple[str, ...]
) -> None:
    (used / "lock").unlink()
    spoil(used)
    before = shape(used)
    code, said = start(used, *_MAY_NOT)
    assert (code, said.count("\n")) == (1, 1), said
    assert f"this user has no permission for {used}" in said
    assert "--data" in said
    for command in refused:
        code, said = carry_out(*_MAY_NOT, sys.executable, "-m", "ogive", "store", command, str(used))
        assert (code, said.count("\n")) == (1, 1), said
        assert f"the store in {used} cannot be" in said
        assert f"this user has no permission for {used}" in said
    assert shape(used) == before
    if os.geteuid() == 0:
        for path in (used, *used.rglob("*")):
            os.chown(path, 0, 0)
    used.chmod(0o700)
    is_unharmed(used)


def test_a_read_only_file_system_is_refused(used: Path) -> None:
    before = shape(used)
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system for one process")
    code, said = start(used, "unshare", "-m", "sh", "-c", _READ_ONLY, str(used))
    assert (code, said.count("\n")) == (1, 1), said
    assert f"{used}: its file system is read-only" in said
    assert "--data" in said
    assert shape(used) == before
    is_unharmed(used)


@pytest.mark.parametrize("kind", ["file", "FIFO", "dangling link"])
def test_a_path_that_is_no_directory_is_refused(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "store"
    if kind == "file":
        data.write_text("mine")
    elif kind == "FIFO":
        os.mkfifo(data)
    else:
        data.symlink_to(tmp_path / "nowhere" / "at all")
    before = shape(tmp_path)
    code, said = start(data)
    assert (code, said.count("\n")) == (1, 1), said
    assert str(data) in said
    assert "--data" in said
    assert shape(tmp_path) == before


def test_a_link_to_a_directory_is_that_directory(used: Path) -> None:
    link = used.parent / "link"
    link.symlink_to(used)
    with Broker(data=link):
        code, said = start(used)
    assert code == 75
    assert "is in use by another process" in said
    is_unharmed(link)
