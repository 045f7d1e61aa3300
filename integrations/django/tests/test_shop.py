"""The shop of Django, with its programs as processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ogive.testing import RocketMQ

LIMIT_S = 120
EXAMPLE = Path(__file__).parents[1] / "example"


class Shop:
    """Runs programs of the shop with the same environment."""

    def __init__(self, name_server: str, database: Path) -> None:
        self.environment = os.environ | {
            "DATABASE": str(database),
            "DJANGO_SETTINGS_MODULE": "shop.settings",
            "NAMESRV_ADDR": name_server,
            "PYTHONUNBUFFERED": "1",
        }

    def run(self, *arguments: str) -> None:
        command = [sys.executable, *arguments]
        subprocess.run(command, cwd=EXAMPLE, env=self.environment, check=True, timeout=LIMIT_S)


@pytest.fixture
def shop(rocketmq: RocketMQ, tmp_path: Path) -> Shop:
    made = Shop(rocketmq.name_server, tmp_path / "shop.sqlite3")
    made.run("-m", "django", "migrate", "--run-syncdb")
    return made


def test_an_order_is_sent_after_its_commit_and_billed_once(
    rocketmq: RocketMQ, shop: Shop, tmp_path: Path
) -> None:
    shop.run("-m", "shop.orders", "4711", "20")
    rolled_back = (
        "import django; django.setup()\n"
        "from django.db import transaction\n"
        "from shop.orders import place_order\n"
        "try:\n"
        "    with transaction.atomic():\n"
        "        place_order('4712', 30)\n"
        "        raise ValueError\n"
        "except ValueError: pass\n"
    )
    shop.run("-c", rolled_back)
    assert [one.text for one in rocketmq.messages("Orders")] == ["4711"]
    # the same order again, as after a kill
    rocketmq.send("Orders", b"4711")
    log = tmp_path / "log"
    command = [sys.executable, "-m", "ogive", "run", "shop.listeners", "-n", rocketmq.name_server]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, cwd=EXAMPLE, env=shop.environment, stdout=output, stderr=output
        )
    try:
        give_up = time.monotonic() + LIMIT_S
        while "billed" not in log.read_text("utf-8"):
            assert time.monotonic() < give_up, log.read_text("utf-8")
            time.sleep(0.1)
        rocketmq.wait_consumed("billing", timeout_s=LIMIT_S)
    finally:
        worker.terminate()
        worker.wait(LIMIT_S)
    assert log.read_text("utf-8").count("billed 4711: 20") == 1


def test_a_listener_leaves_no_connection_behind(shop: Shop) -> None:
    """CONN_MAX_AGE is 0 here, so a connection is too old at the end of a call."""
    shop.run(
        "-c",
        "from shop.listeners import bill\n"
        "from django.db import connection\n"
        "from ogive.testing import message\n"
        "from shop.models import Order\n"
        "Order.objects.create(number='4711', amount=20)\n"
        "bill(message('Orders', b'4711'))\n"
        "assert connection.connection is None\n"
        "assert Order.objects.get().billed\n",
    )
