"""`ogive.spark.session()` and `read()` leave alone what the user has set elsewhere.

Each test is a program of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyspark

pytestmark = [pytest.mark.spark, pytest.mark.bridge, pytest.mark.timeout(300)]

NAMES = (
    "spark.app.name",
    "spark.master",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.stateStore.providerClass",
    "spark.ui.enabled",
    "spark.driver.memory",
)
SHOW = f"""
import json
print("SETTINGS", json.dumps({{name: spark.conf.get(name, None) for name in {NAMES!r}}}))
"""


def run(code: str, tmp_path: Path, *command: str, **environment: str) -> dict[str, Any]:
    """The settings that the program has at its end."""
    program = tmp_path / "program.py"
    program.write_text(code + SHOW)
    clean = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith(("SPARK_", "PYSPARK_"))
    }
    command = (*(command or (sys.executable,)), str(program))
    done = subprocess.run(
        command,
        env=clean | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("SETTINGS "))
    found: dict[str, Any] = json.loads(line.removeprefix("SETTINGS "))
    return found


def test_a_session_that_exists_stays_as_it_is(tmp_path: Path) -> None:
    """Only what the call itself names is set."""
    settings = run(
        """
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]").appName("mine")
    .config("spark.sql.session.timeZone", "Asia/Tokyo")
    .config("spark.sql.shuffle.partitions", "7").config("spark.ui.enabled", "false").getOrCreate()
)
import ogive.spark

assert ogive.spark.session("other", config={"spark.sql.ansi.enabled": "false"}) is spark
ogive.spark.read("Orders", schema="body binary")
ogive.spark.register(spark)
assert spark.conf.get("spark.sql.ansi.enabled") == "false"
""",
        tmp_path,
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert settings["spark.app.name"] == "mine"
    assert settings["spark.master"] == "local[1]"
    assert settings["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.sql.streaming.stateStore.providerClass"] is None


@pytest.mark.nightly
def test_the_options_of_spark_submit_count(tmp_path: Path) -> None:
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = run(
        "import ogive.spark\nspark = ogive.spark.session()\n",
        tmp_path,
        str(submit),
        "--master",
        "local[1]",
        "--name",
        "submitted",
        "--driver-memory",
        "600m",
        "--conf",
        "spark.sql.session.timeZone=Asia/Tokyo",
        "--conf",
        "spark.sql.shuffle.partitions=7",
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert settings["spark.app.name"] == "submitted"
    assert settings["spark.master"] == "local[1]"
    assert settings["spark.driver.memory"] == "600m"
    assert settings["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert settings["spark.sql.shuffle.partitions"] == "7"
    # which the user has not set
    assert "RocksDB" in settings["spark.sql.streaming.stateStore.providerClass"]


@pytest.mark.nightly
def test_the_defaults_of_an_installation_count_and_what_the_call_names_counts_more(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.sql.session.timeZone Asia/Tokyo\nspark.sql.shuffle.partitions 7\nspark.app.name "
        "installed\nspark.driver.memory 600m\n"
    )
    settings = run(
        'import ogive.spark\nspark = ogive.spark.session("mine", master="local[1]", '
        'config={"spark.sql.shuffle.partitions": "3"})\n',
        tmp_path,
        SPARK_CONF_DIR=str(tmp_path),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert settings["spark.app.name"] == "mine"
    assert settings["spark.master"] == "local[1]"
    assert settings["spark.driver.memory"] == "600m"
    assert settings["spark.sql.session.timeZone"] == "Asia/Tokyo"
    assert settings["spark.sql.shuffle.partitions"] == "3"


def test_a_session_of_ours_has_our_settings(tmp_path: Path) -> None:
    settings = run("import ogive.spark\nspark = ogive.spark.session()\n", tmp_path)
    assert settings["spark.app.name"] == "ogive"
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.ui.enabled"] == "false"
    assert settings["spark.sql.session.timeZone"] == "UTC"
    assert settings["spark.sql.shuffle.partitions"] == str(os.cpu_count())
