"""The console's pages in Chromium, on a telephone and a desktop: axe-core finds no fault, and the
keyboard reaches everything in the order in which it is read.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

import ogive
from ogive.client.config import ClientConfig
from ogive.console.config import ConsoleConfig
from ogive.testing import Broker
from ogive.wire.signing import Credentials
from tests.browser import Browser, basic, clusters_of
from tests.interop.apache import CACHE
from tools.docsite.browser import NARROW, WIDE, BrowserError, Chromium, faults_of, find

pytestmark = [pytest.mark.nightly, pytest.mark.waits(240)]

HERE = Path(__file__).parent / "axe"
VERSION = json.loads((HERE / "package.json").read_text())["dependencies"]["axe-core"]
USER = Credentials(access_key="ada", secret_key="lovelace-secret")
TOPIC, GROUP = "Orders", "billing"
WAIT_S = 60.0
PAGES = {
    "overview": "",
    "a broker": "brokers/broker-a",
    "topics": "topics?system=1",
    "a topic": f"topics/{TOPIC}",
    "groups": "groups?system=1",
    "a group": f"groups/{GROUP}",
    "a group, the day": f"groups/{GROUP}?span=day",
    "dead letters": f"dead-letters/{GROUP}",
    "messages": "messages",
    "found": f"messages?topic={TOPIC}",
    "live tail": f"messages?topic={TOPIC}&live=1",
    "nothing found": f"messages?topic={TOPIC}&tag=none",
    "a wrong filter": f"messages?topic={TOPIC}&sql=%3D",
    "a message": f"message?topic={TOPIC}&broker=broker-a&queue=0&offset=0",
    "hex": f"message?topic={TOPIC}&broker=broker-a&queue=0&offset=0&as=hex",
    "not found": "topics/none",
    **{
        f"form {name}": f"act/{name}?topic={TOPIC}&group={GROUP}"
        for name in (
            *("send", "reset-group", "redrive", "create-topic"),
            *("update-topic", "create-group", "update-group"),
        )
    },
    "preview": f"act/reset-group?preview=1&group={GROUP}&topic={TOPIC}&to=earliest&at=",
    "wrong input": "act/create-topic?preview=1&topic=&queues=0&message_type=",
}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN = f"""axe.run(document, {{runOnly: {json.dumps(RULES)}}}).then(found => found.violations.map(
    one => one.id + ": " + one.help + "\\n" + one.nodes.map(
        node => "    " + node.html.slice(0, 200) + "\\n      "
            + node.failureSummary.replaceAll("\\n", " ")).join("\\n")))"""
# what the keyboard should reach, in the order of the page
REACHABLE = """[...document.querySelectorAll(
    'a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex="0"]')]
    .filter(one => one.checkVisibility())"""
FOCUSED = f"""(() => {{
    const one = document.activeElement, place = one.getBoundingClientRect();
    const style = getComputedStyle(one);
    return [{REACHABLE}.indexOf(one), style.outlineStyle !== "none" && style.outlineWidth !== "0px",
        place.bottom > 0 && place.right > 0 && place.top < innerHeight && place.left < innerWidth,
        one.outerHTML.slice(0, 120)];
}})()"""


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core; installed once per machine.

    Skips where Node.js is missing; fails there in CI.
    """
    if shutil.which("npm") is None:
        _skip("npm is not installed (Debian: apt-get install nodejs npm)")
    kept = CACHE / f"axe-core-{VERSION}"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            new = Path(folder, "new")
            shutil.copytree(HERE, new)
            command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
            done = subprocess.run(
                command, cwd=new, capture_output=True, text=True, timeout=180, check=False
            )
            assert done.returncode == 0, done.stderr
            if not kept.exists():
                new.rename(kept)
    return (kept / "node_modules/axe-core/axe.min.js").read_text()


def _skip(missing: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="module")
def console() -> Iterator[Browser]:
    """A cluster with a bit of everything, and one that is down."""
    with Broker() as broker:
        _fill(broker.name_server)
        clusters = [
            ConsoleConfig(
                client=ClientConfig(name_server=address),
                context=name,
                port=0,
                credentials=USER,
                actions=True,
            )
            for name, address in (("prod", broker.name_server), ("down", "127.0.0.1:1"))
        ]
        with clusters_of(*clusters) as visitor:
            browser = Browser(visitor.address, USER)
            # plots need two samples
            for page in PAGES.values():
                browser.get(f"/clusters/prod/{page}")
            yield browser


