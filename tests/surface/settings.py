"""Files that users write, environment variables, and what the package announces to other tools.

up.toml broker-port                     a key of `ogive up --config FILE.toml`
broker.conf listenPort                  a key of `ogive up --config FILE.conf`
updateBrokerConfig maxMessageSize       a setting that mqadmin may change
contexts.json contexts.*.name_server    a key of the file of `ogive context`
credentials accessKey:                  a line of a file of --credentials
environment OGIVE_CAFILE                a variable that is read
command ogive                           an entry point, as are pytest plugins and extras
"""

import importlib
import json
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import ogive
from tests.surface import command, inside
from tests.surface.json_output import keys
from tests.surface.lines import plain_environment

SOURCE: Final = Path(ogive.__file__).parent
VARIABLE: Final = re.compile(r'environ\b[^\n]*?"(OGIVE_[A-Z_]+|NAMESRV_ADDR|XDG_CONFIG_HOME)"')
"""Variables of our own, and those of RocketMQ and of the desktop that we read."""


def lines() -> set[str]:
    """Return the lines of settings."""
    with tempfile.TemporaryDirectory() as name, plain_environment(XDG_CONFIG_HOME=name):
        folder = Path(name)
        return {
            *(f"up.toml {key}" for key in _toml_keys(folder)),
            *(f"broker.conf {key}" for key in inside.broker_conf_keys()),
            *(f"updateBrokerConfig {name}" for name in inside.changeable_settings()),
            *(f"contexts.json {key}" for key in _context_keys(folder)),
            *(f"credentials {line}" for line in _credential_lines(folder)),
            *(f"environment {name}" for name in _variables()),
            *_announced(),
        }


def _toml_keys(folder: Path) -> list[str]:
    """Return the keys that the refusal of an unknown one lists."""
    file = folder / "up.toml"
    file.write_text("zzzzzz = 1\n")
    said = command.run("up", "--config", str(file)).err
    return said.strip().partition("there are ")[2].split(", ")


def _context_keys(folder: Path) -> set[str]:
    """Return the keys of the file that ``ogive context`` keeps."""
    add = ["context", "add", "shop", "-n", "127.0.0.1:9876"]
    for option in ("--credentials", "--cafile", "--certfile", "--keyfile"):
        add += [option, str(folder / option)]
    command.run(*add)
    stored = json.loads((folder / "ogive" / "contexts.json").read_text("utf-8"))
    return keys(stored, maps=frozenset({"contexts"}))


def _credential_lines(folder: Path) -> Iterator[str]:
    """Yield the lines that are read, with each sign that may follow the name."""
    file = folder / "credentials"
    for sign in (":", "="):
        values = {"accessKey": "A", "secretKey": "S", "securityToken": "T"}
        file.write_text("".join(f"{name}{sign} {value}\n" for name, value in values.items()))
        file.chmod(0o600)
        found = inside.credentials_in(file)
        yield from (f"{name}{sign}" for name, value in values.items() if value in found)


def _variables() -> set[str]:
    """Return the variables that the source reads."""
    texts = (path.read_text("utf-8") for path in SOURCE.rglob("*.py"))
    return {name for text in texts for name in VARIABLE.findall(text)}


def _announced() -> Iterator[str]:
    """Yield what pyproject.toml announces: commands, plugins, extras."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    yield from (f"command {name}" for name in project["scripts"])
    for name, module in project["entry-points"]["pytest11"].items():
        yield f"pytest plugin {name}"
        for fixture, value in vars(importlib.import_module(module)).items():
            if type(value).__name__ == "FixtureFunctionDefinition":
                yield f"fixture {fixture}"
    yield from (f"extra {name}" for name in project["optional-dependencies"])
