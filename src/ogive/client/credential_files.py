"""Credentials and authorities that are kept in files."""

import functools
import logging
import os
import re
import shlex
import ssl
import stat
from pathlib import Path
from typing import Final

from ogive.errors import InvalidOption
from ogive.transport.tls import fault_of, refuse_password
from ogive.wire.signing import Credentials

log = logging.getLogger(__name__)

MAX_FILE_BYTES: Final = 64 * 1024
_LINE: Final = re.compile(r"(?P<name>[^:=]*)(?P<sign>[:=])(?P<value>.*)")
_QUOTED: Final = r""""(?P<double>[^"\\]*)"|'(?P<single>[^']*)'"""
_SCALAR: Final = {
    ":": re.compile(rf"(?:{_QUOTED})(?:\s+#.*)?|(?P<plain>(?![\"']).*?)(?:(?:^|\s+)#.*)?"),
    "=": re.compile(rf"{_QUOTED}|(?P<plain>(?![\"']).*)"),
}
"""Text behind the sign: as in YAML, where quotes are no part of a value and a comment may follow
it; or to the end of the line.
"""
_NAMES: Final = {
    "accesskey": "access_key",
    "secretkey": "secret_key",
    "securitytoken": "security_token",
}


def file_stamp(path: str) -> tuple[int, int, int] | None:
    """Return what changes when a file is written or replaced, or None if it does not exist."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def read_credentials(path: str) -> Credentials:
    """Read a file with lines ``accessKey: NAME`` and ``secretKey: SECRET`` (or with ``=``), as
    Apache's tools.yml. Warn once if other users can read it. Raises InvalidOption.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(MAX_FILE_BYTES).decode()
            if os.name == "posix" and os.fstat(file.fileno()).st_mode & (
                stat.S_IRGRP | stat.S_IROTH
            ):
                _say_that_others_read(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidOption(
            f"credentials file {path} cannot be read: "
            f"{getattr(exc, 'strerror', None) or 'it is not text'}"
        ) from None
    found: dict[str, str] = {}
    for line in map(_LINE.fullmatch, text.splitlines()):
        if line is not None and (field := _NAMES.get(line["name"].strip().lower())) is not None:
            scalar = _SCALAR[line["sign"]].fullmatch(line["value"].strip())
            if scalar is None:
                raise InvalidOption(
                    f"credentials file {path}: {line['name'].strip()} begins with a quote; inside "
                    "may be neither it nor a backslash, "
                    "and behind it a comment only"
                )
            found[field] = scalar["double"] or scalar["single"] or scalar["plain"] or ""
    if not found.get("access_key") or not found.get("secret_key"):
        raise InvalidOption(
            f"credentials file {path} needs the lines accessKey: NAME and secretKey: SECRET"
        )
    return Credentials(**found)


# once a file
@functools.lru_cache(64)
def _say_that_others_read(path: str) -> None:
    log.warning(
        "credentials file %s is readable by other users of this machine: chmod 600 %s",
        path,
        shlex.quote(path),
    )


def trusting(
    cafile: str | None, certfile: str | None = None, keyfile: str | None = None
) -> ssl.SSLContext:
    """Return a context that checks certificates and host names, against the authorities in *cafile*
    or else the system's.

    A server that asks for a certificate gets that in *certfile*; its key is in *keyfile*, or in the
    same file. Raises InvalidOption.
    """
    try:
        context = ssl.create_default_context(cafile=cafile)
    except OSError as exc:
        # ssl.SSLError is one, too
        reason = "it holds no certificate" if isinstance(exc, ssl.SSLError) else exc.strerror
        raise InvalidOption(f"authorities file {cafile}: {reason}") from None
    if certfile is None:
        if keyfile is not None:
            raise InvalidOption(
                f"key file {keyfile}: the key alone is shown to nobody, the file with its "
                "certificate is missing (--certfile; on Spark "
                "tls.certificate)"
            )
        return context
    for path in filter(None, (certfile, keyfile)):
        try:
            Path(path).open("rb").close()
        except OSError as exc:
            raise InvalidOption(
                f"{'certificate' if path == certfile else 'key'} file {path}: {exc.strerror}"
            ) from None
    try:
        context.load_cert_chain(certfile, keyfile, password=refuse_password)
    except (ssl.SSLError, ValueError) as exc:
        if keyfile is None and b"PRIVATE KEY-----" not in Path(certfile).read_bytes():
            raise InvalidOption(
                f"certificate file {certfile}: its key is not in it; name the key's file, too "
                "(--keyfile; on Spark tls.key)"
            ) from None
        if keyfile is None:
            raise InvalidOption(
                f"certificate file {certfile}: it is no certificate and its key: "
                f"{getattr(exc, 'reason', None) or exc}"
            ) from None
        raise InvalidOption(fault_of(Path(certfile), Path(keyfile), exc)) from None
    return context
