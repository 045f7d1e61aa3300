"""Connection of a command to a cluster: contexts, name servers, credentials, TLS, files.

``ogive context ...``: clusters with names, so that users need not type an address each time.

Contexts are stored in ``ogive/contexts.json`` in the user's configuration directory
(XDG_CONFIG_HOME, else ~/.config). Secrets are not: a context has the name of the file with them.
"""

import argparse
import json
import os
import ssl
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, Final

from ogive.access.guard import NO_CREDENTIALS, NOBODY_KNOWN
from ogive.cli.config_file import place_in_file
from ogive.cli.logs import filter_repeated_warnings
from ogive.cli.output import print_done, print_rows, say
from ogive.client.config import ClientConfig, parse_name_servers, read_credentials, trusting
from ogive.errors import InvalidOption, NoNameServer, NoPermission, NotANameServer, OgiveError
from ogive.files import replace_file
from ogive.transport.connection import NO_CERTIFICATE


def is_there(path: Path) -> bool:
    """Return Path.exists(), or False if it raises because this user may not read the folder.

    The code that needs the file says why it cannot be read.
    """
    try:
        return path.exists()
    except OSError:
        return False


def advice_for(error: OgiveError, options: argparse.Namespace) -> str:
    """Return the options or settings to check, as a sentence; empty if the error already says
    everything.
    """
    if isinstance(error, InvalidOption) and getattr(options, "in_file", None):
        return place_in_file(str(error), options)
    if not hasattr(options, "name_server"):
        # the command does not connect to a cluster
        return ""
    if isinstance(error, NotANameServer):
        return "Name it with -n HOST:PORT."
    if isinstance(error, NoNameServer):
        found = place(options)
        if NO_CERTIFICATE in str(error):
            return (
                f"Check {found.certfile}." if found.certfile else "Show one with --certfile FILE."
            )
        if found.tls:
            authorities = f"the authorities{f' in {found.cafile}' if found.cafile else ''}"
            return f"Check the address (-n HOST:PORT){source(options)} and {authorities}."
        return (
            f"Start one with `ogive up`, or name another with -n HOST:PORT{source(options)}; "
            "one with TLS needs --cafile FILE."
        )
    if isinstance(error, NoPermission) and NO_CREDENTIALS in str(error):
        return "Give them with --credentials FILE."
    if isinstance(error, NoPermission) and NOBODY_KNOWN in str(error):
        return f"Check both keys in {place(options).credentials}."
    return ""


MAX_FILE_BYTES: Final = 256 * 1024
MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """A cluster: its name servers, and the files with credentials, authorities and the client's own
    certificate.
    """

    name_server: str
    credentials: str | None = None
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None

    @property
    def tls(self) -> bool:
        return self.cafile is not None or self.certfile is not None


@dataclass(slots=True)
class Contexts:
    """All contexts, and the name of the one in use."""

    contexts: dict[str, ClusterContext]
    current: str | None = None

    def get(self, name: str, source: str = "") -> ClusterContext:
        """Return a context. *source* says where the name is from, if not from an argument. Raises
        InvalidOption.
        """
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none"
            raise InvalidOption(
                f"there is no context {name!r}{source}; known: {known}. `ogive context add {name} "
                "--name-server HOST:PORT` makes it"
            )
        return self.contexts[name]


def file() -> Path:
    return (
        Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        / "ogive"
        / "contexts.json"
    )


def load() -> Contexts:
    """Return the contexts in the file; none if there is no file.

    Raises InvalidOption for a file of another kind.
    """
    path = file()
    try:
        with path.open("rb") as opened:
            stored = json.loads(opened.read(MAX_FILE_BYTES))
        contexts = {
            str(name): ClusterContext(**value) for name, value in stored["contexts"].items()
        }
        return Contexts(contexts, stored.get("current"))
    except FileNotFoundError:
        return Contexts({})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
        raise InvalidOption(f"{path} cannot be used: {exc}. Fix or remove it") from None


def _save(contexts: Contexts) -> None:
    path = file()
    value: dict[str, Any] = {
        "contexts": {name: asdict(one) for name, one in contexts.contexts.items()},
        "current": contexts.current,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(value, indent=2).encode(), mode=0o600)
    except OSError as exc:
        raise InvalidOption(f"{path} cannot be written: {exc.strerror}") from None


def chosen() -> tuple[str, ClusterContext] | None:
    """Return the context that OGIVE_CONTEXT names, or the one in use, with its name; None if there
    is neither. Raises InvalidOption.
    """
    contexts = load()
    if named := os.environ.get("OGIVE_CONTEXT"):
        return named, contexts.get(named, " (from OGIVE_CONTEXT)")
    return (contexts.current, contexts.get(contexts.current)) if contexts.current else None


def add_context(options: argparse.Namespace) -> int:
    if not 1 <= len(options.context) <= MAX_NAME or any(c.isspace() for c in options.context):
        raise InvalidOption(
            f"context name {options.context[:80]!r}: 1 to {MAX_NAME} characters without spaces are "
            "needed"
        )
    if not options.name_server.startswith(("http://", "https://")):
        # report a bad address now, not at each command
        parse_name_servers(options.name_server)
    contexts = load()
    files = (options.credentials, options.cafile, options.certfile, options.keyfile)
    absolute = [None if path is None else str(Path(path).absolute()) for path in files]
    contexts.contexts[options.context] = ClusterContext(options.name_server, *absolute)
    if contexts.current is None or options.use:
        contexts.current = options.context
    _save(contexts)
    for path in absolute:
        # the file may come later: contexts are also added on new machines
        if path is not None and not is_there(Path(path)):
            say(
                f"there is no file {path} yet: commands that use this context will fail until "
                "there is"
            )
    current = contexts.current == options.context
    print_done(
        options,
        f"context {options.context} is {options.name_server}{', in use now' if current else ''}",
        context=options.context,
        name_server=options.name_server,
        current=current,
    )
    return 0


