"""A test of the application, with the ``rocketmq`` fixture as its broker."""

import json

from fastapi.testclient import TestClient
from orders import create_app

from ogive.testing import RocketMQ


def test_an_order_is_sent_and_billed(rocketmq: RocketMQ) -> None:
    with TestClient(create_app(rocketmq.name_server)) as client:
        answer = client.post("/orders", json={"id": "4711", "amount": 3})
        assert answer.status_code == 200
        rocketmq.wait_consumed("billing")
    (message,) = rocketmq.messages("Orders")
    assert message.id == answer.json()["id"]
    assert json.loads(message.body) == {"id": "4711", "amount": 3}
