"""The official SDKs of RocketMQ 5, each in a process of its own that carries out commands.

A program reads one JSON object a line and answers with one that has the same "id": the result, or
"error" with the SDK's own text. A push consumer reports each delivery, and a producer each question
about a transaction, as a line with "event".

``tools/setup sdk`` fetches the SDKs at their pinned versions; what is missing, a test fetches.
"""

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.interop.apache import CACHE, CLIENT_JVM, digest, replacing
from tests.processes import stop

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
ANSWER_S: Final = 90.0
Json = dict[str, Any]


class SdkError(Exception):
    """The SDK raised an exception; its text."""


@dataclass(frozen=True, slots=True)
class Sdk:
    """One SDK.

    *programs*: what must be installed to fetch and run it, and where it is from. *command* starts
    the program that carries out commands. *runs* gets a folder with the file *first*, the first
    program of docs/grpc.md, and returns what runs it there; both are empty without such a program.
    """

    name: str
    title: str
    programs: Mapping[str, str]
    command: Callable[[], list[str]]
    first: str = ""
    runs: Callable[[Path], list[str]] | None = None


def run(*command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
    """Run a command. Raises AssertionError with what it said if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


def made(name: str, sources: list[Path], make: Callable[[Path], None]) -> Path:
    """A folder in the cache, filled by *make* when one of its *sources* has changed."""
    kept = CACHE.with_name("rocketmq-sdks") / f"{name}-{digest(sources)}"
    if not kept.exists():
        with replacing(kept) as new:
            new.mkdir()
            make(new)
    return kept


def java_classes(name: str, programs: list[Path]) -> list[str]:
    """What runs a class of *programs*, which are compiled with Java's SDK."""
    pom = HERE / "java" / "pom.xml"

    def make(folder: Path) -> None:
        goal = ["dependency:build-classpath", f"-Dmdep.outputFile={folder / 'jars'}"]
        run("mvn", "-q", "-B", "-f", str(pom), *goal)
        jars = (folder / "jars").read_text()
        run("javac", "-encoding", "UTF-8", "-cp", jars, "-d", str(folder), *map(str, programs))

    folder = made(name, [pom, *programs], make)
    path = os.pathsep.join([str(folder), (folder / "jars").read_text()])
    return ["java", *CLIENT_JVM, "-cp", path]


@cache
def _java() -> list[str]:
    return [*java_classes("java", [HERE / "java" / "Talk.java"]), "Talk"]


@cache
def _python() -> list[str]:
    packages = ROOT / "requirements" / "sdk.txt"

    def make(folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False)
        python = folder / "venv" / "bin" / "python"
        find = "import sysconfig; print(sysconfig.get_path('purelib'))"
        target = subprocess.check_output([python, "-c", find], text=True).strip()
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run(*pip, "--no-deps", "--require-hashes", "--target", target, "-r", str(packages))

    folder = made("python", [packages], make)
    return [str(folder / "venv" / "bin" / "python"), str(HERE / "python" / "talk.py")]


@cache
def _go() -> list[str]:
    source = HERE / "go"
    sources = [source / "talk.go", source / "go.mod", source / "go.sum"]

    def make(folder: Path) -> None:
        run("go", "build", "-mod=readonly", "-o", str(folder / "talk"), ".", cwd=source)

    return [str(made("go", sources, make) / "talk")]


@cache
def _node() -> list[str]:
    source = HERE / "node"
    sources = [source / name for name in ("package.json", "package-lock.json", "talk.js")]

    def make(folder: Path) -> None:
        for file in sources:
            shutil.copy(file, folder)
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)

    # modules are searched for beside the program
    return ["node", str(made("node", sources, make) / "talk.js")]


def _runs_java(_: Path) -> list[str]:
    return [*_java()[:-1], "First.java"]


def _runs_python(_: Path) -> list[str]:
    return [_python()[0], "first.py"]


def _runs_go(folder: Path) -> list[str]:
    for name in ("go.mod", "go.sum"):
        shutil.copy(HERE / "go" / name, folder)
    return ["go", "run", "."]


def _runs_node(folder: Path) -> list[str]:
    (folder / "node_modules").symlink_to(Path(_node()[-1]).with_name("node_modules"))
    return ["node", "first.js"]


SDKS: Final = {
    sdk.name: sdk
    for sdk in (
        Sdk(
            "java",
            "Java 5.2.0",
            {
                "java": "Debian: apt-get install openjdk-17-jdk-headless",
                "javac": "Debian: apt-get install openjdk-17-jdk-headless",
                "mvn": "Debian: apt-get install maven",
            },
            _java,
            "First.java",
            _runs_java,
        ),
        Sdk("python", "Python 5.1.2", {}, _python, "first.py", _runs_python),
        Sdk("go", "Go 5.1.4", {"go": "1.25 or newer is needed"}, _go, "main.go", _runs_go),
        Sdk(
            "node",
            "Node.js 1.0.8",
            {"node": "Debian: apt-get install nodejs", "npm": "Debian: apt-get install npm"},
            _node,
            "first.js",
            _runs_node,
        ),
    )
}


