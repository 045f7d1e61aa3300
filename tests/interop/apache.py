"""Apache RocketMQ's own programs on loopback, from Maven Central: name server, broker, mqadmin,
Java clients.

What bites: a broker takes its port, port - 2 and port + 1; "boot success" comes before the broker
is in the routes; mqadmin prints a stack trace and still exits 0; a client without a name-server
address looks one up on a public host.
"""

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.processes import free_port, stop, wait_until

VERSION = "5.5.0"
# releases whose brokers our client is tested on as well
OLDER = ("4.9.7", "5.3.3")
SOURCES = Path(__file__).parent / "java"
CACHE = (
    Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    / "ogive"
    / f"apache-rocketmq-{VERSION}"
)
# Quick starts matter more than peak speed in a test; a benchmark gives its own.
CLIENT_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
NAME_SERVER_JVM = ("-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
BROKER_JVM = (
    "-Xms512m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
)
BINARY_HEADERS = {"rocketmq.serialize.type": "ROCKETMQ"}
# instead of 20 s, until which a new retry topic waits for its first pull
QUICK_REBALANCE = {"rocketmq.client.rebalance.waitInterval": "1000"}

_OPENS = [
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
]
# Their store in the sizes of ours: a directory that one broker wrote opens in the other. A later
# setting wins.
_BROKER_SETTINGS = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "mappedFileSizeConsumeQueue": "6000000",
    "mappedFileSizeTimerLog": "1048576",
    "maxHashSlotNum": "20000",
    "maxIndexNum": "80000",
    "autoCreateTopicEnable": "true",
    "autoCreateSubscriptionGroup": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "flushDiskType": "SYNC_FLUSH",
    "diskMaxUsedSpaceRatio": "95",
    # What would refuse a request because the machine is busy: how long one may wait for its thread,
    # and a message for the log and the disk.
    "waitTimeMillsInSendQueue": "60000",
    "waitTimeMillsInPullQueue": "60000",
    "waitTimeMillsInLitePullQueue": "60000",
    "waitTimeMillsInTransactionQueue": "60000",
    "waitTimeMillsInAdminBrokerQueue": "60000",
    "osPageCacheBusyTimeOutMills": "60000",
    "syncFlushTimeout": "60000",
}


def missing_prerequisite() -> str | None:
    """What this machine lacks to run Apache's programs, as a sentence; None when nothing is
    missing.
    """
    for program, package in (
        ("java", "openjdk-17-jdk-headless"),
        ("javac", "openjdk-17-jdk-headless"),
        ("mvn", "maven"),
    ):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install {package})."
    version = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, timeout=60, check=True
    ).stderr
    found = re.search(r'version "(\d+)', version)
    return (
        None
        if found and int(found[1]) >= 17
        else "Java 17 or newer is needed (Debian: apt-get install openjdk-17-jdk-headless)."
    )


@cache
def class_path(version: str = VERSION) -> str:
    """All jars of a release of Apache's, made once per machine and kept in CACHE; with the compiled
    clients of java/ in that of VERSION.
    """
    return f"{_client_classes()}{os.pathsep}{_jars()}" if version == VERSION else _jars(version)


def _pom_and_list(version: str) -> tuple[Path, Path]:
    """What names the jars of a release, and the file that holds the list of them once they are
    here.
    """
    # other releases only as brokers
    pom = SOURCES / ("pom.xml" if version == VERSION else "pom-releases.xml")
    return pom, CACHE.with_name(f"apache-rocketmq-{version}") / f"jars-{digest([pom])}"


def is_fetched(version: str) -> bool:
    _, kept = _pom_and_list(version)
    return kept.exists() and all(Path(jar).exists() for jar in kept.read_text().split(os.pathsep))


def _jars(version: str = VERSION) -> str:
    pom, kept = _pom_and_list(version)
    if is_fetched(version):
        return kept.read_text()
    with replacing(kept) as new:
        goal = [
            "dependency:build-classpath",
            f"-Drocketmq.version={version}",
            f"-Dmdep.outputFile={new}",
        ]
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *goal],
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        if done.returncode:
            raise AssertionError(
                "Maven cannot resolve Apache RocketMQ "
                f"{version}:\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
            )
    return kept.read_text()


