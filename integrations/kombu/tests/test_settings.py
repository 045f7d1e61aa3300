"""Settings from URLs and transport options, without a broker."""

from typing import Any

import pytest
from kombu import Connection

import ogive
import ogive_kombu  # noqa: F401
from ogive_kombu.settings import Settings


def settings(url: str, **options: Any) -> Settings:
    return Settings.from_connection(Connection(url, transport_options=options))


def test_a_url_has_address_user_and_namespace() -> None:
    client = settings("rocketmq://user:se%2Fcret@broker:1234/shop").client
    assert (client.name_server, client.namespace) == ("broker:1234", "shop")
    assert client.credentials == ogive.Credentials(access_key="user", secret_key="se/cret")
    assert client.ssl is False


def test_a_short_url_means_this_machine() -> None:
    client = settings("rocketmq://").client
    assert (client.name_server, client.namespace) == ("127.0.0.1:9876", None)
    assert client.credentials is None


def test_several_name_servers_are_an_option() -> None:
    assert settings("rocketmq://", name_server="a:1;b:2").client.name_server == "a:1;b:2"


def test_tls_is_asked_for_in_the_url_or_by_ssl() -> None:
    assert settings("rocketmq://broker?ssl=true").client.ssl is True
    given = Settings.from_connection(Connection("rocketmq://broker", ssl=True)).client
    assert given.ssl is True
    unverified = settings("rocketmq://broker?ssl_cert_reqs=none").client.ssl
    assert not isinstance(unverified, bool)
    assert not unverified.check_hostname


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("rocketmq://user@broker//", {}, "only one of user and password"),
        ("rocketmq://", {"visibilty_timeout": 60}, "visibilty_timeout; there are"),
        ("rocketmq://", {"visibility_timeout": "60"}, "must be a number"),
        ("rocketmq://", {"visibility_timeout": 0}, "between 1 and 43200"),
        ("rocketmq://", {"max_delay": -1}, "at least 0"),
        ("rocketmq://broker?ssl_version=3", {}, "unknown key of ssl: version"),
        ("rocketmq://broker?ssl=maybe", {}, "ssl is 'maybe'"),
    ],
)
def test_what_is_wrong_is_named(url: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ogive.InvalidOption, match=words):
        settings(url, **options)
