"""The broker that tests start: it comes back where it was, and leaves nothing behind."""

import tempfile
from pathlib import Path

import pytest

import ogive
from ogive.errors import IllegalStateError
from ogive.testing import Broker


def test_a_killed_broker_comes_back_on_its_ports_with_its_messages_and_leaves_nothing() -> None:
    with Broker() as broker:
        address, folder = broker.address, broker.data
        with ogive.Producer(broker.name_server) as producer:
            place = producer.send("Orders", b"one")
        broker.kill()
        broker.start()
        assert broker.address == address
        with ogive.Admin(broker.name_server) as admin:
            held = {row.queue: row.max_offset for row in admin.offsets("Orders")}
        assert held[place.queue] == 1
    assert not folder.exists()


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(IllegalStateError, match="not loopback"), Broker(options=("--host", "192.0.2.1")):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_broker_that_does_not_run_has_no_process() -> None:
    with pytest.raises(IllegalStateError, match="start it"):
        _ = Broker().pid
