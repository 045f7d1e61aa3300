"""The scenarios that every official SDK of RocketMQ 5 goes through: one test each.

``--broker apache`` runs them on Apache's proxy in local mode, and ``--broker ogive`` on ``ogive
up``. The first line of a test's docstring is its row in the table of docs/grpc.md, which
sdk/table.py writes from the JUnit report of a run.
"""

import contextlib
import hashlib
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

import ogive
from tests.interop import apache
from tests.interop.sdk.sdks import SDKS, Json, Sdk, SdkError, Talk, missing_prerequisite
from tests.interop.sdk.servers import Server, start_server
from tests.peers import Flavour
from tests.topics import eventually

pytestmark = [pytest.mark.sdk, pytest.mark.waits(240)]

FULL = 4 * 1024 * 1024
MAX_WAIT_S = 60.0
# after the ready line of a server that was started again
AGAIN_S = 15.0
ROOT = ("root", "root-secret-0815")

_GO_FIFO = "the SDK goes on with the next message while one is tried again"
_NODE_FIFO = "the SDK gives a message that failed up at once, whatever the group's retries"
LIMITS = {
    ("go", "test_fifo_messages"): _GO_FIFO,
    ("go", "test_dead_letters_in_order"): _GO_FIFO,
    ("node", "test_fifo_messages"): _NODE_FIFO,
    ("node", "test_dead_letters_in_order"): _NODE_FIFO,
    ("node", "test_priority"): "the SDK sends messages with a priority as normal ones",
}
"""What an SDK cannot do at any server; the same is seen at Apache's proxy 5.5.0."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.xdist_group(f"sdk {name}")) for name in SDKS],
)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    """Each SDK in turn, side by side on several workers. Skips one that cannot run here; fails in
    CI.
    """
    found = SDKS[request.param]
    if missing := missing_prerequisite(found.programs):
        if os.environ.get("CI") == "true":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(autouse=True)
def limits(request: pytest.FixtureRequest, sdk: Sdk) -> None:
    if reason := LIMITS.get((sdk.name, request.function.__name__)):
        request.applymarker(pytest.mark.xfail(reason=reason))


@pytest.fixture(scope="module")
def server(flavour: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(flavour, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def talk(sdk: Sdk) -> Iterator[Talk]:
    with Talk(sdk) as running:
        yield running


@pytest.fixture
def again_s(flavour: Flavour) -> float:
    """How long after a restart all works; at Apache's proxy some SDKs need longer."""
    return AGAIN_S if flavour == "ogive" else MAX_WAIT_S


class Client:
    """The SDK's clients of one test, closed at its end."""

    def __init__(self, talk: Talk, server: Server, topic: str, group: str) -> None:
        self.talk, self.server, self.topic, self.group = talk, server, topic, group
        self._open: list[str] = []

    def open(self, what: str, **fields: object) -> str:
        """Start a client; return its name."""
        name = f"{what}-{self.topic}-{len(self._open)}"
        defaults = {"endpoints": self.server.endpoints, "topic": self.topic, "group": self.group}
        self.talk.do(what, name, **defaults | fields)
        self._open.append(name)
        return name

    def producer(self, **fields: object) -> Callable[..., Json]:
        """Start a producer; return a function that sends a body to the topic."""
        name = self.open("producer", topics=[self.topic], **fields)

        def send(body: str, **more: object) -> Json:
            return self.talk.do("send", name, topic=self.topic, body=body, **more)

        return send

    def receive(
        self, consumer: str, count: int, *, invisible_s: int = 30, ack: bool = True
    ) -> list[Json]:
        """Receive until *count* messages came; acknowledge each, unless *ack* is false."""
        came: list[Json] = []
        give_up = time.monotonic() + MAX_WAIT_S
        while len(came) < count:
            assert time.monotonic() < give_up, f"{len(came)} of {count}: {came}"
            answer = self.talk.do("receive", consumer, max=16, invisible_s=invisible_s)
            for message in answer["messages"]:
                came.append(message)
                if ack:
                    self.talk.do("ack", consumer, message=message["message"])
        return came

    def deliveries(self, consumer: str, count: int) -> list[Json]:
        """Wait until the push consumer was given *count* messages; return all it was given."""

        def enough() -> list[Json] | None:
            found = self.talk.deliveries(consumer)
            return found if len(found) >= count else None

        found = eventually(enough, MAX_WAIT_S)
        assert found is not None, f"{self.talk.deliveries(consumer)}\n{self.talk.said()}"
        return found

    def close(self) -> None:
        for name in self._open:
            self.talk.do("close", name)

    def leave(self) -> None:
        """Leave the clients to the end of their program.

        At a close Java's SDK waits, sometimes for ever, for a receive that a restart cut off.
        """
        self._open.clear()


