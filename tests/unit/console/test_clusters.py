"""Several clusters in one console: each with pages, samples, actions and a log-in of its own."""

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from ogive.client.config import ClientConfig
from ogive.console import app as pages
from ogive.console.config import MAX_CLUSTERS, ConsoleConfig
from ogive.console.server import Console
from ogive.errors import InvalidOption
from ogive.testing.fake_broker import FakeBroker, ok
from ogive.wire.bodies.clients import group_list_dumps
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.stats import kv_table_dumps
from ogive.wire.codes import RequestCode
from ogive.wire.signing import ACCESS_KEY, Credentials
from tests.browser import Answer, Browser, clusters_of, token_of

EU = Credentials(access_key="eva", secret_key="secret-of-eva")
US = Credentials(access_key="ursula", secret_key="secret-of-ursula")
SEND = "act/send?preview=1&topic={}&body=hello&tag=&keys="


@pytest.fixture
async def eu() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Orders": 2}) as broker:
        broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))
        yield broker


@pytest.fixture
async def us() -> AsyncIterator[FakeBroker]:
    async with FakeBroker({"Invoices": 2}) as broker:
        broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))
        yield broker


def signed(broker: FakeBroker, person: Credentials, context: str) -> ConsoleConfig:
    """A cluster that is read and entered with the same credentials, as a context's."""
    client = ClientConfig(name_server=broker.address, credentials=person)
    return ConsoleConfig(client=client, context=context, credentials=person, actions=True, port=0)


def plain(address: str, context: str) -> ConsoleConfig:
    return ConsoleConfig(client=ClientConfig(name_server=address), context=context, port=0)


async def look(browser: Browser, path: str) -> Answer:
    return await asyncio.to_thread(browser.get, path)


async def test_each_page_is_about_its_own_cluster(eu: FakeBroker, us: FakeBroker) -> None:
    with clusters_of(plain(eu.address, "eu"), plain(us.address, "us east")) as browser:
        start = await look(browser, "/")
        assert (start.status, start.headers["location"]) == (307, "/clusters/eu/")
        first, second = (
            await look(browser, "/clusters/eu/topics"),
            await look(browser, "/clusters/us%20east/topics"),
        )
        assert "Orders" in first.words
        assert "Invoices" not in first.words
        assert "Invoices" in second.words
        assert "Orders" not in second.words
        assert f"-n {eu.address}" in first.words
        assert "<title>Topics · us east · ogive console</title>" in second.text
        assert (await look(browser, "/clusters/us%20east/topics/Orders")).status == 404
        for path in ("/topics", "/clusters/asia/topics", "/clusters/eu%2F..%2Fus/"):
            assert (await look(browser, path)).status == 404


async def test_links_stay_in_the_cluster_and_the_switch_goes_to_the_same_list(
    eu: FakeBroker, us: FakeBroker
) -> None:
    with clusters_of(plain(eu.address, "eu"), plain(us.address, "us")) as browser:
        for path in ("", "topics", "groups", "messages", "topics/Orders", "nowhere"):
            text = (await look(browser, f"/clusters/eu/{path}")).text
            switch = re.search(r'<nav aria-label="Clusters">.*?</nav>', text, re.DOTALL)
            assert switch is not None, path
            own = text.replace(switch[0], "")
            places = re.findall(r'(?:href|action|src)="([^"?#][^"]*)"', own)
            assert places
            assert {place[:13] for place in places} == {"/clusters/eu/"}, path
            listed = path if path in ("topics", "groups", "messages") else path.partition("/")[0]
            target = listed if listed in ("topics", "groups", "messages") else ""
            assert f'href="/clusters/us/{target}"' in switch[0], path
            assert 'href="/clusters/eu/' in switch[0]
            assert switch[0].count("aria-current") == 1
        text = (await look(browser, "/clusters/eu/topics")).text
        style = re.search(r'href="(/clusters/eu/static/[^"]*css[^"]*)"', text)
        assert style is not None
        assert (await look(browser, style[1])).status == 200


async def test_each_cluster_has_its_own_log_in(eu: FakeBroker, us: FakeBroker) -> None:
    with clusters_of(signed(eu, EU, "eu"), signed(us, US, "us")) as browser:
        here, there = Browser(browser.address, EU), Browser(browser.address, US)
        assert (await look(here, "/clusters/eu/topics")).status == 200
        refused = await look(here, "/clusters/us/topics")
        assert (refused.status, "us" in refused.text) == (401, False)
        # a browser keeps one password for each realm
        assert 'realm="ogive console us"' in refused.headers["www-authenticate"]
        assert (await look(there, "/clusters/us/topics")).status == 200
        assert (await look(here, "/clusters/us/static/console.css")).status == 401
    for broker, person in ((eu, EU), (us, US)):
        assert {r.ext_fields[ACCESS_KEY] for r in broker.requests} == {person.access_key}


async def test_a_confirmation_of_one_cluster_is_none_of_another(
    eu: FakeBroker, us: FakeBroker
) -> None:
    us.topics["Orders"] = 2
    with clusters_of(signed(eu, EU, "eu"), signed(us, EU, "us")) as browser:
        person = Browser(browser.address, EU)
        page = await look(person, "/clusters/eu/" + SEND.format("Orders"))
        assert '<form method="post" action="/clusters/eu/act/send"' in page.text
        token = token_of(page)
        elsewhere = await asyncio.to_thread(person.post, "/clusters/us/act/send", f"token={token}")
        assert elsewhere.status == 409
        assert not us.of(RequestCode.SEND_MESSAGE_V2)
        assert (await asyncio.to_thread(person.confirm, page)).status == 200
    assert len(eu.of(RequestCode.SEND_MESSAGE_V2)) == 1
    assert not us.of(RequestCode.SEND_MESSAGE_V2)


async def test_samples_are_taken_of_each_cluster(
    eu: FakeBroker, us: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "SAMPLE_S", 0.05)
    for broker in (eu, us):
        broker.on(RequestCode.GET_BROKER_RUNTIME_INFO, ok(body=kv_table_dumps({"putTps": "3"})))
        broker.on(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            ok(body=dumps({"subscriptionGroupTable": {}})),
        )
    # one is down all the time
    with clusters_of(
        plain("127.0.0.1:1", "down"), plain(eu.address, "eu"), plain(us.address, "us")
    ) as browser:
        for broker in (eu, us):
            while len(broker.of(RequestCode.GET_BROKER_RUNTIME_INFO)) < 2:
                await asyncio.sleep(0.01)
        down = await look(browser, "/clusters/down/")
        assert (down.status, 'class="failing"' in down.text) == (502, True)
        for name in ("eu", "us"):
            shown = await look(browser, f"/clusters/{name}/")
            assert shown.status == 200
            assert "failing" not in shown.text
            assert "Messages in and out per second" in shown.text


def test_the_number_of_clusters_is_bounded_and_their_names_differ() -> None:
    many = [plain("127.0.0.1:1", f"c{n}") for n in range(MAX_CLUSTERS + 1)]
    with pytest.raises(InvalidOption, match="at most 8"):
        Console(*many)
    with pytest.raises(InvalidOption, match="a context of its own"):
        Console(many[0], many[0])
    for name in ("a/b", ".", ".."):
        with pytest.raises(InvalidOption, match="address of a page"):
            plain("127.0.0.1:1", name)
