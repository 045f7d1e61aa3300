"""Lists of messages: what each column says, and that the next pages show every message once."""

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import chain

import pytest

from ogive.console import app, browse, search_pages
from ogive.console.forms import ROWS
from ogive.console.group_pages import MAX_ASKED
from ogive.console.message_pages import KEY_LIMIT, LIMIT
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ConsumerRunningInfo,
    group_list_dumps,
)
from ogive.wire.bodies.configs import SubscriptionGroupConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.bodies.routes import BrokerData, ClusterInfo
from ogive.wire.bodies.stats import (
    OffsetWrapper,
    TopicOffset,
    consume_stats_dumps,
    kv_table_dumps,
    topic_stats_dumps,
)
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.pull import QueryMessageResponse
from ogive.wire.message import encode_host, encode_stored
from tests.browser import Answer, Browser, console_of

FIRST_MS = 1_700_000_000_000
MESSAGE = "/message?topic=Orders&broker=BROKER&queue=0&offset=0"


@pytest.fixture
async def page(fake: FakeBroker) -> AsyncIterator[Browser]:
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))
    fake.on(RequestCode.GET_TOPIC_STATS_INFO, lambda request: _stats(fake, request))
    with console_of(fake.address) as browser:
        yield browser


def _stats(fake: FakeBroker, request: RemotingCommand) -> RemotingCommand:
    table = {
        MessageQueue(topic, fake.name, queue_id): TopicOffset(
            min_offset=0, max_offset=len(rows), last_update_timestamp=rows[-1].store_timestamp_ms
        )
        for (topic, queue_id), rows in fake.stored.items()
        if rows and topic == request.ext_fields["topic"]
    }
    return ok(body=topic_stats_dumps(table))


async def look(browser: Browser, path: str) -> Answer:
    return await asyncio.to_thread(browser.get, path)


async def pages_from(browser: Browser, path: str) -> list[list[str]]:
    """The bodies on each page, by the links to the next one."""
    found: list[list[str]] = []
    while path:
        answer = await look(browser, path)
        assert answer.status == 200, answer.words
        found.append(re.findall(r'<td class="body"><bdi>(.*?)</bdi>', answer.text))
        assert found[-1], "a page without messages follows"
        links = re.findall(r'rel="next" href="([^"]*)"', answer.text)
        path = html.unescape(links[0]) if links else ""
    return found


def flat(pages: list[list[str]]) -> list[str]:
    return list(chain.from_iterable(pages))


def filled(fake: FakeBroker, topic: str, count: int, queues: int = 2) -> list[str]:
    """Store messages in turn, the first two thirds of them in queue 0 alone."""
    fake.topics[topic] = queues
    for number in range(count):
        queue_id = number % queues if 3 * number > 2 * count else 0
        fake.put(topic, f"m{number:03}".encode(), queue_id=queue_id)
    return [f"m{number:03}" for number in range(count)]


async def test_the_newest_messages_have_next_pages_down_to_the_oldest(
    fake: FakeBroker, page: Browser
) -> None:
    names = filled(fake, "Orders", 2 * LIMIT + 20)
    found = await pages_from(page, "/messages?topic=Orders")
    assert [len(bodies) for bodies in found] == [LIMIT, LIMIT, 20]
    assert flat(found) == names[::-1]
    assert flat(await pages_from(page, "/topics/Orders")) == names[::-1]


async def test_a_next_page_stays_where_it_is_while_messages_arrive(
    fake: FakeBroker, page: Browser
) -> None:
    names = filled(fake, "Orders", LIMIT + 5)
    first = await look(page, "/messages?topic=Orders")
    (link,) = re.findall(r'rel="next" href="([^"]*)"', first.text)
    filled(fake, "Orders", LIMIT)
    assert await pages_from(page, html.unescape(link)) == [names[:5][::-1]]


