"""Apache's own load generator finds nothing to complain about: 16 threads, binary headers,
short-name send requests.
"""

import re

from ogive.testing import Broker
from tests.interop import apache

MESSAGES = 20_000


def test_no_send_of_the_benchmark_producer_fails(ogive_broker: Broker) -> None:
    name_server = ogive_broker.name_server
    apache.admin(name_server, "updateTopic -c DefaultCluster -t Bench -r 8 -w 8")
    load = [
        "-n",
        name_server,
        "-t",
        "Bench",
        "-w",
        "16",
        "-s",
        "1024",
        "-q",
        str(MESSAGES),
        "-ri",
        "1000",
    ]
    run = apache.run_java("org.apache.rocketmq.example.benchmark.Producer", *load)
    # with figures in between, unless it was over before the first of its reports
    totals = re.search(
        r"\[Complete\] Send Total: (\d+) .*?Send Failed: (\d+)[ |]+Response Failed: (\d+)",
        run.other,
    )
    assert totals, run.other
    assert totals.groups() == (str(MESSAGES), "0", "0")
    ends = apache.table(apache.admin(name_server, "topicStatus -t Bench")[0])
    assert len(ends) == 8
    assert sum(int(row["Max Offset"]) for row in ends) == MESSAGES
