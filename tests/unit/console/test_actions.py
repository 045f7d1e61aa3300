"""Actions: who may carry out what, and that nothing is done without the confirmation of a preview
that was shown.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterator

import pytest

from ogive.client.config import ClientConfig
from ogive.console import action_pages
from ogive.console.action_pages import MAX_TOKENS, TOKEN_S, Confirmations
from ogive.console.actions import ACTIONS, Preview
from ogive.console.config import ConsoleConfig
from ogive.console.failures import UnknownToken
from ogive.errors import InvalidOption
from ogive.testing.fake_broker import FakeBroker, error, ok
from ogive.wire.bodies.clients import group_list_dumps
from ogive.wire.codes import RequestCode, ResponseCode
from ogive.wire.signing import ACCESS_KEY, Credentials
from tests.browser import Answer, Browser, console_of, token_of

USER = Credentials(access_key="ada", secret_key="lovelace-secret")
CONSOLE = Credentials(access_key="console", secret_key="reading-secret")
HOSTILE = "<script>alert(1)</script>\"'&"
SEND = "/act/send?preview=1&topic=Orders&body=hello&tag=&keys="


@pytest.fixture(scope="module")
def alone() -> Iterator[Browser]:
    """No name server answers."""
    with console_of("127.0.0.1:1", actions=True, credentials=USER) as browser:
        yield browser


@pytest.fixture
async def acting(fake: FakeBroker) -> AsyncIterator[Browser]:
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps(["billing"])))
    with console_of(fake.address, actions=True, credentials=USER) as browser:
        yield browser


async def look(browser: Browser, path: str) -> Answer:
    return await asyncio.to_thread(browser.get, path)


def sent(broker: FakeBroker) -> int:
    return len(broker.of(RequestCode.SEND_MESSAGE_V2))


# --- who may --------------------------------------------------------------------------------------


def test_actions_are_off_unless_asked_for() -> None:
    with console_of("127.0.0.1:1", credentials=USER) as browser:
        assert browser.get("/act/send").status == 404
        assert browser.post("/act/send", "token=x").status == 405
        assert "/act/" not in browser.get("/messages").text


def test_actions_need_somebody_to_sign_in_and_access_control_or_loopback() -> None:
    client = ClientConfig()
    with pytest.raises(InvalidOption, match="actions need credentials that browsers"):
        ConsoleConfig(client=client, actions=True)
    with pytest.raises(InvalidOption, match=r"not loopback.* actions need one of the two$"):
        ConsoleConfig(client=client, actions=True, credentials=USER, host="192.0.2.1")
    ConsoleConfig(
        client=ClientConfig(credentials=CONSOLE), actions=True, credentials=USER, host="192.0.2.1"
    )


def test_a_stranger_sees_no_form_and_confirms_nothing(alone: Browser) -> None:
    stranger = Browser(alone.address)
    assert stranger.get("/act/send").status == 401
    assert stranger.post("/act/send", "token=x").status == 401


async def test_the_broker_is_asked_in_the_name_of_the_person(fake: FakeBroker) -> None:
    """The preview as well; the console's own identity changes nothing."""
    fake.on(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ok(body=group_list_dumps([])))
    client = {"credentials": CONSOLE}
    with console_of(fake.address, client=client, actions=True, credentials=USER) as browser:
        await look(browser, "/topics")
        assert {request.ext_fields[ACCESS_KEY] for request in fake.requests} == {"console"}
        fake.requests.clear()
        page = await look(browser, SEND)
        answer = await asyncio.to_thread(browser.confirm, page)
    assert answer.status == 200
    assert [request.ext_fields[ACCESS_KEY] for request in fake.of(RequestCode.SEND_MESSAGE_V2)] == [
        "ada"
    ]
    signed = {
        request.ext_fields[ACCESS_KEY]
        for request in fake.requests
        if request.code != RequestCode.GET_BROKER_CLUSTER_INFO
    }
    assert "console" not in signed