def _client_classes() -> Path:
    sources = sorted(SOURCES.glob("*.java"))
    kept = CACHE / f"classes-{digest(sources)}"
    if not kept.exists():
        with replacing(kept) as new:
            command = [
                "javac",
                "-encoding",
                "UTF-8",
                "-cp",
                _jars(),
                "-d",
                str(new),
                *map(str, sources),
            ]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                raise AssertionError(
                    f"the Java clients do not compile:\n{done.stdout}{done.stderr}"
                )
    return kept


def digest(files: Sequence[Path]) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name to write to; what is there at the end appears as *path* at once, so that two test runs
    never see a half.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        yield Path(folder, "new")
        if not path.exists():
            Path(folder, "new").rename(path)


def java_command(
    main: str,
    *args: str,
    home: Path,
    system: Mapping[str, str] | None = None,
    jvm: Sequence[str] = CLIENT_JVM,
    version: str = VERSION,
) -> list[str]:
    """The command line that runs class *main* with *home* as home folder, so that no log lands in
    the user's.
    """
    properties = {
        "user.home": str(home),
        "rocketmq.home.dir": str(home),
        "rocketmq.client.logRoot": str(home / "logs"),
    }
    given = [f"-D{key}={value}" for key, value in (properties | dict(system or {})).items()]
    return ["java", *_OPENS, *jvm, *given, "-cp", class_path(version), main, *args]


def access_control(user: str, password: str) -> dict[str, str]:
    """Lines of broker.conf that turn access control on, with a super user."""
    providers = "org.apache.rocketmq.auth.{0}.provider.Local{1}MetadataProvider"
    inner = {"accessKey": user, "secretKey": password}
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "authenticationMetadataProvider": providers.format("authentication", "Authentication"),
        "authorizationMetadataProvider": providers.format("authorization", "Authorization"),
        "initAuthenticationUser": json.dumps({"username": user, "password": password}),
        "innerClientAuthenticationCredentials": json.dumps(inner),
    }


@dataclass(slots=True)
class Apache:
    """A name server and a broker in *directory*; either can be left out.

    Ports are chosen at the first start and kept over restarts.

    name_server: address of a name server that runs already; then only a broker is started.
    settings: lines of broker.conf, by name.  jvm: options of the broker's JVM.
    """

    directory: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    name_server: str = ""
    with_broker: bool = True
    jvm: Sequence[str] = BROKER_JVM
    name_server_jvm: Sequence[str] = NAME_SERVER_JVM
    version: str = VERSION
    address: str = field(default="", init=False)
    _own_name_server: bool = field(default=False, init=False)
    _name_server_process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _broker_process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._own_name_server = not self.name_server
        if self._own_name_server:
            self.name_server = f"127.0.0.1:{free_port()}"
        if self.with_broker:
            self.address = f"{self.settings.get('brokerIP1', '127.0.0.1')}:{free_port((-2, 0, 1))}"

    @property
    def data(self) -> Path:
        """The broker's store: commitlog/, consumequeue/, config/."""
        return self.directory / "store"

    @property
    def pid(self) -> int:
        """The broker's process."""
        assert self._broker_process is not None
        return self._broker_process.pid

    def start(self) -> None:
        """Returns when the broker is in the routes. Raises StartFailed with the tail of the log."""
        if self._own_name_server and self._name_server_process is None:
            self._name_server_process = self._start_name_server()
        if self.with_broker and self._broker_process is None:
            self._broker_process = self._start_broker()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        """Stop what start started, the broker first; SIGKILL leaves the store as a crash does."""
        self.stop_broker(sign)
        if self._name_server_process is not None:
            stop(self._name_server_process, sign)
            self._name_server_process = None

    def stop_broker(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self._broker_process is not None:
            stop(self._broker_process, sign)
            self._broker_process = None

    def kill(self) -> None:
        """kill -9 of the broker; the name server goes on."""
        self.stop_broker(signal.SIGKILL)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # their clean shutdown takes 15 s; a test that wants it calls stop
        self.stop(signal.SIGKILL)

    def admin(self, *commands: str) -> list[str]:
        """Output of each mqadmin command; "-n name server" is added."""
        return admin(self.name_server, *commands)

    def _start_name_server(self) -> subprocess.Popen[bytes]:
        port = self.name_server.rpartition(":")[2]
        settings = {
            "listenPort": port,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.directory / "kvConfig.json"),
        }
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        return self._spawn(
            main,
            "namesrv",
            self._configured("namesrv", settings),
            self.name_server_jvm,
            lambda: self._says_it_started("namesrv"),
        )

    def _start_broker(self) -> subprocess.Popen[bytes]:
        return self._spawn(
            "org.apache.rocketmq.broker.BrokerStartup",
            "broker",
            self._configured("broker", self._broker_settings()),
            self.jvm,
            self._is_ready,
        )

    def _broker_settings(self) -> dict[str, str]:
        return {
            **_BROKER_SETTINGS,
            "listenPort": self.address.rpartition(":")[2],
            "namesrvAddr": self.name_server,
            "storePathRootDir": str(self.data),
            "storePathCommitLog": str(self.data / "commitlog"),
            **self.settings,
        }

    def _configured(self, name: str, settings: Mapping[str, str]) -> tuple[str, str]:
        """The arguments that give a program *settings*, which this writes into a file."""
        configuration = self.directory / f"{name}.conf"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return "-c", str(configuration)

    def _spawn(
        self,
        main: str,
        name: str,
        arguments: Sequence[str],
        jvm: Sequence[str],
        ready: Callable[[], bool],
    ) -> subprocess.Popen[bytes]:
        log = self.directory / f"{name}.out"
        # ends without a configuration of its logging
        if self.version.startswith("4."):
            logging = self.directory / "home" / "conf" / f"logback_{name}.xml"
            logging.parent.mkdir(parents=True, exist_ok=True)
            logging.write_text("<configuration/>")
        with log.open("wb") as out:
            command = java_command(
                main,
                *arguments,
                home=self.directory / "home",
                jvm=jvm,
                version=self.version,
            )
            process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )
        try:
            wait_until(ready, process, log, f"Apache's {name}", 150.0)
        except BaseException:
            stop(process, signal.SIGKILL)
            raise
        return process

    def _says_it_started(self, name: str) -> bool:
        return b"boot success" in (self.directory / f"{name}.out").read_bytes()

    def _is_ready(self) -> bool:
        try:
            return (
                self._says_it_started("broker")
                and has_route(self.name_server, "TBW102", self.address)
                and self._has_figures()
            )
        except OSError:
            # one of them does not answer within seconds: it is asked again until its time is over
            return False

    def _has_figures(self) -> bool:
        """In its first second their broker has sampled no rates, and requests for its figures (28)
        fail. Source: StoreStatsService.java.
        """
        return b"NoSuchElementException" not in _ask(self.address, 28, {})


