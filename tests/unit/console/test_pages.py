"""Pages about a cluster that follows a script: down, slow, hostile, large."""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncIterator

import pytest

from ogive.console import queries
from ogive.model import MessageQueue
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    SubscriptionData,
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
from ogive.wire.signing import Credentials
from tests.browser import Answer, Browser, console_of

HOSTILE = "<script>alert(1)</script>\"'&"


@pytest.fixture
async def page(fake: FakeBroker) -> AsyncIterator[Browser]:
    with console_of(fake.address) as browser:
        yield browser


async def look(browser: Browser, path: str) -> Answer:
    return await asyncio.to_thread(browser.get, path)


def groups_are(broker: FakeBroker, *names: str) -> None:
    table = {name: SubscriptionGroupConfig(name=name).to_json() for name in names}
    broker.on(
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        ok(body=dumps({"subscriptionGroupTable": table})),
    )


def stands_at(broker: FakeBroker, **rows: tuple[int, int]) -> None:
    """For every group: topic=(consumer's offset, end)."""
    table = {
        MessageQueue(topic, broker.name, 0): OffsetWrapper(
            broker_offset=end, consumer_offset=at, last_timestamp=1_700_000_000_000
        )
        for topic, (at, end) in rows.items()
    }
    broker.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps(table, 2.5)))
    broker.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, error(ResponseCode.CONSUMER_NOT_ONLINE))


def holds(broker: FakeBroker, topic: str, *, queue_id: int = 0) -> None:
    """The statistics of what was put there."""
    rows = broker.stored[topic, queue_id]
    table = {
        MessageQueue(topic, broker.name, queue_id): TopicOffset(
            min_offset=0, max_offset=len(rows), last_update_timestamp=rows[-1].store_timestamp_ms
        )
    }
    broker.on(RequestCode.GET_TOPIC_STATS_INFO, ok(body=topic_stats_dumps(table)))
    broker.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))


async def test_messages_on_leases_are_in_flight(fake: FakeBroker, page: Browser) -> None:
    groups_are(fake, "billing")
    stands_at(fake, Orders=(2, 9))
    table = {
        MessageQueue("Orders", fake.name, queue_id): OffsetWrapper(
            broker_offset=9, consumer_offset=2, last_timestamp=0, pull_offset=taken
        )
        # a broker of 4.x does not tell the last one
        for queue_id, taken in enumerate((7, 2, 0))
    }
    fake.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps(table, 0.0)))
    assert "In flight 5 given to members" in (await look(page, "/groups/billing")).words


async def test_the_oldest_lease_is_shown_with_its_age_and_its_queue(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEEP_S", 0.0)
    groups_are(fake, "billing")
    stands_at(fake, Orders=(2, 9))
    now_ms = time.time_ns() // 1_000_000

    def leases(*ages_s: int) -> None:
        table = {
            MessageQueue("Orders", fake.name, queue_id): OffsetWrapper(
                broker_offset=9,
                consumer_offset=2,
                last_timestamp=0,
                pull_offset=7,
                pop_timestamp=now_ms - 1000 * age_s if age_s else 0,
            )
            for queue_id, age_s in enumerate(ages_s)
        }
        fake.on(RequestCode.GET_CONSUME_STATS, ok(body=consume_stats_dumps(table, 0.0)))

    leases(0, 3700, 7_290, 0)
    shown = (await look(page, "/groups/billing")).words
    assert "Oldest lease 2 h 1 min given out from queue 2 of Orders on broker-a" in shown
    # Apache's brokers do not report it
    leases(0)
    shown = (await look(page, "/groups/billing")).words
    assert "Oldest lease – the broker does not report it" in shown


async def test_a_group_with_nothing_in_flight_shows_no_lease(
    fake: FakeBroker, page: Browser
) -> None:
    groups_are(fake, "billing")
    stands_at(fake, Orders=(10, 10))
    words = (await look(page, "/groups/billing")).words
    assert "Members 0 Handed out" in words
    assert "Oldest lease" not in words


# --- hostile --------------------------------------------------------------------------------------


async def test_names_that_would_be_scripts_are_text_on_every_page(
    fake: FakeBroker, page: Browser
) -> None:
    fake.topics = {HOSTILE: 1}
    fake.put(
        HOSTILE,
        HOSTILE.encode(),
        properties=f"KEYS\x01{HOSTILE}\x02TAGS\x01{HOSTILE}\x02{HOSTILE}\x01{HOSTILE}\x02".encode(),
    )
    holds(fake, HOSTILE)
    groups_are(fake, HOSTILE)
    stands_at(fake, **{HOSTILE: (0, 3)})
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([HOSTILE])))
    links = ["/", "/topics", "/groups"]
    seen: dict[str, Answer] = {}
    while links:
        path = links.pop()
        seen[path] = answer = await look(page, path)
        assert answer.status == 200, (path, answer.words)
        assert answer.text.count("<script") == 1, path
        assert "alert(1)</script>" not in answer.text, path
        found = [
            link.replace("&amp;", "&") for link in re.findall(r'href="(/[^"#]*)"', answer.text)
        ]
        links += [
            link
            for link in found
            if link not in seen
            and link not in links
            and not link.startswith(("/static", "/dead", "/messages?"))
        ]
    kinds = {path.split("?")[0].split("/")[1] for path in seen}
    assert kinds >= {"", "topics", "groups", "message"}
    assert any(
        HOSTILE in answer.words for path, answer in seen.items() if path.startswith("/message?")
    )