@pytest.fixture
def client(talk: Talk, server: Server, topic: str, group: str) -> Iterator[Client]:
    opened = Client(talk, server, topic, group)
    yield opened
    opened.close()


def bodies(messages: list[Json]) -> list[str]:
    return [message["body"] for message in messages]


def test_normal_messages(client: Client) -> None:
    """Send, receive and acknowledge normal messages

    Body, tag, key and properties are those that were sent.
    """
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    sent = send("café", tag="a", key="k1", properties={"colour": "blue"})
    [message] = client.receive(consumer, 1)
    assert message["message_id"] == sent["message_id"]
    assert (message["topic"], message["body"], message["tag"], message["keys"]) == (
        client.topic,
        "café",
        "a",
        ["k1"],
    )
    assert message["properties"].get("colour") == "blue"
    assert message["attempt"] == 1


def test_expiry(client: Client) -> None:
    """A message that nobody acknowledges comes again

    The one that was acknowledged does not.
    """
    client.server.topic(client.topic, queues=1)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    send("kept")
    send("done")
    for message in client.receive(consumer, 2, invisible_s=10, ack=False):
        if message["body"] == "done":
            client.talk.do("ack", consumer, message=message["message"])
    [again] = client.receive(consumer, 1)
    assert (again["body"], again["attempt"]) == ("kept", 2)


def test_change_of_the_invisible_time(client: Client) -> None:
    """Change the invisible time

    The message can be acknowledged after the change. A shorter time brings it again.
    """
    client.server.topic(client.topic, queues=1)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    send("longer")
    [message] = client.receive(consumer, 1, invisible_s=10, ack=False)
    client.talk.do("change", consumer, message=message["message"], invisible_s=40)
    client.talk.do("ack", consumer, message=message["message"])
    send("shorter")
    [message] = client.receive(consumer, 1, invisible_s=60, ack=False)
    client.talk.do("change", consumer, message=message["message"], invisible_s=10)
    [again] = client.receive(consumer, 1)
    assert (again["body"], again["attempt"]) == ("shorter", 2)


def test_tags(client: Client) -> None:
    """Filter by tags"""
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("simple", tag="a || c")
    send = client.producer()
    for tag in "abc":
        send(f"of {tag}", tag=tag)
    assert sorted(bodies(client.receive(consumer, 2))) == ["of a", "of c"]


def test_sql(client: Client) -> None:
    """Filter by SQL92"""
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("simple", sql="price > 10 AND colour = 'blue'")
    send = client.producer()
    for price, colour in ((5, "blue"), (15, "red"), (25, "blue")):
        send(f"{price} {colour}", properties={"price": str(price), "colour": colour})
    assert bodies(client.receive(consumer, 1)) == ["25 blue"]


def test_fifo_messages(client: Client) -> None:
    """Send FIFO messages, push them in order

    One that fails once holds up those behind it.
    """
    client.server.topic(client.topic, "FIFO")
    client.server.group(client.group, fifo=True)
    send = client.producer()
    for i in range(5):
        fail = {"fail": "1"} if i == 1 else {"fail": "0"}
        send(f"{i}", group="one", properties=fail)
    consumer = client.open("push")
    came = bodies(client.deliveries(consumer, 6))
    assert came == ["0", "1", "1", "2", "3", "4"]