def _fill(name_server: str) -> None:
    tried: list[str] = []

    @ogive.listener(TOPIC, group=GROUP, start="earliest")
    def bill(message: ogive.MessageExt) -> Any:
        tried.append(message.text)
        return ogive.DEAD_LETTER if message.text.startswith("no") else None

    with (
        ogive.Admin(name_server) as admin,
        ogive.Producer(name_server, config=ogive.ProducerConfig(trace=True)) as producer,
    ):
        admin.create_topic(TOPIC, queues=2)
        for number in range(60):
            producer.send(
                TOPIC,
                b'{"cups": %d}' % number if number % 20 else b"no coffee " * 30,
                tag="paid",
                keys=(f"order-{number:04}", "a-key-that-is-rather-long-and-has-no-spaces"),
                properties={"region": "eu-central-1", "note": "x" * 200},
            )
        with ogive.PushConsumer(
            bill, name_server=name_server, config=ogive.ConsumerConfig(trace=True)
        ):
            deadline = time.monotonic() + WAIT_S
            while len(admin.dead_letters(GROUP)) < 3:
                assert time.monotonic() < deadline
                time.sleep(0.1)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Chromium]:
    try:
        path = find()
    except BrowserError as exc:
        _skip(str(exc))
    with Chromium(path) as chromium:
        header = basic(USER.access_key, USER.secret_key)
        chromium.call("Network.setExtraHTTPHeaders", headers={"Authorization": header})
        yield chromium


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_axe_finds_no_fault(
    axe: str, console: Browser, chromium: Chromium, width: int, scheme: str
) -> None:
    chromium.set_width(width)
    chromium.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    pictures = os.environ.get("OGIVE_PICTURES")
    faults = []
    for name, page in {**PAGES, "a cluster that is down": "../down/"}.items():
        chromium.open(f"http://{console.address}/clusters/prod/{page}")
        # a page of an error has its status
        faults += [
            f"{name}: {fault}"
            for fault in faults_of(chromium.events)
            if not fault.endswith((" is 400", " is 404", " is 502"))
        ]
        chromium.value(axe)
        faults += [f"{name}: {fault}" for fault in evaluated(chromium, RUN)]
        wide = chromium.value("document.documentElement.scrollWidth")
        if wide > width:
            faults.append(f"{name}: is {wide} pixels wide in a window of {width}")
        if pictures:
            chromium.picture(Path(pictures, f"{name.replace(' ', '-')}-{width}-{scheme}.png"))
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_the_keyboard_reaches_everything_in_order(
    console: Browser, chromium: Chromium, width: int
) -> None:
    chromium.set_width(width)
    for name, page in PAGES.items():
        chromium.open(f"http://{console.address}/clusters/prod/{page}")
        # nothing is replaced meanwhile
        chromium.value("sessionStorage.setItem('live', 'off')")
        chromium.open(f"http://{console.address}/clusters/prod/{page}")
        count = chromium.value(f"{REACHABLE}.length")
        for number in range(count):
            press(chromium, "Tab", 9)
            at, outlined, visible, html = chromium.value(FOCUSED)
            # a field for a time has a stop for each of its parts
            while at == number - 1 and "datetime-local" in html:
                press(chromium, "Tab", 9)
                at, outlined, visible, html = chromium.value(FOCUSED)
            assert at == number, (name, number, at, html)
            assert outlined, (name, html)
            assert visible, (name, html)


def test_the_switch_and_the_skip_link_work_with_the_keyboard(
    console: Browser, chromium: Chromium
) -> None:
    chromium.set_width(NARROW)
    chromium.open(f"http://{console.address}/clusters/prod/topics")
    press(chromium, "Tab", 9)
    press(chromium, "Enter", 13)
    assert chromium.wait_for("document.activeElement.id") == "main"
    chromium.value("document.querySelector('summary').focus()")
    press(chromium, "Enter", 13)
    chromium.wait_for("document.querySelector('details').open")
    press(chromium, "Tab", 9)
    press(chromium, "Tab", 9)
    press(chromium, "Enter", 13)
    chromium.wait_for("location.pathname === '/clusters/down/topics'")
    chromium.wait_for("document.querySelector('#live.failing') !== null")


def test_live_is_not_green_over_a_page_that_something_else_answered(
    console: Browser, chromium: Chromium
) -> None:
    chromium.open(f"http://{console.address}/clusters/prod/topics")
    chromium.value("sessionStorage.setItem('live', 'on')")
    chromium.open(f"http://{console.address}/clusters/prod/topics")
    assert not chromium.value("document.querySelector('#live.failing') !== null")
    # the log-in ends: the answer is no page of the console
    chromium.call("Network.setExtraHTTPHeaders", headers={"Authorization": basic("ada", "wrong")})
    try:
        chromium.wait_for("document.querySelector('#live.failing')?.textContent.includes('old')")
    finally:
        header = basic(USER.access_key, USER.secret_key)
        chromium.call("Network.setExtraHTTPHeaders", headers={"Authorization": header})
    chromium.wait_for("document.querySelector('#live.failing') === null")


def press(chromium: Chromium, key: str, code: int) -> None:
    text = {"Enter": {"text": "\r"}}.get(key, {})
    for kind in ("keyDown", "keyUp"):
        chromium.call(
            "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text
        )


def evaluated(chromium: Chromium, expression: str) -> Any:
    """Return what a promise comes to."""
    result = chromium.call(
        "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
    )
    assert "exceptionDetails" not in result, result
    return result["result"]["value"]
