"""The ``ogive`` command as a shell runs it. Our broker only: it is what ``ogive up`` starts."""

import json
import os
import pty
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ogive as ogive_client
from ogive.cli.main import main
from ogive.errors import NoPermission
from ogive.testing import Broker

pytestmark = pytest.mark.client_suite


@pytest.fixture(scope="module")
def running() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def ogive(
    *words: str, stdin: bytes = b"", timeout_s: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "ogive", *words],
        input=stdin,
        capture_output=True,
        timeout=timeout_s,
        check=False,
    )


def test_up_says_where_it_is_and_where_its_data_are_and_stops_cleanly_on_sigterm_and_ctrl_c(
    tmp_path: Path,
) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        # without --data
        command = [
            sys.executable,
            "-m",
            "ogive",
            "up",
            "--no-grpc",
            "--name-server-port",
            "0",
            "--broker-port",
            "0",
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
        )
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert line.startswith("ready name-server=127.0.0.1:")
        assert (
            process.stdout.readline().decode()
            == f"messages are kept in {tmp_path / 'ogive-data'}\n"
        )
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == (b"", b"", 0)
        assert (tmp_path / "ogive-data" / "commitlog").exists()
        assert not (tmp_path / "ogive-data" / "abort").exists()


def test_up_refuses_a_directory_in_use(running: Broker) -> None:
    done = ogive("up", "--data", str(running.data), "--name-server-port", "0", "--broker-port", "0")
    assert done.returncode == 75
    assert b"in use by another process" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_up_refuses_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ogive(
            "up", "--data", str(tmp_path), "--name-server-port", "0", "--broker-port", str(port)
        )
    assert done.returncode == 75
    assert (
        f"cannot listen on 127.0.0.1:{port}: address already in use, perhaps by a broker that runs "
        "already"
    ).encode() in done.stderr


