"""Settings: what cannot be one is refused where it is written, with what to write instead."""

import ssl
from contextlib import nullcontext
from typing import Any

import pytest

import ogive
from ogive.errors import InvalidOption


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (
            ogive.ClientConfig,
            {"name_server": ["a:1", "b:1"]},
            "name_server must be str, several joined by ;, not list",
        ),
        (
            ogive.ClientConfig,
            {"credentials": "b.yml"},
            r"credentials must be ogive.Credentials\(access_key=..., secret_key=...\), not str",
        ),
        (ogive.ClientConfig, {"credentials": ("a", "b")}, "credentials must be .*, not tuple"),
        (
            ogive.ClientConfig,
            {"ssl": "ca.pem"},
            r'True, False or an ssl.SSLContext \(ssl.create_default_context\(cafile="ca.pem"\)\), '
            r"not str",
        ),
        (ogive.ClientConfig, {"namespace": 3}, "namespace must be str or None, not int"),
        (ogive.ClientConfig, {"instance_name": 3}, "instance_name must be str or None, not int"),
        (
            ogive.ClientConfig,
            {"request_timeout_s": "3"},
            "request_timeout_s must be a number of seconds, not str",
        ),
        (
            ogive.ProducerConfig,
            {"hooks": [1]},
            "hooks must be a tuple of objects with before_send and after_send, and 1 is none",
        ),
        (
            ogive.ProducerConfig,
            {"hooks": print},
            "hooks must be a tuple of objects with before_send and after_send, not builtin",
        ),
        (ogive.ProducerConfig, {"trace": "yes"}, "trace must be True or False, not str"),
        (ogive.ProducerConfig, {"retries": "2"}, "retries must be int, not str"),
        (
            ogive.ProducerConfig,
            {"compress_over_bytes": "4k"},
            "compress_over_bytes must be int or None, not str",
        ),
        (
            ogive.ConsumerConfig,
            {"strategy": "avg"},
            "strategy must be a function of ogive.client.consumer.allocate, such as average, .* "
            "not 'avg'",
        ),
        (
            ogive.ConsumerConfig,
            {"interceptors": (1,)},
            "interceptors must be functions, .* and 1 is none",
        ),
        (
            ogive.ConsumerConfig,
            {"interceptors": print},
            "interceptors must be a tuple of functions, .* not builtin",
        ),
        (
            ogive.ConsumerConfig,
            {"persist_period_s": "1"},
            "persist_period_s must be a number of seconds, not str",
        ),
        (
            ogive.ConsumerConfig,
            {"offsets_dir": "offsets"},
            "offsets_dir must be a pathlib.Path or None, not str",
        ),
        (ogive.ConsumerConfig, {"pull_batch_size": 1.5}, "pull_batch_size must be int, not float"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_with_what_to_write(
    kind: Any, settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        kind(**settings)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("a", ("a:9876",)),
        ("a:1; my_host.example:65535 ", ("a:1", "my_host.example:65535")),
        ("127.0.0.1", ("127.0.0.1:9876",)),
        ("[::1]", ("[::1]:9876",)),
        ("[::1]:1;[2001:db8::2]:2", ("[::1]:1", "[2001:db8::2]:2")),
        ("[fe80::1%eth0]:1", ("[fe80::1%eth0]:1",)),
        ("[fe80::1%25eth0]:1", ("[fe80::1%eth0]:1",)),
        ("[::ffff:10.0.0.1]:1", ("[::ffff:10.0.0.1]:1",)),
        ("http://[::1]:1", ("[::1]:1",)),
    ],
)
def test_addresses_of_name_servers_are_written_as_in_urls(
    text: str, servers: tuple[str, ...]
) -> None:
    assert ogive.ClientConfig(name_server=text).name_servers == servers


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "::1",
            r"'::1' is not of the form host:port, .*; an IPv6 address needs brackets, as in "
            r"\[::1\]:9876",
        ),
        ("::1:9876", "an IPv6 address needs brackets"),
        ("2001:db8::1", "an IPv6 address needs brackets"),
        ("[1:2:3]:9876", "'1:2:3' is not an IPv6 address"),
        ("[]:9876", "'' is not an IPv6 address"),
        ("[127.0.0.1]:9876", "'127.0.0.1' is not an IPv6 address"),
        ("[localhost]:9876", "'localhost' is not an IPv6 address"),
        *[
            (text, "is not of the form host:port, with a port from 1 to 65535")
            for text in (
                "[::1",
                "::1]:9876",
                "[::1]9876",
                "[::1]:",
                "[::1]:0",
                "[::1]:65536",
                "[[::1]]:1",
                "a:",
                ":1",
                "a:-1",
                "a:+1",
                "a: 1",
                "a:\uff11",
                "a:1:2",
                "a b:1",
                "a/b:1",
                "me@a:1",
                "a:1,b:2",
            )
        ],
        ("http://[::1/list", "is not the URL of a list of name servers"),
        ("http://[1:2]/list", "is not the URL of a list of name servers"),
        ("http://a:99999/list", "is not the URL of a list of name servers"),
    ],
)
def test_what_is_not_an_address_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        ogive.ClientConfig(name_server=text)


def test_settings_of_the_right_types_are_taken() -> None:
    keys = ogive.Credentials(access_key="me", secret_key="secret")
    assert (
        ogive.ClientConfig(
            credentials=keys, ssl=ssl.create_default_context(), request_timeout_s=3
        ).credentials
        is keys
    )
    assert ogive.ClientConfig(ssl=True, namespace="shop", instance_name="a").ssl is True
    assert ogive.ProducerConfig(compress_over_bytes=None).hooks == ()
    assert ogive.ConsumerConfig(interceptors=(nullcontext,), max_topic_bytes=1).trace is False
