"""The first program of each SDK, as docs/grpc.md has it, runs as it is there."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.sdk.sdks import ROOT, SDKS, missing_prerequisite
from tests.interop.sdk.servers import Server, start_server
from tests.peers import Flavour

pytestmark = [pytest.mark.sdk, pytest.mark.waits(60)]

PAGE: Final = ROOT / "docs" / "grpc.md"


@pytest.fixture(scope="module")
def server(flavour: Flavour, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with start_server(flavour, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.mark.parametrize("name", SDKS)
def test_it_sends_and_receives(name: str, server: Server, topic: str, tmp_path: Path) -> None:
    sdk = SDKS[name]
    if missing := missing_prerequisite(sdk.programs):
        pytest.skip(missing)
    fence = {"node": "js"}.get(name, name)
    code = re.search(rf"^```{fence}\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert code is not None
    server.topic(topic)
    text = code[1].replace("127.0.0.1:8081", server.endpoints)
    text = text.replace("Greetings", topic).replace("readers", f"{topic}readers")
    assert sdk.runs is not None
    (tmp_path / sdk.first).write_text(text, "utf-8")
    # the SDKs write their logs into the home folder, where Go has its cache of modules
    home = tmp_path / "home"
    logs = {
        "JAVA_TOOL_OPTIONS": f"-Duser.home={home}",
        "rocketmq.client.logRoot": str(home),
        **({} if name == "go" else {"HOME": str(home)}),
    }
    done = subprocess.run(
        sdk.runs(tmp_path),
        cwd=tmp_path,
        env=os.environ | logs,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "received hello" in done.stdout
