"""What a running broker shows: JSON of commands, metrics, log lines, exit codes.

One broker with access control serves a small scene: messages of each kind, a listener that succeeds
and gives up, transactions, timers, users. Every command with ``--json`` is run.

    json       ogive lag lag: number
    metrics    rocketmq_messages_in_total: counter
               rocketmq_messages_in_total{topic}
    logs       ogive.access.audit operation: string
               ogive.client.consumer.rebalance INFO
    exits      check lag, above --max: 3
"""

import contextlib
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import ogive
from tests.processes import free_port
from tests.surface import command
from tests.surface.command_line import names_with
from tests.surface.json_output import keys, keys_of_lines, without_nulls
from tests.surface.lines import plain_environment, stored
from tests.surface.metrics import metric_lines

TABLES: Final = frozenset({"attributes", "changes", "figures", "properties", "subscriptions"})
"""Objects in the output whose keys are data."""
NEEDS_SPARK: Final = "ogive pipeline "
"""Commands that ``pipelines.py`` runs."""
LOGGERS: Final = frozenset(line.split()[0] for line in stored("logs"))
"""Names that the docs name. More of them are added to the stored list by hand."""
WAIT_S: Final = 60.0


def lines(folder: Path) -> dict[str, set[str]]:
    """Return the lines of the lists json, metrics, logs and exits. *folder* is empty."""
    with plain_environment(XDG_CONFIG_HOME=str(folder)):
        scene = Scene(folder)
        with scene.broker():
            scene.play()
            scene.end_commands()
        scene.look_at_the_store()
        scene.read_log()
        missing = {name for name in names_with("--json") if not name.startswith(NEEDS_SPARK)}
        missing -= scene.ran
        assert not missing, f"the scene lacks commands that have --json: {', '.join(missing)}"
        return scene.found


