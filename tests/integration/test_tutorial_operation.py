"""docs/tutorial-operation.md, typed as it stands.

Our broker only. Changed are the address, which is loopback here, the ports, and the path of the
clone. Where a person waits for what is to be seen, the script asks again.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial-operation.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# `again` repeats a command for half a minute; what `reports` runs may have warnings
BEGIN = """
set -e -m -o pipefail
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
again() { for _ in $(seq 60); do "$@" && return; sleep 0.5; done; return 1; }
reports() { "$@" || test $? = 3; }
command -v promtool > /dev/null || promtool() { :; }
"""


def script() -> str:
    """Return all blocks as one script; a block that begins with ``# NAME.EXTENSION`` is a file."""
    lines = [BEGIN]
    for language, text in BLOCK.findall(PAGE.read_text("utf-8")):
        if language == "sh":
            lines.append(text)
        else:
            name = re.match(r"# (\w+\.\w+)\n", text)
            assert name is not None, text
            lines.append(f"cat > {name[1]} <<'END'\n{text}END\n")
    return "".join(lines)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_tutorial_of_operation_works_as_it_is_written(tmp_path: Path) -> None:
    port, broker, metrics, console = (str(free_port()) for _ in range(4))
    text = script()
    for old, new in (
        ("10.0.0.5:9876", f"127.0.0.1:{port}"),
        ("-n 10.0.0.5", f"-n 127.0.0.1:{port}"),
        ("10.0.0.5", "127.0.0.1"),
        ("5557", metrics),
        ("8090", console),
        (
            "\ndata = ",
            f"\nno-grpc = true\nname-server-port = {port}\nbroker-port = {broker}\ndata = ",
        ),
        ("../ogive", str(ROOT)),
        ("--data ./data", f"--data ./data --name-server-port {port} --broker-port {broker}"),
        ("\nogive doctor", "\nreports ogive doctor"),
        ("\ncurl ", "\nagain curl --fail --silent --show-error "),
        ("\nogive check lag", "\nagain ogive check lag"),
        ("\nogive tail", "\nagain ogive topic show Orders\nogive tail"),
    ):
        assert old in text, old
        text = text.replace(old, new)
    paths = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": paths, "XDG_CONFIG_HOME": str(tmp_path / "settings")}
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    seen = done.stdout + done.stderr
    assert done.returncode == 0, seen
    assert "nothing is wrong" in done.stdout, seen
    assert "is in %DLQ%billing now" in done.stderr, seen
    # what is read after the restore: all but the message that came after the backup
    orders = done.stdout[done.stdout.index("/restored\n") :]
    assert all(f"471{number}: " in orders for number in (1, 2, 3)), seen
    assert "4714: " not in orders, seen
