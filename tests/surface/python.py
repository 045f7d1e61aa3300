"""The Python API: names, signatures, attributes, base classes.

A function has one line for each parameter, so that a new parameter is a new line:

    ogive.Producer.send() -> SendResult            what it returns
    ogive.Producer.send(1): topic                  the first argument may stand without its name
    ogive.Producer.send(tag=): str | None = None   type and default
    ogive.Producer.send needs topic                no default

Types are shown by their bare names, wherever they are defined. What a public function returns, or a
public attribute holds, has its attributes and methods listed under its bare name too.
"""

import ast
import builtins
import dataclasses
import enum
import functools
import importlib
import inspect
import textwrap
import tomllib
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

PACKAGES: Final = (
    "ogive.errors",
    "ogive",
    "ogive.aio",
    "ogive.otel",
    "ogive.testing",
    "ogive.spark",
)

IMPORTS: Final = Path(__file__).with_name("imports.toml")
"""What docs and examples import from deeper in the package, so that programs do too."""

OPERATORS: Final = (
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    "__await__",
    "__call__",
    "__contains__",
    "__enter__",
    "__exit__",
    "__getitem__",
    "__iter__",
    "__len__",
    "__lt__",
    "__next__",
    "__str__",
)
"""Special methods that users call by operators and statements."""

NO_PROMISE: Final = frozenset(
    {
        "ogive.Admin.close_at_exit",
        "ogive.ClientConfig.request_fields",
        "ogive.Credentials.has_signed",
        "ogive.Producer.close_at_exit",
        "ogive.PullConsumer.close_at_exit",
        "ogive.PushConsumer.close_at_exit",
        "ogive.SimpleConsumer.close_at_exit",
        "ogive.aio.Admin.client",
        "ogive.aio.Producer.budget_s",
        "ogive.aio.Producer.client",
        "ogive.aio.Producer.intake",
        "ogive.aio.Producer.publisher",
        "ogive.aio.PullConsumer.close_for",
        "ogive.aio.PullConsumer.take_back",
        "ogive.aio.PushConsumer.close_for",
        "ogive.aio.PushConsumer.unsubscribe_for",
        "ogive.aio.SimpleConsumer.take_back",
        "ogive.broker.Broker(2)",
        "ogive.broker.Broker(access=)",
        "ogive.broker.Broker(dial=)",
        "ogive.broker.Broker(machine=)",
        "ogive.broker.Broker.context",
        "ogive.broker.Broker.health_page",
        "ogive.broker.Broker.metrics_page",
        "ogive.broker.Broker.ready_page",
        "ogive.broker.Broker.reload_certificates",
        "ogive.broker.Broker.unsaved",
        "ogive.pipelines.Stop(ends_session=)",
        "ogive.pipelines.Stop.ends_session",
        "ogive.pipelines.Stop.handle_signals",
        "ogive.spark.metrics.QueryMetrics.ended",
        "ogive.spark.metrics.QueryMetrics.progressed",
    }
)
"""Names without an underscore that parts of ogive use of each other, and no page describes."""

OPAQUE: Final = ("Access", "RetentionConfig", "ServerLimits", "StoredMessage", "TlsConfig")
"""Classes that are only passed on, or that no page describes: their attributes are no promise."""

_MISSING: Final = object()


def lines() -> set[str]:
    """Return the lines of the Python API."""
    return _Api().lines()


