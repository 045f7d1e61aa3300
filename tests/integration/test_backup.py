"""``ogive store backup`` beside a broker that is in use, and brokers that start on the copy."""

import json
import threading
from pathlib import Path

import pytest

import ogive
from ogive.cli.main import main
from ogive.testing import Broker

pytestmark = pytest.mark.client_suite


def everything(name_server: str) -> list[int]:
    """Return the messages of Orders in their order."""
    with ogive.PullConsumer(
        "Orders", group="reader", start="earliest", name_server=name_server
    ) as consumer:
        found: list[int] = []
        while messages := consumer.poll(5.0 if found else 60.0):
            found += [int(message.text) for message in messages]
        return found


def test_a_copy_has_every_message_acknowledged_before_it_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acknowledged: list[int] = []
    stop, many = threading.Event(), threading.Event()
    options = ("--segment-size", "65536")
    with (
        Broker(data=tmp_path / "live", options=options) as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Orders", queues=1)

        def send() -> None:
            while not stop.is_set():
                producer.send("Orders", str(len(acknowledged)).encode())
                acknowledged.append(len(acknowledged))
                if len(acknowledged) == 500:
                    many.set()

        sender = threading.Thread(target=send)
        sender.start()
        try:
            assert many.wait(60)
            before = len(acknowledged)
            command = ["store", "backup", str(tmp_path / "live"), str(tmp_path / "copy")]
            assert main([*command, "--verify", "--json"]) == 0
            # one may be stored and not acknowledged yet
            after = len(acknowledged) + 1
        finally:
            stop.set()
            sender.join()
        row = json.loads(capsys.readouterr().out)
        assert row["segments"] > 1
        assert main(command) == 1
        assert "exists: a backup is a new directory" in capsys.readouterr().err
    with Broker(data=tmp_path / "copy") as broker:
        restored = everything(broker.name_server)
    assert before <= len(restored) <= after
    assert restored == list(range(len(restored)))