async def test_messages_of_one_moment_are_on_pages_too(fake: FakeBroker, page: Browser) -> None:
    """As a batch is stored: a next page by time alone would be the same page for ever."""
    names = filled(fake, "Orders", 2 * LIMIT + 20)
    for rows in fake.stored.values():
        rows[:] = [replace(row, store_timestamp_ms=FIRST_MS) for row in rows]
    found = await pages_from(page, "/messages?topic=Orders&from=2020-01-01T00:00")
    assert [len(bodies) for bodies in found] == [LIMIT, LIMIT, 20]
    assert sorted(flat(found)) == names


async def test_the_way_back_leads_over_the_same_pages(fake: FakeBroker, page: Browser) -> None:
    filled(fake, "Orders", 2 * LIMIT + 20)
    for path, order in (("/messages?topic=Orders", -1), ("/messages?topic=Orders&offset=0", 1)):
        address = path + ("&queue=0" if order == 1 else "")
        answer = await look(page, address)
        bodies: list[list[str]] = []
        while address:
            answer = await look(page, address)
            bodies.append(re.findall(r'<td class="body"><bdi>(.*?)</bdi>', answer.text))
            links = re.findall(r'rel="next" href="([^"]*)"', answer.text)
            address = html.unescape(links[0]) if links else ""
        for before in bodies[-2::-1]:
            (link,) = re.findall(r'rel="prev" href="([^"]*)"', answer.text)
            answer = await look(page, html.unescape(link))
            assert re.findall(r'<td class="body"><bdi>(.*?)</bdi>', answer.text) == before
        assert 'rel="prev"' not in answer.text


async def test_a_topic_is_filtered_by_queue_tag_sql_and_text(
    fake: FakeBroker, page: Browser
) -> None:
    fake.topics["Orders"] = 2
    for number in range(90):
        words = f"TAGS\x01{'paid' if number % 3 else 'new'}\x02size\x01{number}\x02".encode()
        fake.put("Orders", f"cup {number:02}".encode(), queue_id=number % 2, properties=words)
    fake.on(RequestCode.GET_TOPIC_STATS_INFO, lambda request: _stats(fake, request))
    new = [f"cup {number:02}" for number in range(0, 90, 3)]
    for query, bodies in (
        ("tag=new", new[::-1]),
        ("tag=new&queue=1", new[1::2][::-1]),
        ("tag=new&queue=1&offset=10", [body for body in new[1::2] if body >= "cup 21"]),
        ("sql=size+%3E+87", ["cup 89", "cup 88"]),
        ("text=p+07", ["cup 07"]),
        ("text=none", []),
    ):
        answer = await look(page, f"/messages?topic=Orders&{query}")
        found = re.findall(r'<td class="body"><bdi>(.*?)</bdi>', answer.text)
        assert (answer.status, found) == (200, bodies), query


async def test_a_rare_message_is_found_over_several_pages(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(browse.BrowseQueries.page.__kwdefaults__ or {}, "scan", 64)
    filled(fake, "Orders", 200, queues=1)
    address, pages = "/messages?topic=Orders&text=m003", 0
    while True:
        answer = await look(page, address)
        pages += 1
        if "m003 " in answer.words.partition("Body Size")[2]:
            break
        assert "64 messages were read for this page." in answer.words
        (link,) = re.findall(r'rel="next" href="([^"]*)"', answer.text)
        address = html.unescape(link)
    assert pages == 4


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("queue=7", "Orders has the queues 0 to 0"),
        ("queue=x", "is not a whole number"),
        ("offset=1", "an offset needs the number of a queue"),
        (f"queue=0&offset={2**63}", "must be between 0 and"),
        ("sql=size+%3E", "SQL92"),
        ("tag=a%7Cb", "tag"),
        ("go=sideways", "a page is older or newer"),
    ],
)
async def test_a_wrong_filter_is_said_beside_the_form(
    fake: FakeBroker, page: Browser, query: str, reason: str
) -> None:
    filled(fake, "Orders", 3)
    answer = await look(page, f"/messages?topic=Orders&{query}")
    assert answer.status == 400
    assert reason in answer.words


