"""Options of the gRPC port that exclude each other or are malformed."""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ogive.cli import up_checks, up_grpc
from ogive.cli.parser import build_parser
from ogive.errors import InvalidOption


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["--no-grpc", "--grpc-port", "1"], "--no-grpc and --grpc-port exclude each other"),
        (["--no-grpc", "--grpc-advertised", "a:1"], "--grpc-advertised does nothing"),
        (["--grpc-advertised", "a:b"], "--grpc-advertised: "),
        (["--grpc-port", "70000"], "--grpc-port 70000: must be between 0 and 65535"),
        (["--grpc-port", "10911"], "--broker-port and --grpc-port are both 10911"),
        (
            ["--grpc-port", "1", "--no-broker"],
            "--grpc-port is about a broker, and --no-broker runs none",
        ),
    ],
)
def test_options_that_are_refused(words: list[str], fault: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        up_checks.check(_options(words))
    assert fault in str(caught.value)


def test_the_advertised_address() -> None:
    assert up_grpc.advertised(_options([])) is None
    assert up_grpc.advertised(_options(["--grpc-advertised", "[::1]:80"])) == ("::1", 80)
    assert up_grpc.advertised(_options(["--grpc-advertised", "lb.example:443"])) == (
        "lb.example",
        443,
    )


def test_a_port_that_is_asked_for_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] = (),
        level: int = 0,
    ) -> Any:
        if name == "ogive.proxy.service":
            raise ModuleNotFoundError("No module named 'google'", name="google.protobuf")
        return real(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidOption, match=r"pip install 'ogive\[grpc\]'"):
        up_grpc.check(_options(["--grpc-port", "0"]))
    up_grpc.check(_options([]))


def _options(words: list[str]) -> Any:
    options = build_parser(["up"]).parse_args(["up", *words])
    options.broker_settings = {}
    return options
