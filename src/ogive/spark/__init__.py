"""Topics as Spark tables and streams, rows of Spark as messages, and listeners as Spark jobs.

Needs the packages of ogive[spark].

If it is imported before the session starts, Spark's Python processes run this interpreter, unless
PYSPARK_PYTHON names one. Schemas, metrics and listeners are in modules of their own:
ogive.spark.parse, ogive.spark.metrics, ogive.spark.jobs.
"""

from ogive.spark.interpreter import prefer_this_interpreter
from ogive.spark.session import read, register, session

prefer_this_interpreter()

__all__ = ["read", "register", "session"]
