"""Jars and packages of these tests, in .cache/lakes: python -m tests.lakes.packages fetches the
jars from Maven Central.

They are of the newest releases for Spark 4.0 at the time of writing.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
POM: Final = Path(__file__).with_name("pom.xml")
JARS: Final = ROOT / ".cache" / "lakes" / "jars"
PACKAGES: Final = ROOT / ".cache" / "lakes" / "packages"


def fetch() -> None:
    """Fetch the jars that pom.xml names, unless they are here. Raises SystemExit."""
    mark = JARS / "pom.xml"
    if mark.exists() and mark.read_bytes() == POM.read_bytes():
        return
    shutil.rmtree(JARS, ignore_errors=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    done = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(POM), goal, f"-DoutputDirectory={JARS}"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"Maven cannot fetch the jars of the lakes:\n{done.stdout[-3000:]}")
    shutil.copy(POM, mark)


if __name__ == "__main__":
    fetch()