async def test_without_access_control_nothing_is_signed(fake: FakeBroker, acting: Browser) -> None:
    page = await look(acting, SEND)
    assert (await asyncio.to_thread(acting.confirm, page)).status == 200
    assert all(ACCESS_KEY not in request.ext_fields for request in fake.requests)


async def test_what_the_broker_refuses_is_said_and_recorded(
    fake: FakeBroker, acting: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    page = await look(acting, SEND)
    fake.on(RequestCode.SEND_MESSAGE_V2, error(ResponseCode.NO_PERMISSION, "ada may not"))
    with caplog.at_level(logging.INFO, "ogive.console.audit"):
        answer = await asyncio.to_thread(acting.confirm, page)
    assert answer.status == 502
    assert re.search("It failed: .* NO_PERMISSION: ada may not", answer.words)
    (line,) = [row for row in caplog.records if row.name == "ogive.console.audit"]
    assert line.levelno == logging.WARNING
    assert re.search("failed: .*: ada may not$", line.getMessage())


# --- confirmations --------------------------------------------------------------------------------


async def test_a_preview_sends_nothing_and_its_confirmation_once(
    fake: FakeBroker, acting: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    page = await look(acting, SEND)
    assert page.status == 200
    assert "Store a message of 5 bytes in topic Orders. These groups consume it: billing." in (
        page.words
    )
    assert f"ogive send Orders --body hello -n {fake.address}" in page.words
    assert sent(fake) == 0
    with caplog.at_level(logging.INFO, "ogive.console.audit"):
        answers = await asyncio.gather(*(asyncio.to_thread(acting.confirm, page) for _ in range(4)))
    assert sorted(answer.status for answer in answers) == [200, 409, 409, 409]
    assert sent(fake) == 1
    assert (await asyncio.to_thread(acting.confirm, page)).status == 409
    assert sent(fake) == 1
    (line,) = [row for row in caplog.records if row.name == "ogive.console.audit"]
    assert line.getMessage().startswith("user ada from 127.0.0.1:")
    assert ", at the console: send a message, topic Orders: stored in Orders/" in line.getMessage()
    fields = vars(line)["fields"]
    assert (fields["by"], fields["topic"], fields["done"]) == ("ada", "Orders", True)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_another_sites_page_confirms_nothing(
    fake: FakeBroker, acting: Browser, headers: dict[str, str]
) -> None:
    page = await look(acting, SEND)
    refused = await asyncio.to_thread(lambda: acting.confirm(page, **headers))
    assert refused.status == 403
    assert sent(fake) == 0
    # and the token was not used up by it
    assert (await asyncio.to_thread(acting.confirm, page)).status == 200


def test_a_request_without_an_origin_is_refused(alone: Browser) -> None:
    assert alone.get("/act/send", method="POST", body="token=x").status == 403


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("token=", 400),
        ("token=wrong", 409),
        ("token=a&token=b", 400),
        ("token=" + "x" * 2000, 400),
        ("topic=Orders&body=hello&preview=1", 400),
    ],
)
def test_a_made_up_confirmation_is_refused(alone: Browser, body: str, status: int) -> None:
    answer = alone.post("/act/send", body)
    assert answer.status == status
    assert "data-live" not in answer.text


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_other_method_is_possible(alone: Browser, method: str) -> None:
    assert alone.get("/act/send", method=method).status == 405


def test_only_actions_take_a_post(alone: Browser) -> None:
    assert alone.post("/topics", "token=x").status == 405
    assert alone.post("/act/nothing", "token=x").status == 404


async def test_a_token_is_for_one_action(fake: FakeBroker, acting: Browser) -> None:
    token = token_of(await look(acting, SEND))
    answer = await asyncio.to_thread(acting.post, "/act/create-topic", f"token={token}")
    assert answer.status == 409
    assert (await asyncio.to_thread(acting.post, "/act/send", f"token={token}")).status == 200


