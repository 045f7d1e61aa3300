"""The files of a release: wheels that install without a compiler, and those for other platforms."""

import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.setting_up import only
from tools import wheels

ROOT = Path(__file__).parents[2]
NAMES = {
    "aarch64-gnu": ("manylinux_2_17_aarch64", 183),
    "x86_64-musl": ("musllinux_1_2_x86_64", 62),
    "aarch64-musl": ("musllinux_1_2_aarch64", 183),
}
"""Platform tag, and the machine in the header of an ELF file."""

pytestmark = [pytest.mark.rel, pytest.mark.nightly, pytest.mark.computes(90)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what ``make wheel ARGS=--cross`` writes."""
    if not Path(wheels.PACKAGES, "installed.txt").exists():
        pytest.skip("tools/setup wheels installs what builds the files of a release")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "tools.wheels", "--cross", "--to", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=900)
    return folder


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("release", wheels.PYTHONS)
def test_a_wheel_installs_without_a_compiler_and_works(
    release: str, files: Path, tmp_path: Path
) -> None:
    asks = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in wheels.pythons():
        if subprocess.check_output([python, "-c", asks], text=True).strip() == release:
            break
    else:
        pytest.skip(f"there is no Python {release}")
    (wheel,) = files.glob(f"ogive-*-cp{release.replace('.', '')}-*manylinux_2_17_x86_64.whl")
    subprocess.run([python, "-m", "venv", tmp_path / "venv"], check=True)
    programs = tmp_path / "venv" / "bin"
    environment = {"PATH": only(tmp_path / "bin", "env"), "HOME": str(tmp_path)}
    assert not shutil.which("cc", path=environment["PATH"])
    pip = [str(programs / "python"), "-m", "pip", "install", "--quiet", "--no-index", str(wheel)]
    subprocess.run(pip, env=environment, check=True, timeout=300)

    says = subprocess.check_output([programs / "ogive", "--version"], env=environment, text=True)
    assert "with its compiled part" in says
    exchange = (
        "import ogive, ogive.testing\n"
        "with ogive.testing.Broker() as broker, ogive.Producer(broker.name_server) as producer:\n"
        "    print(producer.send('Orders', b'x' * 9).status.name)\n"
    )
    sent = subprocess.check_output(
        [programs / "python", "-c", exchange], env=environment, text=True, timeout=60
    )
    assert sent == "SEND_OK\n"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", wheels.CROSS, ids="-".join)
def test_wheels_for_other_platforms_need_no_more_than_their_tags_say(
    target: wheels.Target, files: Path
) -> None:
    libc = target.libc.partition(".")[0]
    tag, machine = NAMES[f"{target.machine}-{libc}"]
    (wheel,) = files.glob(f"*{tag}.whl")
    with zipfile.ZipFile(wheel) as packed:
        module = packed.read(f"ogive/_native{target.suffix}")
    assert struct.unpack_from("<4s14xH", module) == (b"\x7fELF", machine)
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.check_output(
        command, env=os.environ | {"PYTHONPATH": str(wheels.PACKAGES)}, text=True
    )
    assert f'"{tag}"' in " ".join(shown.split())


@pytest.mark.timeout(1200)
def test_the_list_of_components_has_each_extra_with_its_licence(files: Path) -> None:
    (listed,) = files.glob("*.cdx.json")
    bill = json.loads(listed.read_text("utf-8"))
    parts = {part["name"].lower(): part for part in bill["components"]}
    assert {"pyspark", "py4j", "starlette", "lz4", "protobuf"} <= parts.keys()
    assert not {"pytest", "mypy", "rich"} & parts.keys()
    assert [name for name, part in parts.items() if not part.get("licenses")] == []