class _Api:
    """Collects the lines of all packages."""

    def __init__(self) -> None:
        self._lines: set[str] = set()
        self._home: dict[int, str] = {}
        """Public names by the id of their value, the first one only."""
        self._returned: deque[type] = deque()
        self._described: set[type] = set()

    def lines(self) -> set[str]:
        found = list(public_values())
        for name, value in found:
            if inspect.isclass(value) or inspect.isroutine(value):
                self._home.setdefault(id(value), name)
        for name, value in found:
            self._add_value(name, value)
        while self._returned:
            cls = self._returned.popleft()
            if id(cls) not in self._home and cls not in self._described:
                self._described.add(cls)
                if cls.__qualname__ not in OPAQUE:
                    self._add_members(cls.__qualname__, cls, data_only=True)
        return {line for line in self._lines if line.partition(": ")[0] not in NO_PROMISE}

    # --- values and classes --------------------------------------------------------------------

    def _add_value(self, name: str, value: Any) -> None:
        home = self._home.get(id(value), name)
        if home != name:
            self._lines.add(f"{name} = {home}")
        elif inspect.isclass(value):
            self._add_class(name, value)
        elif inspect.isroutine(value):
            self._add_function(name, value)
        else:
            self._lines.add(name)

    def _add_class(self, name: str, cls: type) -> None:
        self._lines.add(name)
        self._described.add(cls)
        for base in cls.__mro__[1:]:
            if id(base) in self._home or _is_library_base(base):
                self._lines.add(f"{name} is {base.__name__}")
        if not issubclass(cls, enum.Enum) and _has_own_constructor(cls):
            self._add_function(name, cls)
        if dataclasses.is_dataclass(cls) and cls.__hash__ is not None:
            self._lines.add(f"{name} is hashable")
        self._add_members(name, cls)

    def _add_members(self, name: str, cls: type, *, data_only: bool = False) -> None:
        for owner in reversed(cls.__mro__):
            if not owner.__module__.startswith("ogive"):
                continue
            if issubclass(owner, enum.Enum):
                self._add_enum(name, owner)
            names = vars(importlib.import_module(owner.__module__))
            fields = set()
            for attribute, annotation in inspect.get_annotations(owner).items():
                if not attribute.startswith("_") and f"{name}.{attribute}" not in NO_PROMISE:
                    text = self._text(annotation, names)
                    # the value of a class variable is the class's, that of a field an instance's
                    if not text.startswith("ClassVar"):
                        self._lines.add(f"{name}.{attribute}: {text}")
                        fields.add(attribute)
            for attribute in vars(owner).keys() - fields - _members(owner):
                if not attribute.startswith("_") or attribute in OPERATORS:
                    self._add_member(f"{name}.{attribute}", cls, attribute, data_only=data_only)
            for attribute in _assigned_in_init(owner):
                self._lines.add(f"{name}.{attribute}")

    def _add_enum(self, name: str, cls: type[enum.Enum]) -> None:
        for member in cls.__members__.values():
            shown = f" = {member.value!r}" if isinstance(member, int | str) else ""
            self._lines.add(f"{name}.{member.name}{shown}")

    def _add_member(self, name: str, cls: type, attribute: str, *, data_only: bool) -> None:
        value = inspect.getattr_static(cls, attribute)
        is_method = isinstance(value, staticmethod | classmethod) or inspect.isfunction(value)
        if name in NO_PROMISE or (data_only and is_method):
            return
        if isinstance(value, property | functools.cached_property):
            getter = value.fget if isinstance(value, property) else value.func
            assert getter is not None
            annotation = _annotations(getter).get("return")
            typed = f": {self._text(annotation, _globals(getter))}" if annotation else ""
            self._lines.add(f"{name}{typed}")
        elif isinstance(value, staticmethod):
            self._add_function(name, value.__func__)
        elif isinstance(value, classmethod):
            self._add_function(name, value.__func__, bound=True)
        elif inspect.isfunction(value):
            self._add_function(name, value, bound=True, alone=attribute in OPERATORS)
        elif (
            inspect.ismemberdescriptor(value)
            # a compiled class may have these in place of a twin's slots
            or inspect.isgetsetdescriptor(value)
            or inspect.isclass(value)
        ):
            self._lines.add(name)
        else:
            self._lines.add(f"{name} = {_default(value)}")

    # --- functions -----------------------------------------------------------------------------

    def _add_function(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        bound: bool = False,
        alone: bool = False,
    ) -> None:
        """*bound*: leave out the first parameter, *alone*: all, as an operator passes them."""
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[1 if bound else 0 :]
        names = _globals(function)
        if not inspect.isclass(function):
            text = self._text(signature.return_annotation, names)
            # there for the error message alone
            if text == "NoReturn":
                return
            is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
            self._lines.add(f"{name}() -> {'awaitable ' if is_async else ''}{text}")
        for at, parameter in enumerate([] if alone else parameters, 1):
            self._add_parameter(name, at, parameter, names)

    def _add_parameter(
        self,
        name: str,
        at: int,
        parameter: inspect.Parameter,
        names: Mapping[str, Any],
    ) -> None:
        kind, word = parameter.kind, parameter.name
        typed = ""
        if parameter.annotation is not parameter.empty:
            typed = f": {self._text(parameter.annotation, names, follow=False)}"
        if kind is parameter.VAR_POSITIONAL:
            self._lines.add(f"{name}(*{word}){typed}")
            return
        if kind is parameter.VAR_KEYWORD:
            self._lines.add(f"{name}(**{word}){typed}")
            return
        if parameter.default is parameter.empty:
            self._lines.add(f"{name} needs {word}")
        else:
            typed += f" = {_default(parameter.default)}"
        if kind is parameter.POSITIONAL_ONLY:
            self._lines.add(f"{name}({at}){typed}")
            return
        self._lines.add(f"{name}({word}=){typed}")
        if kind is parameter.POSITIONAL_OR_KEYWORD:
            self._lines.add(f"{name}({at}): {word}")

    # --- types ---------------------------------------------------------------------------------

    def _text(self, annotation: Any, names: Mapping[str, Any], *, follow: bool = True) -> str:
        """Return an annotation by bare names. *follow*: list the members of the classes in it."""
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if isinstance(annotation, str):
            annotation = _evaluated(annotation, names)
        if annotation is None or annotation is type(None):
            return "None"
        if annotation is ... or annotation is inspect.Signature.empty:
            return "..."
        if isinstance(annotation, list) or typing.get_origin(annotation) is not None:
            return self._composed(annotation, names, follow=follow)
        if isinstance(annotation, typing.TypeVar):
            return "T"
        if isinstance(annotation, typing.ParamSpec):
            return "P"
        if inspect.isclass(annotation):
            if follow and annotation.__module__.startswith("ogive"):
                self._returned.append(annotation)
            return annotation.__qualname__
        return str(getattr(annotation, "__name__", None) or annotation).rpartition(".")[2]

    def _composed(self, annotation: Any, names: Mapping[str, Any], *, follow: bool) -> str:
        """Return a type that consists of others."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is typing.Literal:
            # typing hands out the first of two equal types, so their order is a matter of imports
            return f"Literal[{', '.join(sorted(map(repr, arguments)))}]"
        parts = annotation if isinstance(annotation, list) else arguments
        inner = [self._text(one, names, follow=follow) for one in parts]
        if isinstance(annotation, list):
            return f"[{', '.join(inner)}]"
        if origin is typing.Union or origin is types.UnionType:
            return " | ".join(sorted(inner, key=lambda text: (text == "None", text)))
        head = self._text(origin, names, follow=follow)
        # the same thing, as an annotation of a function and of a coroutine
        if head in ("Awaitable", "Coroutine"):
            return f"awaitable {inner[-1]}"
        return f"{head}[{', '.join(inner)}]" if inner else head


# --- what there is -----------------------------------------------------------------------------


def public_values() -> Iterator[tuple[str, Any]]:
    """Yield every public name with its value."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        yield package, module
        for name in _names_of(module):
            yield f"{package}.{name}", getattr(module, name)
    yield "ogive.__version__", importlib.import_module("ogive").__version__
    for path, names in tomllib.loads(IMPORTS.read_text("utf-8")).items():
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError as exc:
            if not (exc.name or "").startswith("ogive"):
                raise
            continue
        for name in names:
            if (value := getattr(module, name, _MISSING)) is not _MISSING:
                yield f"{path}.{name}", value


