"""The interpreter of Spark's Python processes: the driver's own, with nothing before its packages
that is compiled each time.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import pyspark

from ogive.spark.interpreter import find_python

HOME = Path(pyspark.__file__).parent
SAYS = "import os, sys; print(os.environ['PYTHONPATH'], *sys.argv[1:], sys.executable, sep='|')"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os,
        "environ",
        {
            name: value
            for name, value in os.environ.items()
            if name not in ("PYSPARK_PYTHON", "SPARK_HOME")
        },
    )


def run(environment: Mapping[str, str], *arguments: str) -> str:
    command = [os.environ["PYSPARK_PYTHON"], *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_what_spark_puts_before_the_installed_packages_is_left_out_and_all_else_stays() -> None:
    find_python(local=True)
    path = os.pathsep.join(
        (
            f"{HOME}/python/lib/pyspark.zip",
            "/one",
            f"{HOME}/jars/spark-core.jar",
            f"{HOME}-mine",
            "/two *",
        )
    )
    assert (
        run({"PYTHONPATH": path}, "-c", SAYS, "a b")
        == f"/one:{HOME}-mine:/two *|a b|{sys.executable}"
    )


def test_workers_take_pyspark_from_where_its_bytecode_is() -> None:
    find_python(local=True)
    zipped = {"PYTHONPATH": f"{HOME}/python/lib/pyspark.zip"}
    assert run(zipped, "-c", "import pyspark; print(pyspark.__file__)") == pyspark.__file__


FORK = """
import os, sys
from ogive.spark.interpreter import find_python
find_python(local=True)
child = os.fork()
if child == 0:
    sys.exit()
os.waitpid(child, 0)
print(os.environ["PYSPARK_PYTHON"], os.path.exists(os.environ["PYSPARK_PYTHON"]))
"""


def test_the_process_that_made_it_takes_it_away_and_no_forked_child() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    made, was_there = done.stdout.split()
    assert was_there == "True"
    assert not Path(made).parent.exists()


KILLED = """
import os, signal
from ogive.spark.interpreter import find_python
find_python(local=True)
print(os.environ["PYSPARK_PYTHON"], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_with_the_next_one_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    left = Path(killed.stdout.strip())
    assert left.exists()
    find_python(local=True)
    ours = Path(os.environ.pop("PYSPARK_PYTHON"))
    assert not left.parent.exists()
    done = subprocess.run(
        [sys.executable, "-c", FORK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split()[1] == "True"
    assert [ours] == list(tmp_path.glob("*/python"))


def test_an_interpreter_that_the_user_names_is_used() -> None:
    os.environ["PYSPARK_PYTHON"] = "python3.12"
    find_python(local=True)
    assert os.environ["PYSPARK_PYTHON"] == "python3.12"


def test_other_machines_are_told_a_path_that_they_can_have() -> None:
    find_python(local=False)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_the_pyspark_of_a_spark_that_is_not_a_package_is_left_alone() -> None:
    os.environ["SPARK_HOME"] = "/opt/spark"
    find_python(local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_where_temporary_files_may_not_be_run_the_interpreter_itself_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # as the system answers for a file on a mount with noexec
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.X_OK)
    find_python(local=True)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def after_import(**environment: str) -> str:
    """What PYSPARK_PYTHON is for a program that imports ogive.spark."""
    code = "import os, ogive.spark; print(os.environ.get('PYSPARK_PYTHON'))"
    given = {**os.environ, **environment}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip()


def test_a_session_that_is_made_after_the_import_runs_this_interpreter() -> None:
    """Spark would take the first python3 of PATH, which finds no installed source."""
    assert after_import() == sys.executable


def test_the_users_choice_stays() -> None:
    assert after_import(PYSPARK_PYTHON="/opt/python") == "/opt/python"


def test_a_program_of_spark_submit_is_left_as_it_is() -> None:
    assert after_import(PYSPARK_GATEWAY_PORT="25333") == "None"


def test_a_session_of_ogive_still_starts_workers_without_sparks_own_path() -> None:
    code = (
        "import os, ogive.spark.interpreter as i; i.find_python(local=True); "
        "print(os.environ['PYSPARK_PYTHON'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() != sys.executable
