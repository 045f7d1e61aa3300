"""Runs cells in a Jupyter kernel of this Python, and prints what each of them shows, as JSON.

notebook.py NAME_SERVER TOPIC
"""

import json
import sys
import time
from typing import Any

from jupyter_client.manager import start_new_kernel

START = """
import ogive, ogive.spark
from ogive import aio
server, topic = {server!r}, {topic!r}
spark = ogive.spark.session("notebook", master="local[2]", memory="512m", ui=False)
"""
SEND = """
with ogive.Producer(server) as producer:
    for i in range(10):
        producer.send(topic, b"%d" % i, keys=f"k{i}")
"""
AWAIT = """
async with aio.Admin(server) as admin:
    print(sum(row.max_offset for row in await admin.offsets(topic)))
"""
READ = """
table = spark.read.format("rocketmq").option("nameServer", server).load(topic)
table.count()
"""
FUNCTION = """
from pyspark.sql.functions import udf

@udf("string")
def doubled(body):
    return (body * 2).decode()

sorted(row[0] for row in table.select(doubled("body")).collect())[:3]
"""
STREAM = """
seen = []

def note(batch, number):
    seen.extend(row.keys for row in batch.select("keys").collect())

stream = spark.readStream.format("rocketmq").option("nameServer", server)
rows = stream.option("startingOffsets", "earliest").load(topic)
query = rows.writeStream.foreachBatch(note).start()
query.processAllAvailable()
len(seen)
"""
WAIT = "query.awaitTermination()"
AFTER = """
with ogive.Producer(server) as producer:
    producer.send(topic, b"late", keys="late")
query.processAllAvailable()
(query.isActive, len(seen), seen[-1])
"""
STOP = """
query.stop()
spark.stop()
"""
# of a cell; about 30 s of CPU, most of it in the first two, which a busy machine stretches
TIMEOUT_S = 540


def main(server: str, topic: str) -> None:
    manager, client = start_new_kernel(startup_timeout=TIMEOUT_S)

    def run(code: str) -> str:
        """Return the text or the result of a cell, or the name of its error."""
        shown: list[str] = []

        def note(message: dict[str, Any]) -> None:
            content = message["content"]
            if message["msg_type"] == "execute_result":
                shown.append(content["data"]["text/plain"])
            elif message["msg_type"] == "stream" and content["name"] == "stdout":
                shown.append(content["text"].strip())

        reply = client.execute_interactive(code, output_hook=note, timeout=TIMEOUT_S)
        if reply["content"]["status"] == "error":
            return str(reply["content"]["ename"])
        return "".join(shown)

    try:
        cells = [START.format(server=server, topic=topic), SEND, AWAIT, READ, FUNCTION, STREAM]
        results = [run(cell) for cell in cells]
        client.execute(WAIT)
        while client.get_iopub_msg(timeout=TIMEOUT_S)["msg_type"] != "execute_input":
            pass
        # the cell has begun, and waits in Java a moment later
        time.sleep(1)
        manager.interrupt_kernel()
        results.append(client.get_shell_msg(timeout=TIMEOUT_S)["content"].get("ename", "no error"))
        results += [run(AFTER), run(STOP)]
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:3])
