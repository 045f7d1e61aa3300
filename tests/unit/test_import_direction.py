"""Which part of ogive may import which, and what each part must stay free of."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# A module may import its own part and parts with a smaller number; neighbours with the same number
# may not import each other.
STEP = {
    "errors": 0,
    "files": 0,
    "keywords": 0,
    "native": 0,
    "version": 0,
    "model": 1,
    "text": 1,
    "http2": 2,
    "sql92": 2,
    "wire": 2,
    "store": 3,
    "transport": 3,
    "access": 4,
    "client": 5,
    "broker": 5,
    "namesrv": 5,
    "console": 6,
    "spark": 6,
    "testing": 6,
    "proxy": 6,
    "pipelines": 7,
    "cli": 8,
}
# Modules that stand beside the folders: the public face re-exports the client.
FACE = {
    "ogive": "client",
    "ogive.aio": "client",
    "ogive.otel": "client",
    "ogive.__main__": "cli",
    "pyspark_rocketmq": "spark",
}

FORBIDDEN_IMPORTS = {
    "errors": {"asyncio", "logging", "socket"},
    "model": {"asyncio", "logging", "socket"},
    "http2": {"asyncio", "logging", "socket", "time"},
    "sql92": {"asyncio", "logging", "socket", "time"},
    "wire": {"asyncio", "logging", "socket"},
    "store": {"asyncio", "socket"},
}
# Parsing and printing an address is pure, so a part that may not use sockets may use these of the
# module.
PURE_SOCKET_NAMES = {"socket.inet_ntop", "socket.inet_pton", "socket.AF_INET", "socket.AF_INET6"}
# packages outside the standard library, and the parts that may import them
EXTRAS = {
    # protobuf
    "google": {"proxy"},
    # a certificate for the gRPC port
    "cryptography": {"cli"},
    "isal": {"wire"},
    "orjson": {"wire"},
    "jinja2": {"console"},
    "lz4": {"wire"},
    # where a user's own class is one of its structs
    "msgspec": {"client"},
    # comes with jinja2
    "markupsafe": {"console"},
    "numpy": {"spark"},
    # the extra otel
    "opentelemetry": {"client"},
    "py4j": {"spark"},
    "pyarrow": {"spark"},
    "pyspark": {"spark", "pipelines"},
    "pytest": {"testing"},
    "starlette": {"console"},
    # for type checkers only
    "typing_extensions": {"client"},
    "uvicorn": {"console"},
    "uvloop": {"transport"},
    "zstandard": {"wire"},
}
FACING_THE_NETWORK = {
    "access",
    "broker",
    "console",
    "http2",
    "namesrv",
    "proxy",
    "sql92",
    "store",
    "transport",
    "wire",
}
DANGEROUS_IMPORTS = {"subprocess", "pickle", "marshal", "shelve"}
DANGEROUS_CALLS = {"eval", "exec", "__import__", "os.system", "os.popen"}
NEVER_CALLED = {
    # somebody else may take the name in between
    "tempfile.mktemp",
    # make objects of any class
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    # have no limit: a decompressor's own method has one
    "zlib.decompress",
    "gzip.decompress",
    "bz2.decompress",
    "lzma.decompress",
}
SECRET = re.compile(r"(digest|signature|password|secret|secret_key|token)$")
"""The end of a name whose value is compared by hmac.compare_digest, which takes as long whatever
the other one is.
"""
MAY_PRINT = {"cli"}


def part_of(module: str) -> str:
    """ "wire" for "ogive.wire.command".

    Raises KeyError for a part that STEP does not know: give it a place there.
    """
    if module in FACE:
        return FACE[module]
    top, _, rest = module.partition(".")
    part = "spark" if top == "pyspark_rocketmq" else rest.split(".")[0]
    if part not in STEP:
        raise KeyError(f"{module}: part {part!r} has no place in the order")
    return part


def imported_modules(tree: ast.AST, modules: frozenset[str]) -> Iterator[str]:
    """Every absolute module name that *tree* imports, also inside functions; "from ogive import
    model" names ogive.model.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in modules else base


def dotted(node: ast.expr) -> str:
    return (
        f"{dotted(node.value)}.{node.attr}"
        if isinstance(node, ast.Attribute)
        else node.id
        if isinstance(node, ast.Name)
        else ""
    )


