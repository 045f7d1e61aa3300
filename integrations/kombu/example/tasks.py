"""Tasks of Celery over RocketMQ.

In three shells, from the folder of this file:

    ogive up
    celery --app tasks worker --concurrency 2
    python tasks.py
"""

import os
from typing import Any

from celery import Celery

# registers rocketmq://
import ogive_kombu  # noqa: F401

app = Celery("tasks", broker=os.environ.get("BROKER_URL", "rocketmq://127.0.0.1:9876//"))
app.conf.update(
    # a task that is running when its worker is killed runs again elsewhere
    task_acks_late=True,
    # a worker takes no tasks beyond those that it runs
    worker_prefetch_multiplier=1,
    # a killed worker's tasks are delivered again after so many seconds
    broker_transport_options={"visibility_timeout": 60},
)


@app.task(bind=True, max_retries=5)
def bill(self: Any, order: str, amount: int) -> None:
    """Charge an order; the payment service may be away for a while."""
    try:
        print(f"charged {amount} for {order}")
    except ConnectionError as error:
        raise self.retry(exc=error, countdown=10) from error


if __name__ == "__main__":
    bill.delay("order 1", 20)
    bill.apply_async(("order 2", 30), countdown=5)
    print("sent two tasks")
