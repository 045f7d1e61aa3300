"""Signatures are those that Apache's brokers compute."""

import base64
import hmac

import pytest

from ogive.errors import InvalidOption
from ogive.wire.signing import Credentials

USER = Credentials(access_key="rocketmq2", secret_key="12345678")


@pytest.mark.feature(4)
def test_a_signature_covers_values_in_the_order_of_their_names_and_the_body() -> None:
    """Computed by AclUtils.calSignature of 5.3 for the same fields."""
    signed = USER.sign({"i": "TAGS\x01TagA\x02", "b": "TopicTest", "a": "PG"}, b"hello")
    assert signed["Signature"] == "5v+wPKzdEzNO0iowIJ7fRlYrnak="
    assert signed["AccessKey"] == "rocketmq2"


def test_a_token_is_signed_too() -> None:
    user = Credentials(access_key="rocketmq2", secret_key="12345678", security_token="tok")
    signed = user.sign({"topic": "TopicTest"}, b"")
    assert (signed["SecurityToken"], signed["Signature"]) == ("tok", "srLC0a0pn58kwQ14kgLHSOPpVSo=")


def test_names_are_ordered_as_java_orders_them() -> None:
    """By UTF-16 units: an emoji (two surrogates) comes before U+FFFD."""
    assert USER.sign({"\ufffd": "2", "\U0001f680": "1"}, b"") == USER.sign(
        {"\U0001f680": "1", "\ufffd": "2"}, b""
    )
    joined = USER.signature(b"rocketmq212", b"")
    assert USER.sign({"\ufffd": "2", "\U0001f680": "1"}, b"")["Signature"] == joined


def test_signing_again_replaces_the_signature_and_leaves_out_what_would_be_lost() -> None:
    once = USER.sign({"a": "1", "empty": ""}, b"x")
    assert USER.sign(once, b"x") == once
    assert "empty" not in once


def test_the_secret_is_in_no_text() -> None:
    user = Credentials(
        access_key="rocketmq2", secret_key="hidden-secret", security_token="hidden-token"
    )
    assert "hidden" not in f"{user!r} {user}"


@pytest.mark.parametrize("wrong", [{"access_key": ""}, {"secret_key": ""}, {"security_token": ""}])
def test_empty_credentials_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        Credentials(**{"access_key": "a", "secret_key": "b", **wrong})


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_a_signature_is_an_hmac_of_sha1_whatever_the_length_of_the_key(size: int) -> None:
    user = Credentials(access_key="a", secret_key="k" * size)
    digest = hmac.digest(b"k" * size, b"valuesbody", "sha1")
    assert user.signature(b"values", b"body") == base64.b64encode(digest).decode()
    assert user.has_made(base64.b64encode(digest).decode(), b"values", memoryview(b"body"))
    assert not user.has_made("\xfc", b"values", b"body")
