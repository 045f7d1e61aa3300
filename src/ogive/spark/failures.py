"""Finds the cause in the text that Spark makes of an error."""

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ogive.errors import OgiveError

GONE: Final = (
    "Spark's Java process is gone: it was killed, or a signal for all processes reached it too (under systemd: KillMode=mixed). "
    "Run this again; it goes on where it was"
)


def reason(text: str) -> str:
    """The sentence that matters of *text*, which Spark fills with stacks and plans: ours where there is one."""
    ours = re.findall(r"ogive\.(?:errors|spark\.\w+)\.\w+: (.+)", text)
    if ours:
        return str(ours[-1]).strip()
    first, _, rest = text.strip().partition("\n")
    if rest.startswith(": "):  # what py4j says of an exception in Java: where it was called, and then itself
        first = re.sub(r"^: [\w.$]+: ", "", rest.partition("\n")[0])
    return first.strip() or "Spark failed without saying why"


@contextlib.contextmanager
def ending(spark: SparkSession) -> Iterator[None]:
    """Stops *spark* at the end. Raises OgiveError for what Spark fails with, and for files that cannot be used."""
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as exc:
        raise OgiveError(GONE) from exc
    except (PySparkException, Py4JError) as exc:
        raise OgiveError(reason(str(exc))) from exc
    except OSError as exc:
        raise OgiveError(str(exc)) from exc
    finally:
        with contextlib.suppress(Py4JError, ConnectionError):  # there is nothing to stop where the Java process is gone
            spark.stop()