async def test_only_the_live_tail_follows(fake: FakeBroker, page: Browser) -> None:
    filled(fake, "Orders", LIMIT + 5)
    still = await look(page, "/messages?topic=Orders")
    assert "data-live" not in still.text
    tail = await look(page, "/messages?topic=Orders&live=1")
    assert "data-live" in tail.text
    assert 'rel="next"' not in tail.text


async def test_a_download_has_lines_in_order_and_bounds(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = filled(fake, "Orders", 90)
    fake.put("Orders", b"\xff\x00", queue_id=1)
    names.append("ff00")

    async def download(query: str) -> tuple[list[str], str]:
        answer = await look(page, f"/messages.jsonl?topic=Orders&{query}")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["x-content-type-options"] == "nosniff"
        rows = [json.loads(line) for line in answer.text.splitlines()]
        bodies = [row.get("body") or row["body_hex"] for row in rows]
        return bodies, answer.headers["content-disposition"]

    whole = 'attachment; filename="messages.jsonl"'
    assert await download("") == (names[::-1], whole)
    assert await download("from=2020-01-01T00:00") == (names, whole)
    assert await download("text=m01") == ([f"m01{n}" for n in range(9, -1, -1)], whole)
    cut = whole.replace("messages", "messages-incomplete")
    monkeypatch.setattr(search_pages, "DOWNLOAD_ROWS", 10)
    assert await download("") == (names[:-11:-1], cut)
    monkeypatch.setattr(search_pages, "DOWNLOAD_ROWS", 1_000)
    monkeypatch.setattr(search_pages, "DOWNLOAD_BYTES", 1_500)
    bodies, name = await download("queue=0")
    assert name == cut
    # one pull
    assert len(bodies) == 32
    assert bodies == sorted(bodies, reverse=True)
    assert (await look(page, "/messages.jsonl?topic=Orders&key=k")).status == 400


def indexed(fake: FakeBroker, topic: str) -> None:
    """Answer for a key as an index does: the newest ones in the time, the oldest of them first."""

    def found(request: RemotingCommand) -> RemotingCommand:
        end, limit = int(request.ext_fields["endTimestamp"]), int(request.ext_fields["maxNum"])
        rows = [row for row in fake.stored[topic, 0] if row.store_timestamp_ms <= end]
        if not rows:
            return error(ResponseCode.QUERY_NOT_FOUND, "none")
        header = QueryMessageResponse(index_last_update_timestamp=0, index_last_update_phyoffset=0)
        return ok(header, b"".join(map(encode_stored, rows[-min(limit, KEY_LIMIT) :])))

    fake.on(RequestCode.QUERY_MESSAGE, found)


async def test_a_key_has_next_pages(fake: FakeBroker, page: Browser) -> None:
    for number in range(2 * LIMIT + 20):
        fake.put("Orders", f"m{number:03}".encode(), properties=b"KEYS\x01often\x02")
    indexed(fake, "Orders")
    found = await pages_from(page, "/messages?topic=Orders&key=often")
    assert flat(found[::-1]) == [f"m{number:03}" for number in range(2 * LIMIT + 20)]


async def test_a_key_of_too_many_messages_of_one_moment_says_so(
    fake: FakeBroker, page: Browser
) -> None:
    for _ in range(2 * KEY_LIMIT):
        row = fake.put("Orders", b"m", properties=b"KEYS\x01often\x02")
        fake.stored["Orders", 0][-1] = replace(row, store_timestamp_ms=FIRST_MS)
    indexed(fake, "Orders")
    path = f"/messages?topic=Orders&key=often&at={FIRST_MS}/0/{KEY_LIMIT}/{fake.name}"
    assert "look for the others by time" in (await look(page, path)).words


@pytest.mark.parametrize("at", ["x", "0/1", "0/x/broker-a", "-1/0/broker-a", f"0/{2**63}/broker-a"])
async def test_a_place_that_is_none_is_refused(page: Browser, at: str) -> None:
    assert (await look(page, f"/messages?topic=Orders&at={at}")).status == 400


async def test_dead_letters_have_tries_and_next_pages(fake: FakeBroker, page: Browser) -> None:
    table = {"billing": SubscriptionGroupConfig(name="billing", retry_max_times=2).to_json()}
    fake.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": table})),
    )
    names = filled(fake, "%DLQ%billing", LIMIT + 5, queues=1)
    rows = fake.stored["%DLQ%billing", 0]
    # a broker counts the last try, too
    rows[-1] = replace(rows[-1], properties=b"RETRY_TOPIC\x01Orders\x02", reconsume_times=3)
    assert flat(await pages_from(page, "/dead-letters/billing")) == names[::-1]
    words = (await look(page, "/dead-letters/billing")).words
    assert "Tries Last error Tag Keys" in words
    assert re.search(rf"Orders 3 not traced {names[-1]} ", words)
    # a producer has sent that one to the dead letters
    assert re.search(rf"– – not traced {names[-2]} ", words)


