"""What pipelines tell scripts stays. tests/surface says how the list is made."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession

from tests.peers import RunningBroker
from tests.surface import lines, pipelines


@pytest.mark.nightly
@pytest.mark.apart(60)
@pytest.mark.spark
@pytest.mark.timeout(400)
def test_summaries_of_pipelines_have_the_keys_that_they_had(
    spark: SparkSession,
    broker: RunningBroker,
    topic: str,
    tmp_path: Path,
) -> None:
    lines.check("pipelines", pipelines.lines(spark, broker.name_server, topic, tmp_path))
