"""The lists: which there are, and what makes each of them."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.surface import alerts, command_line, python, settings, spark
from tests.surface.lines import Lines

WITHOUT_PROCESSES: Final[Mapping[str, Lines]] = {
    "python": python.lines,
    "command-line": command_line.lines,
    "settings": settings.lines,
    "spark": spark.lines,
    "alerts": alerts.lines,
}
OF_A_BROKER: Final = ("exits", "json", "logs", "metrics")
OF_PIPELINES: Final = "pipelines"
ALL: Final = (*WITHOUT_PROCESSES, *OF_A_BROKER, OF_PIPELINES)


def everything() -> dict[str, set[str]]:
    """Return the lines of all lists. Starts brokers and Spark."""
    import ogive.spark
    from ogive.testing import Broker
    from tests.surface import pipelines, running

    found = {part: make() for part, make in WITHOUT_PROCESSES.items()}
    with tempfile.TemporaryDirectory() as folder:
        found |= running.lines(Path(folder))
    with tempfile.TemporaryDirectory() as folder, Broker() as broker:
        session = ogive.spark.session("surface", master="local[2]", memory="512m")
        session.sparkContext.setLogLevel("ERROR")
        found[OF_PIPELINES] = pipelines.lines(session, broker.name_server, "Orders", Path(folder))
        session.stop()
    return found