def traced(broker: FakeBroker, *records: tuple[object, ...]) -> None:
    """Put records of clients into the trace topic, each in a message of its own."""
    broker.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    for record in records:
        text = "\x01".join(map(str, record)) + "\x02"
        name = record[2] if record[0] == "SubAfter" else record[5]
        broker.put("RMQ_SYS_TRACE_TOPIC", text.encode(), properties=f"KEYS\x01{name}\x02".encode())
    indexed(broker, "RMQ_SYS_TRACE_TOPIC")


async def test_dead_letters_show_the_last_error_that_was_traced(
    fake: FakeBroker, page: Browser
) -> None:
    fake.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": {"billing": {"groupName": "billing"}}})),
    )
    fake.topics["%DLQ%billing"] = 1
    for name in ("ID1", "ID2", "ID3", "ID4"):
        properties = f"UNIQ_KEY\x01{name}\x02RETRY_TOPIC\x01Orders\x02".encode()
        fake.put("%DLQ%billing", f"body-{name}".encode(), properties=properties)
    traced(
        fake,
        ("SubAfter", "R1", "ID1", 5, "false", "", 2, 2000, "billing", "ValueError('first')"),
        ("SubAfter", "R2", "ID1", 5, "false", "", 2, 3000, "billing", "ValueError('<b>')"),
        ("SubAfter", "R3", "ID1", 5, "false", "", 2, 4000, "shipping", "KeyError('other')"),
        # a client in Java tells no text
        ("SubAfter", "R4", "ID2", 5, "false", "", 2, 2000, "billing"),
        ("SubAfter", "R5", "ID3", 9, "true", "", 1, 2000, "billing"),
    )
    answer = await look(page, "/dead-letters/billing")
    for name, why in (
        ("ID1", "ValueError('<b>')"),
        ("ID2", "its listener raised an exception, of which its client tells no text"),
        ("ID3", "its call took longer than the consume timeout"),
        ("ID4", "not traced"),
    ):
        assert f" {name} Orders 0 {why} body-{name} " in answer.words
    assert "<b>" not in answer.text
    assert "the member wrote no trace of the failure" in answer.words
    assert 'class="failing"' not in answer.text


async def test_traces_that_cannot_be_read_are_not_missing_ones(
    fake: FakeBroker, page: Browser
) -> None:
    fake.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": {"billing": {"groupName": "billing"}}})),
    )
    fake.topics["%DLQ%billing"] = 1
    fake.put("%DLQ%billing", b"decaf", properties=b"UNIQ_KEY\x01ID1\x02")
    fake.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    fake.on(RequestCode.QUERY_MESSAGE, error(ResponseCode.SYSTEM_ERROR, "index is broken"))
    answer = await look(page, "/dead-letters/billing")
    assert "traces: index is broken" in answer.words
    assert "decaf" in answer.words
    assert 'class="failing"' in answer.text


