"""Asking any one of several name servers within one time budget."""

import asyncio
import http.server
import threading
from collections.abc import Callable, Iterator

import pytest

from ogive.client.config import ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.route_cache import NameServers
from ogive.errors import (
    BrokerBusy,
    BrokerInternalError,
    ConnectError,
    InvalidOption,
    NoNameServer,
    NotANameServer,
    OgiveError,
    ProtocolError,
    TopicNotExist,
)
from ogive.testing.fake_broker import WAIT_S, FakeBroker
from ogive.wire.codes import RequestCode


async def test_the_server_that_answered_last_is_asked_first() -> None:
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "a:1":
            raise ConnectError("refused", address)
        return address

    servers = NameServers(["a:1", "b:2", "c:3"])
    assert [await servers.ask(call, 1.0) for _ in range(3)] == ["b:2"] * 3
    assert asked == ["a:1", "b:2", "b:2", "b:2"]


async def test_a_try_that_has_no_time_does_not_hide_why_the_others_failed() -> None:
    async def call(address: str, timeout_s: float) -> None:
        if address == "b:2":
            raise ConnectError("no connection within 0.0 s", address)
        await asyncio.sleep(0.3)
        raise ConnectError("refused", address)

    with pytest.raises(NoNameServer, match="tried once, at last: refused"):
        await NameServers(["a:1", "b:2"]).ask(call, 0.31)


async def test_each_server_gets_its_share_of_the_budget() -> None:
    shares: list[float] = []

    async def call(address: str, timeout_s: float) -> None:
        shares.append(timeout_s)
        raise ConnectError("refused", address)

    with pytest.raises(
        NoNameServer, match=r"at a:1;b:2;c:3 within 0\.. s; tried \d+ times, at last: refused"
    ):
        await NameServers(["a:1", "b:2", "c:3"]).ask(call, 0.3)
    first, second, third = shares[:3]
    assert 0.05 < first <= 0.1
    assert first < second < third <= 0.3


async def test_an_answer_that_says_no_is_an_answer() -> None:
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> None:
        asked.append(address)
        raise TopicNotExist(17, "no route")

    with pytest.raises(TopicNotExist):
        await NameServers(["a:1", "b:2"]).ask(call, 1.0)
    assert asked == ["a:1"]


@pytest.mark.parametrize(
    "refusal",
    [
        BrokerBusy(2, "busy"),
        BrokerInternalError(1, "not ready"),
        ProtocolError("body is not a JSON object"),
    ],
)
async def test_a_server_that_cannot_say_is_passed_over_and_believed_only_when_no_other_can(
    refusal: OgiveError,
) -> None:
    asked: list[str] = []
    able = {"b:2"}

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address not in able:
            raise refusal
        return address

    servers = NameServers(["a:1", "b:2"])
    assert [await servers.ask(call, 1.0) for _ in range(2)] == ["b:2", "b:2"]
    able.clear()
    with pytest.raises(type(refusal)):
        await servers.ask(call, 1.0)
    assert asked == ["a:1", "b:2", "b:2", "b:2", "a:1"]


async def test_what_is_no_name_server_is_passed_over_and_said_at_once_where_there_is_no_other() -> (
    None
):
    asked: list[str] = []

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "c:3":
            return address
        raise NotANameServer(f"{address} is not a name server")

    assert await NameServers(["a:1", "c:3"]).ask(call, 60.0) == "c:3"
    with pytest.raises(NotANameServer, match="b:2 is not a name server"):
        await NameServers(["a:1", "b:2"]).ask(call, 60.0)
    assert asked == ["a:1", "c:3", "a:1", "b:2"]


async def test_a_server_that_comes_up_within_the_budget_is_found() -> None:
    up = asyncio.Event()

    async def call(address: str, timeout_s: float) -> str:
        if not up.is_set():
            up.set()
            raise ConnectError("refused", address)
        return address

    assert await NameServers(["a:1"]).ask(call, 5.0) == "a:1"


async def test_another_question_s_answer_does_not_make_one_ask_the_same_server_twice() -> None:
    asked: list[str] = []

    async def other(address: str, timeout_s: float) -> str:
        if address == "a:1":
            raise ConnectError("refused", address)
        return address

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "a:1":
            # which is asked first from now on
            assert await servers.ask(other, 1.0) == "b:2"
            raise ConnectError("refused", address)
        return address

    servers = NameServers(["a:1", "b:2"])
    assert await servers.ask(call, 0.05) == "b:2"
    assert asked == ["a:1", "b:2"]


async def test_a_list_that_is_read_again_during_a_question_does_not_mix_up_who_is_asked_first() -> (
    None
):
    async def call(address: str, timeout_s: float) -> str:
        servers.addresses = ["c:3"]
        if address == "a:1":
            raise ConnectError("refused", address)
        return address

    servers = NameServers(["a:1", "b:2"])
    assert [await servers.ask(call, 1.0) for _ in range(2)] == ["b:2", "c:3"]


