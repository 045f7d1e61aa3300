"""The main job end to end, on real flights: broker, producer, consumer groups and Spark, each
figure checked against the files.

``dataset`` finds the files, ``flights`` makes events of them, ``truth`` computes what must come
out, ``figures`` compares, ``run`` drives the processes, ``report`` draws what happened.
"""