def test_up_says_on_a_terminal_where_messages_are_kept(tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "ogive",
        "up",
        "--no-grpc",
        "--data",
        str(tmp_path),
        "--name-server-port",
        "0",
        "--broker-port",
        "0",
    ]
    with subprocess.Popen(command, stdout=end, stderr=subprocess.PIPE) as process:
        try:
            os.close(end)
            with os.fdopen(os.dup(terminal), "rb", buffering=0) as shown:
                text = b""
                while text.count(b"\n") < 2:
                    text += shown.read(1024)
            process.send_signal(signal.SIGINT)
            assert (process.wait(60), process.communicate()[1]) == (0, b"")
        finally:
            process.kill()
            os.close(terminal)
    assert (
        text.decode().splitlines()[1] == f"messages are kept in {tmp_path}; Ctrl-C stops the broker"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is this machine")
def test_a_broker_that_cannot_reach_its_own_advertised_address_is_registered_with_it() -> None:
    """As behind NAT: here nothing listens at that address."""
    with Broker(options=("--advertised-host", "127.9.9.9")) as broker:
        assert broker.address.startswith("127.9.9.9:")
        port = broker.name_server.rpartition(":")[2]
        assert broker.name_server == f"127.9.9.9:{port}"
        with ogive_client.Admin(f"127.0.0.1:{port}") as admin:
            assert admin.cluster_info().brokers["broker-a"].addresses == {0: broker.address}


def test_topics_are_created_and_listed(running: Broker) -> None:
    done = ogive("topic", "create", "Shelf", "--queues", "3", "-n", running.name_server)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Shelf" in done.stdout
    rows = [
        json.loads(line)
        for line in ogive("topic", "list", "--json", "-n", running.name_server).stdout.splitlines()
    ]
    assert {"topic": "Shelf", "queues": 3, "messages": 0, "kind": "application"} in rows
    everything = ogive("topic", "list", "--all", "-n", running.name_server).stdout.decode()
    assert "SCHEDULE_TOPIC_XXXX" in everything
    assert (
        "SCHEDULE_TOPIC_XXXX"
        not in ogive("topic", "list", "-n", running.name_server).stdout.decode()
    )


def test_what_is_sent_is_what_tail_shows(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Orders", *server)
    sent = ogive(
        "send",
        "Orders",
        "--tag",
        "paid",
        "--key",
        "4711",
        "--property",
        "colour=red",
        "--json",
        *server,
        stdin=b"2 x espresso",
    )
    place = json.loads(sent.stdout)
    assert place["status"] == "SEND_OK"
    ogive("send", "Orders", "--lines", *server, stdin=b"one\ntwo\n")
    shown = ogive("tail", "Orders", "--from", "earliest", "--count", "3", "--json", *server)
    assert (shown.returncode, shown.stderr) == (0, b"")
    messages = [json.loads(line) for line in shown.stdout.splitlines()]
    assert sorted(message["body"] for message in messages) == ["2 x espresso", "one", "two"]
    (paid,) = [message for message in messages if message["tag"] == "paid"]
    assert (paid["id"], paid["keys"], paid["queue"], paid["offset"]) == (
        place["id"],
        ["4711"],
        place["queue"],
        place["offset"],
    )
    assert paid["properties"]["colour"] == "red"
    plain = ogive(
        "tail", "Orders", "--from", "earliest", "--tag", "paid", "--count", "1", *server
    ).stdout.decode()
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{{3}}Z {place['queue']}/{place['offset']} tag=paid "
        r"key=4711 2 x espresso\n",
        plain,
    )


def test_tail_ends_when_its_reader_does(running: Broker) -> None:
    """As with ``| head -1``: on a quiet topic there is no next line that could fail."""
    server = ("-n", running.name_server)
    ogive("send", "Quiet", "--body", "one", *server)
    command = [sys.executable, "-m", "ogive", "tail", "Quiet", "--from", "earliest", *server]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.readline().endswith(b"one\n")
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_a_send_whose_reader_goes_is_no_success_unless_everything_was_sent(running: Broker) -> None:
    """As with ``seq 1 2000 | ogive send Orders --lines | head -1``."""
    command = [sys.executable, "-m", "ogive", "send", "Cut", "--lines", "-n", running.name_server]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(b"1\n")
            process.stdin.flush()
            process.stdout.readline()
            process.stdout.close()
            process.stdin.write(b"2\n3\n")
            process.stdin.close()
            assert process.stderr.read() == (
                b"ogive: standard output is closed: after 2 messages nothing more of the input "
                b"was sent\n"
            )
            assert process.wait(60) == 1
        finally:
            process.kill()
    with subprocess.Popen(
        [*command[:5], "--body", "x", *command[6:]], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait(60)) == (b"", 0)


def test_tail_ends_where_it_may_not_read(running: Broker) -> None:
    """A consumer would wait for the right; who looks at a terminal wants to know."""
    server = ("-n", running.name_server)
    ogive("topic", "create", "Secret", *server)
    with ogive_client.Admin(running.name_server) as admin:
        admin.update_group("TOOLS_CONSUMER", enabled=False)
        try:
            refused = ogive("tail", "Secret", *server)
        finally:
            admin.update_group("TOOLS_CONSUMER", enabled=True)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert refused.stderr.count(b"no permission, TOOLS_CONSUMER") == 1


def test_a_delayed_message_is_said_to_come_later_and_a_level_that_is_not_there_is_refused() -> None:
    with Broker(options=("--delay-levels", "1s 90s 5m 2h")) as broker:
        server = ("-n", broker.name_server)
        said = [
            ogive("send", "Orders", "--body", "x", "--delay-level", level, *server).stdout.decode()
            for level in "1234"
        ]
        assert [line.partition(" id ")[0] for line in said] == [
            "Orders on broker-a in 1 s (delay level 1)",
            "Orders on broker-a in 90 s (delay level 2)",
            "Orders on broker-a in 5 min (delay level 3)",
            "Orders on broker-a in 2 h (delay level 4)",
        ]
        place = json.loads(
            ogive("send", "Orders", "--body", "x", "--delay-level", "2", "--json", *server).stdout
        )
        del place["id"]
        assert place == {
            "status": "SEND_OK",
            "topic": "Orders",
            "broker": "broker-a",
            "delay_level": 2,
            "delay_s": 90.0,
        }
        refused = ogive("send", "Orders", "--body", "x", "--delay-level", "5", *server)
        assert (refused.returncode, refused.stdout) == (1, b"")
        assert (
            refused.stderr
            == b"ogive: --delay-level 5: the broker has 4 levels (1 s, 90 s, 5 min, 2 h)\n"
        )
        assert (
            b"--delay-level -1: 1 is the first level"
            in ogive("send", "Orders", "--body", "x", "--delay-level", "-1", *server).stderr
        )


def test_a_message_can_be_sent_for_some_seconds_later(running: Broker) -> None:
    server = ("-n", running.name_server)
    said = ogive("send", "InASecond", "--body", "x", "--delay", "1.5", *server)
    assert said.stdout.startswith(b"InASecond on broker-a in 1.5 s id "), said.stderr
    place = json.loads(
        ogive("send", "InASecond", "--body", "y", "--delay", "1", "--json", *server).stdout
    )
    del place["id"]
    assert place == {
        "status": "SEND_OK",
        "topic": "InASecond",
        "broker": "broker-a",
        "delay_s": 1.0,
    }
    came = [
        json.loads(line)
        for line in ogive(
            "tail", "InASecond", "--from", "earliest", "--count", "2", "--json", *server
        ).stdout.splitlines()
    ]
    assert sorted(one["body"] for one in came) == ["x", "y"]
    refused = ogive("send", "InASecond", "--body", "x", "--delay", "-1", *server)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert b"--delay -1" in refused.stderr
    assert (
        b"not allowed with argument --delay-level"
        in ogive("send", "T", "--body", "x", "--delay-level", "1", "--delay", "1", *server).stderr
    )


def test_send_says_that_it_waits_for_the_terminal(running: Broker) -> None:
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "ogive", "send", "Orders", "-n", running.name_server]
    os.write(terminal, b"typed\n\x04")
    done = subprocess.run(command, stdin=end, capture_output=True, timeout=60, check=False)
    os.close(terminal)
    os.close(end)
    assert done.stderr == (
        b"ogive: reading the body from the terminal; Ctrl-D at the start of a line ends it, "
        b"Ctrl-C sends nothing more\n"
    )
    assert done.stdout.startswith(b"Orders/broker-a/")


