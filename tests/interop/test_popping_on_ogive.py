"""Apache's Java push client, 5.5.0, in POP mode on our broker."""

from ogive.testing import Broker
from tests.interop import apache


def set_mode(broker: Broker, topic: str, group: str, mode: str) -> None:
    apache.admin(
        broker.name_server, f"updateSubGroup -c DefaultCluster -g {group}",
        f"setConsumeMode -c DefaultCluster -t {topic} -g {group} -m {mode} -q 0",
    )  # fmt: skip


def test_a_client_pops_and_gets_what_failed_again(
    ogive_broker: Broker, topic: str, group: str
) -> None:
    """Its failures change the invisible time: 10 s, then the message comes as another try."""
    apache.send(ogive_broker.name_server, topic, 20, tags="a,b")
    set_mode(ogive_broker, topic, group, "POP")
    received = apache.consume(
        ogive_broker.name_server, topic, group, 20, clientRebalance="false", failures=1,
        expression="b",
    )  # fmt: skip
    odd = sorted(f"message {index}" for index in range(1, 20, 2))
    assert sorted(line["body"] for line in received if line["outcome"] == "done") == odd
    assert all("POP_CK" in line["properties"] for line in received)
    assert {line["topic"] for line in received} == {topic}
