"""Options of the commands about messages: send, tail, message, trace, dead-letter; and of bench,
which sends and consumes many messages.
"""

import argparse
from typing import Final

from ogive.cli.options import CLUSTER, JSON, YES, Command, CommandGroup, either, option

LISTED: Final = 100

FORMAT_LETTERS: Final = {
    "t": "topic",
    "p": "queue",
    "o": "offset",
    "k": "keys",
    "s": "body",
    "S": "size of the body in bytes",
    "T": "time stored in milliseconds since 1970",
    "h": "properties",
    "%": "a percent sign",
}
"""Letters of ``ogive tail --format``, those of kcat, and their meanings."""


SEND: Final = Command(
    "send",
    "message_commands:send",
    "send a message; its body is standard input, or --body",
    "Prints where the message was stored (topic/broker/queue and offset) and its id. Sends "
    "nothing if standard input is empty.",
    parts=(
        option(
            "topic",
            help="created if it does not exist, unless the broker runs with "
            "--no-auto-create-topics",
        ),
        either(
            option(
                "--body",
                metavar="TEXT",
                help="the body, '' for an empty one (default: standard input)",
            ),
            option(
                "--lines", action="store_true", help="send each line of standard input as a message"
            ),
        ),
        option("--tag", help="a word that consumers can filter by"),
        option(
            "--key",
            action="append",
            default=[],
            dest="keys",
            metavar="KEY",
            help="a key to find the message by, such as an order number; may be given several "
            "times",
        ),
        option(
            "--property",
            action="append",
            default=[],
            dest="properties",
            metavar="NAME=VALUE",
            help="a property of the message; may be given several times",
        ),
        option(
            "--sharding-key",
            metavar="KEY",
            help="messages with equal keys go to one queue, in order",
        ),
        either(
            option(
                "--delay-level",
                type=int,
                default=0,
                metavar="N",
                help="deliver after the broker's N-th delay: with the usual table 1 is 1 s, 18 is "
                "2 h",
            ),
            option(
                "--delay",
                type=float,
                metavar="SECONDS",
                help="deliver after this time; brokers before 5.0 deliver at once",
            ),
        ),
        option(
            "--priority",
            type=int,
            metavar="N",
            help="0 or more; members that pop a topic of type PRIORITY get higher numbers first",
        ),
        *CLUSTER,
        JSON,
    ),
)


TAIL: Final = Command(
    "tail",
    "tail_command:tail",
    "show messages of a topic as they arrive, without a consumer group",
    "One line per message: time stored (UTC), queue/offset, tag, keys, body. Commits no offsets. "
    "Runs until Ctrl-C (exit code 0), for --count messages, until it has shown everything before "
    "--until, or with --no-follow everything that is stored now.",
    parts=(
        option("topic"),
        option(
            "--from",
            dest="start",
            choices=("earliest", "latest"),
            help="earliest: start with the oldest message (default with --no-follow and "
            "--until); latest: only new ones (default otherwise)",
        ),
        option(
            "--since",
            metavar="TIME",
            help="in place of --from: start with messages stored since a time such as "
            "2026-11-01T08:00 (local time, unless it names a zone), or 15m for the last 15 minutes",
        ),
        option(
            "--until",
            metavar="TIME",
            help="only messages stored before this time, which may be in the future",
        ),
        option(
            "-f",
            "--follow",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="wait for new messages (default); --no-follow ends after the stored ones",
        ),
        option(
            "--queue",
            dest="queues",
            type=int,
            action="append",
            default=[],
            metavar="N",
            help="only the queue with this number, of each broker; repeatable",
        ),
        option(
            "--tag",
            default="*",
            metavar="EXPRESSION",
            help="only these tags, for example 'paid || refunded'",
        ),
        option(
            "--sql",
            metavar="EXPRESSION",
            help='in place of --tag: only messages that match in SQL92, for example "price > 5 AND '
            "TAGS = 'paid'\"; brokers evaluate it",
        ),
        option(
            "--grep",
            metavar="PATTERN",
            help="only messages whose body matches this regular expression somewhere; brokers "
            "still send all messages",
        ),
        option("--count", "--limit", type=int, metavar="N", help="stop after N messages"),
        *CLUSTER,
        JSON,
        option(
            "--format",
            metavar="FORMAT",
            help="in place of --json: print this for each message: "
            + ", ".join(
                f"%%{letter.replace('%', '%%')} {what}" for letter, what in FORMAT_LETTERS.items()
            )
            + "; \\n, \\t and \\x00. It adds no line break by itself, and does not change the "
            "bytes of the body",
        ),
    ),
    example="tail Orders --since 2026-11-01T08:00 --no-follow --format '%p/%o %k %s\\n'",
)


MESSAGE: Final = Command(
    "message",
    "message_commands:find_message",
    "show a message by its id, key or offset, or list those of a time",
    "An id is either the unique key from the producer or the broker's offset id. Keys are "
    "looked up in the brokers' index. With "
    "--since or --until, and no --key, all messages that were stored then are listed, the "
    "oldest first.",
    parts=(
        option("id", nargs="?", metavar="ID"),
        option(
            "--topic", metavar="TOPIC", help="topic to look in; needed with all of the following"
        ),
        option("--key", metavar="KEY", help="all messages with this key"),
        option("--offset", type=int, metavar="N", help="the N-th message of a queue"),
        option("--queue", type=int, default=0, metavar="N", help="queue of --offset (default: 0)"),
        option("--broker", metavar="NAME", help="broker of --offset, if the topic is on several"),
        option(
            "--since",
            metavar="TIME",
            help="stored since a time such as 2026-11-01T08:00 (local, unless it names a zone), "
            "or 2h",
        ),
        option("--until", metavar="TIME", help="stored before this time"),
        option(
            "--limit",
            type=int,
            metavar="N",
            help=f"at most N, of --key, --since and --until (default: {LISTED})",
        ),
        *CLUSTER,
        JSON,
    ),
)


