"""Topics as Spark tables and streams, Spark as a producer, and listeners as Spark jobs. Needs the packages of ogive[spark].

Schemas, metrics and listeners are in modules of their own: ogive.spark.parse, ogive.spark.metrics, ogive.spark.jobs.
"""

from ogive.spark.reading import read, register
from ogive.spark.session import session

__all__ = ["read", "register", "session"]
