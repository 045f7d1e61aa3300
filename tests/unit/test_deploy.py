"""The files in deploy/ are valid for the programs that read them, and name what ogive has."""

import json
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

import ogive

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus.rules.yml"
PACKAGES = {"promtool": "Debian's package prometheus", "systemd-analyze": "systemd"}


def run(program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    own = Path(sysconfig.get_path("scripts"), program)
    found = str(own) if own.exists() else shutil.which(program)
    if found is None:
        pytest.skip(f"{program} comes with {PACKAGES.get(program, 'make check')}")
    return subprocess.run(
        [found, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_alerts_fire_when_they_should_and_not_else() -> None:
    done = run("promtool", "test", "rules", DEPLOY / "prometheus.rules.test.yml")
    assert done.returncode == 0, done.stdout + done.stderr


def served_by_brokers() -> set[str]:
    served = (ROOT / "tests/surface/lists/metrics.txt").read_text("utf-8")
    return set(re.findall(r"^(\w+):", served, re.MULTILINE))


def test_the_board_names_metrics_that_brokers_and_clients_have() -> None:
    """tests/integration/test_dashboard.py has a Prometheus answer its queries."""
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text("utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    named = set(re.findall(r"\b(?:ogive|rocketmq)_\w+", " ".join(queries)))
    of_histograms = {re.sub(r"_(bucket|count|sum)$", "", name) for name in named}
    clients = set(re.findall(r"^# TYPE (\w+)", ogive.metrics(), re.MULTILINE))
    assert len(named) > 15
    assert of_histograms <= served_by_brokers() | clients


def test_the_alerts_name_metrics_that_brokers_have() -> None:
    known = served_by_brokers()
    named = set(re.findall(r"\b(?:ogive|rocketmq)_\w+", RULES.read_text("utf-8")))
    assert named
    assert named <= known


def test_each_alert_is_tried_in_both_states() -> None:
    alerts = re.findall(r"alert: (\w+)", RULES.read_text("utf-8"))
    tried = (DEPLOY / "prometheus.rules.test.yml").read_text("utf-8")
    assert [len(re.findall(rf"alertname: {alert}\b", tried)) for alert in alerts] == [2] * len(
        alerts
    )


def test_the_compose_file_is_valid() -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    done = run("check-jsonschema", *schema, DEPLOY / "compose.yaml")
    assert done.returncode == 0, done.stdout


def test_the_kubernetes_file_is_valid() -> None:
    done = run("kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_is_valid_and_its_exposure_is_low(tmp_path: Path) -> None:
    [ours] = DEPLOY.glob("*.service")
    unit = tmp_path / ours.name
    text = ours.read_text("utf-8")
    # the program of the unit has to be there
    unit.write_text(text.replace("/opt/ogive/bin/ogive", "/bin/true"))
    done = run("systemd-analyze", "verify", unit)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    # in tenths
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
    assert done.returncode == 0, done.stdout
