"""Open every page of the site in headless Chromium, which reaches nothing but this machine.

Chromium is driven through a pipe by its DevTools protocol: one JSON object behind the other, each
with a NUL at its end.
"""

import base64
import contextlib
import fcntl
import functools
import http.server
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING: Final = (
    "make docs opens the pages in Chromium, which is not installed (Debian: apt-get install "
    "chromium; or name one with CHROMIUM=/path/to/it)"
)
HOST: Final = "127.0.0.1"
NARROW, WIDE = 360, 1280
WAIT_S: Final = 20.0
FINISHED: Final = "document.querySelector('.search-summary')?.textContent.includes('finished')"
"""The search has listed all that it found."""
LAUNCH: Final = (
    "import os, sys; os.dup2({0}, 3); os.dup2({1}, 4); os.execv(sys.argv[1], sys.argv[1:])"
)
FLAGS: Final = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {HOST}",
)


class BrowserError(Exception):
    """Chromium is not installed, has ended, or did not answer in time."""


def find() -> str:
    """Return the path of Chromium. Raises BrowserError, which says how to install it."""
    for name in (os.environ.get("CHROMIUM", ""), *NAMES):
        if name and (path := shutil.which(name)):
            return path
    raise BrowserError(MISSING)


class Chromium:
    """One Chromium with one page, as a context manager. Blocking; for one thread."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        for end in (read, write):
            os.close(end)
        command = (path, *FLAGS, f"--user-data-dir={self._folder.name}", "about:blank")
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH.format(*ends), *command],
            pass_fds=ends,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in ends:
            os.close(end)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        """What has happened in the page, oldest first."""

    def __enter__(self) -> "Chromium":
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._session = None
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._folder.cleanup()

    def call(self, method: str, **parameters: Any) -> Any:
        """Return the result of a command. Raises BrowserError."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        give_up = time.monotonic() + WAIT_S
        while True:
            answer = self._next(give_up)
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    def open(self, url: str) -> None:
        """Load a page. Its events are in ``events``. Raises BrowserError."""
        self.events.clear()
        self.call("Page.navigate", url=url)
        give_up = time.monotonic() + WAIT_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._next(give_up)

    def value(self, expression: str) -> Any:
        """Return what JavaScript says. Raises BrowserError."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Return the first value of *expression* that is true. Raises BrowserError."""
        give_up = time.monotonic() + WAIT_S
        while time.monotonic() < give_up:
            if value := self.value(expression):
                return value
            time.sleep(0.05)
        raise BrowserError(f"{expression} is not true after {WAIT_S:g} s")

    def set_width(self, width: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def picture(self, file: Path) -> None:
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def _next(self, give_up: float) -> dict[str, Any]:
        """Return the next message; those without an id are events."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, give_up - time.monotonic()))
            data = os.read(self._read, 65536) if ready else b""
            if not data:
                why = "did not answer in time" if not ready else "has ended"
                raise BrowserError(f"Chromium {why}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "id" not in message:
            self.events.append(message)
        return message


# --- the site -------------------------------------------------------------------------------------


class _Quiet(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """Serve the files of *folder* on this machine; yields the address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def faults_of(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each request that left this machine or failed, and each exception."""
    for event in events:
        method, found = event["method"], event.get("params", {})
        if method == "Network.requestWillBeSent":
            url = urlsplit(found["request"]["url"])
            if url.scheme not in ("data", "blob") and url.hostname != HOST:
                yield f"asks for {url.geturl()}"
        elif method == "Network.responseReceived" and found["response"]["status"] >= 400:
            yield f"{found['response']['url']} is {found['response']['status']}"
        elif method == "Runtime.exceptionThrown":
            thrown = found["exceptionDetails"]
            yield f"throws {thrown.get('exception', {}).get('description', thrown['text'])}"


def check(folder: Path, searches: Sequence[tuple[str, str]]) -> tuple[int, list[str]]:
    """Open every page. Return their number, and a sentence for each fault.

    *searches*: words, and a page that the search must find for them. Raises BrowserError.
    """
    pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
    faults: list[str] = []
    with serve(folder) as address, Chromium(find()) as browser:
        # a page that fits into a telephone fits everywhere
        browser.set_width(NARROW)
        for page in pages:
            browser.open(f"{address}/{page}")
            faults += [f"{page}: {fault}" for fault in faults_of(browser.events)]
            wide = browser.value("document.documentElement.scrollWidth")
            if wide > NARROW:
                faults.append(f"{page}: is {wide} pixels wide in a window of {NARROW}")
        for words, expected in searches:
            found = results(browser, address, words)
            if not any(expected in link for link in found):
                faults.append(f"a search for {words} finds {found or 'nothing'}, not {expected}")
    return len(pages), faults


def results(browser: Chromium, address: str, words: str) -> list[str]:
    """Return the links that the site's search finds. Raises BrowserError."""
    browser.open(f"{address}/search.html?q={words}")
    browser.wait_for(FINISHED)
    links = browser.value(
        "[...document.querySelectorAll('#search-results ul.search li a')].map(a => a.href)"
    )
    return [str(link).removeprefix(f"{address}/") for link in links]


def pictures(folder: Path, pages: Sequence[str], into: Path) -> None:
    """Write a picture of each page, narrow and wide. Raises BrowserError."""
    into.mkdir(parents=True, exist_ok=True)
    with serve(folder) as address, Chromium(find()) as browser:
        for page in pages:
            for name, width in (("narrow", NARROW), ("wide", WIDE)):
                browser.set_width(width)
                browser.open(f"{address}/{page}")
                if "search.html" in page:
                    browser.wait_for(FINISHED)
                file = page.partition("?")[0].replace("/", "-").replace(".html", "")
                browser.picture(into / f"{file}-{name}.png")
