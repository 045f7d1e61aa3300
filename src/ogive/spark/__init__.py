"""Topics as Spark tables and streams, Spark as a producer, and listeners as Spark jobs.

Needs the packages of ogive[spark].

Importing it before the session starts makes Spark's Python processes run this interpreter, unless
PYSPARK_PYTHON names one. Schemas, metrics and listeners are in modules of their own:
ogive.spark.parse, ogive.spark.metrics, ogive.spark.jobs.
"""

from ogive.spark.interpreter import prefer_this_interpreter
from ogive.spark.session import read, register, session

prefer_this_interpreter()

__all__ = ["read", "register", "session"]