def only_pure_socket_names(tree: ast.AST) -> bool:
    used = {dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    renamed = any(
        isinstance(node, ast.ImportFrom) and node.module == "socket" for node in ast.walk(tree)
    )
    return (
        not renamed and {name for name in used if name.startswith("socket.")} <= PURE_SOCKET_NAMES
    )


def imported_names(tree: ast.AST) -> Iterator[str]:
    """ "zlib.decompress" for "from zlib import decompress"."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def compared_secrets(tree: ast.AST) -> Iterator[str]:
    """Names and calls that are compared by == or != with something that is no constant."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
            sides = [
                side.func if isinstance(side, ast.Call) else side
                for side in (node.left, node.comparators[0])
            ]
            if not any(isinstance(side, ast.Constant) for side in sides):
                yield from (name for name in map(dotted, sides) if SECRET.search(name))


def is_forbidden(part: str, package: str) -> bool:
    if package not in sys.stdlib_module_names:
        return part not in EXTRAS.get(package, ())
    return package in FORBIDDEN_IMPORTS.get(part, ()) or (
        part in FACING_THE_NETWORK and package in DANGEROUS_IMPORTS
    )


def violations(module: str, source: str, modules: frozenset[str]) -> list[str]:
    """What *source*, as module *module*, imports or calls against the rules; *modules* are all
    modules that exist.
    """
    part, tree = part_of(module), ast.parse(source)
    found = []
    for name in imported_modules(tree, modules):
        top = name.split(".")[0]
        if top in ("ogive", "pyspark_rocketmq"):
            other = part_of(name)
            if other != part and STEP[other] >= STEP[part]:
                found.append(f"{module} ({part}) imports {name} ({other})")
        elif name == "socket" and only_pure_socket_names(tree):
            continue
        elif is_forbidden(part, top):
            found.append(f"{module} ({part}) imports {name}")
    calls = {dotted(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    forbidden = NEVER_CALLED | DANGEROUS_CALLS if part in FACING_THE_NETWORK else NEVER_CALLED
    found += [
        f"{module} ({part}) calls {name}"
        for name in sorted((calls | set(imported_names(tree))) & forbidden)
    ]
    if any(
        keyword.arg == "shell"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    ):
        found.append(f"{module} ({part}) gives a command to a shell")
    if part in FACING_THE_NETWORK:
        found += [
            f"{module} ({part}) compares {name} by ==, not by hmac.compare_digest"
            for name in compared_secrets(tree)
        ]
    if "print" in calls and part not in MAY_PRINT:
        found.append(f"{module} ({part}) calls print")
    return found


def module_name(path: Path) -> str:
    name = ".".join(path.relative_to(SRC).with_suffix("").parts)
    return name.removesuffix(".__init__")


SOURCES = {module_name(path): path for path in SRC.rglob("*.py")}


@pytest.mark.feature(177)
def test_every_module_keeps_the_order() -> None:
    """Lower parts never import higher ones, neighbours not each other, and each part stays free of
    what is not its business.
    """
    modules = frozenset(SOURCES)
    found = [
        line
        for name, path in SOURCES.items()
        for line in violations(name, path.read_text("utf-8"), modules)
    ]
    assert SOURCES
    assert found == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("wire", "from ogive.client.sample import Producer"),
        ("wire", "import asyncio"),
        ("wire", "from socket import socket"),
        ("wire", "import socket\nsocket.create_connection(('127.0.0.1', 1))"),
        ("store", "def late():\n    import asyncio.events"),
        ("store", "from ogive.transport import sample"),
        ("broker", "from ogive.namesrv.sample import NameServer"),
        ("broker", "from ogive import Producer"),
        ("broker", "import subprocess"),
        ("broker", "import os\nos.system('true')"),
        ("transport", "eval('1')"),
        ("transport", "__import__('pickle')"),
        ("client", "import zlib\nzlib.decompress(body)"),
        ("client", "from zlib import decompress\ndecompress(body)"),
        ("cli", "import tempfile\ntempfile.mktemp()"),
        ("cli", "yaml.load(text)"),
        ("cli", "run('ls', shell=True)"),
        ("access", "if user.password == given: pass"),
        ("access", "if given != sum.hexdigest(): pass"),
        ("client", "from ogive import cli"),
        ("client", "import pyarrow as pa"),
        ("client", "print('sent')"),
        ("client", "import requests"),
        ("model", "from ogive.wire import sample"),
        ("client", "from ogive.spark import sample"),
    ],
)
def test_a_planted_fault_is_found(part: str, source: str) -> None:
    modules = frozenset({"ogive", "ogive.cli", "ogive.transport.sample", "ogive.wire.sample"})
    assert len(violations(f"ogive.{part}.planted", source, modules)) == 1


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("client", "from ogive import errors\nfrom ogive.wire.sample import Code\nimport asyncio"),
        ("spark", "import pyarrow\nfrom ogive.client import sample"),
        ("wire", "import socket\nsocket.inet_ntop(socket.AF_INET, bytes(4))"),
        ("cli", "print('ready')"),
        ("access", "import hmac\nif not token == '' and hmac.compare_digest(token, given): pass"),
        ("wire", "import zlib\nzlib.decompressobj().decompress(body, limit)"),
    ],
)
def test_what_is_allowed_is_not_reported(part: str, source: str) -> None:
    assert violations(f"ogive.{part}.sample", source, frozenset({"ogive", "ogive.errors"})) == []


def test_modules_beside_the_folders_belong_to_a_part() -> None:
    modules = frozenset(SOURCES)
    source = "from ogive.spark import anything"
    assert violations("pyspark_rocketmq", source, modules) == []
    assert len(violations("ogive.aio", source, modules)) == 1


def test_a_new_part_must_be_given_a_place() -> None:
    with pytest.raises(KeyError, match="no place"):
        violations("ogive.helpers.sample", "", frozenset())


def test_the_rules_name_only_parts_and_modules_that_there_are() -> None:
    parts = {part_of(module) for module in SOURCES}
    named = {*STEP, *FORBIDDEN_IMPORTS, *FACING_THE_NETWORK, *MAY_PRINT}
    named = named.union(FACE.values(), *EXTRAS.values())
    gone = sorted(named - parts) + sorted(FACE.keys() - SOURCES.keys())
    assert gone == [], f"the rules name {gone}, which src does not have"
