"""Find the modules of ogive that run while one message is sent, and while one is consumed.

python tools/ways.py    print a JSON object: the modules of each way, with their paths in src/ogive

A client and `ogive up` run in one process, in Python alone (OGIVE_NATIVE=0), and a profile function
in all of their threads notes the file of each function that is called in a window:

- send: from the call of a warm blocking `Producer.send` to its return.
- push: a few calls of the listener of a warm push consumer that pulls, consumes and commits one
  message after the other.

A job that runs every few seconds can fall into a window, and two requests can come in one read,
which takes another way: the smallest of ten windows counts.
"""

import json
import os
import re
import signal
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from pathlib import Path
from types import FrameType
from typing import IO, Any, Final

import trustme

os.environ["OGIVE_NATIVE"] = "0"  # read by the first import of ogive

import ogive
from ogive.cli.main import main as command

PACKAGE: Final = Path(ogive.__file__).parent
SECURE: Final = " with --acl and TLS"
TOPIC: Final = "Ways"
BODY: Final = bytes(100)
WARM: Final = 20
WINDOWS: Final = 10
CALLS: Final = 5
"""Calls of the listener in a window."""
LISTENER_S: Final = 0.02
PERSIST_S: Final = 0.05
"""A finished message is committed after a fifth of it, while the listener has the next one."""


class Profile:
    """A profile function that notes the files of the functions that are called."""

    def __init__(self) -> None:
        self._files: set[str] | None = None

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and (files := self._files) is not None:
            files.add(frame.f_code.co_filename)

    def modules(self, work: Callable[[], object]) -> set[str]:
        """Return the modules of the package that run while *work* does."""
        files = self._files = set()
        work()
        self._files = None
        paths = [path for path in map(Path, files) if path.is_relative_to(PACKAGE)]
        return {path.relative_to(PACKAGE).as_posix() for path in paths}


def smallest(profile: Profile, work: Callable[[], object]) -> list[str]:
    """Return the modules that run in the smallest of several windows around *work*."""
    windows = [profile.modules(work) for _ in range(WINDOWS)]
    modules = min(windows, key=len)
    return sorted(modules)


def send(profile: Profile, producer: ogive.Producer) -> list[str]:
    for _ in range(WARM):
        producer.send(TOPIC, BODY)
    return smallest(profile, lambda: producer.send(TOPIC, BODY))


def push(profile: Profile, producer: ogive.Producer, client: ogive.ClientConfig) -> list[str]:
    # twice as many as the windows have calls
    for _ in range(2 * (WARM + WINDOWS * CALLS)):
        producer.send(TOPIC, BODY)
    called = threading.Semaphore(0)

    @ogive.listener(TOPIC, group="ways", start="earliest")
    def listener(_message: ogive.MessageExt) -> None:
        called.release()
        time.sleep(LISTENER_S)

    def wait_for(calls: int) -> None:
        while called.acquire(blocking=False):
            pass  # calls before this wait
        for _ in range(calls):
            if not called.acquire(timeout=30):
                raise TimeoutError("the push consumer got no message for 30 s")

    # a message is pulled when the one before it is finished
    one = ogive.ConsumerConfig(pull_batch_size=1, max_cached_bytes=1, persist_period_s=PERSIST_S)
    with ogive.PushConsumer(listener, client=client, config=one):
        wait_for(WARM)
        return smallest(profile, lambda: wait_for(CALLS))


def measure(profile: Profile, ready: IO[str], settings: dict[str, Any]) -> dict[str, list[str]]:
    """Measure both ways at the broker whose first line comes from *ready*, and stop it."""
    found = re.search(r"name-server=(\S+)", ready.readline())
    if found is None:
        raise RuntimeError("the broker did not start")
    try:
        client = ogive.ClientConfig(name_server=found[1], **settings)
        # one queue: each message goes through the same objects
        one_queue = ogive.ProducerConfig(default_topic_queues=1)
        with ogive.Producer(client=client, config=one_queue) as producer:
            return {"send": send(profile, producer), "push": push(profile, producer, client)}
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def secured(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """Return options of a broker with access control and TLS, and the settings of its clients."""
    pem, cafile, credentials = folder / "broker.pem", folder / "ca.pem", folder / "root"
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(cafile))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    credentials.write_text("accessKey: root\nsecretKey: only-for-this-run\n")
    credentials.chmod(0o600)
    tls = ["--tls-cert", str(pem), "--tls-key", str(pem)]
    return ["--acl", "--credentials", str(credentials), *tls], {
        "ssl": ssl.create_default_context(cafile=str(cafile)),
        "credentials": ogive.Credentials(access_key="root", secret_key="only-for-this-run"),
    }


def ways(profile: Profile, *, secure: bool) -> dict[str, list[str]]:
    """Run a broker in this thread, which must be the main one, and measure from another."""
    reading, writing = os.pipe()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as pool:
        options, settings = secured(Path(folder)) if secure else ([], {})
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            with os.fdopen(reading) as ready:
                with os.fdopen(writing, "w") as output, redirect_stdout(output):
                    measured = pool.submit(measure, profile, ready, settings)
                    ports = ["--name-server-port", "0", "--broker-port", "0"]
                    command(["up", "--data", str(Path(folder) / "data"), *ports, *options])
                return measured.result()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)


def main() -> int:
    profile = Profile()  # one for both: clients share a thread, which keeps its profile function
    found = ways(profile, secure=False)
    secure = ways(profile, secure=True)
    found |= {f"{way}{SECURE}": modules for way, modules in secure.items()}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
