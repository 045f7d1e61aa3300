"""The DAG of the example, run by Airflow's command as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import ogive
from ogive.testing import RocketMQ

# Airflow's commands take long to start
LIMIT_S = 300
pytestmark = pytest.mark.timeout(1200)
EXAMPLE = Path(__file__).parents[1] / "example"


class Airflow:
    """Airflow with a database and a folder of its own."""

    def __init__(self, name_server: str, folder: Path) -> None:
        host, _, port = name_server.partition(":")
        self.orders = folder / "orders"
        self.orders.mkdir()
        connection = json.dumps({"conn_type": "generic", "host": host, "port": int(port)})
        self.environment = os.environ | {
            "AIRFLOW_HOME": str(folder / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLE),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW_CONN_ROCKETMQ": connection,
            "ORDERS": str(self.orders),
        }

    def run(self, *words: str, fails: bool = False) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr


@pytest.fixture
def airflow(rocketmq: RocketMQ, tmp_path: Path) -> Airflow:
    made = Airflow(rocketmq.name_server, tmp_path)
    made.run("db", "migrate")
    return made


def bill(rocketmq: RocketMQ) -> None:
    """What the services do: consume the orders."""
    with ogive.PullConsumer(
        "Orders", group="billing", name_server=rocketmq.name_server, start="earliest"
    ) as consumer:
        while consumer.poll(timeout_s=5):
            pass
        consumer.commit()


def test_each_run_collects_the_orders_since_the_last_one_that_succeeded(
    rocketmq: RocketMQ, airflow: Airflow
) -> None:
    for number in range(3):
        rocketmq.send("Orders", b"order %d" % number)
    bill(rocketmq)
    airflow.run("dags", "test", "orders_daily", "2026-11-29")
    rocketmq.send("Orders", b"late")
    bill(rocketmq)
    # the file cannot be written, each time the task is tried
    airflow.environment["ORDERS"] = str(airflow.orders / "missing")
    airflow.run("dags", "test", "orders_daily", "2026-11-30", fails=True)
    airflow.environment["ORDERS"] = str(airflow.orders)
    airflow.run("dags", "test", "orders_daily", "2026-12-01")
    reports = rocketmq.messages("Reports")
    found = [sorted(json.loads(Path(report.text).read_text()).values()) for report in reports]
    assert found == [["order 0", "order 1", "order 2"], ["late"]]
    assert all(Path(one.text).stem in one.keys for one in reports)