@pytest.mark.parametrize("option", [(), ("--lines",)])
def test_one_ctrl_c_ends_a_send_that_waits_for_the_terminal(
    option: tuple[str, ...], running: Broker
) -> None:
    """The loop's own handler would only cancel a task that waits in a read."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "ogive", "send", "Unsent", *option, "-n", running.name_server]
    with subprocess.Popen(
        command, stdin=end, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        try:
            assert b"Ctrl-C" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(terminal)
            os.close(end)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_an_empty_message_is_sent_only_where_it_is_asked_for(running: Broker) -> None:
    server = ("-n", running.name_server)
    refused = ogive("send", "Empty", *server)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert (
        refused.stderr
        == b"ogive: standard input is empty, nothing was sent; --body '' sends an empty message\n"
    )
    no_lines = ogive("send", "Empty", "--lines", *server)
    assert (no_lines.returncode, no_lines.stdout, no_lines.stderr) == (0, b"", b"")
    assert ogive("send", "Empty", "--body", "", *server).returncode == 0
    assert (
        json.loads(
            ogive("tail", "Empty", "--from", "earliest", "--count", "1", "--json", *server).stdout
        )["body"]
        == ""
    )


def test_a_body_that_is_no_text_is_sent_as_it_was_typed(running: Broker) -> None:
    server = ("-n", running.name_server)
    assert ogive("send", "Typed", "--body", os.fsdecode(b"\xff"), *server).returncode == 0
    assert (
        json.loads(
            ogive("tail", "Typed", "--from", "earliest", "--count", "1", "--json", *server).stdout
        )["body_hex"]
        == "ff"
    )


@pytest.mark.parametrize("words", [("produce", "--topic", "Cut"), ("consume", "--topic", "Cut")])
def test_a_bench_that_is_interrupted_shows_its_total(
    words: tuple[str, ...], running: Broker
) -> None:
    ogive("send", "Cut", "--body", "x", "-n", running.name_server)
    command = [
        sys.executable,
        "-m",
        "ogive",
        "bench",
        *words,
        "--for",
        "10m",
        "-n",
        running.name_server,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(b"1 s: ")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")
    assert out.splitlines()[-1].startswith(b"total: ")


def test_a_binary_body_is_shown_as_hex(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Bytes", *server)
    ogive("send", "Bytes", *server, stdin=b"\xff\x00")
    shown = ogive("tail", "Bytes", "--from", "earliest", "--count", "1", "--json", *server)
    assert json.loads(shown.stdout)["body_hex"] == "ff00"


def test_an_unknown_topic_is_one_sentence_with_advice(tmp_path: Path) -> None:
    with Broker(options=("--no-auto-create-topics",)) as broker:
        ogive("topic", "create", "Orders", "-n", broker.name_server)
        done = ogive("send", "Ordres", "--body", "x", "-n", broker.name_server)
    assert done.returncode == 1
    text = done.stderr.decode()
    assert 'topic "Ordres" has no route' in text
    assert "Orders" in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    "command",
    [
        ("send", "Orders", "--body", "x"),
        ("topic", "list"),
        ("topic", "create", "Orders"),
        ("lag", "g"),
        ("tail", "Orders"),
    ],
)
def test_a_brokers_address_in_place_of_the_name_servers_is_one_sentence(
    running: Broker, command: tuple[str, ...]
) -> None:
    done = ogive(*command, "-n", running.address)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(
        f"ogive: {running.address} is not a name server but, it seems, a broker: give the name "
        "server's address"
    )
    assert done.stderr.count(b"\n") == 1


def test_lag_of_a_group(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Late", "--queues", "1", *server)
    ogive("send", "Late", "--lines", *server, stdin=b"a\nb\nc\n")
    listener = (
        "import ogive, sys, threading\n"
        "seen = threading.Semaphore(0)\n"
        "@ogive.listener('Late', group='readers', start='earliest')\n"
        "def read(message): seen.release()\n"
        "with ogive.PushConsumer(read, name_server=sys.argv[1]):\n"
        "    for _ in range(3): seen.acquire(timeout=60)\n"
    )
    subprocess.run([sys.executable, "-c", listener, running.name_server], check=True, timeout=90)
    ogive("send", "Late", "--body", "d", *server)
    rows = [
        json.loads(line)
        for line in ogive(
            "lag", "readers", "--topic", "Late", "--json", *server
        ).stdout.splitlines()
    ]
    assert [
        (row["topic"], row["queue"], row["offset"], row["max_offset"], row["lag"]) for row in rows
    ] == [("Late", 0, 3, 4, 1)]
    table = ogive("lag", "readers", "--topic", "Late", *server).stdout.decode()
    assert "total" in table.lower()


def test_what_creates_and_deletes_answers_programs_too(running: Broker) -> None:
    server = ("--json", "-n", running.name_server)
    made = ogive("topic", "create", "Made", "--queues", "2", "--cluster", "DefaultCluster", *server)
    assert json.loads(made.stdout) == {"topic": "Made", "queues": 2, "cluster": "DefaultCluster"}
    assert ogive("topic", "create", "Elsewhere", "--cluster", "none", *server).returncode == 1
    reserved = ogive("topic", "create", "RMQ_SYS_x", *server)
    assert (reserved.returncode, b"one of the brokers' own" in reserved.stderr) == (1, True)
    made = ogive("group", "create", "makers", *server)
    assert json.loads(made.stdout) == {"group": "makers", "max_retries": 16, "retry_queues": 1}
    assert json.loads(ogive("group", "delete", "makers", "--yes", *server).stdout)["deleted"]
    assert json.loads(ogive("topic", "delete", "Made", "--yes", *server).stdout) == {
        "topic": "Made",
        "deleted": True,
    }


def test_a_group_is_watched_moved_and_deleted(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Moved", "--queues", "1", *server)
    ogive("send", "Moved", "--lines", *server, stdin=b"a\nb\nc\n")
    assert b"4 retries" in ogive("group", "create", "movers", "--max-retries", "4", *server).stdout
    planned = ogive(
        "group", "reset", "movers", "Moved", "--to", "earliest", "--dry-run", "--json", *server
    )
    assert json.loads(planned.stdout) == {
        "topic": "Moved",
        "broker": "broker-a",
        "queue": 0,
        "before": None,
        "after": 0,
        "dry_run": True,
    }
    # a dry run moved nothing
    assert ogive("check", "lag", "movers", "--max", "2", *server).returncode == 1
    put = json.loads(
        ogive(
            "group", "reset", "movers", "Moved", "--queue", "0", "--to", "2", "--json", *server
        ).stdout
    )
    assert (put["queue"], put["before"], put["after"]) == (0, None, 2)
    beyond = ogive(
        "group",
        "reset",
        "movers",
        "Moved",
        "--queue",
        "0",
        "--broker",
        "broker-a",
        "--to",
        "4",
        *server,
    )
    assert (
        beyond.returncode,
        b"holds the offsets 0 to 3: it cannot go on at 4" in beyond.stderr,
    ) == (1, True)
    again = ogive("group", "reset", "movers", "Moved", "--to", "earliest", *server)
    question = (
        b"deliver 2 messages of Moved to group movers again? There is nobody to ask here: add --yes"
    )
    assert (again.returncode, question in again.stderr, again.stdout.split()[-2:]) == (
        1,
        True,
        [b"2", b"again"],
    )
    assert (
        ogive("group", "reset", "movers", "Moved", "--to", "earliest", "--yes", *server).returncode
        == 0
    )
    refused = ogive("group", "skip", "movers", "Moved", *server)
    question = (
        b"skip 3 messages of Moved that group movers has not consumed? There is nobody to "
        b"ask here: add --yes"
    )
    assert (refused.returncode, question in refused.stderr) == (1, True)
    unknown = ogive("group", "skip", "moovers", "Moved", "--dry-run", *server)
    assert (unknown.returncode, b"movers" in unknown.stderr) == (1, True)
    over, within = (
        ogive("check", "lag", "movers", "--max", limit, "--without-members", *server)
        for limit in ("2", "3")
    )
    assert (over.returncode, over.stdout) == (
        3,
        b"over: group movers is 3 messages behind, 2 are allowed\n",
    )
    assert within.returncode == 0
    told = ogive("check", "lag", "movers", "--max", "2", "--json", *server)
    record = {
        "group": "movers",
        "topic": None,
        "lag": 3,
        "max": 2,
        "over": True,
        "unknown": ["no member is online"],
    }
    assert (told.returncode, json.loads(told.stdout)) == (3, record)
    nobody = ogive("check", "lag", "movers", "--max", "3", *server)
    assert (nobody.returncode, nobody.stderr) == (
        1,
        b"ogive: no member is online; --without-members accepts that\n",
    )
    assert nobody.stdout == b"unknown: group movers is at least 3 messages behind, 3 are allowed\n"
    shown = json.loads(ogive("group", "show", "movers", "--json", *server).stdout)
    assert (shown["lag"], shown["max_retries"], shown["members"]) == (3, 4, [])
    rows = [
        json.loads(line) for line in ogive("group", "list", "--json", *server).stdout.splitlines()
    ]
    assert {"group": "movers", "members": 0, "lag": 3, "max_retries": 4, "enabled": True} in rows
    assert ogive("group", "delete", "movers", *server).stderr.count(b"add --yes") == 1
    assert ogive("group", "delete", "movers", "--offsets", "--yes", *server).returncode == 0
    gone = ogive("group", "show", "movers", *server)
    assert (gone.returncode, gone.stderr.count(b"\n")) == (1, 1)


def test_a_topic_is_changed_and_what_that_costs_is_said(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Grown", "--queues", "1", *server)
    again = ogive("topic", "create", "Grown", "--queues", "4", *server)
    assert again.returncode == 1
    assert (
        b"topic Grown exists already on broker-a, with read queues 1, write queues 1: update_topic "
        b"or `ogive topic update` changes it" in again.stderr
    )
    assert ogive("topic", "create", "Grown", "--queues", "1", *server).returncode == 0

    planned = ogive("topic", "update", "Grown", "--queues", "4", "--dry-run", "--json", *server)
    assert [json.loads(line) for line in planned.stdout.splitlines()] == [
        {"broker": "broker-a", "setting": "read_queues", "before": 1, "after": 4, "dry_run": True},
        {"broker": "broker-a", "setting": "write_queues", "before": 1, "after": 4, "dry_run": True},
    ]
    grown = ogive("topic", "update", "Grown", "--queues", "4", "--message-type", "NORMAL", *server)
    assert grown.returncode == 0
    assert (
        b"BROKER    SETTING       BEFORE  AFTER\nbroker-a  read queues   1       4\n"
        in grown.stdout
    )
    assert b"broker-a  message type  none    NORMAL\n" in grown.stdout
    assert (
        b"note: with another number of queues a sharding key may go to another queue"
        in grown.stderr
    )
    with ogive_client.Admin(running.name_server) as admin:
        (at,) = admin.topic("Grown").brokers
        assert (at.read_queues, at.write_queues, admin.topic("Grown").message_type) == (
            4,
            4,
            "NORMAL",
        )
    assert (
        ogive("topic", "update", "Grown", "--queues", "4", *server).stdout
        == b"topic Grown is like that already\n"
    )
    assert (
        b"nobody would get"
        in ogive("topic", "update", "Grown", "--write-queues", "5", *server).stderr
    )


def test_a_group_is_put_where_another_one_stands(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Cloned", "--queues", "1", *server)
    ogive("send", "Cloned", "--lines", *server, stdin=b"1\n2\n3\n")
    for name, to in (("leader", "2"), ("follower", "0")):
        ogive("group", "create", name, *server)
        assert (
            ogive("group", "reset", name, "Cloned", "--queue", "0", "--to", to, *server).returncode
            == 0
        )
    planned = ogive(
        "group", "clone", "leader", "follower", "Cloned", "--dry-run", "--json", *server
    )
    moved = {"topic": "Cloned", "broker": "broker-a", "queue": 0, "before": 0, "after": 2}
    assert json.loads(planned.stdout) == moved | {"dry_run": True}
    refused = ogive("group", "clone", "leader", "follower", "Cloned", *server)
    assert refused.returncode == 1
    assert (
        b"skip 2 messages of Cloned that group follower has not consumed? There is nobody to ask "
        b"here: add --yes" in refused.stderr
    )
    assert ogive("group", "clone", "leader", "follower", "Cloned", "--yes", *server).stdout.split()[
        -4:
    ] == [b"0", b"2", b"2", b"skipped"]
    with ogive_client.Admin(running.name_server) as admin:
        assert set(admin.positions("follower", "Cloned").values()) == {2}
    assert (
        b"Similar groups: leader"
        in ogive("group", "clone", "leder", "follower", "Cloned", *server).stderr
    )
    assert (
        b"Similar groups: follower"
        in ogive("group", "clone", "leader", "folower", "Cloned", *server).stderr
    )
    ogive("group", "create", "idle", *server)
    assert (
        b'group "idle" has no position in topic "Cloned"'
        in ogive("group", "clone", "idle", "follower", "Cloned", *server).stderr
    )


def test_messages_of_a_time_are_listed(running: Broker) -> None:
    place = ("--topic", "Timed", "-n", running.name_server)
    ogive("topic", "create", "Timed", "--queues", "1", "-n", running.name_server)
    ogive("send", "Timed", "--key", "k", "--lines", "-n", running.name_server, stdin=b"1\n2\n3\n")
    everything = ogive("message", "--since", "2026-01-01", "--json", *place).stdout.splitlines()
    assert [json.loads(line)["body"] for line in everything] == ["1", "2", "3"]
    first = json.loads(everything[0])
    some = ogive("message", "--since", first["stored_at"], "--limit", "1", *place)
    assert f" 0/0 id={first['id']} key=k 1\n".encode() in some.stdout
    assert b"there may be more; --limit shows more than 1" in some.stderr
    before = ogive("message", "--until", first["stored_at"], *place)
    assert (before.returncode, before.stdout) == (1, b"")
    assert (
        f"topic Timed has no message stored before {first['stored_at']}".encode() in before.stderr
    )
    assert (
        b"has no message with the key k, stored since 2099-01-01"
        in ogive("message", "--key", "k", "--since", "2099-01-01", *place).stderr
    )


def test_queues_with_unread_messages_are_given_up_only_when_that_is_meant(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Shrunk", "--queues", "2", *server)
    with ogive_client.Producer(running.name_server) as producer:
        producer.send("Shrunk", b"unread", queue=ogive_client.MessageQueue("Shrunk", "broker-a", 1))
    planned = ogive("topic", "update", "Shrunk", "--queues", "1", "--dry-run", *server)
    assert planned.returncode == 0
    assert (
        b"note: 1 message in the queues from 1 on, consumed by nobody yet: they would not be "
        b"consumed any more" in planned.stderr
    )
    ogive("group", "create", "slow", *server)
    ogive("group", "reset", "slow", "Shrunk", "--to", "earliest", *server)
    refused = ogive("topic", "update", "Shrunk", "--queues", "1", *server)
    assert (refused.returncode, refused.stdout) == (1, b"")
    assert (
        b"messages in the queues from 1 on are not consumed yet (1 by slow): they will not be "
        b"consumed any more." in refused.stderr
    )
    assert b"add --yes" in refused.stderr
    with ogive_client.Admin(running.name_server) as admin:
        assert [row.read_queues for row in admin.topic("Shrunk").brokers] == [2]
        less = ogive("topic", "update", "Shrunk", "--write-queues", "1", *server)
        assert b"`ogive topic update Shrunk --read-queues 1`" in less.stderr
        assert (
            ogive("topic", "update", "Shrunk", "--read-queues", "1", "--yes", *server).returncode
            == 0
        )
        assert [(row.read_queues, row.write_queues) for row in admin.topic("Shrunk").brokers] == [
            (1, 1)
        ]


def test_a_group_is_changed_and_shows_its_settings(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("group", "create", "settled", "--max-retries", "4", *server)
    again = ogive("group", "create", "settled", *server)
    assert again.returncode == 1
    assert (
        b"group settled exists already on broker-a, with max retries 4: update_group or `ogive "
        b"group update` changes it" in again.stderr
    )
    assert (
        ogive("group", "create", "settled", "--max-retries", "4", *server).stdout
        == b"group settled has 4 retries\n"
    )
    planned = ogive("group", "update", "settled", "--max-retries", "5", "--dry-run", *server)
    assert b"broker-a  max retries  4       5\n" in planned.stdout
    assert b"nothing was changed" in planned.stderr
    changed = ogive(
        "group",
        "update",
        "settled",
        "--max-retries",
        "5",
        "--no-broadcast",
        "--disable",
        "--json",
        *server,
    )
    assert [json.loads(line)["after"] for line in changed.stdout.splitlines()] == [5, False, False]
    shown = ogive("group", "show", "settled", *server).stdout.decode()
    assert "group settled on broker-a, disabled: its members get nothing\n" in shown
    assert (
        b"on broker-a, with broadcast off, enabled off"
        in ogive("group", "create", "settled", "--max-retries", "5", *server).stderr
    )
    assert "retry limit   5, then the dead letters" in shown
    assert "broadcasting  not allowed\n" in shown
    assert "orderly       no" in shown
    assert (
        json.loads(ogive("group", "show", "settled", "--json", *server).stdout)["orderly"] is False
    )
    assert ogive("group", "update", "settled", "--enable", "--orderly", *server).returncode == 0
    assert (
        json.loads(ogive("group", "show", "settled", "--json", *server).stdout)["orderly"] is True
    )
    assert (
        ogive("group", "update", "settled", "--enable", *server).stdout
        == b"group settled is like that already\n"
    )
    assert (
        b"Similar groups: settled" in ogive("group", "update", "setled", "--enable", *server).stderr
    )


def test_a_group_gets_a_position_in_a_topic_that_it_never_consumed_only_when_that_is_meant(
    running: Broker,
) -> None:
    """It would be behind there for good. The first position of a new group is no question."""
    server = ("-n", running.name_server)
    for topic in ("Vals", "Feat"):
        ogive("topic", "create", topic, "--queues", "1", *server)
        ogive("send", topic, "--body", "x", *server)
    ogive("group", "create", "vals", *server)
    assert ogive("group", "reset", "vals", "Vals", "--to", "earliest", *server).returncode == 0
    refused = ogive("group", "reset", "vals", "Feat", "--to", "earliest", *server)
    question = (
        b"group vals has never consumed Feat, but Vals: give it a position there for good? "
        b"There is nobody to ask here: add --yes"
    )
    assert (refused.returncode, question in refused.stderr) == (1, True)
    assert b"total lag 1\n" in ogive("lag", "vals", *server).stdout
    assert (
        ogive("group", "reset", "vals", "Feat", "--to", "earliest", "--yes", *server).returncode
        == 0
    )
    assert b"total lag 2\n" in ogive("lag", "vals", *server).stdout


def test_a_topic_and_its_messages_are_shown_and_deleted(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Shown", "--queues", "2", *server)
    sent = json.loads(
        ogive("send", "Shown", "--key", "4711", "--json", *server, stdin=b"body").stdout
    )
    shown = json.loads(ogive("topic", "show", "Shown", "--json", *server).stdout)
    assert (shown["kind"], shown["brokers"][0]["perm"], len(shown["queues"])) == (
        "application",
        "rw",
        2,
    )
    place = ("--topic", "Shown", "--queue", str(sent["queue"]), "--offset", "0")
    found = json.loads(ogive("message", *place, "--json", *server).stdout)
    assert (found["id"], found["body"], found["keys"]) == (sent["id"], "body", ["4711"])
    whole = ogive("message", *place, *server).stdout.decode()
    assert f"id:        {sent['id']}" in whole
    (offset_id,) = re.findall(r"offset id: (\w+)", whole)
    assert ogive("message", offset_id, *server).stdout.decode() == whole
    nowhere = ogive("message", offset_id[:-16] + "00000000000FFFFF", *server)
    assert nowhere.returncode == 1
    assert (
        b"broker-a has none at 1048575 of its log; it is misspelt, or old and deleted"
        in nowhere.stderr
    )
    by_key = ogive("message", "--topic", "Shown", "--key", "4711", *server).stdout.decode()
    assert by_key == ogive("message", sent["id"], *server).stdout.decode() == whole
    misspelt = ogive("topic", "delete", "Shwon", "--yes", *server)
    assert (
        misspelt.returncode,
        b"Similar topics: Shown." in misspelt.stderr,
        b"reate" in misspelt.stderr,
    ) == (1, True, False)
    assert ogive("topic", "delete", "Shown", "--yes", *server).returncode == 0
    assert ogive("topic", "show", "Shown", *server).returncode == 1


def test_a_topic_of_batches_says_what_it_is_and_what_is_not_found_in_it(running: Broker) -> None:
    server = ("-n", running.name_server)
    made = ogive("topic", "create", "Whole", "--whole-batches", "--queues", "1", *server)
    assert made.stdout == b"topic Whole has 1 queue on each broker, and keeps batches whole\n"
    assert ogive("topic", "show", "Whole", *server).stdout.startswith(
        b"topic Whole, application, keeps batches whole\n"
    )
    with ogive_client.Producer(
        running.name_server, config=ogive_client.ProducerConfig(whole_batches=True)
    ) as producer:
        sent = producer.send_batch(
            "Whole",
            [ogive_client.Message("Whole", b"%d" % n, keys=(f"k{n}",), tag="a") for n in range(3)],
        )
    record = ogive("message", sent[1].offset_id, *server).stdout.decode()
    said = (
        "a batch of 3 messages, offsets 0 to 2; the first one: ogive message --topic Whole "
        "--queue 0 --offset 0"
    )
    assert record.splitlines()[-1] == said
    assert ogive(*said.rpartition(": ogive ")[2].split(), *server).stdout.endswith(b"\n\n0\n")
    assert (
        b"or in a batch that its topic keeps as one record"
        in ogive("message", sent[1].id, *server).stderr
    )
    assert (
        b"has no message with the key k1. It keeps batches whole"
        in ogive("message", "--topic", "Whole", "--key", "k1", *server).stderr
    )
    with ogive_client.Producer(running.name_server) as producer:
        producer.send("Whole", b"single", tag="a")
    tail = ogive("tail", "Whole", "--from", "earliest", "--tag", "a", "--count", "1", *server)
    assert (
        tail.stdout.count(b"\n"),
        b"pass over its messages. Leave out --tag" in tail.stderr,
    ) == (1, True)


def test_dead_letters_are_listed_and_sent_again(running: Broker) -> None:
    server = ("-n", running.name_server)
    ogive("topic", "create", "Bad", "--queues", "1", *server)
    sent = json.loads(ogive("send", "Bad", "--json", *server, stdin=b"poison").stdout)
    listener = (
        "import ogive, sys, time\n"
        "@ogive.listener('Bad', group='refusers', start='earliest')\n"
        "def refuse(message): return ogive.DEAD_LETTER\n"
        "with ogive.PushConsumer(refuse, name_server=sys.argv[1]), ogive.Admin(sys.argv[1]) as "
        "admin:\n"
        "    until = time.monotonic() + 60\n"
        "    while not admin.dead_letters('refusers') and time.monotonic() < until: "
        "time.sleep(0.1)\n"
    )
    subprocess.run([sys.executable, "-c", listener, running.name_server], check=True, timeout=90)
    assert ogive("dead-letter", "list", "refusers", *server).stdout.endswith(
        f"id={sent['id']} from Bad after 1 try poison\n".encode()
    )
    assert (
        b"no dead letter nobody"
        in ogive("dead-letter", "redrive", "refusers", "nobody", *server).stderr
    )
    assert (
        b"1 dead letter was given to refusers again"
        in ogive("dead-letter", "redrive", "refusers", sent["id"], *server).stdout
    )
    # the index of the retry topic tells
    twice = ogive("dead-letter", "redrive", "refusers", "--all", "--yes", "--json", *server)
    assert (json.loads(twice.stdout)["sent"], json.loads(twice.stdout)["sent_before"]) == (0, 1)
    retry = ogive(
        "tail", "%RETRY%refusers", "--from", "earliest", "--count", "1", "--json", *server
    )
    assert (json.loads(retry.stdout)["body"], json.loads(retry.stdout)["id"]) == (
        "poison",
        sent["id"],
    )
    misspelt = ogive("dead-letter", "list", "refuser", *server)
    assert (misspelt.returncode, b"Similar groups: refusers" in misspelt.stderr) == (1, True)
    ogive("group", "create", "happy", *server)
    answer = ogive("dead-letter", "redrive", "happy", "--all", *server)
    assert (answer.returncode, answer.stdout, answer.stderr) == (
        0,
        b"",
        b"ogive: group happy has no dead letters\n",
    )


def test_a_user_is_changed_forbidden_and_deleted_at_a_running_broker(tmp_path: Path) -> None:
    """Each command counts for the next request."""
    root = tmp_path / "root.yml"
    root.write_text("accessKey: root\nsecretKey: much-secret\n")
    root.chmod(0o600)
    with Broker(data=tmp_path / "store", options=("--acl", "--credentials", str(root))) as broker:
        server = ("--name-server", broker.name_server, "--credentials", str(root))

        def manage(*words: str, stdin: bytes = b"") -> None:
            done = ogive(*words, *server, stdin=stdin)
            assert done.returncode == 0, done.stderr

        def may_send(topic: str, secret: str) -> bool:
            user = ogive_client.Credentials(access_key="ann", secret_key=secret)
            client = ogive_client.ClientConfig(name_server=broker.name_server, credentials=user)
            try:
                with ogive_client.Producer(
                    client=client, config=ogive_client.ProducerConfig(retries=0)
                ) as producer:
                    producer.send(topic, b"x")
            except NoPermission:
                return False
            return True

        for topic in ("Orders", "OrdersOfOthers"):
            manage("topic", "create", topic)
        manage("user", "create", "ann", stdin=b"first-secret\n")
        manage("acl", "allow", "ann", "Topic:Ord*", "pub")
        assert (may_send("Orders", "first-secret"), may_send("OrdersOfOthers", "first-secret")) == (
            True,
            True,
        )
        manage("acl", "deny", "ann", "Topic:OrdersOfOthers", "pub")
        assert (may_send("Orders", "first-secret"), may_send("OrdersOfOthers", "first-secret")) == (
            True,
            False,
        )
        manage("acl", "delete", "ann", "Topic:OrdersOfOthers")
        assert may_send("OrdersOfOthers", "first-secret")
        manage("user", "update", "ann", "--password", stdin=b"second-secret\n")
        assert (may_send("Orders", "first-secret"), may_send("Orders", "second-secret")) == (
            False,
            True,
        )
        manage("user", "update", "ann", "--disable")
        assert not may_send("Orders", "second-secret")
        manage("user", "update", "ann", "--enable")
        manage("acl", "delete", "ann", "--yes")
        assert not may_send("Orders", "second-secret")
        manage("user", "delete", "ann", "--yes")
        assert b"ann" not in ogive("user", "list", *server).stdout


RECIPES = {
    what: re.findall(r"`([^` ]+) ([^` ]+)`", rules)
    for what, rules in re.findall(
        r"^\| (.+?) \| (`\w+:.*`) \|$",
        (Path(__file__).parents[2] / "docs/security.md").read_text(),
        re.MULTILINE,
    )
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """A broker with access control, and the folder of its users' files."""
    folder = tmp_path_factory.mktemp("guarded")
    for name in ("root", "billing"):
        (folder / f"{name}.yml").write_text(f"accessKey: {name}\nsecretKey: {name}-secret\n")
        (folder / f"{name}.yml").chmod(0o600)
    options = ("--acl", "--credentials", str(folder / "root.yml"), "--delay-levels", "1s 1s 1s")
    with (
        Broker(data=folder / "store", options=options) as broker,
        ogive_client.Admin(client=user_of(broker, "root")) as admin,
    ):
        admin.create_user("billing", "billing-secret")
        for topic in ("Orders", "%DLQ%billing"):
            admin.create_topic(topic, queues=1)
        admin.create_group("billing")
        with ogive_client.Producer(client=user_of(broker, "root")) as producer:
            producer.send("Orders", b"x", keys="KEY")
            producer.send("%DLQ%billing", b"x")
        admin.reset_offsets("billing", "Orders", "earliest")
        yield broker, folder


