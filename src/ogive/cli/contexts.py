"""``ogive context ...``: named clusters, so that an address need not be typed each time.

They are kept in ``ogive/contexts.json`` in the user's configuration directory (XDG_CONFIG_HOME,
else ~/.config). Secrets are not: a context names the file that holds them.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ogive.cli.output import print_json, print_table
from ogive.cli.paths import is_there
from ogive.client.config import parse_name_servers
from ogive.errors import InvalidOption

MAX_FILE_BYTES: Final = 256 * 1024
MAX_NAME: Final = 64


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster: its name servers, and the files with credentials, authorities and a certificate
    of one's own, if it asks for them.
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
    """All of them, and the one in use."""

    contexts: dict[str, Context]
    current: str | None = None

    def get(self, name: str, source: str = "") -> Context:
        """*source*: where the name is from, if no argument of the command. Raises InvalidOption."""
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
    """The contexts in the file; none if there is no file.

    Raises InvalidOption for a file of another kind.
    """
    path = file()
    try:
        with path.open("rb") as opened:
            stored = json.loads(opened.read(MAX_FILE_BYTES))
        contexts = {str(name): Context(**value) for name, value in stored["contexts"].items()}
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
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".new", delete=False, encoding="utf-8"
        ) as new:
            json.dump(value, new, indent=2)
        Path(new.name).replace(path)
    except OSError as exc:
        raise InvalidOption(f"{path} cannot be written: {exc.strerror}") from None


def chosen() -> tuple[str, Context] | None:
    """The context that OGIVE_CONTEXT names, or the one in use, with its name; None where there is
    neither. Raises InvalidOption.
    """
    contexts = load()
    if named := os.environ.get("OGIVE_CONTEXT"):
        return named, contexts.get(named, " (from OGIVE_CONTEXT)")
    return (contexts.current, contexts.get(contexts.current)) if contexts.current else None


def add(options: argparse.Namespace) -> int:
    if not 1 <= len(options.context) <= MAX_NAME or any(c.isspace() for c in options.context):
        raise InvalidOption(
            f"context name {options.context[:80]!r}: 1 to {MAX_NAME} characters without spaces are "
            "needed"
        )
    if not options.name_server.startswith(("http://", "https://")):
        # raises InvalidOption now, and not at each command
        parse_name_servers(options.name_server)
    contexts = load()
    files = (options.credentials, options.cafile, options.certfile, options.keyfile)
    absolute = [None if path is None else str(Path(path).absolute()) for path in files]
    contexts.contexts[options.context] = Context(options.name_server, *absolute)
    if contexts.current is None or options.use:
        contexts.current = options.context
    _save(contexts)
    for path in absolute:
        # it may come later: contexts are made on new machines, too
        if path is not None and not is_there(Path(path)):
            print(
                f"ogive: there is no file {path} yet: commands that use this context will fail "
                "until there is",
                file=sys.stderr,
            )
    print(
        f"context {options.context} is "
        f"{options.name_server}{', in use now' if contexts.current == options.context else ''}"
    )
    return 0


def use(options: argparse.Namespace) -> int:
    contexts = load()
    found = contexts.get(options.context)
    contexts.current = options.context
    _save(contexts)
    print(f"context {options.context} is in use: {found.name_server}")
    return 0


def remove(options: argparse.Namespace) -> int:
    contexts = load()
    contexts.get(options.context)
    del contexts.contexts[options.context]
    if contexts.current == options.context:
        contexts.current = None
    _save(contexts)
    print(f"context {options.context} is removed")
    return 0


def list_contexts(options: argparse.Namespace) -> int:
    contexts = load()
    rows = [
        (name, name == contexts.current, one) for name, one in sorted(contexts.contexts.items())
    ]
    if options.json:
        for name, current, one in rows:
            print_json({"context": name, "current": current, **asdict(one)})
    elif rows:
        table = [
            (
                "*" if current else "",
                name,
                one.name_server,
                one.credentials,
                one.cafile,
                one.certfile,
            )
            for name, current, one in rows
        ]
        print_table(
            ("", "context", "name server", "credentials", "authorities", "certificate"), table
        )
    else:
        print("no contexts; `ogive context add NAME --name-server HOST:PORT` adds one")
    return 0
