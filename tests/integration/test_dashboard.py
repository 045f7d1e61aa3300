"""Each query of the Grafana board has an answer of a real Prometheus that scrapes a broker and a
worker.
"""

import json
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ogive
from ogive.testing import Broker
from tests.processes import free_port

pytestmark = pytest.mark.client_suite

BOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana-dashboard.json").read_text("utf-8"))
APP = """
import ogive

producer = ogive.Producer("NAME_SERVER")
producer.start()

@ogive.listener("Orders", group="billing", start="earliest", max_retries=0)
def bill(message: ogive.MessageExt) -> None:
    try:
        producer.send("Receipts", message.body)
        producer.send("Receipts", message.body, queue=ogive.MessageQueue("Receipts", "none", 0))
    except ogive.OgiveError:
        raise ValueError(message.text) from None
"""


def queries() -> list[str]:
    """Return the queries of the panels, as Grafana sends them for all brokers."""
    return [
        target["expr"].replace("$__rate_interval", "1m").replace("$broker", ".*")
        for panel in BOARD["panels"]
        for target in panel.get("targets", ())
    ]


@contextmanager
def prometheus(folder: Path, *ports: int) -> Iterator[str]:
    """Run Prometheus, which scrapes these *ports* each second."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus comes with Debian's package prometheus")
    port = free_port()
    targets = ", ".join(f'"127.0.0.1:{one}"' for one in ports)
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs:\n"
        f"  - job_name: ogive\n    static_configs: [{{targets: [{targets}]}}]\n"
    )
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def samples(address: str, query: str) -> list[object]:
    """Return the samples that answer *query*; none before the server is ready."""
    words = urllib.parse.urlencode({"query": query})
    try:
        with urllib.request.urlopen(f"{address}/api/v1/query?{words}", timeout=30) as answer:
            found: list[object] = json.load(answer)["data"]["result"]
            return found
    except urllib.error.URLError as exc:
        if isinstance(exc, urllib.error.HTTPError) and exc.code != 503:
            raise AssertionError(f"{query}: {exc.read().decode()}") from None
        return []


def test_each_query_of_the_board_has_an_answer(tmp_path: Path) -> None:
    metrics_port, http_port = free_port(), free_port()
    with Broker(options=("--metrics-port", str(metrics_port))) as broker:
        (tmp_path / "board_app.py").write_text(APP.replace("NAME_SERVER", broker.name_server))
        command = [sys.executable, "-m", "ogive", "run", "board_app", "-n", broker.name_server]
        with (
            ogive.Producer(broker.name_server) as producer,
            prometheus(tmp_path, metrics_port, http_port) as address,
            subprocess.Popen(
                [*command, "--http-port", str(http_port)],
                cwd=tmp_path,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ) as worker,
        ):
            try:
                left, give_up = queries(), time.monotonic() + 120
                assert len(left) > 15
                while left:
                    producer.send("Orders", b"one")
                    left = [query for query in left if not samples(address, query)]
                    assert time.monotonic() < give_up, left
                    time.sleep(0.5)
            finally:
                worker.kill()