async def test_a_command_is_quoted_for_a_shell(fake: FakeBroker, page: Browser) -> None:
    groups_are(fake, "a;rm -rf ~")
    stands_at(fake, Orders=(0, 3))
    answer = await look(page, "/groups/a%3Brm%20-rf%20~")
    assert f"ogive group skip 'a;rm -rf ~' Orders --dry-run -n {fake.address}" in answer.words


async def test_a_field_has_a_bounded_length(page: Browser) -> None:
    assert (await look(page, "/topics?q=" + "x" * 2000)).status == 400


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/message", 400),
        ("/message?topic=Orders&broker=b&queue=x&offset=1", 400),
        ("/message?topic=Orders&broker=broker-a&queue=99999999999999999999&offset=0", 400),
        ("/message?topic=Orders&broker=broker-a&queue=0&offset=99999999999999999999", 400),
        ("/message?topic=Orders&broker=broker-a&queue=-1&offset=0", 400),
        ("/message?topic=Orders&broker=broker-a&queue=0&offset=1_0", 400),
        ("/messages?topic=Orders&from=2027-01-01T00:00&to=2026-01-01T00:00", 400),
        ("/messages?topic=Orders&from=yesterday", 400),
        ("/messages?topic=Or%20ders", 404),
        ("/topics?page=x", 400),
        ("/topics?page=0", 400),
        ("/groups?page=-1", 400),
        ("/topics?page=999999999999999999999", 200),
        ("/topics?q=%ff%fe", 200),
    ],
)
async def test_nonsense_in_an_address_is_no_fault(
    fake: FakeBroker, page: Browser, path: str, status: int
) -> None:
    groups_are(fake)
    assert (await look(page, path)).status == status


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (
            "/message?topic=Orders&broker=broker-a&queue=0&offset=99999999999999999999",
            "offset 99999999999999999999: an offset must be",
        ),
        (
            "/messages?topic=Orders&from=2027-01-01T00:00&to=2026-01-01T00:00",
            "the period ends before it begins",
        ),
        ("/topics?page=x", "page 'x' is not a whole number"),
    ],
)
async def test_a_refused_address_says_why(page: Browser, path: str, reason: str) -> None:
    assert reason in (await look(page, path)).words


@pytest.mark.parametrize(
    "path",
    [
        "/topics/%ff%00",
        "/groups/%ED%A0%80",
        "/brokers/none",
        "/topics/..%2f..%2fetc%2fpasswd",
        "/static/..%2fapp.py",
        "/x",
    ],
)
async def test_what_is_not_there_is_not_found(fake: FakeBroker, page: Browser, path: str) -> None:
    groups_are(fake)
    assert (await look(page, path)).status == 404


async def test_an_unknown_name_is_shown_with_similar_ones(fake: FakeBroker, page: Browser) -> None:
    groups_are(fake, "billing", "%similar")
    for path in ("/groups/biling", "/dead-letters/biling"):
        answer = await look(page, path)
        assert answer.status == 404
        assert 'knows a consumer group "biling". Similar groups: billing.' in answer.words, path
        assert "do not answer" not in answer.words
    assert "Similar topics: Orders." in (await look(page, "/topics/Order")).words


async def test_an_unknown_group_may_be_at_a_broker_that_does_not_answer(
    fake: FakeBroker, page: Browser
) -> None:
    groups_are(fake, "billing")

    def at(name: str, address: str) -> BrokerData:
        return BrokerData(cluster="DefaultCluster", broker_name=name, addresses={0: address})

    cluster = ClusterInfo(
        brokers={fake.name: at(fake.name, fake.address), "refuses": at("refuses", "127.0.0.1:1")},
        clusters={"DefaultCluster": (fake.name, "refuses")},
        lost={"left": at("left", "127.0.0.1:2")},
    )
    fake.on(RequestCode.GET_BROKER_CLUSTER_INFO, ok(body=cluster.encode()))
    words = (await look(page, "/groups/none")).words
    assert "Brokers that do not answer may know it: left, refuses." in words
    assert "Similar" not in words