@dataclass
class Scene:
    """A broker with access control, and what it and the commands have shown so far."""

    folder: Path
    found: dict[str, set[str]] = field(default_factory=dict)
    ran: set[str] = field(default_factory=set)
    name_server: str = ""
    metrics_port: int = field(default_factory=free_port)

    # --- how it runs ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def broker(self) -> Iterator[None]:
        credentials = self._credentials("root", "secret")
        options = ["--data", str(self.folder / "data"), "--acl", "--credentials", credentials]
        options += ["--name-server-port", "0", "--broker-port", "0", "--no-grpc"]
        options += ["--flush", "async"]
        options += ["--metrics-port", str(self.metrics_port), "--log-format", "json"]
        options += ["--delay-levels", "1s 1s 1s", "--segment-size", str(256 * 1024)]
        with (self.folder / "log").open("wb") as log:
            program = [sys.executable, "-m", "ogive", "up", *options]
            process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            ready = process.stdout.readline().decode()
            assert ready.startswith("ready "), (self.folder / "log").read_text()
            self.name_server = ready.split()[1].removeprefix("name-server=")
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def run(self, text: str, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run ``ogive TEXT WORDS --json`` at the broker, and note the keys of what it prints."""
        server = ("-n", self.name_server, "--credentials", str(self.folder / "root"))
        return self.run_alone(text, *words, *server, stdin=stdin, code=code)

    def run_alone(self, text: str, *words: str, stdin: str = "", code: int = 0) -> str:
        """Run ``ogive TEXT WORDS --json``, and note the keys of what it prints."""
        done = command.run(*text.split(), *words, "--json", stdin=stdin)
        assert done.code == code, f"ogive {text} {' '.join(words)}: {done}"
        self.ran.add(f"ogive {text}")
        self._note("json", f"ogive {text}", keys_of_lines(done.out, TABLES))
        return done.out

    def scrape(self) -> str:
        """Note the names and labels of the metrics, and the pages beside them."""
        page = self._page("/metrics")
        self.found.setdefault("metrics", set()).update(metric_lines(page), {"page /metrics"})
        for path in ("/health", "/ready"):
            self._page(path)
            self.found["metrics"].add(f"page {path}")
        return page

    def scrape_until(self, ready: Callable[[str], bool], what: str) -> None:
        """Scrape until the page says what is waited for."""
        self._until(lambda: ready(self.scrape()), what)

    def _page(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.metrics_port}{path}"
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return str(answer.read().decode())

    def _until(self, ready: Callable[[], bool], what: str) -> None:
        give_up = time.monotonic() + WAIT_S
        while not ready():
            assert time.monotonic() < give_up, f"after {WAIT_S:.0f} s: {what}"
            time.sleep(0.05)

    def _note(self, part: str, name: str, shapes: set[str]) -> None:
        lines = self.found.setdefault(part, set())
        lines |= {f"{name} {shape}" for shape in shapes}
        self.found[part] = without_nulls(lines)

    def _credentials(self, user: str, secret: str) -> str:
        file = self.folder / user
        file.write_text(f"accessKey: {user}\nsecretKey: {secret}\n")
        file.chmod(0o600)
        return str(file)

    def _client(self, user: str = "root", secret: str = "secret") -> ogive.ClientConfig:
        credentials = ogive.Credentials(access_key=user, secret_key=secret)
        return ogive.ClientConfig(name_server=self.name_server, credentials=credentials)

    # --- the scene -----------------------------------------------------------------------------

    def play(self) -> None:
        self._topics()
        self._messages()
        self._transactions()
        self._groups()
        self._users()
        self._rest()

    def _topics(self) -> None:
        self.run("topic create", "Orders", "--queues", "2")
        self.run("topic create", "Gone", "--cluster", "DefaultCluster", "--message-type", "NORMAL")
        self.run("topic update", "Orders", "--queues", "3", "--message-type", "MIXED")
        self.run("topic show", "Gone")
        self.run("topic delete", "Gone", "--yes")

    def _messages(self) -> None:
        self.run("send", "Orders", "--body", "text", "--tag", "paid", "--key", "4711")
        self.run("send", "Orders", "--body", "later", "--delay-level", "1")
        self.run("send", "Orders", "--body", "later", "--delay", "0.1")
        self.run("send", "Orders", "--body", "waits", "--delay", "3600")
        traced = ogive.ProducerConfig(trace=True)
        with ogive.Producer(client=self._client(), config=traced) as producer:
            binary = producer.send("Orders", b"\xff", keys="4712")
        self.run("message", binary.id, "--topic", "Orders")
        self.run("message", "--topic", "Orders", "--key", "4711")
        self.run("tail", "Orders", "--from", "earliest", "--count", "4")
        self.run("trace", "4712")
        self.scrape_until(_has_sample("rocketmq_timer_dequeue_total"), "no timer was delivered")

    def _transactions(self) -> None:
        with ogive.Producer(
            client=self._client(),
            group="payments",
            check=lambda _: None,
        ) as producer:
            with producer.transaction("Orders", b"committed"):
                pass
            with contextlib.suppress(KeyError), producer.transaction("Orders", b"rolled back"):
                raise KeyError
            with producer.transaction("Orders", b"open"):
                self.scrape()

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Note at which level the loggers log that the docs name for consumers."""
        handler = _Levels(logging.INFO)
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.addHandler(handler)
            logger.setLevel(logging.INFO)
        try:
            yield
        finally:
            for logger in loggers:
                logger.removeHandler(handler)
                logger.setLevel(logging.NOTSET)
        self.found.setdefault("logs", set()).update(handler.seen)

    def _groups(self) -> None:
        consumed: list[bytes] = []

        @ogive.listener("Orders", group="billing", start="earliest")
        def bill(message: ogive.MessageExt) -> ogive.ConsumeResult:
            consumed.append(message.body)
            if message.body == b"committed" and not message.reconsume_times:
                raise ValueError("not yet")
            return ogive.DEAD_LETTER if message.body == b"text" else None

        traced = ogive.ConsumerConfig(trace=True)
        with self._logged(), ogive.PushConsumer(bill, client=self._client(), config=traced):
            self._until(lambda: len(consumed) >= 6, f"consumed {consumed}")
            self.scrape_until(_has_sample("rocketmq_send_to_dlq_messages_total"), "no dead letter")
            self.run("group show", "billing")
            self.run("group list")
            self.run("lag", "billing")
            self.run("check lag", "billing", "--max", "1000")
        self.run("check lag", "billing", "--max", "1000", code=1)
        self.run("group show", "billing")
        self.run("lag", "billing")
        self.run("trace", "4712")
        self.run("topic list")
        self.run("topic show", "Orders")
        self.run("dead-letter list", "billing")
        self.run("dead-letter send", "billing", "--all", "--yes")
        self.run("dead-letter redrive", "billing", "--all", "--again", "--dry-run")
        self.run("dead-letter redrive", "billing", "--all", "--again", "--yes")
        self.run("group create", "audit")
        self.run("group update", "audit", "--max-retries", "3", "--disable")
        self.run("group update", "audit", "--enable", "--dry-run")
        self.run("group clone", "billing", "audit", "Orders", "--yes")
        self.run("group reset", "audit", "Orders", "--to", "earliest", "--yes")
        self.run("group skip", "audit", "Orders", "--yes")
        self.run("group create", "late")
        self.run("group reset", "late", "Orders", "--to", "earliest", "--yes")
        self.run("group delete", "audit", "--offsets", "--yes")

    def _users(self) -> None:
        self.run("user create", "ann", stdin="password\n")
        self.run("user update", "ann", "--enable")
        self.run("user list")
        self.run("acl allow", "ann", "Topic:Orders", "Pub", "--from", "127.0.0.1")
        self.run("acl deny", "ann", "Group:billing", "Sub")
        self.run("acl list")
        self.run("acl export")
        with (
            ogive.Producer(client=self._client("ann", "password")) as producer,
            contextlib.suppress(ogive.errors.OgiveError),
        ):
            producer.send("Other", b"refused")
        self.scrape()
        self.run("acl delete", "ann", "Group:billing", "--yes")
        self.run("acl delete", "ann", "--yes")
        self.run("user delete", "ann", "--yes")

    def _rest(self) -> None:
        self.run("broker list")
        self.run("broker show", "broker-a")
        # a new store inside the store is always an error
        self.run("doctor", "--topic", "Orders", "--data", str(self.folder / "data/new"), code=3)
        self._note_exit("doctor, a warning or an error", 3)
        self.run("bench produce", "--count", "10", "--in-flight", "1")
        self.run("bench consume", "--count", "10")
        self._settings()
        data, copy = self.folder / "data", self.folder / "copy"
        self.run_alone("store backup", str(data), str(copy), "--verify")
        self.run_alone("errors")
        self.run_alone("errors", "17")
        add = ("context", "add", "shop", "-n", self.name_server)
        assert command.run(*add, "--credentials", str(self.folder / "root")).code == 0
        self.run_alone("context add", "bare", "-n", self.name_server)
        self.run_alone("context list")
        self.run_alone("context use", "bare")
        self.run_alone("context remove", "bare")

    def _settings(self) -> None:
        """Change the settings of topics by a file, and change nothing by the same file."""
        server = ("-n", self.name_server, "--credentials", str(self.folder / "root"))
        for kind in ("topic", "group"):
            self.run(f"{kind} export")
        exported = command.run("topic", "export", *server)
        assert exported.code == 0, exported
        file = self.folder / "topics.toml"
        file.write_text(exported.out.replace("write_queues = 3", "write_queues = 2"))
        self.run("apply", str(file), "--dry-run")
        self.run("apply", str(file), "--yes")

    def end_commands(self) -> None:
        """Note how commands end. 74 is shown by tests/rel/test_failed_sync.py."""
        server = ("-n", self.name_server, "--credentials", str(self.folder / "root"))
        self._exit("done", "errors", "17")
        self._exit("failed, with one sentence", "errors", "NONE")
        self._exit("wrong usage", "errors", "--none")
        self._exit("check lag, above --max", "check", "lag", "late", "--max", "0", *server)
        within = ("check", "lag", "billing", "--max", "1000", *server)
        self._exit("check lag, within --max, no member online", *within)
        reset = ("group", "reset", "late", "Orders", *server, "--to")
        assert command.run(*reset, "latest", "--yes").code == 0
        back = "group reset to messages that were consumed, no terminal, without --yes"
        self._exit(back, *reset, "earliest")
        up = ("up", "--data", str(self.folder / "data"), "--name-server-port", "0")
        with _process(*up, "--broker-port", "0") as process:
            self._note_exit("up, the directory is in use", process.wait(WAIT_S))
        with _process("tail", "Orders", "--from", "earliest", *server) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            self._note_exit("tail, Ctrl-C", process.wait(WAIT_S))

    def _exit(self, situation: str, *words: str) -> None:
        self._note_exit(situation, command.run(*words).code)

    def _note_exit(self, situation: str, code: int) -> None:
        self.found.setdefault("exits", set()).add(f"{situation}: {code}")

    def look_at_the_store(self) -> None:
        """Check and repair the directory, also one that lacks a piece of the log."""
        data, damaged = self.folder / "data", self.folder / "damaged"
        shutil.copytree(data, damaged)
        log = min((damaged / "commitlog").iterdir())
        with log.open("r+b") as file:
            file.seek(100)
            file.write(b"damage")
        self.run_alone("store verify", str(data))
        self.run_alone("store repair", str(data))
        self.run_alone("store export-leases", str(data))
        self.run_alone("store verify", str(damaged), code=3)
        self._note_exit("store verify, something is damaged", 3)
        self.run_alone("store repair", str(damaged), code=3)
        self._note_exit("store repair, messages are lost", 3)

    def read_log(self) -> None:
        """Note the fields of the lines for which the docs name a logger."""
        for line in map(json.loads, (self.folder / "log").read_text("utf-8").splitlines()):
            if line["logger"] in LOGGERS:
                self._note("logs", line["logger"], keys(line, TABLES))


class _Levels(logging.Handler):
    """Collects the names of loggers with the levels at which they log."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.seen: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.add(f"{record.name} {record.levelname}")


@contextlib.contextmanager
def _process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``ogive WORDS`` as a shell does; killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-m", "ogive", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _has_sample(metric: str) -> Callable[[str], bool]:
    return lambda page: re.search(rf"^{metric}\{{", page, re.MULTILINE) is not None