def has_route(name_server: str, topic: str, broker: str) -> bool:
    """Ask *name_server* for the route of *topic* (request code 105); true when *broker* is in the
    answer.
    """
    return f'"{broker}"'.encode() in _ask(name_server, 105, {"topic": topic})


def _ask(server: str, code: int, fields: Mapping[str, str]) -> bytes:
    """The frame that *server* answers, without its length."""
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 0,
            "opaque": 1,
            "flag": 0,
            "extFields": fields,
        }
    ).encode()
    host, _, port = server.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 5) as connection,
        connection.makefile("rb") as answer,
    ):
        connection.sendall(
            (4 + len(header)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header
        )
        return answer.read(int.from_bytes(answer.read(4), "big"))


def admin(
    name_server: str,
    *commands: str,
    credentials: tuple[str, str] | None = None,
    system: Mapping[str, str] | None = None,
) -> list[str]:
    """Output of each mqadmin command, all run in one JVM (about 3 s, then 0.1 to 2 s a command);
    "-n name server" is added.

    *credentials*: access key and secret key, which mqadmin reads from its tools.yml.
    """
    lines = "".join(f"{command} -n {name_server}\n" for command in commands)
    with tempfile.TemporaryDirectory() as home:
        if credentials is not None:
            Path(home, "conf").mkdir()
            Path(home, "conf", "tools.yml").write_text(
                "accessKey: {}\nsecretKey: {}\n".format(*credentials)
            )
        command = java_command("Admins", home=Path(home), system=system)
        limit_s = 90 + 10 * len(commands)
        done = subprocess.run(
            command,
            input=lines,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=limit_s,
            check=True,
        )
    return [
        part.partition("\n")[2]
        for part in re.split(r"^### ", without_chatter(done.stdout), flags=re.MULTILINE)[1:]
    ]


def without_chatter(output: str) -> str:
    """*output* without what Java's logging library says about itself."""
    return re.sub(r"^[0-9:,]+ \|-.*\n", "", output, flags=re.MULTILINE)


def table(output: str) -> list[dict[str, str]]:
    """Rows of an mqadmin table: a line of "#Name" heads, then lines whose cells start under their
    heads.
    """
    lines = output.splitlines()
    at = next((i for i, line in enumerate(lines) if line.startswith("#")), None)
    if at is None:
        raise AssertionError(f"no table in:\n{output}")
    heads = [(head.start(), head[1].strip()) for head in re.finditer(r"#([^#]+)", lines[at])]
    ends = [start for start, _ in heads[1:]] + [None]
    rows = []
    for line in lines[at + 1 :]:
        if not line.strip():
            break
        rows.append(
            {name: line[start:end].strip() for (start, name), end in zip(heads, ends, strict=True)}
        )
    return rows


def route(output: str) -> dict[str, Any]:
    """The JSON that topicRoute prints; the keys of brokerAddrs, which it prints as bare numbers,
    become text.
    """
    found: dict[str, Any] = json.loads(re.sub(r"(\d+):\"", r'"\1":"', output[output.index("{") :]))
    return found


@dataclass(frozen=True, slots=True)
class Run:
    """What a client program printed: its JSON lines, and everything else it said."""

    code: int
    lines: tuple[dict[str, Any], ...]
    other: str


class JavaClient:
    """A running program of java/ (Send, Consume) or of Apache's jars: reads what it prints, ends it
    at the end of the block.
    """

    def __init__(
        self, main: str, *args: str, system: Mapping[str, str] | None = None, **options: object
    ) -> None:
        self._home = tempfile.TemporaryDirectory()
        given = [f"{key}={value}" for key, value in options.items()]
        self._output = Path(self._home.name, "output")
        with self._output.open("wb") as out:
            command = java_command(main, *args, *given, home=Path(self._home.name), system=system)
            self._process = subprocess.Popen(
                command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stop(self._process, signal.SIGKILL)
        self._home.cleanup()

    def kill(self) -> None:
        """kill -9; what it printed stays until the end of the block."""
        stop(self._process, signal.SIGKILL)

    def wait_for(self, key: str, timeout_s: float = 90.0) -> None:
        """Wait for a JSON line that has *key*."""
        wait_until(
            lambda: any(key in line for line in self.printed().lines),
            self._process,
            self._output,
            f"line with {key!r}",
            timeout_s,
        )

    def wait_for_text(self, text: str, timeout_s: float = 90.0) -> str:
        """Everything printed, once *text* is in it."""
        wait_until(
            lambda: text in self.printed().other,
            self._process,
            self._output,
            f"output with {text!r}",
            timeout_s,
        )
        return self.printed().other

    def wait_for_log(self, text: str, timeout_s: float = 90.0) -> str:
        """All that the program logged, once *text* is in it.

        Which file it is in depends on the jars that set up logging.
        """
        logs = Path(self._home.name, "logs")

        def written() -> str:
            return "".join(log.read_text("utf-8", "replace") for log in sorted(logs.rglob("*.log")))

        wait_until(
            lambda: text in written(),
            self._process,
            self._output,
            f"line of the log with {text!r}",
            timeout_s,
        )
        return written()

    def wait(self, timeout_s: float = 150.0) -> Run:
        """Wait until the program has ended."""
        self._process.wait(timeout_s)
        return self.printed()

    def printed(self) -> Run:
        lines, other = split_json_lines(without_chatter(self._output.read_text("utf-8", "replace")))
        return Run(
            self._process.returncode if self._process.returncode is not None else -1, lines, other
        )


def split_json_lines(text: str) -> tuple[tuple[dict[str, Any], ...], str]:
    """JSON objects, one a line and whole, and the rest."""
    lines, other = [], []
    for line in text.splitlines():
        if line.startswith("{") and line.endswith("}"):
            lines.append(json.loads(line))
        else:
            other.append(line)
    return tuple(lines), "\n".join(other)


class ClientServer:
    """A JVM that runs Send and Consume one after the other (java/Serve.java), as most of a short
    program's time is the start of its JVM.

    It ends with this process, if not before.
    """

    def __init__(self, system: Mapping[str, str]) -> None:
        self._home = tempfile.TemporaryDirectory()
        self._output = Path(self._home.name, "output")
        self._runs = itertools.count(1)
        self._one_at_a_time = threading.Lock()
        with self._output.open("wb") as out:
            command = java_command("Serve", home=Path(self._home.name), system=system)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT
            )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def run(self, main: str, options: Mapping[str, object], timeout_s: float = 150.0) -> Run:
        """Its end and what it printed until then. One that does not end takes the JVM with it."""
        with self._one_at_a_time:
            number, begin = next(self._runs), self._output.stat().st_size
            words = [main, f"run={number}", *(f"{key}={value}" for key, value in options.items())]
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(words).encode() + b"\n")
            self._process.stdin.flush()
            found: list[Run] = []

            def has_ended() -> bool:
                found[:] = _end_of_run(self._output.read_bytes()[begin:], number)
                return bool(found)

            try:
                wait_until(has_ended, self._process, self._output, f"{main}'s end", timeout_s)
            except AssertionError:
                self.stop()
                raise
            return found[0]

    def stop(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        stop(self._process, signal.SIGKILL)
        self._home.cleanup()


def _end_of_run(output: bytes, number: int) -> list[Run]:
    """The run, if it has ended."""
    lines, other = split_json_lines(without_chatter(output.decode("utf-8", "replace")))
    ours = [
        {key: value for key, value in line.items() if key != "run"}
        for line in lines
        if line.get("run") == number
    ]
    return [
        Run(line["exit"], tuple(ours[:i]), other) for i, line in enumerate(ours) if "exit" in line
    ]


# by whether their headers are binary
_servers: dict[bool, ClientServer] = {}


def stop_client_servers() -> None:
    while _servers:
        _servers.popitem()[1].stop()


def run_client(
    main: str,
    *,
    binary_headers: bool = False,
    system: Mapping[str, str] | None = None,
    **options: object,
) -> Run:
    """Run Send or Consume to its end; in a JVM of its own only where that has *system*
    properties.
    """
    encoding = BINARY_HEADERS if binary_headers else {}
    if system:
        with JavaClient(
            main, system=QUICK_REBALANCE | dict(system) | encoding, **options
        ) as client:
            return client.wait()
    if binary_headers not in _servers or not _servers[binary_headers].runs:
        _servers[binary_headers] = ClientServer(QUICK_REBALANCE | encoding)
    return _servers[binary_headers].run(main, options)


def run_java(
    main: str, *args: str, timeout_s: float = 150.0, system: Mapping[str, str] | None = None
) -> Run:
    """Run a program of java/ or of Apache's jars to its end."""
    with JavaClient(main, *args, system=system) as client:
        return client.wait(timeout_s)


def send(
    name_server: str,
    topic: str,
    count: int,
    *,
    binary_headers: bool = False,
    system: Mapping[str, str] | None = None,
    **options: object,
) -> list[dict[str, Any]]:
    """Send with the Java client; *options* are those of java/Send.java.

    One result per send. Raises AssertionError when one failed.
    """
    given = {"nameServer": name_server, "topic": topic, "count": count}
    run = run_client("Send", binary_headers=binary_headers, system=system, **given, **options)
    assert run.code == 0, f"{run.lines}\n{run.other}"
    return list(run.lines)


def consume(
    name_server: str,
    topic: str,
    group: str,
    deliveries: int,
    *,
    binary_headers: bool = False,
    system: Mapping[str, str] | None = None,
    **options: object,
) -> list[dict[str, Any]]:
    """Consume with the Java client until *deliveries* came; *options* are those of
    java/Consume.java. One line each, as they arrived.

    *topic* may be several, separated by commas.
    """
    given = {"nameServer": name_server, "topic": topic, "group": group, "deliveries": deliveries}
    run = run_client("Consume", binary_headers=binary_headers, system=system, **given, **options)
    lines = [line for line in run.lines if "ready" not in line]
    assert run.code == 0, f"{len(lines)} of {deliveries} deliveries\n{lines[-5:]}\n{run.other}"
    return lines


# tools/setup: all that the suites run is there before two workers ask for it at once
if __name__ == "__main__":
    lacking = missing_prerequisite()
    if lacking:
        sys.exit(lacking)
    for each_version in (VERSION, *OLDER):
        if not is_fetched(each_version):
            print(f"setup: Apache RocketMQ {each_version} from Maven Central (once)", flush=True)
        class_path(each_version)
