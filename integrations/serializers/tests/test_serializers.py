"""The examples of serializers, as processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ogive.testing import RocketMQ

EXAMPLE = Path(__file__).parents[1] / "example"


@pytest.mark.parametrize("program", ["avro_orders.py", "protobuf_orders.py"])
def test_an_order_is_written_and_read(rocketmq: RocketMQ, program: str) -> None:
    done = subprocess.run(
        [sys.executable, program],
        cwd=EXAMPLE,
        env=os.environ | {"NAMESRV_ADDR": rocketmq.name_server},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "4711: 20\n"