async def test_figures_are_fetched_anew_and_messages_stay_as_they_were_found(
    fake: FakeBroker, page: Browser
) -> None:
    fake.put("Orders", b"espresso")
    holds(fake, "Orders")
    found = ["/messages?topic=Orders", "/message?topic=Orders&broker=broker-a&queue=0&offset=0"]
    live = [
        "data-live" in (await look(page, path)).text
        for path in ("/topics/Orders", "/nowhere", *found)
    ]
    assert live == [True, True, False, False]


async def test_a_time_that_is_none_is_said_beside_the_form(page: Browser) -> None:
    answer = await look(page, "/messages?topic=Orders&from=yesterday")
    assert "'yesterday' is not a time" in answer.words
    assert "By id" in answer.words


# --- down and slow --------------------------------------------------------------------------------


async def test_a_broker_that_is_down_is_shown_with_the_reason_and_the_rest_goes_on(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEEP_S", 0.0)
    async with FakeBroker({"Orders": 1}, name="broker-b") as other:
        fake.peers.append(other)
        fake.on(
            RequestCode.GET_BROKER_RUNTIME_INFO,
            ok(body=kv_table_dumps({"brokerVersionDesc": "V5_5_0", "putTps": "1.5 0 0"})),
        )
        for broker in (fake, other):
            groups_are(broker, "billing")
            stands_at(broker, Orders=(1, 3))
            broker.put("Orders", b"espresso")
            holds(broker, "Orders")
        assert "4" in (await look(page, "/groups/billing")).words
        await other.stop()
        overview = await look(page, "/")
        assert overview.status == 200
        assert re.search(r"broker-b master down \S+ .*refused", overview.words)
        assert "broker-a master up" in overview.words
        assert "5.5.0" in overview.words
        for path in (
            "/topics",
            "/topics/Orders",
            "/groups",
            "/groups/billing",
            "/messages?topic=Orders",
        ):
            answer = await look(page, path)
            assert answer.status == 200, path
            assert "refused" in answer.words, path


async def test_a_broker_that_left_the_name_servers_is_still_shown(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "KEEP_S", 0.0)
    async with FakeBroker(name="broker-b") as other:
        fake.peers.append(other)
        groups_are(fake)
        groups_are(other)
        await look(page, "/")
        fake.peers.clear()
        assert re.search(
            r"broker-b master down \S+ no name server has known it", (await look(page, "/")).words
        )


async def test_a_silent_broker_costs_a_page_a_bounded_time_once(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "CALL_S", 0.1)
    groups_are(fake, *(f"g{number}" for number in range(60)))
    fake.hold(RequestCode.GET_CONSUME_STATS)
    answer = await look(page, "/groups")
    assert answer.status == 200
    # neither a lag nor an age that nobody told
    assert "g49 0 – – – 16 broker-a: no answer from" in answer.words
    assert len(fake.of(RequestCode.GET_CONSUME_STATS)) <= queries.AT_ONCE
    fake.release(RequestCode.GET_CONSUME_STATS)


async def test_without_a_name_server_the_page_says_so(fake: FakeBroker) -> None:
    # before the console starts, which asks at once and shows what it was told for a moment
    await fake.stop()
    with console_of(fake.address) as page:
        for path in ("/", "/topics", "/groups", "/topics/Orders"):
            answer = await look(page, path)
            assert answer.status == 502, path
            assert "no name server answered" in answer.words


async def test_a_member_that_does_not_tell_is_still_a_member(
    fake: FakeBroker, page: Browser
) -> None:
    groups_are(fake, "billing")
    stands_at(fake, Orders=(1, 3))
    online = ConsumerConnection(
        connections=(
            ConnectionInfo(
                client_id="10.0.0.9@1", address="10.0.0.9:5", language="CPP", version=403
            ),
        ),
        subscriptions={"Orders": SubscriptionData.of_tags("Orders", "paid || new")},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )
    fake.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, ok(body=online.encode()))
    fake.on(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        error(ResponseCode.SYSTEM_ERROR, "the consumer is silent"),
    )
    words = (await look(page, "/groups/billing")).words
    assert "10.0.0.9@1 10.0.0.9:5 CPP" in words
    assert "the consumer is silent" in words
    assert "subscribed to paid || new" in words


async def test_a_broadcasting_group_has_no_lag(fake: FakeBroker, page: Browser) -> None:
    groups_are(fake, "screens")
    stands_at(fake, Prices=(0, 1_000_003))
    online = ConsumerConnection(
        connections=(
            ConnectionInfo(client_id="c", address="10.0.0.9:5", language="JAVA", version=403),
        ),
        subscriptions={},
        consume_type="CONSUME_PASSIVELY",
        message_model="BROADCASTING",
        consume_from_where="CONSUME_FROM_LAST_OFFSET",
    )
    fake.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, ok(body=online.encode()))
    words = (await look(page, "/groups/screens")).words
    assert "Lag – members broadcast: each keeps its own place Behind –" in words
    assert "No group has messages waiting" in (await look(page, "/")).words


