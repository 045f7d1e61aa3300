"""The console on a running broker, and as operators start it."""

import contextlib
import html
import re
import shlex
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

import ogive
from ogive.cli.parser import build_parser
from ogive.console import message_pages
from ogive.wire.signing import Credentials
from tests.browser import Browser, console_of
from tests.peers import RunningBroker
from tests.topics import wait_until_shown

pytestmark = pytest.mark.client_suite

WAIT_S = 60.0
JSON = b'{"cups": 2}'


@pytest.fixture
def browser(broker: RunningBroker) -> Iterator[Browser]:
    with console_of(broker.name_server) as browser:
        yield browser


@pytest.mark.since("5.0.0", what="topics of batches")
def test_a_topic_of_batches_is_named_and_its_messages_stand_one_by_one(
    broker: RunningBroker, browser: Browser, topic: str
) -> None:
    whole = ogive.ProducerConfig(whole_batches=True)
    with (
        ogive.Admin(broker.name_server) as admin,
        ogive.Producer(broker.name_server, config=whole) as producer,
    ):
        admin.create_topic(topic, queues=1, whole_batches=True)
        producer.send_batch(
            topic, [ogive.Message(topic, b"cup", keys=(f"k{n}",)) for n in range(3)]
        )
        wait_until_shown(broker.name_server, topic, 3)
    shown = browser.get(f"/topics/{topic}").words
    assert "Batches kept whole" in shown
    assert all(f" k{n} cup 3 B" in shown for n in range(3))


@pytest.mark.since("5.0.0", what="topics of batches")
def test_the_newest_message_is_there_behind_batches_that_come_whole(
    broker: RunningBroker, browser: Browser, topic: str
) -> None:
    """A pull of the last 20 begins inside a batch: the broker gives all of that, and counts it."""
    whole = ogive.ProducerConfig(whole_batches=True)
    with (
        ogive.Admin(broker.name_server) as admin,
        ogive.Producer(broker.name_server, config=whole) as producer,
    ):
        admin.create_topic(topic, queues=1, whole_batches=True)
        for _ in range(4):
            producer.send_batch(topic, [ogive.Message(topic, b"cup") for _ in range(20)])
        producer.send(topic, b"the last one")
        wait_until_shown(broker.name_server, topic, 81)
    assert re.search(
        r"The newest first .*?/0/80 .*?the last one", browser.get(f"/topics/{topic}").words
    )


def test_pages_show_what_is_there(
    broker: RunningBroker, browser: Browser, topic: str, group: str
) -> None:
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=2)
        admin.create_group(group, max_retries=7)
        sent = [
            producer.send(
                topic, JSON, tag="paid", keys=("4711", f"k{i}"), properties={"region": "eu"}
            )
            for i in range(5)
        ]
        wait_until_shown(broker.name_server, topic, 5)
        queue = sent[0].queue
        with ogive.PullConsumer(
            topic, group=group, name_server=broker.name_server, start="earliest"
        ) as consumer:
            taken = 0
            while taken < 5:
                taken += len(consumer.poll(timeout_s=60))
            consumer.commit()
        producer.send(topic, b"late", queue=queue)
        wait_until_shown(broker.name_server, topic, 6)

    overview = browser.get("/").words
    assert broker.address in overview
    assert "broker-a master up" in overview
    assert re.search(rf"{group} 1 ", overview)
    figures = browser.get("/brokers/broker-a").words
    assert " msgPutTotalTodayNow " in figures
    assert re.search(r" bootTimestamp \d{4}-\d\d-\d\d ", figures)
    assert re.search(rf"{topic} 2 6 ", browser.get(f"/topics?q={topic}").words)
    shown = browser.get(f"/topics/{topic}").words
    assert f"Groups that read it {group}" in shown
    assert "Batches message by message" in shown
    assert "paid 4711 k0" in shown
    assert re.search(rf"{group} \d 1 ", browser.get(f"/groups?q={group}").words)
    shown = browser.get(f"/groups/{group}").words
    assert "1 behind" in shown
    assert "7 retries" in shown
    assert f"ogive group reset {group} {topic} --to " in shown

    found = browser.get(f"/messages?topic={topic}&key=k3")
    assert "1 messages, the oldest first" in found.words
    (link,) = re.findall(r'href="(/message\?[^"]*)"', found.text)
    message = browser.get(link.replace("&amp;", "&")).words
    assert sent[3].id in message
    assert '{ "cups": 2 }' in message
    assert "region eu" in message
    assert f"{group} passed" in message
    assert sent[3].id in browser.get(f"/message?id={sent[3].id}").words
    assert sent[3].id in browser.get(f"/message?id={sent[3].offset_id}").words
    soon, before = (datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (5, -5))
    window = f"from={before:%Y-%m-%dT%H:%M}&to={soon:%Y-%m-%dT%H:%M}"
    assert "6 messages, the oldest first" in browser.get(f"/messages?topic={topic}&{window}").words
    assert (
        "Nothing found" in browser.get(f"/messages?topic={topic}&to={before:%Y-%m-%dT%H:%M}").words
    )


