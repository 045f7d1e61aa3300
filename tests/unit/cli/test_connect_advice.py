"""The way out that the command line adds to an error."""

import argparse

import pytest

from ogive.access.guard import NO_CREDENTIALS, NOBODY_KNOWN
from ogive.cli.connect import advice_for
from ogive.errors import (
    BrokerError,
    NoNameServer,
    NoPermission,
    NotANameServer,
    OgiveError,
    ResponseCode,
)
from ogive.transport.connection import NO_CERTIFICATE


def refused(remark: str) -> BrokerError:
    return NoPermission(ResponseCode.NO_PERMISSION, remark, "h:1")


@pytest.mark.parametrize(
    ("error", "files", "advice"),
    [
        (
            NoNameServer("none"),
            {},
            "Start one with `ogive up`, or name another with -n HOST:PORT; one with TLS needs "
            "--cafile FILE.",
        ),
        (
            NoNameServer("none"),
            {"cafile": "ca.pem"},
            "Check the address (-n HOST:PORT) and the authorities in ca.pem.",
        ),
        (
            NoNameServer("none"),
            {"certfile": "me.pem"},
            "Check the address (-n HOST:PORT) and the authorities.",
        ),
        (
            NoNameServer(f"perhaps it {NO_CERTIFICATE}"),
            {"cafile": "ca.pem"},
            "Show one with --certfile FILE.",
        ),
        (NoNameServer(f"perhaps it {NO_CERTIFICATE}"), {"certfile": "me.pem"}, "Check me.pem."),
        (NotANameServer("a broker"), {}, "Name it with -n HOST:PORT."),
        (refused(NO_CREDENTIALS), {}, "Give them with --credentials FILE."),
        (refused(NOBODY_KNOWN), {"credentials": "me.yml"}, "Check both keys in me.yml."),
        (refused("the topic[Orders] sending message is forbidden"), {}, ""),
        (OgiveError("else"), {}, ""),
    ],
)
def test_an_error_comes_with_the_options_that_can_mend_it(
    error: OgiveError, files: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OGIVE_CREDENTIALS", "OGIVE_CAFILE", "OGIVE_CERTFILE"):
        monkeypatch.delenv(name, raising=False)
    options = argparse.Namespace(
        name_server="h:1", credentials=None, cafile=None, certfile=None, keyfile=None
    )
    vars(options).update(files)
    assert advice_for(error, options) == advice


def test_a_command_that_goes_to_no_cluster_has_no_such_options() -> None:
    assert advice_for(NoNameServer("none"), argparse.Namespace()) == ""


def test_an_address_of_the_environment_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forgotten variable is the usual reason why a command goes elsewhere."""
    monkeypatch.setenv("NAMESRV_ADDR", "foo:1")
    options = argparse.Namespace(
        name_server=None, credentials=None, cafile=None, certfile=None, keyfile=None
    )
    assert "-n HOST:PORT (this address is from NAMESRV_ADDR)" in advice_for(
        NoNameServer("none"), options
    )
    options.name_server = "h:1"
    assert "NAMESRV_ADDR" not in advice_for(NoNameServer("none"), options)
