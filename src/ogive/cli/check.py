"""``ogive check``: conditions as exit codes, for cron and monitoring."""

import argparse
import sys
from typing import Final

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.exits import EXIT_ERROR
from ogive.cli.lag import check_topic, nothing_consumed
from ogive.cli.output import print_json
from ogive.client.admin.records import NO_MEMBER
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
            await check_topic(admin, options.topic)
            print(nothing_consumed(options), file=sys.stderr)
            return EXIT_ERROR
        gaps = await admin.lag_gaps(
            options.group, options.topic, members=not options.without_members
        )
    total = sum(row.lag for row in rows)
    over = total > options.max
    if options.json:
        record = {"group": options.group, "topic": options.topic, "lag": total, "max": options.max}
        print_json(record | {"over": over, "unknown": gaps})
    else:
        answer = "over" if over else "unknown" if gaps else "ok"
        least = "at least " if gaps else ""
        print(
            f"{answer}: group {options.group} is {least}{counted(total, 'message')} behind, "
            f"{options.max:,} are allowed"
        )
        for gap in gaps:
            accepts = "; --without-members accepts that" if gap.startswith(NO_MEMBER) else ""
            print(f"ogive: {gap}{accepts}", file=sys.stderr)
    if over:
        return EXIT_OVER
    return EXIT_ERROR if gaps else 0
