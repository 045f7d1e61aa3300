"""What Spark fails with, as one sentence."""

import logging
import signal
import threading
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

pytest.importorskip("pyspark")

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException

from ogive.errors import NoRoute, OgiveError
from ogive.spark.failures import ending, is_final, reason


class Session:
    """Stands for Spark's: counts its stops, which fail where the Java process is gone.

    Like Py4J it has a connection for each thread. *interrupted*: the answer to a call of this
    thread is unread, so whatever this thread asks next fails.
    """

    def __init__(self, gone: bool = False, interrupted: bool = False) -> None:
        self.stops, self._gone = 0, gone
        self.level = "ERROR"
        self._broken = threading.current_thread() if interrupted else None

    @property
    def sparkContext(self) -> "Session":  # noqa: N802
        return self

    def __getattr__(self, name: str) -> Any:
        """Packages and classes of Java."""
        return MagicMock()

    def _call(self) -> None:
        if threading.current_thread() is self._broken:
            raise Py4JError("the answer to another call")

    def setLogLevel(self, level: str) -> None:  # noqa: N802
        self._call()
        self.level = level

    def stop(self) -> None:
        self._call()
        self.stops += 1
        if self._gone:
            raise ConnectionRefusedError(111, "Connection refused")


def test_our_own_sentence_is_found_in_what_spark_says() -> None:
    text = (
        "Job aborted\n  File x\nogive.errors.SendFailed: row 3 of partition 0 cannot be sent: "
        "too long\n\tat java.Thread"
    )
    assert reason(text) == "row 3 of partition 0 cannot be sent: too long"
    assert (
        reason("  [UNRESOLVED_COLUMN] no such column\n== SQL ==")
        == "[UNRESOLVED_COLUMN] no such column"
    )
    java = (
        "An error occurred while calling o63.start.\n: "
        "org.apache.hadoop.fs.ParentNotDirectoryException: /file is not a directory\n\tat x"
    )
    assert reason(java) == "/file is not a directory"
    assert reason("") == "Spark failed without saying why"


@pytest.mark.parametrize(
    ("error", "gone", "said"),
    [
        (
            AnalysisException("[UNRESOLVED_COLUMN] no such column\n== SQL =="),
            False,
            "no such column",
        ),
        (Py4JError("An error occurred\nogive.errors.SendFailed: row 3"), False, "row 3"),
        (Py4JNetworkError("Answer from Java side is empty"), True, "Java process is gone"),
        (ConnectionRefusedError(111, "Connection refused"), True, "Java process is gone"),
        (PermissionError(13, "Permission denied", "/lake"), False, "Permission denied: '/lake'"),
        (NoRoute("topic T has no route"), False, "topic T has no route"),
    ],
)
def test_what_spark_fails_with_is_one_sentence_and_the_session_ends(
    error: Exception, gone: bool, said: str
) -> None:
    session = Session(gone)
    with pytest.raises(OgiveError, match=said) as caught, ending(cast(Any, session)):
        raise error
    assert "\n" not in str(caught.value)
    assert session.stops == 1


def test_a_fault_of_the_program_is_not_made_a_sentence() -> None:
    session = Session()
    with pytest.raises(ZeroDivisionError), ending(cast(Any, session)):
        raise ZeroDivisionError
    assert session.stops == 1


def test_a_second_ctrl_c_ends_silently(caplog: pytest.LogCaptureFixture) -> None:
    """What it cuts off would be logged with the stacks of Java and Py4J."""
    session = Session(interrupted=True)
    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt), ending(cast(Any, session)):
            raise KeyboardInterrupt
        logging.getLogger("py4j").error("Error while sending or receiving.")
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGINT, before)
    assert (session.level, session.stops, caplog.text) == ("OFF", 1, "")