async def test_the_client_of_a_trace_is_not_the_broker_that_it_names(
    fake: FakeBroker, page: Browser
) -> None:
    fake.put("Orders", b"espresso", properties=b"UNIQ_KEY\x01ID7\x02")
    fields = ("Pub", 1000, "", "pg", "Orders", "ID7", "", "", fake.address, 8, 7, 0, "7F00", "true")
    record = "\x01".join(map(str, fields)) + "\x02"
    fake.topics["RMQ_SYS_TRACE_TOPIC"] = 1
    row = fake.put("RMQ_SYS_TRACE_TOPIC", record.encode(), properties=b"KEYS\x01ID7\x02")
    fake.stored["RMQ_SYS_TRACE_TOPIC", 0][-1] = replace(
        row, born_host=encode_host("10.0.0.9", 50_001)
    )
    indexed(fake, "RMQ_SYS_TRACE_TOPIC")
    words = (await look(page, f"/message?topic=Orders&broker={fake.name}&queue=0&offset=0")).words
    assert re.search(r" sent pg 10\.0\.0\.9:50001 7 ms ok ", words)


async def test_groups_of_a_message_and_queues_have_pages(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "QUEUE_ROWS", 2)
    filled(fake, "Orders", 30, queues=5)
    groups = [f"g{number:02}" for number in range(ROWS + 1)]
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps(groups)))
    last = await look(page, "/topics/Orders?page=3")
    assert "What each queue holds, 5 to 5" in last.words
    place = f"/message?topic=Orders&broker={fake.name}&queue=0&offset=0"
    first = await look(page, place)
    assert groups[-1] not in first.words
    (link,) = re.findall(r'rel="next" href="([^"]*)"', first.text)
    assert groups[-1] in (await look(page, "/message" + html.unescape(link))).words
    assert f" {groups[-1]} " not in last.words
    assert f" {groups[-1]} " in (await look(page, "/topics/Orders?groups=2")).words


async def test_members_topics_and_brokers_have_pages(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TOPICS", 2)
    monkeypatch.setattr("ogive.console.queries.KEEP_S", 0.0)
    fake.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": {"billing": {"groupName": "billing"}}})),
    )
    topics = [f"{kind}T{n}" for kind in ("", "%RETRY%billing_") for n in range(5)]
    places = {
        MessageQueue(topic, fake.name, 0): OffsetWrapper(
            broker_offset=3, consumer_offset=3, last_timestamp=0
        )
        for topic in topics
    }
    fake.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps(places, 0.0)))
    members = [f"member{n:03}" for n in range(MAX_ASKED + ROWS)]
    online = ConsumerConnection(
        connections=tuple(
            ConnectionInfo(client_id=name, address="10.0.0.9:1", language="JAVA", version=0)
            for name in members
        ),
        subscriptions={},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_FIRST_OFFSET",
    )
    fake.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, ok(body=online.encode()))
    info = ConsumerRunningInfo(properties={}, subscriptions=(), queues={}, topics={})
    fake.on(RequestCode.GET_CONSUMER_RUNNING_INFO, ok(body=info.encode()))
    seen: list[str] = []
    for number in (1, 2, 3):
        answer = await look(page, f"/groups/billing?members={number}")
        seen += re.findall(r"member\d{3}", answer.words)
        # all of those that are shown were asked
        assert 'class="failing"' not in answer.text, answer.words
    assert seen == members
    shown = (await look(page, "/groups/billing?topics=3")).words
    assert " T4 0 behind" in shown
    assert " T3 0 behind" not in shown
    many = {
        name: BrokerData(cluster="DefaultCluster", broker_name=name, addresses={0: fake.address})
        for name in (f"broker-{number:02}" for number in range(ROWS + 1))
    }
    cluster = ClusterInfo(brokers=many, clusters={"DefaultCluster": tuple(many)})
    fake.on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=cluster.encode()))
    fake.on(RequestCode.GET_BROKER_RUNTIME_INFO, ok(body=kv_table_dumps({})))
    overview = await look(page, "/")
    assert "broker-50" not in overview.words
    assert "broker-50" in (await look(page, "/?brokers=2")).words
    assert 'class="failing"' not in overview.text
    gone = BrokerData(
        cluster="DefaultCluster", broker_name="broker-50", addresses={0: "127.0.0.1:1"}
    )
    cluster = ClusterInfo(
        brokers=many | {"broker-50": gone}, clusters={"DefaultCluster": tuple(many)}
    )
    fake.on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=cluster.encode()))
    overview = await look(page, "/")
    assert "1 broker on another page is down" in overview.words
    assert 'class="failing"' in overview.text


