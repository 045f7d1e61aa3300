"""`ogive up` as an operator runs it: settings from a file, lines of JSON, pages for machines that
watch.
"""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import ogive


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def test_a_broker_from_a_file_can_be_watched_and_stops_cleanly(tmp_path: Path) -> None:
    (tmp_path / "ogive.toml").write_text(
        f'data = "{tmp_path / "store"}"\nname-server-port = 0\nbroker-port = 0\nmetrics-port = '
        '0\nlog-format = "json"\n'
        'cluster = "C7"\nflush = "async"\n'
    )
    command = [
        sys.executable,
        "-m",
        "ogive",
        "up",
        "--no-grpc",
        "--config",
        str(tmp_path / "ogive.toml"),
        "-v",
        "--flush",
        "sync",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        shown = re.fullmatch(
            r"metrics http://127\.0\.0\.1:(\d+)/metrics\n", process.stdout.readline()
        )
        assert shown is not None
        port = int(shown[1])
        with ogive.Producer(ready[1].partition("=")[2]) as producer:
            for _ in range(3):
                producer.send("Orders", b"x")
        assert page(port, "/ready") == (200, "ready\n")
        assert page(port, "/health") == (200, "ok\n")
        assert page(port, "/x")[0] == 404
        status, text = page(port, "/metrics")
        assert status == 200
        [line] = [
            line
            for line in text.splitlines()
            if line.startswith("rocketmq_messages_in_total") and 'topic="Orders"' in line
        ]
        assert line.endswith(" 3")
        assert 'cluster="C7"' in line
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = [json.loads(line) for line in errors.splitlines()]
    assert any("serves on" in line["message"] and line["level"] == "INFO" for line in lines)


def test_who_administers_a_broker_is_in_its_log_without_being_asked_for(tmp_path: Path) -> None:
    ports = ("--name-server-port", "0", "--broker-port", "0", "--log-format", "json")
    command = [sys.executable, "-m", "ogive", "up", "--no-grpc", "--data"]
    command += [str(tmp_path / "store"), *ports]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        with ogive.Admin(ready[1].partition("=")[2]) as admin:
            for number in range(20):
                admin.create_topic(f"T{number}", queues=1)
            admin.create_group("G")
            admin.reset_offsets("G", "T0", "latest")
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [line.get("topic", line.get("group")) for line in lines] == [
        *(f"T{number}" for number in range(20)),
        "G",
        "T0",
    ]
    assert {line["at"] for line in lines} == {"broker broker-a"}
    assert lines[-1]["changes"] == {"T0/0": [None, 0]}


def test_a_log_of_json_holds_what_a_file_of_apaches_says_too_much(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text(
        f"storePathRootDir={tmp_path / 'store'}\nhaListenPort=10912\nlistenPort=0\n"
    )
    words = [
        "--config",
        str(tmp_path / "broker.conf"),
        "--log-format",
        "json",
        "--name-server-port",
        "0",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "ogive", "up", "--no-grpc", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    (line,) = map(json.loads, errors.splitlines())
    assert line["message"] == f"{tmp_path / 'broker.conf'}: not used here: haListenPort"
