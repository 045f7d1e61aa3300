"""Looks at files that may be closed to this user."""

from pathlib import Path


def is_there(path: Path) -> bool:
    """Path.exists(), which raises where this user may not look.

    What cannot be seen is not there: whoever needs it says why not.
    """
    try:
        return path.exists()
    except OSError:
        return False