async def test_a_page_with_an_error_is_not_live(fake: FakeBroker, page: Browser) -> None:
    failing = '<div id="live" class="failing">'
    filled(fake, "Orders", 3)
    assert failing not in (await look(page, "/topics/Orders")).text
    # an answer of the console, but not of the broker
    fake.on(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, error(ResponseCode.SYSTEM_ERROR, "no"))
    for path, status in (("/groups", 200), ("/groups/none", 404), ("/topics/none", 404)):
        answer = await look(page, path)
        assert (answer.status, failing in answer.text) == (status, True), path


@pytest.mark.parametrize(
    ("code", "paths"),
    [
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ("/topics/Orders", MESSAGE)),
        (RequestCode.GET_TOPIC_CONFIG, ("/topics/Orders",)),
        (RequestCode.GET_CONSUME_STATS, ("/groups", "/groups/billing", "/")),
        (RequestCode.GET_TOPIC_STATS_INFO, ("/topics", "/topics/Orders", "/groups/billing")),
        (RequestCode.GET_BROKER_RUNTIME_INFO, ("/",)),
    ],
)
async def test_an_answer_that_is_missing_is_said_where_it_would_be(
    fake: FakeBroker, page: Browser, code: RequestCode, paths: tuple[str, ...]
) -> None:
    filled(fake, "Orders", 3)
    filled(fake, "%DLQ%billing", 3)
    fake.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": {"billing": {"groupName": "billing"}}})),
    )
    places = {
        MessageQueue("Orders", fake.name, 0): OffsetWrapper(
            broker_offset=3, consumer_offset=0, last_timestamp=0
        )
    }
    fake.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps(places, 0.0)))
    fake.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, error(ResponseCode.CONSUMER_NOT_ONLINE))
    fake.on(code, error(ResponseCode.SYSTEM_ERROR, "the disk is on fire"))
    for path in paths:
        answer = await look(page, path.replace("BROKER", fake.name))
        assert answer.status == 200
        assert "the disk is on fire" in answer.words, path
        assert '<div id="live" class="failing">' in answer.text, path


async def test_plots_are_there_for_the_first_who_looks(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "SAMPLE_S", 0.01)
    monkeypatch.setattr("ogive.console.queries.KEEP_S", 0.0)
    monkeypatch.setattr("ogive.console.charts.STEP_S", 0.0)
    filled(fake, "Orders", 3)
    fake.on(RequestCode.GET_TOPIC_STATS_INFO, lambda request: _stats(fake, request))
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))
    with console_of(fake.address) as browser:
        await fake.until(lambda: len(fake.of(RequestCode.GET_TOPIC_STATS_INFO)) >= 4)
        assert "Two looks make a rate" not in (await look(browser, "/topics/Orders")).words
        day = await look(browser, "/topics/Orders?span=day")
        assert "Two looks make a rate" not in day.words
        assert (await look(browser, "/topics/Orders?span=year")).status == 400
