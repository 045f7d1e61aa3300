"""Folders that a pipeline writes to, on file systems of this machine: it renames and syncs."""

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption

_SCHEME: Final = re.compile(r"([A-Za-z][\w+.-]+):/")
"""The scheme of a URL; a drive of Windows has one letter."""


def local(option: str, place: str | Path) -> Path:
    """Return *place* as a path; ``file:///lake`` is ``/lake``.

    Raises InvalidOption for another file system, such as ``s3://lake``.
    """
    text = re.sub(r"^file:(//)?(?=/)", "", str(place))
    scheme = _SCHEME.match(text)
    if scheme:
        raise InvalidOption(
            f"{option} {place}: pipelines rename and sync files themselves, which {scheme[1]}: "
            "does not allow; name a folder of this "
            "machine, also a mounted one, and copy it from there"
        )
    return Path(text)


def writable(option: str, place: str | Path) -> Path:
    """Return the folder, which may be a new one.

    Raises InvalidOption if nothing can be written there. The caller learns it at once, not when
    Spark has read everything, and in a dry run as well.
    """
    path = local(option, place)
    # not Path.exists(), which raises where this user may not look
    places = (path, *path.absolute().parents)
    there = next(one for one in places if os.path.exists(one))  # noqa: PTH110
    if not there.is_dir():
        raise InvalidOption(f"{option} {place}: {there} is a file, and a folder is expected")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InvalidOption(f"{option} {place}: this user may not write in {there}")
    try:
        with tempfile.TemporaryDirectory(prefix=".ogive-", dir=there) as probe:
            file = Path(probe, "probe")
            file.write_bytes(b"0")
            file.rename(file.with_suffix(".new"))
    except OSError as exc:
        raise InvalidOption(
            f"{option} {place}: nothing can be written in {there}: {exc.strerror or exc}"
        ) from None
    return path
