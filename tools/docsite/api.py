"""The API reference: which names are public, what each says of itself, and where it stands.

A name is public if a list of tests/surface holds it. Sphinx's autodoc reads the docstrings.
"""

import ast
import enum
import functools
import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tests.surface.python import NO_PROMISE, public_values

PAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "ogive": ("ogive",),
    "ogive.aio": ("ogive.aio",),
    "ogive.errors": ("ogive.errors",),
    "ogive.otel": ("ogive.otel",),
    "ogive.spark": (
        "ogive.spark",
        "ogive.spark.jobs",
        "ogive.spark.metrics",
        "ogive.spark.options",
        "ogive.spark.parse",
    ),
    "ogive.pipelines": ("ogive.pipelines", "ogive.pipelines.archive"),
    "ogive.testing": ("ogive.testing", "ogive.testing.fake_broker"),
    "ogive.broker and others": (
        "ogive.broker",
        "ogive.client.consumer.allocate",
        "ogive.sql92",
        "ogive.wire.codes",
    ),
}
"""Title of a page, and the modules on it."""
PLAIN_BASES: Final = "object,Exception,ValueError,tuple,int,str,Enum,IntEnum,Protocol,Generic"
ERROR_BASES: Final = "OgiveError,BrokerError,TransportError,StoreError,InvalidOption"


class Undocumented(Exception):
    """Public names without a docstring. The text has one a line."""


def pages() -> dict[str, tuple[str, str]]:
    """Return title and text of each page by its place. Raises Undocumented."""
    named = by_module()
    if missing := undocumented(named):
        raise Undocumented("\n".join(f"{name} has no docstring" for name in missing))
    left = set(named) - {module for modules in PAGES.values() for module in modules}
    if left:
        raise Undocumented(f"no page of tools/docsite/api.py has {', '.join(sorted(left))}")
    found = {}
    for title, modules in PAGES.items():
        sections = [
            _section(module, named.get(module, {}), alone=modules == (title,)) for module in modules
        ]
        text = "\n".join([_heading(title, "="), *sections])
        found[f"reference/api/{title.split()[0]}.rst"] = (title, text)
    return found


def by_module() -> dict[str, dict[str, Any]]:
    """Return the public names of each module with their values; each value once."""
    found: dict[str, dict[str, Any]] = {}
    seen: set[int] = set()
    for path, value in public_values():
        module, _, name = path.rpartition(".")
        if inspect.ismodule(value) or name == "__version__":
            continue
        if inspect.isclass(value) or inspect.isroutine(value):
            if id(value) in seen:
                continue
            seen.add(id(value))
        found.setdefault(module, {})[name] = value
    return found


# --- pages ----------------------------------------------------------------------------------------


def _heading(text: str, line: str) -> str:
    return f"{text}\n{line * len(text)}\n"


def _section(module: str, names: Mapping[str, Any], *, alone: bool) -> str:
    """Return the names of a module: functions and classes by autodoc, values as they are."""
    heading = "" if alone else _heading(module, "-")
    parts = [heading, inspect.getdoc(importlib.import_module(module)) or "", ""]
    parts.append(f".. py:module:: {module}\n   :no-index:\n")
    for name, value in sorted(names.items(), key=lambda item: item[0].lower()):
        parts.append("\n".join(_directive(module, name, value)) + "\n")
    return "\n".join(parts)


def _directive(module: str, name: str, value: Any) -> Iterator[str]:
    path = f"{module}.{name}"
    if inspect.isclass(value):
        yield f".. autoclass:: {path}"
        yield "   :members:"
        is_error = issubclass(value, Exception)
        if is_error:
            yield "   :show-inheritance:"
        yield f"   :inherited-members: {ERROR_BASES if is_error else PLAIN_BASES}"
        if issubclass(value, enum.Enum):
            yield "   :undoc-members:"
        before = f"{path}."
        hidden = sorted(one.removeprefix(before) for one in NO_PROMISE if one.startswith(before))
        if hidden:
            yield f"   :exclude-members: {', '.join(hidden)}"
    elif inspect.isroutine(value):
        yield f".. autofunction:: {path}"
    else:
        yield f".. py:data:: {path}"
        yield ""
        yield from (f"   {line}" for line in (_doc_of_value(module, name) or "").splitlines())


# --- docstrings -----------------------------------------------------------------------------------


def undocumented(named: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the public names, members and fields without a docstring, sorted."""
    missing: set[str] = set()
    for module, names in named.items():
        for name, value in names.items():
            path = f"{module}.{name}"
            if inspect.isclass(value):
                missing.update(_undocumented_members(path, value))
                documented = value.__doc__
            elif inspect.isroutine(value):
                documented = value.__doc__
            else:
                documented = _doc_of_value(module, name)
            if not documented:
                missing.add(path)
    return sorted(missing - NO_PROMISE)


def _undocumented_members(path: str, cls: type) -> Iterator[str]:
    """Yield methods, properties and fields, each named as a member of the class that has it."""
    for owner in cls.__mro__:
        if not is_ours(owner) or owner.__name__.startswith("_"):
            continue
        where = path if owner is cls else f"{owner.__module__}.{owner.__qualname__}"
        docs = _docs(_body(owner))
        for name, doc in docs.items():
            # of a field or method that is documented in a base class
            inherited = any(
                name in _docs(_body(base)) for base in owner.__mro__[1:] if is_ours(base)
            )
            if doc is None and not inherited and f"{path}.{name}" not in NO_PROMISE:
                yield f"{where}.{name}"


def is_ours(cls: type) -> bool:
    """Return True for a class of ogive in Python: a compiled one has no source to read."""
    return cls.__module__.startswith("ogive") and cls.__module__ != "ogive._native"


def _body(cls: type) -> list[ast.stmt]:
    tree = _tree(cls.__module__)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return node.body
    return []


@functools.cache
def _tree(module: str) -> ast.Module:
    source = inspect.getsource(sys.modules.get(module) or importlib.import_module(module))
    return ast.parse(source)


def _docs(body: list[ast.stmt]) -> dict[str, str | None]:
    """Return the docstring of each public function and annotated name of a class or module."""
    found: dict[str, str | None] = {}
    for at, node in enumerate(body):
        after = body[at + 1] if at + 1 < len(body) else None
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name, doc = node.name, ast.get_docstring(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, doc = node.target.id, _text(after)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, doc = node.targets[0].id, _text(after)
            if doc is None:
                continue
        else:
            continue
        if not name.startswith("_"):
            found[name] = found.get(name) or doc
    return found


def _text(node: ast.stmt | None) -> str | None:
    """Return the string that is a statement."""
    value = node.value if isinstance(node, ast.Expr) else None
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return inspect.cleandoc(value.value)
    return None


def field_docs(cls: type) -> dict[str, str | None]:
    """Return the docstrings below the fields of a dataclass."""
    return _docs(_body(cls))


def _doc_of_value(module: str, name: str) -> str | None:
    """Return the docstring below an assignment, where the value is from."""
    home = getattr(importlib.import_module(module), "_HOME", {}).get(name, module)
    return _docs(_tree(home).body).get(name)
