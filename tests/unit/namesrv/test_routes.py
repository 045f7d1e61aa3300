"""What the log tells of those who administer a name server."""

from pathlib import Path

import pytest

from ogive.namesrv import NameServer, NameServerConfig
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.audit import ROOT, lines, table_with_root


async def test_a_name_server_tells_who_changed_what(
    told: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server = NameServer(
        NameServerConfig(port=0, kv_path=tmp_path / "kv.json"), access=await table_with_root()
    )
    await server.start()
    identity = {
        "brokerName": "b",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": "C",
        "brokerId": 0,
        "haServerAddr": "",
    }
    async with await RawClient.open(server.address, credentials=ROOT) as client:
        topics = {name: {"topicName": name} for name in ("T", "U")}
        body = {
            "topicConfigSerializeWrapper": {
                "topicConfigTable": topics,
                "dataVersion": {"counter": 1, "timestamp": 1},
            }
        }
        await client.ok(RequestCode.REGISTER_BROKER, dumps(body), **identity)
        await client.ok(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="very-private")
        await client.ok(RequestCode.DELETE_KV_CONFIG, namespace="N", key="k")
        await client.ok(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="b")
        await client.ok(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="b")
        await client.ok(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true")
        await client.ok(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T")
    await server.stop()
    assert [line.partition(", at the name server: ")[2] for line in lines(told)] == [
        "set namespace N, key k: it is now value=***",
        "delete namespace N, key k: it was value=***",
        "close for writing all topics of broker b: 'topics closed for writing' 0 -> 2",
        "open for writing all topics of broker b: 'topics closed for writing' 2 -> 0",
        "change the name server's settings: orderMessageEnable false -> true",
        "forget the route of topic T: it was brokers=b",
    ]
    assert all(line.startswith("user root from 127.0.0.1:") for line in lines(told))
    assert "very-private" not in told.text
