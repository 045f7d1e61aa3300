"""What a user of the command line can do about an error that a library can only describe."""

import argparse

from ogive.access.guard import NO_CREDENTIALS, NOBODY_KNOWN
from ogive.cli.config_file import blamed
from ogive.cli.connect import place, source
from ogive.errors import InvalidOption, NoNameServer, NoPermission, NotANameServer, OgiveError
from ogive.transport.connection import NO_CERTIFICATE


def way_out(error: OgiveError, options: argparse.Namespace) -> str:
    """The options or settings to look at, as a sentence; empty where the error says all there is to
    say.
    """
    if isinstance(error, InvalidOption) and getattr(options, "in_file", None):
        return blamed(str(error), options)
    if not hasattr(options, "name_server"):
        # a command that goes to no cluster
        return ""
    if isinstance(error, NotANameServer):
        return "Name it with -n HOST:PORT."
    if isinstance(error, NoNameServer):
        found = place(options)
        if NO_CERTIFICATE in str(error):
            return (
                f"Check {found.certfile}." if found.certfile else "Show one with --certfile FILE."
            )
        if found.tls:
            authorities = f"the authorities{f' in {found.cafile}' if found.cafile else ''}"
            return f"Check the address (-n HOST:PORT){source(options)} and {authorities}."
        return (
            f"Start one with `ogive up`, or name another with -n HOST:PORT{source(options)}; "
            "one with TLS needs --cafile FILE."
        )
    if isinstance(error, NoPermission) and NO_CREDENTIALS in str(error):
        return "Give them with --credentials FILE."
    if isinstance(error, NoPermission) and NOBODY_KNOWN in str(error):
        return f"Check both keys in {place(options).credentials}."
    return ""