def test_delay(client: Client) -> None:
    """Send delayed messages

    None comes before its time.
    """
    client.server.topic(client.topic, "DELAY")
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    # the Python SDK sends whole seconds
    not_before = int(time.time() + 4)
    send("later", delay_s=4)
    assert bodies(client.receive(consumer, 1)) == ["later"]
    assert time.time() >= not_before


def test_transactions(client: Client) -> None:
    """Transactions: commit, roll back, check

    A producer that ends none is asked.
    """
    client.server.topic(client.topic, "TRANSACTION")
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer(check="commit")
    send("rolled back", end="rollback")
    send("committed", end="commit")
    send("asked", end="none")
    assert sorted(bodies(client.receive(consumer, 2))) == ["asked", "committed"]
    asked = [event["body"] for event in client.talk.events if event["event"] == "check"]
    assert "asked" in asked
    assert "committed" not in asked


def test_push(client: Client) -> None:
    """Push concurrently, retry what failed"""
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("push")
    send = client.producer()
    for i in range(10):
        send(f"{i}", properties={"fail": "1" if i == 3 else "0"})
    came = client.deliveries(consumer, 11)
    once = [(f"{i}", 1) for i in range(10)]
    seen = sorted((message["body"], message["attempt"]) for message in came)
    assert seen == sorted([*once, ("3", 2)])
    assert {message["topic"] for message in came} == {client.topic}


def test_dead_letters(client: Client) -> None:
    """Messages that fail too often become dead letters"""
    client.server.topic(client.topic)
    client.server.group(client.group, max_retries=1)
    consumer = client.open("push")
    send = client.producer()
    sent = send("poison", properties={"fail": "99"})
    came = client.deliveries(consumer, 2)
    assert [message["attempt"] for message in came] == [1, 2]
    assert dead_letters(client, sent["message_id"])


def test_dead_letters_in_order(client: Client) -> None:
    """FIFO messages that fail too often become dead letters

    Those behind one come then.
    """
    client.server.topic(client.topic, "FIFO")
    client.server.group(client.group, fifo=True, max_retries=1)
    send = client.producer()
    sent = send("poison", group="one", properties={"fail": "99"})
    send("next", group="one", properties={"fail": "0"})
    consumer = client.open("push")
    came = client.deliveries(consumer, 3)
    assert bodies(came) == ["poison", "poison", "next"]
    assert dead_letters(client, sent["message_id"])


def dead_letters(client: Client, message_id: str) -> bool | None:
    """True once the message is in the group's dead-letter topic; None if it does not come."""
    with ogive.Admin(client.server.name_server) as admin:

        def there() -> bool | None:
            try:
                found = admin.messages(f"%DLQ%{client.group}", limit=10)
            except ogive.NoRoute:
                return None
            return True if message_id in {message.id for message in found} else None

        return eventually(there, MAX_WAIT_S)


def test_recall(client: Client) -> None:
    """Recall a delayed message"""
    client.server.topic(client.topic, "DELAY")
    client.server.group(client.group)
    consumer = client.open("simple")
    name = client.open("producer", topics=[client.topic])
    sent = client.talk.do("send", name, topic=client.topic, body="recalled", delay_s=8)
    answer = client.talk.do("recall", name, topic=client.topic, handle=sent["recall_handle"])
    assert answer["message_id"] == sent["message_id"]
    client.talk.do("send", name, topic=client.topic, body="kept", delay_s=10)
    assert bodies(client.receive(consumer, 1)) == ["kept"]


def test_priority(client: Client) -> None:
    """Send messages with a priority

    The highest comes first.
    """
    client.server.topic(client.topic, "PRIORITY", queues=4)
    client.server.group(client.group)
    send = client.producer()
    for priority in (0, 3, 1):
        send(f"{priority}", priority=priority)
    consumer = client.open("simple")
    assert bodies(client.receive(consumer, 3)) == ["3", "1", "0"]