def test_white_space_other_than_a_space_belongs_to_a_key(
    broker: RunningBroker, browser: Browser, topic: str
) -> None:
    with ogive.Producer(broker.name_server) as producer:
        producer.send(topic, JSON, keys=("\u3000k1", "k2"))
    deadline = time.monotonic() + WAIT_S
    address = f"/messages?topic={topic}&key=%E3%80%80k1"
    while "1 messages, the oldest first" not in (page := browser.get(address).words):
        assert time.monotonic() < deadline, page
        time.sleep(0.2)


def test_more_messages_of_a_key_than_a_page_shows_are_told(
    broker: RunningBroker, browser: Browser, topic: str
) -> None:
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=2)
        for _ in range(message_pages.LIMIT + 1):
            producer.send(topic, JSON, keys="often")
    deadline = time.monotonic() + WAIT_S
    while "; there are more" not in (
        page := browser.get(f"/messages?topic={topic}&key=often").words
    ):
        assert time.monotonic() < deadline, page
        time.sleep(0.2)
    assert f"{message_pages.LIMIT} messages, " in page


def test_a_member_and_its_dead_letters_are_shown(
    broker: RunningBroker, browser: Browser, topic: str, group: str
) -> None:
    @ogive.listener(topic, group=group, start="earliest")
    def give_up(message: ogive.MessageExt) -> Any:
        return ogive.DEAD_LETTER

    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=2)
        sent = producer.send(topic, b"decaf", keys="4712")
        traced = ogive.ConsumerConfig(trace=True)
        with ogive.PushConsumer(give_up, name_server=broker.name_server, config=traced):
            deadline = time.monotonic() + WAIT_S
            while not admin.dead_letters(group) and time.monotonic() < deadline:
                time.sleep(0.05)
            words = browser.get(f"/groups/{group}").words
            assert f"{topic} 0 1" in words
            assert " PYTHON " in words
            assert re.search(r"Dead letters 1 ", words)
    row = rf"{topic} \d+ its listener gave it up 4712 decaf"
    while not re.search(row, (letters := browser.get(f"/dead-letters/{group}")).words):
        # the trace is indexed a little later, and its answer kept for a while
        assert time.monotonic() < deadline, letters.words
        time.sleep(1.0)
    assert f"ogive dead-letter redrive {group} {sent.id}" in letters.words


def test_every_command_that_a_page_shows_is_one(
    broker: RunningBroker, browser: Browser, topic: str, group: str
) -> None:
    with ogive.Admin(broker.name_server) as admin, ogive.Producer(broker.name_server) as producer:
        admin.create_topic(topic, queues=2)
        admin.create_group(group)
        queue = producer.send(topic, JSON, keys="4711").queue
    message = f"/message?topic={topic}&broker={queue.broker_name}&queue={queue.queue_id}&offset=0"
    places = [
        "/",
        "/brokers/broker-a",
        "/topics",
        f"/topics/{topic}",
        "/groups",
        f"/groups/{group}",
        f"/dead-letters/{group}",
        "/messages",
        message,
        "/nowhere",
    ]
    shown = [
        html.unescape(line)
        for place in places
        for line in re.findall(r"<code>(ogive .*?)</code>", browser.get(place).text)
    ]
    assert len(shown) > 2 * len(places)
    parser = build_parser()
    for line in shown:
        words = shlex.split(line)[1:]
        if "--help" not in words:
            assert parser.parse_args(words).name_server == broker.name_server, line


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "ogive", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.fullmatch(r"console https?://(\S+)/\n", line):
            return found[1]
    raise AssertionError(process.communicate()[1])