def test_tokens_are_for_one_person_for_ten_minutes_and_few() -> None:
    now = 0.0
    tokens = Confirmations(lambda: now)
    preview = Preview(will=(), command=(), about={}, carry_out=None, rows=(("much",),))
    first = tokens.issue("send", "ada", preview)
    with pytest.raises(UnknownToken):
        tokens.redeem(first, "send", "eve")
    assert tokens.redeem(first, "send", "ada").rows == ()
    with pytest.raises(UnknownToken):
        tokens.redeem(first, "send", "ada")
    late = tokens.issue("send", "ada", preview)
    now = TOKEN_S
    with pytest.raises(UnknownToken):
        tokens.redeem(late, "send", "ada")
    many = [tokens.issue("send", "ada", preview) for _ in range(MAX_TOKENS + 1)]
    assert len(set(many)) == MAX_TOKENS + 1
    with pytest.raises(UnknownToken):
        tokens.redeem(many[0], "send", "ada")
    tokens.redeem(many[1], "send", "ada")


async def test_an_action_that_takes_too_long_says_that_a_part_may_be_done(
    fake: FakeBroker, acting: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await look(acting, SEND)
    monkeypatch.setattr(action_pages, "ACTION_S", 0.2)
    fake.hold(RequestCode.SEND_MESSAGE_V2)
    answer = await asyncio.to_thread(acting.confirm, page)
    assert answer.status == 504
    assert "A part may have been done" in answer.words


# --- forms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ACTIONS)
def test_a_form_asks_nobody_and_reads_no_answer_by_itself(alone: Browser, name: str) -> None:
    page = alone.get(f"/act/{name}?topic={HOSTILE.replace('&', '%26')}&group=%22%3E%3Cb%3E")
    assert page.status == 200
    assert page.headers["referrer-policy"] == "same-origin"
    assert 'method="post"' not in page.text
    assert "alert(1)</script>" not in page.text
    assert "<b>" not in page.text
    assert page.text.count("<script") == 1
    assert "data-live" not in page.text


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("send?topic=", "Topic is needed"),
        ("send?topic=Orders&tag=a%7C%7Cb", "tag"),
        ("reset-group?group=g&topic=Orders&to=offset", "Go on at: one of latest, earliest, time"),
        ("reset-group?group=g&topic=Orders&to=time", "a time is needed"),
        ("reset-group?group=g&topic=Orders&to=latest&at=2026-11-01T08:00", "a time is needed"),
        ("reset-group?group=g&topic=Orders&to=time&at=soon", "is not a time"),
        ("redrive?group=g&limit=501", "between 1 and 500"),
        ("redrive?group=g&where=1+%3D%3D+2", "SQL92"),
        ("create-topic?topic=SELF_TEST_TOPIC", "the name is one of the brokers' own"),
        ("create-topic?topic=T&queues=many", "is not a whole number"),
        ("update-topic?topic=T&perm=x", "Permission: one of"),
        ("update-group?group=g&enabled=maybe", "Enabled: one of"),
    ],
)
def test_a_wrong_field_is_said_beside_the_form(alone: Browser, query: str, said: str) -> None:
    answer = alone.get(f"/act/{query}&preview=1")
    assert answer.status == 400, answer.words
    assert said in answer.words
    assert 'method="post"' not in answer.text


async def test_a_body_that_would_be_an_option_or_a_script_stays_a_body(
    fake: FakeBroker, acting: Browser
) -> None:
    page = await look(acting, "/act/send?preview=1&topic=Orders&tag=&keys=&body=-x%0D%0A%3Cb%3E")
    assert "ogive send Orders '--body=-x <b>'" in page.words
    assert "<b>" not in page.text
    await asyncio.to_thread(acting.confirm, page)
    assert [request.body for request in fake.of(RequestCode.SEND_MESSAGE_V2)] == [b"-x\n<b>"]


async def test_secrets_are_in_no_page_and_no_line(
    fake: FakeBroker, acting: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        page = await look(acting, SEND)
        done = await asyncio.to_thread(acting.confirm, page)
        await asyncio.to_thread(acting.confirm, page)
    texts = [page.text, done.text, *(row.getMessage() for row in caplog.records)]
    assert not any(USER.secret_key in text for text in texts)
    assert not any(token_of(page) in text for text in texts[1:])
