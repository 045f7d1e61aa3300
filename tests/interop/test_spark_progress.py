"""Apache's tools and the consumer group of a Spark stream, which never has a member."""

import re

import pytest

pytest.importorskip("pyspark")

import ogive
from ogive.spark.cluster import cluster
from ogive.spark.group_progress import GroupProgress
from ogive.spark.options import access_of
from tests.interop import apache
from tests.topics import wait_until_shown


@pytest.fixture(params=["ogive", "apache"])
def name_server(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(f"{request.param}_broker").name_server)


def test_mqadmin_shows_how_far_a_stream_is_behind(name_server: str, topic: str, group: str) -> None:
    """With -t: there is no retry topic, which it asks for otherwise."""
    with ogive.Admin(name_server) as admin, ogive.Producer(name_server) as producer:
        admin.create_topic(topic, queues=1)
        queue, *_ = (producer.send(topic, b"%d" % number).queue for number in range(9))
    wait_until_shown(name_server, topic, 9)
    progress = GroupProgress(cluster(access_of({"nameServer": name_server})), group)
    progress.advance({queue: 4})
    progress.flush()
    (shown,) = apache.admin(name_server, f"consumerProgress -g {group} -t {topic}")
    assert re.search(rf"^{re.escape(topic)} +broker-a +0 +9 +4 ", shown, re.MULTILINE), shown
    assert "Consume Diff Total: 5" in shown