def test_large_body(client: Client) -> None:
    """Send and receive a body of 4 MiB; a longer one is refused"""
    client.server.topic(client.topic, queues=1)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    with pytest.raises(SdkError):
        send("0123456789", size=FULL + 1)
    # the libraries of some SDKs receive no gRPC message of more than 4 MiB
    size = FULL - 4096 if client.talk.sdk.name == "node" else FULL
    sent = send("0123456789", size=size)
    [message] = client.receive(consumer, 1)
    whole = (b"0123456789" * (size // 10 + 1))[:size]
    assert (message["message_id"], message["size"]) == (sent["message_id"], size)
    assert message["md5"] == hashlib.md5(whole).hexdigest()


def test_wrong_type(client: Client) -> None:
    """Messages of another type than the topic's are refused"""
    client.server.topic(client.topic, "FIFO")
    send = client.producer()
    with pytest.raises(SdkError):
        send("normal")
    send("fifo", group="one")


def test_with_remoting_clients(client: Client) -> None:
    """Exchange messages with ogive's and Apache's remoting clients"""
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    name_server = client.server.name_server
    with ogive.Producer(name_server) as producer:
        producer.send(client.topic, b"from ogive", tag="a", keys="k1")
    java = apache.send(name_server, client.topic, 1)
    came = {message["message_id"]: message for message in client.receive(consumer, 2)}
    assert java[0]["id"] in came
    [ours] = [message for message in came.values() if message["body"] == "from ogive"]
    assert (ours["tag"], ours["keys"]) == ("a", ["k1"])
    sent = send("from the SDK", tag="b", key="k2", properties={"colour": "blue"})
    with ogive.Admin(name_server) as admin:
        stored = {each.id: each for each in admin.messages(client.topic, limit=10)}
    assert set(stored) == {*came, sent["message_id"]}
    message = stored[sent["message_id"]]
    assert (message.text, message.tag, message.properties["colour"]) == (
        "from the SDK",
        "b",
        "blue",
    )
    seen = apache.consume(name_server, client.topic, f"{client.group}java", 3)
    assert {line["id"] for line in seen} == set(stored)


def test_members(client: Client) -> None:
    """`ogive group show` and mqadmin list the client with its language"""
    client.server.topic(client.topic)
    client.server.group(client.group)
    client.open("simple")
    name_server, group = client.server.name_server, client.group
    language = {"go": "GO", "node": "NODE_JS"}.get(client.talk.sdk.name, client.talk.sdk.name)

    def listed() -> dict[str, str] | None:
        words = [sys.executable, "-m", "ogive", "group", "show", group, "--json"]
        said = subprocess.run(
            [*words, "-n", name_server], capture_output=True, text=True, check=True, timeout=60
        )
        members = json.loads(said.stdout)["members"]
        return dict(members[0]) if members else None

    member = eventually(listed, MAX_WAIT_S)
    assert member is not None
    assert member["language"] == language.upper()
    [said] = apache.admin(name_server, f"consumerConnection -g {group}")
    [row] = [row for row in said.splitlines() if row.startswith(member["id"])]
    assert row.split()[2:] == [member["language"], f"V{member['version'].replace('.', '_')}"]
    # of Node.js's 1.0.8 the protocol has no number
    if client.talk.sdk.name != "node":
        assert member["version"] == client.talk.sdk.title.split()[1]


def works_through(client: Client, restart: Callable[[], object], again_s: float) -> None:
    """Send and receive while *restart* is called, until both work after it: at most *again_s*
    later.

    The clients are not started again, and lose nothing.
    """
    client.server.topic(client.topic)
    client.server.group(client.group)
    consumer = client.open("simple")
    send = client.producer()
    send("before")
    assert bodies(client.receive(consumer, 1)) == ["before"]
    # when the server was ready
    ready: list[float] = []

    def run() -> None:
        restart()
        ready.append(time.monotonic())

    sent, received = set[str](), set[str]()
    restarting = threading.Thread(target=run)
    restarting.start()
    number, took_s = 0, 0.0
    while not any(body.startswith("after") for body in received):
        body, number = f"{'after' if ready else 'during'} {number}", number + 1
        with contextlib.suppress(SdkError):
            send(body)
            sent.add(body)
        with contextlib.suppress(SdkError):
            answer = client.talk.do("receive", consumer, max=16, invisible_s=30)
            for message in answer["messages"]:
                client.talk.do("ack", consumer, message=message["message"])
                received.add(message["body"])
        if ready:
            took_s = time.monotonic() - ready[0]
            assert took_s <= again_s, (len(sent), len(received), client.talk.said())
    print(f"{client.talk.sdk.title} worked {took_s:.1f} s after the restart")
    restarting.join()
    received.update(bodies(client.receive(consumer, len(sent - received))))
    assert sent <= received
    client.leave()


def test_restart(client: Client, again_s: float) -> None:
    """Send and receive within 15 seconds after a restart of the server"""

    def restart() -> None:
        client.server.broker.stop()
        client.server.broker.start()

    works_through(client, restart, again_s)


def test_kill(client: Client, again_s: float) -> None:
    """Send and receive within 15 seconds after the server was killed and started"""

    def restart() -> None:
        client.server.broker.kill()
        client.server.broker.start()

    works_through(client, restart, again_s)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server with access control. *authority*: the file with who signed for it; None without
    TLS.
    """

    server: Server
    authority: Path | None = None

    def config(self) -> ogive.ClientConfig:
        """What the super user's remoting clients are started with."""
        file = self.authority
        return ogive.ClientConfig(
            name_server=self.server.name_server,
            ssl=False if file is None else ssl.create_default_context(cafile=str(file)),
            credentials=ogive.Credentials(access_key=ROOT[0], secret_key=ROOT[1]),
        )


def write_root(folder: Path) -> str:
    """Write the credentials of the super user; return the file's name."""
    file = folder / "root.yml"
    file.write_text(f"accessKey: {ROOT[0]}\nsecretKey: {ROOT[1]}\n")
    file.chmod(0o600)
    return str(file)


@pytest.fixture(scope="module")
def guarded(flavour: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A server with a certificate and access control, which ogive's serves with and without TLS."""
    if flavour == "apache":
        pytest.skip("Apache's proxy is the reference for the protocol, not for its set-up")
    folder = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        folder / "server.pem"
    )
    options = ("--acl", "--credentials", write_root(folder), "--tls-mode", "permissive")
    certificate = ("--tls-cert", str(folder / "server.pem"), "--tls-key")
    with start_server(
        flavour, folder, *options, *certificate, str(folder / "server.pem")
    ) as running:
        yield Guarded(running, folder / "ca.pem")


def exchange(talk: Talk, guarded: Guarded, topic: str, group: str, **fields: object) -> None:
    """Send a message to a new topic, and receive it, as the super user."""
    with ogive.Admin(client=guarded.config()) as admin:
        admin.create_topic(topic, message_type="NORMAL")
    given = {"access_key": ROOT[0], "secret_key": ROOT[1]} | fields
    client = Client(talk, guarded.server, topic, group)
    consumer = client.open("simple", **given)
    client.producer(**given)("guarded")
    assert bodies(client.receive(consumer, 1)) == ["guarded"]
    client.close()


def test_tls(sdk: Sdk, guarded: Guarded, topic: str, group: str) -> None:
    """With TLS, and with credentials"""
    with Talk(sdk, guarded.authority) as talk:
        exchange(talk, guarded, topic, group, tls=True)


def test_plaintext(sdk: Sdk, guarded: Guarded, topic: str, group: str) -> None:
    """Without TLS on the same port"""
    with Talk(sdk) as talk:
        exchange(talk, guarded, topic, group)


def test_wrong_credentials(sdk: Sdk, guarded: Guarded, topic: str, group: str) -> None:
    """Wrong credentials are refused"""
    with Talk(sdk, guarded.authority) as talk, pytest.raises(SdkError):
        exchange(talk, guarded, topic, group, tls=True, secret_key="wrong-secret-0815")