WORKER = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_EXCEPTION] An exception was "
    "thrown from the Python worker: "
    'Traceback (most recent call last):\n  File "/a.py", line 32, in read\n    f()\n{raised}\n '
    "SQLSTATE: 38000\n=== Streaming Query ===\n"
)
CHAIN = (
    "ValueError: inner\n\nThe above exception was the direct cause of the following exception:\n\n"
    'Traceback (most recent call last):\n  File "/a.py", line 1, in read\n{raised}'
)


@pytest.mark.parametrize(
    ("raised", "final", "said"),
    [
        (
            "TypeError: 'NoneType' object is not callable",
            True,
            "TypeError: 'NoneType' object is not callable",
        ),
        (
            "ModuleNotFoundError: No module named 'app'",
            True,
            "ModuleNotFoundError: No module named 'app'",
        ),
        ("AssertionError", True, "AssertionError"),
        (
            "_pickle.UnpicklingError: invalid load key",
            True,
            "_pickle.UnpicklingError: invalid load key",
        ),
        (
            "json.decoder.JSONDecodeError: Expecting value",
            True,
            "json.decoder.JSONDecodeError: Expecting value",
        ),
        ("FloatingPointError", True, "FloatingPointError"),
        ("ogive.errors.InvalidOption: x=1: expected 2", True, "x=1: expected 2"),
        (
            "ogive.errors.InvalidExpression: it ends, at character 3",
            True,
            "it ends, at character 3",
        ),
        (
            "ogive.errors.NoPermission: h:1 answered 16 NO_PERMISSION",
            True,
            "h:1 answered 16 NO_PERMISSION",
        ),
        ("ogive.errors.SubscriptionInvalid: h:1 answered 23", True, "h:1 answered 23"),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python "
            "3.11",
            True,
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python "
            "3.11",
        ),
        ("ogive.errors.BodyUnreadable: its body is damaged", False, "its body is damaged"),
        ("ssl.SSLCertVerificationError: expired", False, "ssl.SSLCertVerificationError: expired"),
        ("somewhere.Unknown: x", False, "somewhere.Unknown: x"),
        ("ogive.errors.NoRoute: topic T has no route", False, "topic T has no route"),
        ("ogive.spark.listener_task.QueueTaken: the lock was lost", False, "the lock was lost"),
        (CHAIN.format(raised="ogive.errors.SendFailed: row 3"), False, "row 3"),
        (CHAIN.format(raised="KeyError: 'amount'"), True, "KeyError: 'amount'"),
        (
            "ConnectionResetError: [Errno 104] reset",
            False,
            "ConnectionResetError: [Errno 104] reset",
        ),
        ("MemoryError", False, "MemoryError"),
    ],
)
def test_a_mistake_in_a_program_is_told_from_what_may_pass(
    raised: str, final: bool, said: str
) -> None:
    text = WORKER.format(raised=raised)
    assert is_final(text) is final
    assert reason(text) == said


@pytest.mark.parametrize(
    "text",
    [
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. "
        "SQLSTATE: 42703",
        "[INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST] Cannot safely cast `a` STRING to INT. "
        "SQLSTATE: KD000; SQLSTATE: 42K09",
        "java.nio.file.AccessDeniedException: /checkpoint/job/offsets",
        "org.apache.hadoop.security.AccessControlException: Permission denied: user=me, "
        "access=WRITE",
        "[STREAM_FAILED] terminated with exception: [DIVIDE_BY_ZERO] Division by zero. "
        "SQLSTATE: 22012",
        '[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT". '
        "SQLSTATE: 22018",
        WORKER.format(raised="RecursionError: maximum recursion depth exceeded"),
    ],
)
def test_what_spark_itself_refuses_is_refused_again(text: str) -> None:
    assert is_final(
        f"[STREAM_FAILED] Query terminated with exception: {text}\n\tat org.apache.spark.X"
    )


def test_a_worker_that_is_gone_may_come_back() -> None:
    assert not is_final(
        "Job aborted due to stage failure: org.apache.spark.SparkException: Python worker exited "
        "unexpectedly (crashed)."
    )
