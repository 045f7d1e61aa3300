"""Topics as Spark tables and streams, and Spark as a producer. Needs the packages of ogive[spark]."""

from ogive.spark.session import session

__all__ = ["session"]