def ended(
    process: subprocess.Popen[str], number: signal.Signals = signal.SIGTERM
) -> tuple[int, str]:
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


UP = ("up", "--name-server-port", "0", "--broker-port", "0", "--console-port", "0", "--no-grpc")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_serves_a_console_beside_its_broker_and_ends_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running(*UP, "--data", str(tmp_path)) as process:
        browser = Browser(address_of(process))
        assert "broker-a master up" in browser.get("/").words
        assert ended(process, number) == (0, "")


def test_with_access_control_the_console_asks_for_the_same_credentials(tmp_path: Path) -> None:
    root = tmp_path / "root.yml"
    root.write_text("accessKey: root\nsecretKey: much-secret\n")
    root.chmod(0o600)
    with running(
        *UP, "--data", str(tmp_path / "data"), "--acl", "--credentials", str(root)
    ) as process:
        address = address_of(process)
        assert Browser(address).get("/").status == 401
        answer = Browser(address, Credentials(access_key="root", secret_key="much-secret")).get("/")
        assert "broker-a master up" in answer.words
        assert ended(process) == (0, "")


def test_a_console_for_any_cluster(broker: RunningBroker, tmp_path: Path) -> None:
    with running("console", "-n", broker.name_server, "--port", "0") as process:
        assert broker.address in Browser(address_of(process)).get("/").words
        assert ended(process) == (0, "")


def test_beside_a_broker_with_tls_the_console_has_its_certificate_and_follows_it(
    tmp_path: Path,
) -> None:
    """The certificate is for another name than the address at which the console asks the broker."""
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    trusting.check_hostname = False
    authority.configure_trust(trusting)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue(name: str) -> None:
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(key)
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def own(chain: Path) -> bytes:
        return ssl.PEM_cert_to_DER_cert(
            chain.read_text().partition("-----END")[0] + "-----END CERTIFICATE-----"
        )

    def look(address: str) -> str:
        with urllib.request.urlopen(
            f"https://{address}/", context=trusting, timeout=WAIT_S
        ) as answer:
            text: str = answer.read().decode()
            return text

    issue("one.example")
    with running(
        *UP, "--data", str(tmp_path / "data"), "--tls-cert", str(cert), "--tls-key", str(key), "-v"
    ) as process:
        address = address_of(process)
        assert '<span class="state good">up</span>' in look(address)
        issue("two.example")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        while "the certificates were reloaded" not in process.stderr.readline():
            pass
        host, _, port = address.rpartition(":")
        assert ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)))) == own(cert)
        assert '<span class="state good">up</span>' in look(address)
        assert ended(process)[0] == 0


def test_sighup_brings_a_new_certificate_to_a_console_of_its_own(tmp_path: Path) -> None:
    authority, cert, key = trustme.CA(), tmp_path / "cert.pem", tmp_path / "key.pem"

    def issue(name: str) -> None:
        issued = authority.issue_cert(name)
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(cert)

    issue("one.example")
    words = ("console", "-n", "127.0.0.1:1", "--port", "0", "-v")
    with running(*words, "--tls-cert", str(cert), "--tls-key", str(key)) as process:
        host, _, port = address_of(process).rpartition(":")
        issue("two.example")
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        while "the certificates were reloaded" not in process.stderr.readline():
            pass
        shown = ssl.get_server_certificate((host, int(port)))
        assert ssl.PEM_cert_to_DER_cert(shown) == ssl.PEM_cert_to_DER_cert(cert.read_text())
        process.send_signal(signal.SIGHUP)
        while "the log level is DEBUG now" not in process.stderr.readline():
            pass
        assert ended(process)[0] == 0