# --- large ----------------------------------------------------------------------------------------


async def test_ten_thousand_topics_come_by_pages(fake: FakeBroker, page: Browser) -> None:
    fake.topics = {f"topic-{number:05}": 1 for number in range(10_000)}
    first = await look(page, "/topics")
    assert "10,000 topics, 1 to 50" in first.words
    assert "topic-00049" in first.words
    assert "topic-00050" not in first.words
    # each perhaps twice, where the machine is too busy for an answer in time
    asked = [one.ext_fields["topic"] for one in fake.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    assert len(set(asked)) == 50
    assert len(asked) <= 100
    last = await look(page, "/topics?page=200")
    assert "topic-09999" in last.words
    assert (await look(page, "/topics?page=9999")).words.count("Page 200 of 200") == 1
    found = await look(page, "/topics?q=OPIC-0123")
    assert "10 topics" in found.words


async def test_the_worst_of_many_groups_are_found_in_some_looks(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"g{number:04}" for number in range(250)]
    groups_are(fake, *names)
    stands_at(fake)

    def stats(request: RemotingCommand) -> RemotingCommand:
        end = 777 if request.ext_fields["consumerGroup"] == "g0249" else 0
        row = OffsetWrapper(broker_offset=end, consumer_offset=0, last_timestamp=0)
        return ok(body=consume_stats_dumps({MessageQueue("Orders", "broker-a", 0): row}, 0.0))

    fake.on(RequestCode.GET_CONSUME_STATS, stats)
    assert "among the 100 looked at so far" in (await look(page, "/")).words
    await look(page, "/")
    assert re.search(r"Of all 250 groups .* g0249 777", (await look(page, "/")).words)


async def test_a_long_body_is_cut_in_lists_and_on_its_page(fake: FakeBroker, page: Browser) -> None:
    for _ in range(3):
        fake.put("Orders", b"x" * 300_000)
    holds(fake, "Orders")
    assert len((await look(page, "/messages?topic=Orders")).text) < 20_000
    answer = await look(page, "/message?topic=Orders&broker=broker-a&queue=0&offset=1")
    assert "the first 64.0 KiB are shown" in answer.words
    assert len(answer.text) < 100_000


async def test_progress_without_members_is_a_jobs(
    fake: FakeBroker, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Spark query mirrors it."""
    groups_are(fake, "revenue")
    stands_at(fake, Orders=(10, 30))
    words = (await look(page, "/groups/revenue")).words
    assert "20 behind" in words
    assert re.search(r"broker-a 0 10 30 20 \d+ d .*? 2023-11-14 ", words)
    assert "A Spark query has no members here" in words


async def test_commands_say_what_else_the_cluster_wants(fake: FakeBroker, page: Browser) -> None:
    """As they stand they would be refused. A cluster that wants nothing gets no such note."""
    assert "This cluster also wants" not in (await look(page, "/")).words
    user = Credentials(access_key="root", secret_key="secret")
    client = {"credentials": user, "ssl": ssl.create_default_context()}
    with console_of(fake.address, client=client, credentials=user) as browser:
        words = (await look(browser, "/")).words
    assert (
        "This cluster also wants --credentials FILE and --cafile FILE , in each command or once in "
        "a context" in words
    )


async def test_how_a_group_consumes_is_told_in_plain_words(fake: FakeBroker, page: Browser) -> None:
    groups_are(fake, "billing")
    stands_at(fake, Orders=(10, 30))
    member = ConsumerConnection(
        connections=(ConnectionInfo(client_id="me", address="h:1", language="PYTHON", version=1),),
        subscriptions={},
        consume_type="CONSUME_PASSIVELY",
        message_model="CLUSTERING",
        consume_from_where="",
    )
    fake.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, ok(body=member.encode()))
    assert "they share the messages, by listeners" in (await look(page, "/groups/billing")).words


async def test_a_fault_of_the_console_is_a_page_and_a_line_in_the_log(
    fake: FakeBroker,
    page: Browser,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from ogive.console.cluster_pages import ClusterQueries

    def fail(self: ClusterQueries) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(ClusterQueries, "topics", fail)
    answer = await look(page, "/topics")
    assert answer.status == 500
    assert "The console has a fault ZeroDivisionError" in answer.words
    assert "a bug" not in answer.words
    assert answer.headers["content-security-policy"]
    assert any(record.exc_info for record in caplog.records)
