"""Exit codes of ``ogive``, for scripts and service managers."""

from typing import Final

from ogive.errors import OgiveError

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_FINDINGS: Final = 3
EXIT_STORE_FAILED: Final = 74  # EX_IOERR
EXIT_TRY_LATER: Final = 75  # EX_TEMPFAIL
# as of timeout(1)
EXIT_STOP_TIMEOUT: Final = 124
EXIT_INTERRUPTED: Final = 130


class TryLater(OgiveError):
    """Error of a start that can succeed later, without a change."""
