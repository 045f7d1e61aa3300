"""A DAG of Airflow 3 that waits for a group of services, reads the orders of a topic, writes them
to a file, and says so on another topic.

A task of Airflow may run twice: after a failure, by hand, or because its worker was lost. So the
order in each task is: do the work, then commit.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import BaseHook, dag, get_current_context, task

import ogive

# the messages of a run: what does not fit waits for the next one
LIMIT = 10_000


def name_server() -> str:
    """Return the address of the connection ``rocketmq``."""
    connection = BaseHook.get_connection("rocketmq")
    return f"{connection.host}:{connection.port}"


@dag(
    schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1
)
def orders_daily() -> None:
    @task.sensor(poke_interval=10, timeout=3600, mode="reschedule")
    def billing_has_caught_up() -> bool:
        """Wait until the services have billed what was ordered."""
        with ogive.Admin(name_server()) as admin:
            return sum(row.lag for row in admin.lag("billing", "Orders")) == 0

    @task(retries=3, retry_delay=timedelta(seconds=5))
    def collect() -> str:
        """Write the orders since the last run to the file of this run."""
        run = get_current_context()["run_id"]
        target = Path(os.environ["ORDERS"], f"{run}.json")
        # an earlier try of this task may have written the file, and even have committed
        orders: dict[str, str] = json.loads(target.read_text()) if target.exists() else {}
        with ogive.PullConsumer(
            "Orders",
            group="airflow-orders",
            name_server=name_server(),
            start="earliest",
            auto_commit=False,
        ) as consumer:
            while len(orders) < LIMIT and (messages := consumer.poll(timeout_s=10)):
                orders |= {message.id: message.text for message in messages}
            part = target.with_suffix(".part")
            part.write_text(json.dumps(orders))
            part.replace(target)
            consumer.commit()
        return str(target)

    @task(retries=3, retry_delay=timedelta(seconds=5))
    def report(target: str) -> None:
        """Say that the file is there. A second try sends a second message with the same key."""
        run = get_current_context()["run_id"]
        with ogive.Producer(name_server()) as producer:
            producer.send("Reports", target.encode(), keys=run)

    report(billing_has_caught_up() >> collect())


orders_daily()
