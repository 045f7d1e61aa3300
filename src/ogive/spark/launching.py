"""Holds the Java process that PySpark launches, from the moment it is there.

PySpark itself only knows it when it has started, which takes seconds. When that is cut short it
removes the folder in which Java was to name its port: Java fails to, and stays for ever.
"""

import subprocess
from types import TracebackType
from typing import Any, Final, Self

from pyspark import SparkContext, java_gateway

# what launch_gateway starts Java with
_POPEN: Final = "Popen"
_END_S: Final = 10.0


class Launch:
    """As a context: the Java process that PySpark launches inside, ended on request, and where an
    exception made PySpark lose it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._popen: type[subprocess.Popen[bytes]] = subprocess.Popen

    def end(self) -> None:
        """Ask it to end, at the second call kill it; one that is not launched yet never is, and
        KeyboardInterrupt raised instead.

        Does not wait, so it can be called in a signal handler. What PySpark does with Java at that
        time fails.
        """
        if self._process is not None:
            (self._process.kill if self._ended else self._process.terminate)()
        self._ended = True

    def __enter__(self) -> Self:
        self._popen = getattr(java_gateway, _POPEN)
        setattr(java_gateway, _POPEN, self._launch)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(java_gateway, _POPEN, self._popen)
        if error is not None and not self._is_held():
            self.end()
        if self._ended and self._process is not None:
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _launch(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if self._ended:
            raise KeyboardInterrupt
        self._process = process = self._popen(command, **options)
        # asked for while it was launched
        if self._ended:
            process.kill()
        return process

    def _is_held(self) -> bool:
        """Whether PySpark knows it: then it serves the next session, and ends when this process
        does.
        """
        return (
            self._process is not None
            and getattr(SparkContext._gateway, "proc", None) is self._process
        )
