"""Topics, groups and counters of the run, and the settings that several of its processes must agree
on.
"""

from typing import Final

FLIGHTS: Final = "Flights"
ON_TIME: Final = "OnTime"
QUEUES: Final = 8

ORDER_GROUP: Final = "aircraft-order"
CANCELLATION_GROUP: Final = "cancellations"
SPARK_GROUP: Final = "on-time"
# A group with a tag filter hears of messages that it does not take only when its long poll ends, so
# the broker sees it behind until then.
UNFILTERED_GROUPS: Final = (ORDER_GROUP, SPARK_GROUP)

MAX_RETRIES: Final = 2
# a retry waits a second, not ten and thirty
DELAY_LEVELS: Final = " ".join(["1s"] * 18)

# Running totals, as progress bars and plots call them.
SENT: Final = "sent"
SENT_CANCELLATIONS: Final = "sent cancellations"
IN_ORDER: Final = "orderly group"
CANCELLATIONS: Final = "concurrent group"
RETRIES: Final = "retries"
SPARK: Final = "Spark"