def _names_of(module: types.ModuleType) -> Iterable[str]:
    """Return the names in ``__all__``, or the classes that a module without it defines."""
    if hasattr(module, "__all__"):
        return tuple(module.__all__)
    classes = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
    own = {name for name, value in classes.items() if value.__module__ == module.__name__}
    return [name for name in own if not name.startswith("_")]


def _is_library_base(base: type) -> bool:
    """Return True for a base class that users can rely on in ``except`` and ``isinstance``."""
    if base.__module__ == "builtins":
        return base not in (object, BaseException, Exception, int)
    return base.__module__ == "enum" and base.__name__ in ("Enum", "IntEnum", "IntFlag", "StrEnum")


def _members(cls: type) -> set[str]:
    return set(cls.__members__) if issubclass(cls, enum.Enum) else set()


def _has_own_constructor(cls: type) -> bool:
    """Return False for protocols and for classes that are made as their base in Python."""
    if getattr(cls, "_is_protocol", False):
        return False
    makers = [vars(owner) for owner in cls.__mro__ if owner.__module__.startswith("ogive")]
    return any("__init__" in names or "__new__" in names for names in makers)


@functools.cache
def _assigned_in_init(cls: type) -> tuple[str, ...]:
    """Return the public attributes that ``__init__`` assigns."""
    init = vars(cls).get("__init__")
    if init is None or dataclasses.is_dataclass(cls):
        return ()
    try:
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(init)))
    except (OSError, TypeError):
        return ()
    return tuple(
        node.attr
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
        and not node.attr.startswith("_")
    )


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    return inspect.get_annotations(inspect.unwrap(function))


def _globals(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the names that the annotations of a function or class can use."""
    if inspect.isclass(function):
        return vars(importlib.import_module(function.__module__))
    return getattr(inspect.unwrap(function), "__globals__", {})


def _default(value: object) -> str:
    """Return a default value as text, ``...`` for one that has no short form."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_default, value))})"
    if inspect.isroutine(value) or inspect.isclass(value):
        return value.__name__
    return "..."


# --- annotations that are texts ----------------------------------------------------------------


class _Unknown(type):
    """Stands for a name that is imported for type checkers only."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unknown(name)

    def __getitem__(cls, inner: Any) -> Any:
        return types.GenericAlias(cls, inner)


def _unknown(name: str) -> type:
    return _Unknown(name, (), {})


class _Names(dict[str, Any]):
    """Known names, and a stand-in for each of the others."""

    def __missing__(self, name: str) -> Any:
        return getattr(builtins, name) if hasattr(builtins, name) else _unknown(name)


def _evaluated(text: str, names: Mapping[str, Any]) -> Any:
    return eval(text, {}, _Names(names))
