"""A broker under a service manager and in a pod: its start, its probes and its stop."""

import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ogive
from tests.processes import free_port
from tests.topics import eventually

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes.yaml"


@contextmanager
def up(data: Path, *options: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    ports = ("--name-server-port", "0", "--broker-port", "0", "--data", str(data))
    process = subprocess.Popen(
        [sys.executable, "-m", "ogive", "up", "--no-grpc", *ports, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment or None,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=60)


def name_server(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().split()[1].partition("=")[2]


def status(port: int, path: str) -> int:
    """Return the status of a page; 0 if nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code
    except OSError:
        return 0


def test_a_pod_serves_on_while_it_drains(tmp_path: Path) -> None:
    """With the arguments of the StatefulSet, and its probes."""
    text, port = KUBERNETES.read_text("utf-8"), free_port()
    args = re.findall(r"^ +- (--\S+)$", text, re.MULTILINE)
    probes = dict(re.findall(r"(\w+)Probe:\n +httpGet: {path: (/\w+),", text))
    assert set(probes) == {"startup", "readiness", "liveness"}
    changed = {
        "--advertised-host=$(POD_NAME).ogive": "--advertised-host=127.0.0.1",
        "--metrics-port=9090": f"--metrics-port={port}",
        # longer than the test needs: a second signal ends it
        "--drain-delay=5": "--drain-delay=600",
    }
    assert changed.keys() <= set(args)
    with up(tmp_path, *(changed.get(arg, arg) for arg in args)) as process:
        assert eventually(lambda: status(port, probes["startup"]) == 200 or None)
        address = name_server(process)
        assert status(port, probes["readiness"]) == 200
        with ogive.Producer(address) as producer:
            producer.send("Orders", b"before")
            process.send_signal(signal.SIGTERM)
            assert eventually(lambda: status(port, probes["readiness"]) == 503 or None)
            assert status(port, probes["liveness"]) == 200
            producer.send("Orders", b"while it drains")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_systemd_is_told_of_the_start_of_the_stop_and_that_it_is_alive(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        with up(tmp_path / "data", **told) as process:
            while manager.recv(100) != b"READY=1":
                pass
            # clients can connect now
            with ogive.Producer(name_server(process)) as producer:
                producer.send("Orders", b"x")
            for _ in range(3):
                assert manager.recv(100) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            while manager.recv(100) != b"STOPPING=1":
                pass
            assert process.wait(60) == 0
