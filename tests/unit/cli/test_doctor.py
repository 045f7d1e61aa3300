"""``ogive doctor``: each finding, provoked."""

import asyncio
import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ogive.cli.main import main
from ogive.testing import FakeBroker
from ogive.testing.fake_broker import error, ok
from ogive.wire.bodies.routes import BrokerData, ClusterInfo
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand


def examined(
    capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit code, and the findings by their check."""
    code = main(["doctor", "--json", *words])
    found: dict[str, list[dict[str, str]]] = {}
    for line in capsys.readouterr().out.splitlines():
        one = json.loads(line)
        assert not (one["level"] == "ok" and one["way_out"])
        found.setdefault(one["check"], []).append(one)
    return code, found


def figures(**changes: str) -> RemotingCommand:
    """Return a broker's figures: it started a minute ago, and has 30 % of its disk used."""
    table = {
        "brokerVersionDesc": "V5_5_0",
        "commitLogDiskRatio": "0.3",
        "bootTimestamp": str(int((time.time() - 60) * 1000)),
        "runtime": "[ 0 days, 0 hours, 1 minutes, 0 seconds ]",
    }
    return ok(body=json.dumps({"table": table | changes}).encode())


async def _of_cluster(answer: Callable[[], RemotingCommand], *words: str) -> int:
    async with FakeBroker({"Orders": 1}) as broker:
        # made when it is asked for, as it holds a time
        broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, lambda _: answer())
        return await asyncio.to_thread(main, ["doctor", "--json", "-n", broker.address, *words])


def findings(
    capsys: pytest.CaptureFixture[str], answer: Callable[[], RemotingCommand], *words: str
) -> tuple[int, str]:
    """Return the exit code, and texts and ways out of all that is not ok."""
    code = asyncio.run(_of_cluster(answer, *words))
    lines = map(json.loads, capsys.readouterr().out.splitlines())
    bad = [f"{one['text']}. {one['way_out']}" for one in lines if one["level"] != "ok"]
    return code, "\n".join(bad)


def test_a_cluster_that_lacks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert findings(capsys, figures, "--topic", "Orders") == (0, "")


HOUR_AHEAD: Mapping[str, str] = {"runtime": "[ 0 days, 1 hours, 1 minutes, 0 seconds ]"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (HOUR_AHEAD, " s ahead of the clock of this machine. Let NTP set both"),
        ({"bootTimestamp": "1700000000000"}, " s behind the clock of this machine"),
        ({"commitLogDiskRatio": "0.93"}, "93% used: messages are deleted before their time"),
        ({"brokerVersionDesc": "V4_3_0"}, "version 4.3.0 is not tested with ogive"),
    ],
)
def test_what_a_broker_lacks_is_named(
    changes: Mapping[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = findings(capsys, partial(figures, **changes))
    assert code == 3
    assert said in text
    assert text.count("\n") == 0


def test_a_user_who_may_not_see_the_figures_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = partial(error, ResponseCode.NO_PERMISSION, "not yours")
    code, text = findings(capsys, refusal)
    assert (code, "not yours" in text) == (3, True)


def test_an_advertised_name_that_nobody_knows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = socket.getaddrinfo

    def getaddrinfo(host: Any, *words: Any, **more: Any) -> Any:
        if host == "broker.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    listed = BrokerData(cluster="c", broker_name="broker-a", addresses={0: "broker.invalid:10911"})
    cluster = ClusterInfo(brokers={"broker-a": listed}, clusters={"c": ("broker-a",)})

    async def run() -> int:
        async with FakeBroker() as broker:
            broker.on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=cluster.encode()))
            return await asyncio.to_thread(main, ["doctor", "--json", "-n", broker.address])

    assert asyncio.run(run()) == 3
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = [one for one in found if one["check"] == "names"]
    assert "this machine does not know broker.invalid" in names[0]["text"]
    assert "--advertised-host" in names[0]["way_out"]


def test_without_a_cluster_the_rest_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    code, found = examined(capsys, "-n", address)
    assert code == 3
    assert found["name server"][0]["level"] == "error"
    assert "ogive up" in found["name server"][0]["way_out"]
    assert found["client"][0]["level"] == "ok"


def test_a_full_disk_and_a_taken_port(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def disk_usage(path: Any) -> Any:
        return shutil._ntuple_diskusage(2**40, 2**40 - 2**20, 2**20)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = ("--data", str(tmp_path / "new"), "--name-server-port", "0")
        code, found = examined(capsys, *words, "--broker-port", port)
    assert code == 3
    assert "name server" not in found
    assert found["disk"][0]["level"] == "error"
    assert found["ports"][0]["level"] == "ok"
    assert f"127.0.0.1:{port}: address already in use" in found["ports"][1]["text"]
    assert "--broker-port" in found["ports"][1]["way_out"]
    assert found["directory"][0]["level"] == "ok"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("asked", ["-n", "--topic", "NAMESRV_ADDR"])
def test_the_machine_and_a_cluster_are_checked_in_one_run(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    asked: str,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    words = ["--data", str(tmp_path / "new")]
    if asked == "-n":
        words += ["-n", address]
    elif asked == "--topic":
        monkeypatch.setattr("ogive.cli.connect.DEFAULT_NAME_SERVER", address)
        words += ["--topic", "Orders"]
    else:
        monkeypatch.setenv("NAMESRV_ADDR", address)
    _, found = examined(capsys, *words)
    assert found["directory"][0]["level"] == "ok"
    assert found["name server"][0]["level"] == "error"


def test_a_directory_inside_a_store(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").touch()
    code, found = examined(capsys, "--data", str(tmp_path / "x"))
    assert (code, found["directory"][0]["level"]) == (3, "error")
    assert "lies inside a store" in found["directory"][0]["text"]


def test_an_address_of_another_machine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    # an address for documents, RFC 5737: no machine has it
    code, found = examined(capsys, "--data", str(tmp_path), "--host", "192.0.2.1")
    assert code == 3
    assert [one["level"] for one in found["ports"]] == ["error", "error"]
    assert "--host" in found["ports"][0]["way_out"]


def test_missing_credentials_are_one_finding_of_several(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, found = examined(capsys, "--credentials", str(tmp_path / "none"))
    assert code == 3
    assert "cannot be read" in found["settings"][0]["text"]
    assert found["client"][0]["level"] == "ok"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--data", "d", "--broker-port", "99999"], "--broker-port 99999: must be between"),
        (["--host", "::1"], "--host has no effect without --data"),
    ],
)
def test_impossible_options_are_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 1
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""


def test_a_file_system_that_does_not_answer(tmp_path: Path) -> None:
    """The process ends although its call does not."""
    program = (
        "import shutil, sys, threading\n"
        "shutil.disk_usage = lambda path: threading.Event().wait()\n"
        "from ogive.cli import doctor\n"
        "from ogive.cli.main import main\n"
        "doctor.CHECK_S = 0.1\n"
        "sys.exit(main(['doctor', '--data', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert "error    disk: not finished within 0.1 s" in done.stdout


def test_a_low_limit_of_open_files(tmp_path: Path) -> None:
    program = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))\n"
        "from ogive.cli.main import main\n"
        "sys.exit(main(['doctor', '--data', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 3
    assert "may open 200 files and connections, at least 4096 are needed" in done.stdout
    assert "ulimit -n" in done.stdout
