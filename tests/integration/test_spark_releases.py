"""What a user of any release of Spark meets first: a session of their own, its Python, and a
checkpoint that goes on.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.integration import plain_session
from tests.topics import Stream, Wire, bodies, eventually

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.releases, pytest.mark.timeout(300)]


def plain(wire: Wire, topic: str, moment: str, folder: Path) -> str:
    """What the driver prints, with a PATH whose python3 has no ogive, as without an activated
    environment.
    """
    python3 = folder / "python3"
    python3.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python3.chmod(0o755)
    environment = {
        name: text
        for name, text in os.environ.items()
        if name not in ("PYSPARK_PYTHON", "PYTHONPATH")
    }
    environment |= {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, plain_session.__file__, wire.name_server, topic, moment]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_a_plain_session_finds_topics_when_ogive_spark_is_imported_before_it(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    """And registering what Spark has found by itself is no error."""
    wire.create(topic)
    wire.send(topic, 0, [b"%d" % i for i in range(7)])
    assert plain(wire, topic, "before", tmp_path) == "7 7"


def test_a_session_whose_python_has_no_ogive_is_told_what_to_do(
    wire: Wire, topic: str, tmp_path: Path
) -> None:
    said = plain(wire, topic, "after", tmp_path)
    assert said.startswith(
        "Spark's Python processes run python3, which has no ogive: start the session with "
        "ogive.spark.session()"
    )
    assert said.endswith(f"or set PYSPARK_PYTHON={sys.executable}")


@pytest.mark.parametrize("grouped", [True, False])
def test_the_first_batch_after_a_restart_keeps_its_limit_if_there_is_a_group(
    wire: Wire, stream: Stream, topic: str, group: str, grouped: bool, admission: bool
) -> None:
    """Without one Spark 4.0 and 4.1 read all there is: it might be a query of
    trigger(availableNow=True).
    """
    wire.create(topic, 2)
    wire.send(topic, 0, bodies(5))
    own = {"consumerGroup": group} if grouped else {}
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10", **own}
    assert stream.run(**options) == [[(0, i) for i in range(5)]]
    for queue_id in (0, 1):
        wire.send(topic, queue_id, bodies(20))
    stream.batches = []
    query = stream.start(options, available_now=False)
    try:
        assert eventually(lambda: len(stream.offsets) >= 40 or None)
    finally:
        query.stop()
    assert [len(batch) for batch in stream.batches] == ([10] * 4 if grouped or admission else [40])
    assert sorted(row for batch in stream.batches for row in batch) == [
        (0, i) for i in range(5, 25)
    ] + [(1, i) for i in range(20)]
