"""The options of the commands about messages: send, tail, message, trace, dead-letter; and of
bench, which sends and takes many.
"""

import argparse
from typing import Final

from ogive.cli.options import Commands, add_cluster, add_command, add_group, add_json, add_yes

# messages, unless --limit says otherwise
LISTED: Final = 100


def send(commands: Commands) -> None:
    command = add_command(
        commands,
        "send",
        "message_commands:send",
        "send a message; its body is standard input, or --body",
        "Prints where the message was stored (topic/broker/queue and offset) and its id. Sends "
        "nothing if standard input is empty.",
    )
    command.add_argument(
        "topic",
        help="created if it does not exist, unless the broker runs with --no-auto-create-topics",
    )
    source = command.add_mutually_exclusive_group()
    source.add_argument(
        "--body", metavar="TEXT", help="the body, '' for an empty one (default: standard input)"
    )
    source.add_argument(
        "--lines", action="store_true", help="send each line of standard input as a message"
    )
    command.add_argument("--tag", help="a word that consumers can filter by")
    command.add_argument(
        "--key",
        action="append",
        default=[],
        dest="keys",
        metavar="KEY",
        help="to look the message up by, such as an order number; may be given several times",
    )
    command.add_argument(
        "--property",
        action="append",
        default=[],
        dest="properties",
        metavar="NAME=VALUE",
        help="a property of the message; may be given several times",
    )
    command.add_argument(
        "--sharding-key", metavar="KEY", help="messages with equal keys go to one queue, in order"
    )
    later = command.add_mutually_exclusive_group()
    later.add_argument(
        "--delay-level",
        type=int,
        default=0,
        metavar="N",
        help="deliver after the broker's N-th delay: with the usual table 1 is 1 s, 18 is 2 h",
    )
    later.add_argument(
        "--delay",
        type=float,
        metavar="SECONDS",
        help="deliver so much later; brokers before 5.0 deliver at once",
    )
    add_cluster(command)
    add_json(command)


def tail(commands: Commands) -> None:
    command = add_command(
        commands,
        "tail",
        "message_commands:tail",
        "show messages of a topic as they arrive, without a consumer group",
        "One line per message: time stored (UTC), queue/offset, tag, keys, body. Runs until "
        "Ctrl-C, or for --count messages.",
    )
    command.add_argument("topic")
    command.add_argument(
        "--tag",
        default="*",
        metavar="EXPRESSION",
        help="only these tags, for example 'paid || refunded'",
    )
    command.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="latest",
        help="earliest: start with the oldest message; latest: only new ones (default)",
    )
    command.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    add_cluster(command)
    add_json(command)


def message(commands: Commands) -> None:
    command = add_command(
        commands,
        "message",
        "lookup_commands:find_message",
        "show a message by its id, key or offset, or list those of a time",
        "An id is either the unique key from the producer or the broker's offset id. Keys are "
        "looked up in the brokers' index. With "
        "--since or --until, and no --key, all messages that were stored then are listed, the "
        "oldest first.",
    )
    command.add_argument("id", nargs="?", metavar="ID")
    command.add_argument(
        "--topic", metavar="TOPIC", help="topic to look in; needed with all of the following"
    )
    command.add_argument("--key", metavar="KEY", help="all messages with this key")
    command.add_argument("--offset", type=int, metavar="N", help="the N-th message of a queue")
    command.add_argument(
        "--queue", type=int, default=0, metavar="N", help="queue of --offset (default: 0)"
    )
    command.add_argument(
        "--broker", metavar="NAME", help="broker of --offset, if the topic is on several"
    )
    command.add_argument(
        "--since",
        metavar="TIME",
        help="stored since a time such as 2026-11-01T08:00 (local, unless it names a zone)",
    )
    command.add_argument("--until", metavar="TIME", help="stored before this time")
    command.add_argument(
        "--limit",
        type=int,
        metavar="N",
        help=f"at most N, of --key, --since and --until (default: {LISTED})",
    )
    add_cluster(command)
    add_json(command)


def trace(commands: Commands) -> None:
    command = add_command(
        commands,
        "trace",
        "lookup_commands:show_trace",
        "show what happened to a message: who sent it, who consumed it, when and how",
        "Needs producers and consumers with tracing switched on (trace=True).",
    )
    command.add_argument("key", metavar="ID", help="the message's id, or one of its keys")
    command.add_argument(
        "--trace-topic",
        default="RMQ_SYS_TRACE_TOPIC",
        metavar="TOPIC",
        help="where clients write traces to (default: %(default)s)",
    )
    add_cluster(command)
    add_json(command)


def dead_letter(commands: Commands) -> None:
    letters = add_group(
        commands, "dead-letter", "show what a group could not consume, and send it again"
    )
    command = add_command(
        letters,
        "list",
        "lookup_commands:list_letters",
        "list the dead letters of a group, the oldest first",
    )
    command.add_argument("group")
    command.add_argument(
        "--since", metavar="TIME", help="only messages stored since a time such as 2026-11-01T08:00"
    )
    command.add_argument(
        "--limit", type=int, default=100, metavar="N", help="at most N (default: 100)"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        letters,
        "send",
        "lookup_commands:redrive",
        "send dead letters to their group again",
        "Only this group gets them, with all retries anew. They stay in the list: sending twice "
        "delivers twice.",
    )
    command.add_argument("group")
    command.add_argument("ids", nargs="*", metavar="ID", help="ids from `ogive dead-letter list`")
    command.add_argument(
        "--all",
        action="store_true",
        help="all of them (at most the 10,000 oldest), after a question",
    )
    command.add_argument(
        "--since", metavar="TIME", help="only those stored since a time such as 2026-11-01T08:00"
    )
    add_yes(command)
    add_cluster(command)
    add_json(command)


def bench(commands: Commands) -> None:
    measures = add_group(
        commands, "bench", "measure how fast a cluster takes messages and gives them back"
    )
    command = add_command(
        measures,
        "produce",
        "bench:produce",
        "send messages and show rate and latency",
        "A line each second: all messages so far, rate and times of that second. Then the total, "
        "up to the last message. Exit code 1: a "
        "send failed.",
    )
    command.add_argument(
        "--topic",
        default="OgiveBench",
        metavar="TOPIC",
        help="topic to send to (default: OgiveBench)",
    )
    command.add_argument(
        "--size", type=int, default=1024, metavar="BYTES", help="size of each body (default: 1024)"
    )
    command.add_argument(
        "--in-flight", type=int, default=64, metavar="N", help="concurrent sends (default: 64)"
    )
    _bench_options(command)
    command = add_command(
        measures,
        "consume",
        "bench:consume",
        "receive messages, the oldest first, and show the rate",
        "A line each second: all messages so far, and the rate of that second. Then the total, up "
        "to the last message. Exit code 1: none "
        "came.",
    )
    command.add_argument(
        "--topic",
        default="OgiveBench",
        metavar="TOPIC",
        help="topic to consume (default: OgiveBench)",
    )
    command.add_argument(
        "--group",
        default="ogive-bench",
        metavar="GROUP",
        help="consumer group, which keeps its progress (default: ogive-bench)",
    )
    _bench_options(command)


def _bench_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--for",
        dest="duration",
        default="10s",
        metavar="TIME",
        help="how long, such as 30s or 2m (default: 10s)",
    )
    command.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    add_cluster(command)
    add_json(command)
