"""Traces of our clients as Apache's tools read them, on Apache's broker."""

import time
from typing import Any

import ogive
from tests.interop import apache

WAIT_S = 60.0


def test_mqadmin_shows_who_sent_and_who_consumed_a_message(
    apache_broker: apache.Apache, topic: str, group: str
) -> None:
    name_server = apache_broker.name_server
    tries: list[int] = []

    @ogive.listener(topic, group=group, start="earliest")
    def bill(message: ogive.MessageExt) -> Any:
        tries.append(message.reconsume_times)
        return ogive.LATER if message.reconsume_times == 0 else None

    with ogive.Producer(
        name_server,
        group=f"{group}-p",
        config=ogive.ProducerConfig(trace=True, send_timeout_s=WAIT_S),
    ) as producer:
        sent = producer.send(topic, b"espresso", tag="paid", keys="k1")
    with ogive.PushConsumer(
        bill,
        name_server=name_server,
        config=ogive.ConsumerConfig(trace=True, rebalance_pause_s=0.1),
    ):
        deadline = time.monotonic() + WAIT_S
        while len(tries) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
    [output] = apache_broker.admin(f"queryMsgTraceById -i {sent.id}")
    lines = [line.split() for line in output.splitlines()]
    pub = next(line for line in lines if line[:1] == ["Pub"])
    calls = [line for line in lines if group in line and line[:1] != ["Pub"]]
    assert (pub[1], pub[-1]) == (f"{group}-p", "success"), output
    assert sorted(line[-1] for line in calls) == ["failed", "success"], output
