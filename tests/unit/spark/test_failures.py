"""What Spark fails with, as one sentence."""

import pytest

pytest.importorskip("pyspark")

from typing import Any, cast

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException

from ogive.errors import NoRoute, OgiveError
from ogive.spark.failures import ending, reason


class Session:
    """Stands for Spark's: counts its stops, which fail where the Java process is gone."""

    def __init__(self, gone: bool = False) -> None:
        self.stops, self._gone = 0, gone

    def stop(self) -> None:
        self.stops += 1
        if self._gone:
            raise ConnectionRefusedError(111, "Connection refused")


def test_our_own_sentence_is_found_in_what_spark_says() -> None:
    text = "Job aborted\n  File x\nogive.errors.SendFailed: row 3 of partition 0 cannot be sent: too long\n\tat java.Thread"
    assert reason(text) == "row 3 of partition 0 cannot be sent: too long"
    assert reason("  [UNRESOLVED_COLUMN] no such column\n== SQL ==") == "[UNRESOLVED_COLUMN] no such column"
    java = (
        "An error occurred while calling o63.start.\n: org.apache.hadoop.fs.ParentNotDirectoryException: /file is not a directory\n\tat x"
    )
    assert reason(java) == "/file is not a directory"
    assert reason("") == "Spark failed without saying why"


@pytest.mark.parametrize(
    ("error", "gone", "said"),
    [
        (AnalysisException("[UNRESOLVED_COLUMN] no such column\n== SQL =="), False, "no such column"),
        (Py4JError("An error occurred\nogive.errors.SendFailed: row 3"), False, "row 3"),
        (Py4JNetworkError("Answer from Java side is empty"), True, "Java process is gone"),
        (ConnectionRefusedError(111, "Connection refused"), True, "Java process is gone"),
        (PermissionError(13, "Permission denied", "/lake"), False, "Permission denied: '/lake'"),
        (NoRoute("topic T has no route"), False, "topic T has no route"),
    ],
)
def test_what_spark_fails_with_is_one_sentence_and_the_session_ends(error: Exception, gone: bool, said: str) -> None:
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