async def test_a_doubt_is_of_one_question_and_the_others_go_on_with_the_server_that_answers() -> (
    None
):
    asked: list[str] = []

    async def other(address: str, timeout_s: float) -> str:
        asked.append(f"other {address}")
        return address

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address == "b:2":
            # while the doubted one waits for a server that is dead
            await servers.ask(other, 1.0)
            raise ConnectError("refused", address)
        return address

    servers = NameServers(["a:1", "b:2"])
    assert await servers.ask(call, 1.0, doubted=True) == "a:1"
    await servers.ask(other, 1.0)
    assert asked == ["b:2", "other a:1", "a:1", "other a:1"]


async def test_who_answers_a_doubted_question_is_asked_first_from_then_on() -> None:
    """Else the old answer would come again with the next question."""

    async def call(address: str, timeout_s: float) -> str:
        return address

    servers = NameServers(["a:1", "b:2", "c:3"])
    assert [await servers.ask(call, 1.0, doubted=doubted) for doubted in (False, True, False)] == [
        "a:1",
        "b:2",
        "b:2",
    ]
    assert await NameServers(["a:1"]).ask(call, 1.0, doubted=True) == "a:1"


async def test_a_doubted_topic_is_missing_only_where_no_server_knows_it() -> None:
    """One that has just restarted knows none yet."""
    knowing = {"a:1"}

    async def call(address: str, timeout_s: float) -> str:
        if address not in knowing:
            raise TopicNotExist(17, "no route")
        return address

    servers = NameServers(["a:1", "b:2"])
    assert await servers.ask(call, 1.0, doubted=True) == "a:1"
    knowing.clear()
    with pytest.raises(TopicNotExist):
        await servers.ask(call, 1.0, doubted=True)


async def test_each_server_is_asked_once_where_the_caller_repeats_the_question() -> None:
    asked: list[str] = []
    failures: dict[str, OgiveError] = {"a:1": ConnectError("refused", "a:1")}

    async def call(address: str, timeout_s: float) -> str:
        asked.append(address)
        if address in failures:
            raise failures[address]
        return address

    servers = NameServers(["a:1", "b:2"])
    servers.each_once = True
    failures["b:2"] = TopicNotExist(17, "no route")
    with pytest.raises(TopicNotExist):
        await servers.ask(call, 60.0)
    failures["b:2"] = failures["a:1"]
    with pytest.raises(NoNameServer, match="tried 2 times"):
        await servers.ask(call, 60.0)
    assert asked == ["a:1", "b:2"] * 2
    # one that has just been started does not know the topic yet
    failures = {"a:1": TopicNotExist(17, "no route")}
    assert await servers.ask(call, 60.0) == "b:2"


class AddressServer:
    """Answers every GET with *text*, or with *status* and nothing."""

    def __init__(self) -> None:
        self.text, self.status, self.asked = "", 200, list[str]()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                self.send_response(outer.status)
                self.end_headers()
                self.wfile.write(outer.text.encode())

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/rocketmq/nsaddr"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))


@pytest.fixture
def address_server() -> Iterator[AddressServer]:
    made = AddressServer()
    made.thread.start()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


@pytest.mark.feature(31)
async def test_name_servers_are_found_by_http_and_looked_up_again(
    address_server: AddressServer,
) -> None:
    async with FakeBroker({"Orders": 1}) as first, FakeBroker({"Orders": 2}) as second:
        address_server.text = f"{first.address}\n"
        config = ClientConfig(name_server=address_server.url, name_server_period_s=0.02)
        assert config.name_servers == ()
        async with ClientInstance(config) as client:
            # nothing happens before the first use
            assert address_server.asked == []
            assert len(await client.routes.publish_queues("Orders")) == 1
            assert address_server.asked[0] == "/rocketmq/nsaddr"
            address_server.text = second.address
            await until(lambda: client.name_servers.addresses == [second.address])
            assert len((await client.routes.refresh("Orders")).queues) == 1
            assert second.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)
            # what is known stays
            address_server.status = 500
            asked = len(address_server.asked)
            await until(lambda: len(address_server.asked) > asked + 1)
            assert client.name_servers.addresses == [second.address]


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("", 200, "no name server is given"),
        ("<html>", 200, "and '<html>' came"),
        ("", 404, "HTTP Error 404"),
    ],
    ids=["empty", "no list", "not found"],
)
async def test_a_list_that_is_none_is_said_with_its_url(
    address_server: AddressServer, text: str, status: int, said: str
) -> None:
    address_server.text, address_server.status = text, status
    servers = NameServers([], address_server.url)

    async def call(address: str, timeout_s: float) -> None:
        raise AssertionError("nobody is to be asked")

    with pytest.raises(NoNameServer) as failed:
        await servers.ask(call, 3.0)
    assert str(failed.value).startswith(f"{address_server.url} gives no list of name servers: ")
    assert said in str(failed.value)
    assert str(servers) == address_server.url


def test_a_url_without_a_path_is_an_address_as_in_java() -> None:
    assert ClientConfig(name_server="http://ns:9876").name_servers == ("ns:9876",)
    assert (
        ClientConfig(name_server="http://config:8080/rocketmq/nsaddr").name_server_source
        == "http://config:8080/rocketmq/nsaddr"
    )
    with pytest.raises(InvalidOption, match="names no host"):
        ClientConfig(name_server="http:///nsaddr")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)
