"""Settings: what cannot be one is refused where it is written, with what to write instead."""

import ssl
from contextlib import nullcontext
from typing import Any

import pytest

import ogive


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (ogive.ClientConfig, {"name_server": ["a:1", "b:1"]}, "name_server must be str, several joined by ;, not list"),
        (ogive.ClientConfig, {"credentials": "b.yml"}, r"credentials must be ogive.Credentials\(access_key=..., secret_key=...\), not str"),
        (ogive.ClientConfig, {"credentials": ("a", "b")}, "credentials must be .*, not tuple"),
        (
            ogive.ClientConfig,
            {"ssl": "ca.pem"},
            r'True, False or an ssl.SSLContext \(ssl.create_default_context\(cafile="ca.pem"\)\), not str',
        ),
        (ogive.ClientConfig, {"namespace": 3}, "namespace must be str or None, not int"),
        (ogive.ClientConfig, {"instance_name": 3}, "instance_name must be str or None, not int"),
        (ogive.ClientConfig, {"request_timeout_s": "3"}, "request_timeout_s must be a number of seconds, not str"),
        (ogive.ProducerConfig, {"hooks": [1]}, "hooks must be a tuple of objects with before_send and after_send, and 1 is none"),
        (ogive.ProducerConfig, {"hooks": print}, "hooks must be a tuple of objects with before_send and after_send, not builtin"),
        (ogive.ProducerConfig, {"trace": "yes"}, "trace must be True or False, not str"),
        (ogive.ProducerConfig, {"retries": "2"}, "retries must be int, not str"),
        (ogive.ProducerConfig, {"compress_over_bytes": "4k"}, "compress_over_bytes must be int or None, not str"),
        (
            ogive.ConsumerConfig,
            {"strategy": "avg"},
            "strategy must be a function of ogive.client.consumer.allocate, such as average, .* not 'avg'",
        ),
        (ogive.ConsumerConfig, {"interceptors": (1,)}, "interceptors must be functions, .* and 1 is none"),
        (ogive.ConsumerConfig, {"interceptors": print}, "interceptors must be a tuple of functions, .* not builtin"),
        (ogive.ConsumerConfig, {"persist_period_s": "1"}, "persist_period_s must be a number of seconds, not str"),
        (ogive.ConsumerConfig, {"offsets_dir": "offsets"}, "offsets_dir must be a pathlib.Path or None, not str"),
        (ogive.ConsumerConfig, {"pull_batch_size": 1.5}, "pull_batch_size must be int, not float"),
    ],
)
def test_a_setting_of_a_wrong_type_is_refused_with_what_to_write(kind: Any, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        kind(**settings)


def test_settings_of_the_right_types_are_taken() -> None:
    keys = ogive.Credentials(access_key="me", secret_key="secret")
    assert ogive.ClientConfig(credentials=keys, ssl=ssl.create_default_context(), request_timeout_s=3).credentials is keys
    assert ogive.ClientConfig(ssl=True, namespace="shop", instance_name="a").ssl is True
    assert ogive.ProducerConfig(compress_over_bytes=None).hooks == ()
    assert ogive.ConsumerConfig(interceptors=(nullcontext,), max_topic_bytes=1).trace is False