def use_context(options: argparse.Namespace) -> int:
    contexts = load()
    found = contexts.get(options.context)
    contexts.current = options.context
    _save(contexts)
    print_done(
        options,
        f"context {options.context} is in use: {found.name_server}",
        context=options.context,
        name_server=found.name_server,
        current=True,
    )
    return 0


def remove_context(options: argparse.Namespace) -> int:
    contexts = load()
    contexts.get(options.context)
    del contexts.contexts[options.context]
    if contexts.current == options.context:
        contexts.current = None
    _save(contexts)
    print_done(
        options, f"context {options.context} is removed", context=options.context, deleted=True
    )
    return 0


def list_contexts(options: argparse.Namespace) -> int:
    contexts = load()
    if not contexts.contexts and not options.json:
        print("no contexts; `ogive context add NAME --name-server HOST:PORT` adds one")
        return 0
    rows = [
        (
            {"context": name, "current": name == contexts.current, **asdict(one)},
            (
                "*" if name == contexts.current else "",
                name,
                one.name_server,
                one.credentials,
                one.cafile,
                one.certfile,
            ),
        )
        for name, one in sorted(contexts.contexts.items())
    ]
    heads = ("", "context", "name server", "credentials", "authorities", "certificate")
    print_rows(options, heads, rows)
    return 0


DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"


def place(options: argparse.Namespace) -> ClusterContext:
    """Return the cluster of the command line, else of the environment, else of the context in use.

    Raises InvalidOption.
    """
    if options.name_server is not None and not options.name_server.strip():
        raise InvalidOption(
            "-n is empty: HOST:PORT is expected; without it, the usual address is taken"
        )
    _, context = _applying(options)
    return ClusterContext(
        context.name_server,
        options.credentials or os.environ.get("OGIVE_CREDENTIALS") or context.credentials,
        options.cafile or os.environ.get("OGIVE_CAFILE") or context.cafile,
        *_certificate(options, context),
    )


def _applying(options: argparse.Namespace) -> tuple[str, ClusterContext]:
    """Return the context that applies, with its name; "" and only an address if none does.

    An address on the command line is another cluster: the secrets and authorities of a context are
    not used for it.
    """
    given = options.name_server or os.environ.get("NAMESRV_ADDR")
    if given:
        return "", ClusterContext(given)
    return chosen() or ("", ClusterContext(DEFAULT_NAME_SERVER))


def source(options: argparse.Namespace) -> str:
    """Return, in brackets, where the address is from if no option gives it: a forgotten setting is
    the usual reason why a command uses another cluster.
    """
    if options.name_server:
        return ""
    if os.environ.get("NAMESRV_ADDR"):
        return " (this address is from NAMESRV_ADDR)"
    name, _ = _applying(options)
    return f" (this address is from context {name})" if name else ""


def _certificate(
    options: argparse.Namespace, context: ClusterContext
) -> tuple[str | None, str | None]:
    """Return the files of the certificate and of its key, both from one source, because the key of
    another certificate is useless.
    """
    if options.certfile or options.keyfile:
        return options.certfile, options.keyfile
    if certfile := os.environ.get("OGIVE_CERTFILE"):
        return certfile, os.environ.get("OGIVE_KEYFILE")
    return context.certfile, context.keyfile


def spark_options(place: ClusterContext) -> dict[str, str]:
    """Return the options of format("rocketmq") to connect to *place*.

    Secrets stay in their file: Spark's processes get its name, and read it when they connect.
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
    """Return the client's settings for the same cluster, with its files read.

    Raises InvalidOption, which names the context that has the name of a file.
    """
    filter_repeated_warnings()
    found = place(options)
    try:
        return _config_of(found)
    except InvalidOption as exc:
        raise InvalidOption(f"{exc}{_of_context(options, str(exc))}") from None


def read_certificates_again(found: ClusterContext, context: ssl.SSLContext) -> None:
    """Use the current files for new connections: the client's own certificate, and more
    authorities. Raises InvalidOption, and then the old ones stay.
    """
    # reports what is wrong with the files
    trusting(found.cafile, found.certfile, found.keyfile)
    if found.cafile is not None:
        context.load_verify_locations(found.cafile)
    if found.certfile is not None:
        context.load_cert_chain(found.certfile, found.keyfile)


def context_config(name: str) -> tuple[ClientConfig, str | None]:
    """Return the client's settings for the cluster of a context, with its files read, and the name
    of the file with its credentials.

    Raises InvalidOption.
    """
    found = load().get(name)
    try:
        return _config_of(found), found.credentials
    except InvalidOption as exc:
        raise InvalidOption(f"{exc} (of context {name})") from None


def _config_of(found: ClusterContext) -> ClientConfig:
    return ClientConfig(
        name_server=found.name_server,
        credentials=read_credentials(found.credentials) if found.credentials else None,
        ssl=trusting(found.cafile, found.certfile, found.keyfile)
        if found.tls or found.keyfile
        else False,
    )


def _of_context(options: argparse.Namespace, text: str) -> str:
    """Return, in brackets, the name of the context that has a word of *text*."""
    name, context = _applying(options)
    holds = any(word and word in text for word in astuple(context))
    return f" (of context {name})" if name and holds else ""