TRACE: Final = Command(
    "trace",
    "message_commands:show_trace",
    "show what happened to a message: who sent it, who consumed it, when and how",
    "Needs producers and consumers with tracing switched on (trace=True).",
    parts=(
        option("key", metavar="ID", help="the message's id, or one of its keys"),
        option(
            "--trace-topic",
            default="RMQ_SYS_TRACE_TOPIC",
            metavar="TOPIC",
            help="where clients write traces to (default: %(default)s)",
        ),
        *CLUSTER,
        JSON,
    ),
)


DEAD_LETTER: Final = CommandGroup(
    "dead-letter",
    "show what a group could not consume, and send it again",
    commands=(
        Command(
            "list",
            "dead_letter_commands:list_letters",
            "list the dead letters of a group, the oldest first",
            parts=(
                option("group"),
                option(
                    "--since",
                    metavar="TIME",
                    help="only messages stored since a time such as 2026-11-01T08:00, or 2h",
                ),
                option(
                    "--limit", type=int, default=100, metavar="N", help="at most N (default: 100)"
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "redrive",
            "dead_letter_commands:redrive",
            "send dead letters to their group again: those named, or all that the options choose",
            "Only this group gets them, with all retries again. They stay in the list. A letter "
            "that was sent before, and has not failed again since, is left out unless --again is "
            "given: its copy is looked up in the brokers' index. To send more than some ten "
            "thousand letters, or to send them to all groups of their topic, use `ogive pipeline "
            "redrive`, on Spark. A dead letter does not contain the error of its last try; the "
            "consumer's log has it, in a line with the id. Exit code 130: interrupted; the same "
            "command sends the rest.",
            parts=(
                option("group"),
                option("ids", nargs="*", metavar="ID", help="ids from `ogive dead-letter list`"),
                option("--all", action="store_true", help="all of them"),
                option(
                    "--since",
                    metavar="TIME",
                    help="only those stored since a time such as 2026-11-01T08:00 (local time, "
                    "unless it names a zone), or 2h",
                ),
                option("--until", metavar="TIME", help="only those stored before this time"),
                option(
                    "--tag",
                    metavar="EXPRESSION",
                    help="only these tags, for example 'paid || refunded'",
                ),
                option(
                    "--where",
                    metavar="SQL",
                    help="only those whose properties match this SQL92 filter, as in a "
                    "subscription: \"amount > 100 AND RETRY_TOPIC = 'Orders'\"; RETRY_TOPIC is "
                    "the topic that the message comes from",
                ),
                option(
                    "--limit",
                    type=int,
                    metavar="N",
                    help="only the N oldest of these (default and maximum: 10000); the same "
                    "command then sends the next ones",
                ),
                option("--again", action="store_true", help="also those that were sent before"),
                option(
                    "--rate",
                    type=float,
                    metavar="N",
                    help="at most N messages a second (default: as fast as the broker stores them)",
                ),
                option(
                    "--dry-run",
                    action="store_true",
                    help="only show what would be sent; with --json as `dead-letter list` does, "
                    "and the count last",
                ),
                YES,
                *CLUSTER,
                JSON,
            ),
            old_name="send",
        ),
    ),
)


_BENCH: Final = (
    option(
        "--for",
        dest="duration",
        default="10s",
        metavar="TIME",
        help="how long, such as 30s or 2m (default: 10s)",
    ),
    option("--count", type=int, metavar="N", help="stop after N messages"),
    *CLUSTER,
    JSON,
)

BENCH: Final = CommandGroup(
    "bench",
    "measure how fast a cluster stores and delivers messages",
    commands=(
        Command(
            "produce",
            "bench:produce",
            "send messages and show rate and latency",
            "Prints a line each second: all messages so far, rate and times of that second. Then "
            "the total, up to the last message. Exit code 1: a send failed.",
            parts=(
                option(
                    "--topic",
                    default="OgiveBench",
                    metavar="TOPIC",
                    help="topic to send to (default: OgiveBench)",
                ),
                option(
                    "--size",
                    type=int,
                    default=1024,
                    metavar="BYTES",
                    help="size of each body (default: 1024)",
                ),
                option(
                    "--in-flight",
                    type=int,
                    default=64,
                    metavar="N",
                    help="concurrent sends (default: 64)",
                ),
                *_BENCH,
            ),
        ),
        Command(
            "consume",
            "bench:consume",
            "receive messages, the oldest first, and show the rate",
            "Prints a line each second: all messages so far, and the rate of that second. Then the "
            "total, up to the last message. Exit code 1: no message arrived.",
            parts=(
                option(
                    "--topic",
                    default="OgiveBench",
                    metavar="TOPIC",
                    help="topic to consume (default: OgiveBench)",
                ),
                option(
                    "--group",
                    default="ogive-bench",
                    metavar="GROUP",
                    help="consumer group, which keeps its progress (default: ogive-bench)",
                ),
                *_BENCH,
            ),
        ),
    ),
)