def user_of(broker: Broker, name: str) -> ogive_client.ClientConfig:
    credentials = ogive_client.Credentials(access_key=name, secret_key=f"{name}-secret")
    return ogive_client.ClientConfig(name_server=broker.name_server, credentials=credentials)


def give(broker: Broker, rules: list[tuple[str, str]]) -> None:
    """To billing, and nothing else."""
    with ogive_client.Admin(client=user_of(broker, "root")) as admin:
        if any(rule.user == "billing" for rule in admin.access_rules()):
            admin.forget_rules("billing")
        for resource, actions in rules:
            admin.allow("billing", resource, actions.split(","))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("send to Orders", ("send", "Orders", "--body", "x")),
        ("`ogive lag billing`, `ogive check lag billing`", ("lag", "billing")),
        (
            "`ogive lag billing`, `ogive check lag billing`",
            ("check", "lag", "billing", "--max", "1000", "--without-members"),
        ),
        ("`ogive topic show Orders`", ("topic", "show", "Orders")),
        ("`ogive tail Orders`", ("tail", "Orders", "--from", "earliest", "--count", "1")),
        (
            "`ogive message --topic Orders --key KEY`",
            ("message", "--topic", "Orders", "--key", "KEY"),
        ),
        ("`ogive dead-letter list billing`", ("dead-letter", "list", "billing")),
    ],
)
def test_the_rules_of_a_recipe_do_and_each_is_needed(
    what: str,
    words: tuple[str, ...],
    guarded: tuple[Broker, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As the table in docs/security.md has them.

    What is missing is said with the command that adds it.
    """
    broker, folder = guarded
    command = [*words, "-n", broker.name_server, "--credentials", str(folder / "billing.yml")]
    give(broker, RECIPES[what])
    assert main(command) == 0, capsys.readouterr().err
    for missing in RECIPES[what]:
        give(broker, [rule for rule in RECIPES[what] if rule != missing])
        assert main(command) == 1
        assert (
            f"an administrator: `ogive acl allow billing {missing[0]} " in capsys.readouterr().err
        )


def test_the_rules_of_a_listener_do_for_its_retries_and_dead_letters(
    guarded: tuple[Broker, Path],
) -> None:
    broker, _ = guarded
    (rules,) = (rules for what, rules in RECIPES.items() if what.startswith("listen to Orders"))
    give(broker, rules)
    tries: queue.SimpleQueue[int] = queue.SimpleQueue()

    @ogive_client.listener("Orders", group="billing", start="earliest", max_retries=1)
    def bill(message: ogive_client.MessageExt) -> None:
        if message.keys:
            tries.put(message.reconsume_times)
            raise ValueError("again")

    with ogive_client.PushConsumer(bill, client=user_of(broker, "billing")):
        assert [tries.get(timeout=60), tries.get(timeout=60)] == [0, 1]
    with ogive_client.Admin(client=user_of(broker, "root")) as admin:
        assert "Orders" in {
            letter.properties.get("RETRY_TOPIC") for letter in admin.dead_letters("billing")
        }
