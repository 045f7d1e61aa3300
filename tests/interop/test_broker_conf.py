"""broker.conf is read as Java reads it."""

from pathlib import Path

from tests.interop import apache
from tests.java_properties import SAMPLES


def test_java_reads_the_same_in_each_text(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.conf" for number in range(len(SAMPLES))]
    for file, (data, _) in zip(files, SAMPLES, strict=True):
        file.write_bytes(data)
    run = apache.run_java("Settings", *map(str, files))
    assert run.code == 0, run.other

    def text(digits: str) -> str:
        return bytes.fromhex(digits).decode("utf-16-be")

    found = [line["settings"] for line in run.lines]
    assert [
        None if one is None else {text(name): text(value) for name, value in one.items()}
        for one in found
    ] == [expected for _, expected in SAMPLES]
