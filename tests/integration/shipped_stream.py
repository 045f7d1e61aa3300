"""Started by spark-submit: a stream of small batches from a topic into another one, to its end.

shipped_stream.py NAME_SERVER TOPIC CHECKPOINT
"""

import sys

import ogive.spark

name_server, topic, checkpoint = sys.argv[1:]
spark = ogive.spark.session("shipped")
source = spark.readStream.format("rocketmq").options(
    nameServer=name_server,
    subscribe=topic,
    startingOffsets="earliest",
    endingOffsets="latest",
    maxOffsetsPerTrigger="100",
)
sink = source.load().select("body").writeStream.format("rocketmq")
sink.options(
    nameServer=name_server,
    topic=f"{topic}_copy",
    delivery="transactional",
    checkpointLocation=checkpoint,
).trigger(availableNow=True).start().awaitTermination()
spark.stop()
