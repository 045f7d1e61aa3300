"""The two ways to look for inputs that break a decoder: led by coverage where atheris is installed,
else blind.
"""

import base64
import hashlib
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from tests.fuzz import corpus

FOUND: Final = Path(__file__).parents[2] / ".cache" / "fuzz"
# of a processor, for one input; a second look decides
SLOW_S: Final = 1.0
MAX_BYTES: Final = 8192
RSS_MIB: Final = 512
WORDS: Final = (
    b"\x00",
    b"\xff",
    b"\x01",
    b"\x02",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\\u00",
    b"\\ud8",
    b"-",
    b"9" * 40,
    b"9" * 5000,
    b"null",
    b"true",
    b"1e999",
    b"NaN",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x00\x00\x00",
    b"\xff" * 8,
    b"{}",
    b"[]",
    b'{"$ref":"$"}',
    b"\xed\xa0\x80",
    "\u0663".encode(),
    b"\n",
    b" ",
    b"=",
    b"%",
    b"../",
)


def names() -> list[str]:
    from tests.fuzz.decoders import DECODERS

    return sorted(DECODERS)


def run(name: str, seconds: float) -> int:
    """0 when nothing was found. With atheris the process ends here."""
    try:
        import atheris
    except ImportError:
        return blind(name, seconds)
    # atheris sees Python only: what it is led to there is replayed with the compiled part, too
    os.environ["OGIVE_NATIVE"] = "0"
    with atheris.instrument_imports(include=["ogive"]):
        from tests.fuzz.decoders import DECODERS
    folder = FOUND / name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as seeds:
        for number, one in enumerate(corpus.load(name)):
            (Path(seeds) / str(number)).write_bytes(one)
        limits = [
            "-len_control=0",
            f"-max_total_time={seconds:.0f}",
            f"-max_len={MAX_BYTES}",
            f"-rss_limit_mb={RSS_MIB}",
            f"-timeout={SLOW_S * 10:.0f}",
        ]
        atheris.Setup(
            [
                sys.argv[0],
                *limits,
                f"-artifact_prefix={folder}/",
                "-print_final_stats=1",
                str(folder),
                seeds,
            ],
            DECODERS[name],
        )
        atheris.Fuzz()
    return 0


def blind(name: str, seconds: float, seed: int | None = None) -> int:
    """Mutations of the corpus, and of what it became."""
    from tests.fuzz.decoders import DECODERS

    decode = DECODERS[name]
    seed = random.randrange(2**32) if seed is None else seed
    dice, known, count = random.Random(seed), corpus.load(name) or [b""], 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        data = mutated(dice, known)
        count += 1
        problem = failure(decode, data)
        if problem is not None:
            FOUND.mkdir(parents=True, exist_ok=True)
            (FOUND / f"{name}-{hashlib.sha256(data).hexdigest()[:12]}").write_bytes(data)
            print(
                f"{name}: seed {seed}, input {count}: {base64.b64encode(data).decode()}\n{problem}",
                file=sys.stderr,
            )
            return 1
    print(f"{name}: seed {seed}, nothing found; inputs: {count}")
    return 0


def failure(decode: Callable[[bytes], object], data: bytes) -> str | None:
    """What is wrong with what *decode* does with *data*."""
    try:
        began = time.process_time()
        decode(data)
        if time.process_time() - began > SLOW_S:
            began = time.process_time()
            decode(data)
            if time.process_time() - began > SLOW_S:
                return f"took {time.process_time() - began:.1f} s"
    except Exception:  # noqa: BLE001  # whatever a decoder lets out is the fault that is looked for
        return traceback.format_exc()
    return None


def mutated(dice: random.Random, known: list[bytes]) -> bytes:
    """One of *known* with some bytes changed, cut, doubled, replaced by words that decoders stumble
    over, or by a piece of another.
    """
    out = bytearray(dice.choice(known))
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        at = dice.randrange(len(out) + 1)
        match dice.randrange(7):
            case 0:
                out[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                del out[at : at + dice.randrange(1, 16)]
            case 2:
                out[at : at + dice.randrange(3)] = dice.choice(WORDS)
            case 3:
                out[at:at] = out[at : at + dice.randrange(1, 64)]
            case 4:
                other = dice.choice(known)
                start = dice.randrange(len(other) + 1)
                out[at : at + dice.randrange(8)] = other[start : start + dice.randrange(64)]
            case 5:
                with suppress(IndexError):
                    out[at] ^= 1 << dice.randrange(8)
            case _:
                del out[at:]
    return bytes(out[:MAX_BYTES])
