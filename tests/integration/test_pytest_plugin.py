"""The pytest plugin as a user's test suite meets it: in a pytest of its own.

Our broker only: it is what the fixture starts.
"""

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

SUITE = """
import asyncio
import threading

import ogive
import pytest

calls = []

@ogive.listener("Orders", group="billing", start="earliest", max_retries=2)
def bill(message):
    calls.append((message.body, message.reconsume_times))
    if message.body == b"once" and message.reconsume_times == 0 or message.body == b"poison":
        raise ValueError(message.body)

def test_what_is_sent_is_there(rocketmq):
    assert rocketmq.messages("Orders") == []
    sent = rocketmq.send("Orders", b"good", tag="paid", keys="k1")
    (message,) = rocketmq.messages("Orders")
    assert (message.id, message.tag, message.keys) == (sent.id, "paid", ("k1",))

def test_who_never_consumed_is_said(rocketmq):
    with pytest.raises(AssertionError, match="group nobody has not finished within 0.2 s"):
        rocketmq.wait_consumed("nobody", timeout_s=0.2)

def test_a_wait_on_the_loop_of_an_async_consumer_says_how_to_wait(rocketmq):
    got = []

    @ogive.listener("Letters", group="post")
    async def deliver(message):
        got.append(message.body)

    async def main():
        rocketmq.send("Letters", b"1")
        async with ogive.aio.PushConsumer(deliver, name_server=rocketmq.name_server):
            with pytest.raises(AssertionError, match="await asyncio.to_thread.rocketmq.wait"):
                rocketmq.wait_consumed("post", timeout_s=0.2)
            await asyncio.to_thread(rocketmq.wait_consumed, "post", timeout_s=60)

    asyncio.run(main())
    assert got == [b"1"]

def test_retries_are_waited_for(rocketmq):
    rocketmq.send("Orders", b"once")
    rocketmq.send("Orders", b"poison")
    with ogive.PushConsumer(bill, name_server=rocketmq.name_server):
        rocketmq.wait_consumed("billing", timeout_s=60)
        assert sorted(calls) == [
            (b"good", 0),
            *[(b"once", times) for times in range(2)],
            *[(b"poison", times) for times in range(3)],
        ]
        assert [message.body for message in rocketmq.messages("%DLQ%billing")] == [b"poison"]
    rocketmq.send("Orders", b"too late")
    with pytest.raises(AssertionError, match="1 of Orders/broker-a/"):
        rocketmq.wait_consumed("billing", "Orders", timeout_s=0.2)

def test_a_retry_counts_before_the_group_has_a_place_in_its_retry_topic(rocketmq):
    rocketmq.send("Refunds", b"later")
    rocketmq.admin.create_group("refunds")
    rocketmq.admin.reset_offsets("refunds", "Refunds", "latest")
    rocketmq.admin.create_topic("%RETRY%refunds", queues=1)
    rocketmq.send("%RETRY%refunds", b"later")
    with pytest.raises(AssertionError, match="1 of %RETRY%refunds/broker-a/"):
        rocketmq.wait_consumed("refunds", timeout_s=0.2)

def test_a_topic_counts_before_the_group_has_a_place_in_it(rocketmq):
    @ogive.listener("Shipped", group="mail", start="earliest")
    def shipped(message): ...

    @ogive.listener("Returned", group="mail", start="earliest")
    def returned(message):
        looked.wait()

    looked = threading.Event()
    rocketmq.send("Shipped", b"1")
    rocketmq.send("Returned", b"1")
    no_progress = ogive.ConsumerConfig(persist_period_s=3600, persist_again_s=3600)
    server = rocketmq.name_server
    with ogive.PushConsumer(shipped, returned, name_server=server, config=no_progress):
        rocketmq.admin.reset_offsets("mail", "Shipped", "latest")
        with pytest.raises(AssertionError, match="1 of Returned"):
            rocketmq.wait_consumed("mail", timeout_s=0.5)
        looked.set()
"""


def test_a_suite_that_uses_the_fixture_passes(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(SUITE)
    found = [one.value for one in entry_points(group="pytest11", name="ogive")]
    # a clone that was installed before the plugin came
    plugin = [] if found else ["-p", "ogive.testing.plugin"]
    assert found in ([], ["ogive.testing.plugin"])
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:asyncio",
        "-W",
        "error",
        *plugin,
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False
    )
    assert "6 passed" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0


def test_the_plugin_loads_nothing_that_a_suite_without_it_would_pay_for() -> None:
    code = (
        "import sys, ogive.testing.plugin; print([name for name in sys.modules if "
        "name.startswith('ogive.') and name != 'ogive.version'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "['ogive.testing', 'ogive.testing.plugin']"
