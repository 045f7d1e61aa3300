"""Which messages cannot be sent again, and why: the pipelines that send pass over them, and count
them.

Any client can bring such into a store, and none of them may stop a pipeline.
"""

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as f

from ogive.model import MAX_BODY_BYTES
from ogive.wire.message import MAX_PROPERTIES_BYTES

UNREADABLE: Final = "its sender wrote a body that nobody can read"
TOO_LARGE: Final = (
    f"its body, inflated, is over the {MAX_BODY_BYTES:,} bytes that a message may have"
)
TOO_MANY_PROPERTIES: Final = (
    "its properties and those of a copy are over the "
    f"{MAX_PROPERTIES_BYTES:,} bytes that a message may have"
)
REASONS: Final = (UNREADABLE, TOO_LARGE, TOO_MANY_PROPERTIES)

_ADDED: Final = 512
"""Bytes that a copy may have more: a unique key, a sharding key made of the names of topic and
broker, the next broker's own.
"""


def why_not() -> Column:
    """One of REASONS, null for a message that can be sent, by its columns body and properties."""
    names, values = f.map_keys("properties"), f.map_values("properties")
    properties = f.octet_length(f.concat_ws("", names, values)) + 2 * f.size("properties")
    return (
        f.when(f.col("body").isNull(), UNREADABLE)
        .when(f.octet_length("body") > MAX_BODY_BYTES, TOO_LARGE)
        .when(properties > MAX_PROPERTIES_BYTES - _ADDED, TOO_MANY_PROPERTIES)
    )
