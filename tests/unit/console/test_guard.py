"""What is refused before any page is made, and what every answer tells the browser."""

import pytest

from ogive.wire.signing import Credentials
from tests.browser import Browser, basic, console_of

USER = Credentials(access_key="ada", secret_key="lovelace:ü")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_but_looking_is_possible(alone: Browser, method: str) -> None:
    answer = alone.get("/topics", method=method)
    assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")


def test_head_is_get_without_the_page(alone: Browser) -> None:
    whole, head = alone.get("/messages"), alone.get("/messages", method="HEAD")
    assert (head.status, head.text) == (200, "")
    # the time on it
    assert abs(int(head.headers["content-length"]) - len(whole.text.encode())) < 10


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8090", "127.0.0.1:8090", "[::1]:8090", "192.0.2.7"]
)
def test_addresses_and_localhost_are_the_consoles_names(alone: Browser, host: str) -> None:
    assert alone.get("/messages", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example",
        "127.0.0.1.rebound.example:8090",
        "localhost.rebound.example",
        "",
        "[::1",
        "a@b:c",
    ],
)
def test_a_name_that_was_pointed_here_is_refused(alone: Browser, host: str) -> None:
    """DNS rebinding: a page of another site would read this one."""
    assert alone.get("/messages", headers={"Host": host}).status == 421


def test_one_more_name_can_be_given() -> None:
    with console_of("127.0.0.1:1", name="Console.example") as browser:
        assert browser.get("/messages", headers={"Host": "console.EXAMPLE:443"}).status == 200
        assert browser.get("/messages", headers={"Host": "other.example"}).status == 421


@pytest.mark.parametrize("path", ["/messages", "/nowhere", "/topics", "/static/console.css"])
def test_every_answer_forbids_what_no_page_needs(alone: Browser, path: str) -> None:
    headers = alone.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert (headers["x-content-type-options"], headers["referrer-policy"]) == (
        "nosniff",
        "no-referrer",
    )
    assert "server" not in headers
    assert headers["cache-control"] == (
        "max-age=86400" if path.startswith("/static") else "no-store"
    )


def test_pages_hold_neither_scripts_nor_styles_of_their_own(alone: Browser) -> None:
    text = alone.get("/messages").text
    assert "<style" not in text
    assert " style=" not in text
    assert text.count("<script") == 1
    assert '<script src="/static/console.js' in text


def test_credentials_are_asked_for() -> None:
    with console_of("127.0.0.1:1", credentials=USER) as browser:
        stranger = Browser(browser.address)
        for path in ("/messages", "/static/console.js"):
            refused = stranger.get(path)
            assert (refused.status, refused.headers["www-authenticate"].split()[0]) == (
                401,
                "Basic",
            )
        assert browser.get("/messages").status == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic",
        "Basic !",
        basic("ada", "lovelace"),
        basic("", ""),
        basic("eve", "lovelace:ü"),
        "Bearer " + basic("ada", "lovelace:ü")[6:],
    ],
)
def test_others_are_refused(header: str) -> None:
    with console_of("127.0.0.1:1", credentials=USER) as browser:
        assert browser.get("/messages", headers={"Authorization": header}).status == 401
