"""Entry point of ``ogive``: run the command, and return its exit code.

Modules are imported inside, so that Ctrl-C during an import ends the command as later on.
"""

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: "Sequence[str] | None" = None) -> int:
    """Return the exit code: 0 done, 1 failed with one sentence on standard error, 2 wrong usage, 74
    the store failed, 75 a start that may succeed later, 130 interrupted.
    """
    try:
        _open_outputs()
        from ogive.cli.command import run

        code = run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            # end the line on which the terminal shows ^C
            print(file=sys.stderr)
        # EXIT_INTERRUPTED, which may not be loaded
        return 130
    except BrokenPipeError:
        # the reader of the pipe is gone
        return 0
    except OSError as exc:
        if exc.filename is not None or exc.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
            errno.EIO,
        ):
            raise
        print(f"ogive: the output cannot be written: {exc.strerror}", file=sys.stderr)
        return 1
    finally:
        # Python would complain at its end
        if _output_fails():
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_outputs() -> None:
    """Open the outputs that are missing because the program was started without them (``>&-``), so
    that printed text is dropped, and never written into a file that is opened in their place.
    """
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _output_fails() -> bool:
    """Return True if some output is left that cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False
