"""How a command reaches a cluster: name servers, credentials, TLS."""

import argparse
import os
from pathlib import Path
from typing import Final

from ogive.cli import contexts
from ogive.cli.logs import say_once
from ogive.client.config import ClientConfig
from ogive.client.credentials import read_credentials, trusting
from ogive.errors import InvalidOption

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


def place(options: argparse.Namespace) -> contexts.Context:
    """What the options of the command line say, else the environment, else the context in use.

    Raises InvalidOption.
    """
    if options.name_server is not None and not options.name_server.strip():
        raise InvalidOption(
            "-n is empty: HOST:PORT is expected; without it, the usual address is taken"
        )
    chosen = _chosen(options)
    context = chosen[1] if chosen else contexts.Context(_given(options) or DEFAULT_NAME_SERVER)
    return contexts.Context(
        context.name_server,
        options.credentials or os.environ.get("OGIVE_CREDENTIALS") or context.credentials,
        options.cafile or os.environ.get("OGIVE_CAFILE") or context.cafile,
        *_certificate(options, context),
    )


def _given(options: argparse.Namespace) -> str | None:
    return options.name_server or os.environ.get("NAMESRV_ADDR")


def _chosen(options: argparse.Namespace) -> tuple[str, contexts.Context] | None:
    """The context that counts.

    An address that is given is another cluster: neither the secrets nor the authorities of one are
    for it.
    """
    return None if _given(options) else contexts.chosen()


def source(options: argparse.Namespace) -> str:
    """Where the address is from if no option says it, in brackets: a forgotten one is the usual
    reason why a command goes elsewhere.
    """
    if _given(options):
        return "" if options.name_server else " (this address is from NAMESRV_ADDR)"
    chosen = _chosen(options)
    return f" (this address is from context {chosen[0]})" if chosen else ""


def _certificate(
    options: argparse.Namespace, context: contexts.Context
) -> tuple[str | None, str | None]:
    """The files of the certificate and of its key, both from one place: a key of another is of no
    use.
    """
    if options.certfile or options.keyfile:
        return options.certfile, options.keyfile
    if certfile := os.environ.get("OGIVE_CERTFILE"):
        return certfile, os.environ.get("OGIVE_KEYFILE")
    return context.certfile, context.keyfile


def spark_options(place: contexts.Context) -> dict[str, str]:
    """The same as options of format("rocketmq").

    Secrets stay in their file: Spark's processes get its name, and read it where they connect.
    """
    said = {"nameServer": place.name_server}
    if place.credentials is not None:
        said["credentials"] = str(Path(place.credentials).absolute())
    if place.tls:
        said["tls"] = "true"
    for name, file in (
        ("tls.ca", place.cafile),
        ("tls.certificate", place.certfile),
        ("tls.key", place.keyfile),
    ):
        if file is not None:
            said[name] = str(Path(file).absolute())
    return said


def client_config(options: argparse.Namespace) -> ClientConfig:
    """The same for a client, its files read.

    Raises InvalidOption, which names the context that a file is from.
    """
    say_once()
    found = place(options)
    try:
        return ClientConfig(
            name_server=found.name_server,
            credentials=read_credentials(found.credentials) if found.credentials else None,
            ssl=trusting(found.cafile, found.certfile, found.keyfile)
            if found.tls or found.keyfile
            else False,
        )
    except InvalidOption as exc:
        raise InvalidOption(f"{exc}{_of_context(options, str(exc))}") from None


def _of_context(options: argparse.Namespace, text: str) -> str:
    chosen = _chosen(options)
    if chosen is None:
        return ""
    name, context = chosen
    said = (
        context.name_server,
        context.credentials,
        context.cafile,
        context.certfile,
        context.keyfile,
    )
    return f" (of context {name})" if any(word and word in text for word in said) else ""
