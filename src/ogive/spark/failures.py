"""Find the cause in the text of an error of Spark."""

import contextlib
import logging
import re
import signal
import sys
import threading
from collections.abc import Iterator
from pickle import PickleError
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ogive.errors import InvalidOption, NoPermission, NotSupported, OgiveError, SubscriptionInvalid

GONE: Final = (
    "Spark's Java process is gone: it was killed, or a signal for all processes reached it too "
    "(under systemd: KillMode=mixed). "
    "Run this again; it goes on where it was"
)


SPARK_ERRORS: Final = (PySparkException, Py4JError)
"""Errors of Spark. Those of Java that PySpark has no class for are Py4J's."""

_MISTAKES: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    NotImplementedError,
    PickleError,
    PySparkException,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""Classes of errors that occur again however often a program is started."""

_FINAL: Final = (InvalidOption, NoPermission, NotSupported, SubscriptionInvalid)
"""Classes of ogive's errors that occur again until a user changes a setting."""

_MAY_PASS: Final = (OgiveError, OSError)
"""Classes of errors that depend on other machines. Some are subclasses of _MISTAKES as well."""


_REFUSED_BY_SPARK: Final = re.compile(
    r"SQLSTATE: (?:42|22)|\b(?:java\.nio\.file\.AccessDenied|AccessControl)Exception\b"
)
"""Texts with which Spark reports a wrong name in a query, such as a missing column, a value with
which it cannot compute, as in a division by zero, or a folder that it may not use."""


def reason(text: str) -> str:
    """Return the important sentence of *text*, which Spark fills with stacks and plans: ours, if
    there is one.
    """
    ours = re.findall(r"ogive\.(?:errors|spark\.\w+)\.\w+: (.+)", text)
    if ours:
        return str(ours[-1]).strip()
    if raised := _raised(text):
        return ": ".join(part for part in raised if part)
    first, _, rest = text.strip().partition("\n")
    # py4j's text of an exception in Java: the call, and then the exception
    if rest.startswith(": "):
        first = re.sub(r"^: [\w.$]+: ", "", rest.partition("\n")[0])
    return first.strip() or "Spark failed without saying why"


def is_final(text: str) -> bool:
    """Return True if no restart can fix the error in *text*.

    That is a mistake in a program, in an option or the columns of a query, or a missing permission.
    """
    raised = _raised(text)
    kind = None if raised is None else _class_of(raised[0])
    if kind is not None and issubclass(kind, _FINAL):
        return True
    mistake = kind is not None and issubclass(kind, _MISTAKES) and not issubclass(kind, _MAY_PASS)
    return mistake or "InvalidOption" in text or _REFUSED_BY_SPARK.search(text) is not None


def _class_of(name: str) -> type | None:
    """Return the class that a traceback calls *name*, or None if this process has not imported
    it.
    """
    module, _, own = name.rpartition(".")
    found = getattr(sys.modules.get(module or "builtins"), own, None)
    return found if isinstance(found, type) else None


def _raised(text: str) -> tuple[str, str] | None:
    """Return class and message of the Python exception at the end of *text*, or None.

    None means that the exception is Java's.
    """
    raised = re.findall(
        r"Traceback \(most recent call last\):\n(?:[ \t].*\n)*([\w.]+)(?:: (.*))?$",
        text,
        re.MULTILINE,
    )
    return raised[-1] if raised else None


@contextlib.contextmanager
def ending(spark: SparkSession) -> Iterator[None]:
    """Stop *spark* at the end.

    Raises OgiveError for errors of Spark, and for files that cannot be used.
    """
    interrupted = False
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as exc:
        raise OgiveError(GONE) from exc
    except SPARK_ERRORS as exc:
        raise OgiveError(reason(str(exc))) from exc
    except OSError as exc:
        raise OgiveError(str(exc)) from exc
    except KeyboardInterrupt:
        # A second Ctrl-C, in the middle of a batch. A third one ends the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        logging.disable()
        interrupted = True
        raise
    finally:
        # Py4J has a connection for each thread. On this thread's the answer to an interrupted call
        # is still unread, and would be taken for the answer to the next call.
        stopping = threading.Thread(target=_stop, args=(spark, interrupted), name="ogive-stop")
        stopping.start()
        stopping.join()


def _stop(spark: SparkSession, silently: bool) -> None:
    """Stop *spark*, unless its Java process has ended.

    *silently*: Java prints no stacks of interrupted work, neither in its log nor, for its threads,
    on standard error.
    """
    with contextlib.suppress(Py4JError, PySparkException, ConnectionError):
        if silently:
            spark.sparkContext.setLogLevel("OFF")
            java: Any = spark.sparkContext._jvm
            java.java.lang.System.setErr(
                java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
            )
    with contextlib.suppress(Py4JError, ConnectionError):
        spark.stop()
