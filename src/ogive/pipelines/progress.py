"""Progress of a replay, in a file under its state folder that is replaced as a whole."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from ogive.errors import InvalidOption
from ogive.files import replace_file

_FILE: Final = "replay.json"
QUEUE: Final = ["topic", "brokerName", "queueId"]
HOUR: Final = "%Y-%m-%dT%HZ"


def load(state: Path, **plan: Any) -> dict[str, Any]:
    """Return the progress of an earlier run of the same plan.

    The first run fixes the end of the range. Raises InvalidOption for another plan.
    """
    plan["fixed"] = json.dumps(plan, default=str, sort_keys=True)
    file = state / _FILE
    if file.exists():
        known: dict[str, Any] = json.loads(file.read_text("utf-8"))
        if known["fixed"] != plan["fixed"]:
            raise InvalidOption(
                f"{state} holds the progress of another replay: use the same options, or another "
                "folder"
            )
        return known
    plan["until"] = plan["until"] or datetime.now(UTC)
    texts = {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in plan.items()
    }
    return texts | {"hour": None, "queues": {}}


def save(state: Path, done: dict[str, Any]) -> None:
    state.mkdir(parents=True, exist_ok=True)
    replace_file(state / _FILE, json.dumps(done).encode())


def unseen_queues(rows: DataFrame, done: dict[str, Any]) -> list[Row]:
    """Return each queue that the first run did not see, with the number of its messages in hours
    that are finished.
    """
    if done["hour"] is None or "known" not in done:
        return []
    begin = datetime.strptime(done["hour"], HOUR).replace(tzinfo=UTC)
    late = rows.where(f.col("storeTimestamp") < f.lit(begin)).withColumn(
        "queue", f.concat_ws("\n", *QUEUE)
    )
    return (
        late.where(~f.col("queue").isin(done["known"]))
        .groupBy("queue")
        .count()
        .orderBy("queue")
        .collect()
    )
