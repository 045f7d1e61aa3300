"""``ogive check``: conditions as exit codes, for cron and monitoring."""

import argparse
import sys
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.lag import nothing_consumed, refuse_unknown
from ogive.cli.output import print_json
from ogive.errors import InvalidOption
from ogive.words import counted

EXIT_OVER: Final = 3


async def lag(options: argparse.Namespace) -> int:
    """0 within the limit, 3 above it, 1 if unknown."""
    if options.max < 0:
        raise InvalidOption(f"--max {options.max}: 0 or more messages are possible")
    async with aio.Admin(client=client_config(options)) as admin:
        rows = await admin.lag(options.group, options.topic, members=False)
        if not rows:
            await refuse_unknown(admin, options.group, options.topic)
    if not rows:
        print(nothing_consumed(options), file=sys.stderr)
        return 1
    total = sum(row.lag for row in rows)
    over = total > options.max
    if options.json:
        print_json({"group": options.group, "topic": options.topic, "lag": total, "max": options.max, "over": over})
        return EXIT_OVER if over else 0
    print(f"{'over' if over else 'ok'}: group {options.group} is {counted(total, 'message')} behind, {options.max:,} are allowed")
    return EXIT_OVER if over else 0