@cache
def _rust() -> list[str]:
    source = HERE / "rust"
    sources = [source / "Cargo.toml", source / "Cargo.lock", source / "src" / "main.rs"]

    def make(folder: Path) -> None:
        manifest = ("--manifest-path", str(source / "Cargo.toml"))
        target = folder / "target"
        run("cargo", "build", "--locked", *manifest, env={"CARGO_TARGET_DIR": str(target)})
        shutil.move(target / "debug" / "talk", folder)
        # a gigabyte
        shutil.rmtree(target)

    return [str(made("rust", sources, make) / "talk")]


# not among SDKS: it takes minutes to build, and has no push consumer
RUST: Final = Sdk("rust", "Rust 5.0.0", {"cargo": "1.85 or newer is needed"}, _rust)

# other programs that call the endpoint: HTTP/2 of nghttp2 and of Go
TOOLS: Final = {
    "curl": "Debian: apt-get install curl",
    "h2load": "Debian: apt-get install nghttp2-client",
    "go": "1.25 or newer is needed",
}
GRPCURL: Final = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"


@cache
def grpcurl() -> str:
    """The program, which Go fetches and builds."""

    def make(folder: Path) -> None:
        run("go", "install", GRPCURL, env={"GOBIN": str(folder)})

    return str(made("grpcurl-1.9.3", [], make) / "grpcurl")


def missing_prerequisite(programs: Mapping[str, str]) -> str | None:
    """What this machine lacks of an SDK's programs, or of TOOLS, as a sentence; None if all are
    there.
    """
    for program, source in programs.items():
        if shutil.which(program) is None:
            return f"{program} is not installed ({source})."
    return None


class Talk:
    """A program that carries out commands with one SDK.

    *certificate*: a file with the certificates that it trusts, for those SDKs that verify.
    """

    def __init__(self, sdk: Sdk, certificate: Path | None = None) -> None:
        self.sdk = sdk
        self.events: list[Json] = []
        self._home = tempfile.TemporaryDirectory(prefix=f"ogive-sdk-{sdk.name}-")
        self._answers: queue.Queue[Json | None] = queue.Queue()
        self._id = 0
        self._other: list[str] = []
        # the SDKs write their logs into the home folder
        environment = {**os.environ, "HOME": self._home.name}
        if certificate is not None:
            environment |= {
                "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificate),
                "NODE_EXTRA_CA_CERTS": str(certificate),
            }
        command = sdk.command()
        if sdk.name == "java":
            command = [command[0], f"-Duser.home={self._home.name}", *command[1:]]
        # in a file, where it cannot come into the middle of an answer
        with Path(self._home.name, "stderr.log").open("wb") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stop(self._process, signal.SIGKILL)
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()
        self._home.cleanup()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            text = line.decode("utf-8", "replace").rstrip("\n")
            if not text.startswith("{"):
                self._other.append(text)
                continue
            found = json.loads(text)
            if "event" in found:
                self.events.append(found)
            else:
                self._answers.put(found)
        self._answers.put(None)

    def do(self, what: str, name: str, /, **fields: object) -> Json:
        """Return the answer. Raises SdkError if the SDK did, AssertionError if the program ended
        or gave no answer.
        """
        self._id += 1
        command = {"id": self._id, "do": what, "name": name, **fields}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        give_up = time.monotonic() + ANSWER_S
        while True:
            try:
                answer = self._answers.get(timeout=max(0.0, give_up - time.monotonic()))
            except queue.Empty:
                raise AssertionError(
                    f"{self.sdk.title}: no answer to {command} in {ANSWER_S:.0f} s\n{self.said()}"
                ) from None
            assert answer is not None, f"{self.sdk.title} ended at {command}\n{self.said()}"
            if answer["id"] == self._id:
                break
        if "error" in answer:
            raise SdkError(answer["error"])
        return answer

    def said(self) -> str:
        """The end of what the program printed besides JSON, and of the SDK's log."""
        logs = [log for log in Path(self._home.name).rglob("*.log") if log.is_file()]
        tails = [log.read_text("utf-8", "replace")[-2000:] for log in logs]
        return "\n".join([*self._other[-20:], *tails])

    def deliveries(self, name: str) -> list[Json]:
        """What the push consumer *name* was given so far."""
        return [
            event
            for event in list(self.events)
            if event["event"] == "delivery" and event["name"] == name
        ]


# tools/setup: all SDKs are there before two workers ask for one at once
if __name__ == "__main__":
    for each in SDKS.values():
        lacking = missing_prerequisite(each.programs)
        if lacking:
            sys.exit(lacking)
        print(f"setup: RocketMQ's SDK {each.title}", flush=True)
        each.command()
    lacking = missing_prerequisite(TOOLS)
    if lacking:
        print(f"setup: {lacking} tests/interop/test_sdk_tools.py will be skipped", flush=True)
    print("setup: grpcurl", flush=True)
    grpcurl()
