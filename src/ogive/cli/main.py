"""One parser for all commands. A command's own module is imported only when it runs, so that ``ogive up`` starts at once."""

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ogive import __version__
from ogive.cli.pipeline_options import add_pipelines
from ogive.errors import NoNameServer, OgiveError

EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

_FIRST_STEPS: Final = (
    "First steps: `ogive up` in one terminal; in another `ogive send Orders --body hello`, then `ogive tail Orders --from earliest`. "
    "`ogive COMMAND --help` says more."
)


class Command(Protocol):
    """What a command's module offers: its exit code comes back from ``run``."""

    def run(self, options: argparse.Namespace) -> int: ...


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed with one sentence on standard error, 2 wrong usage, 74 the store failed, 130 interrupted."""
    parser = build_parser()
    options = parse(parser, arguments)
    if getattr(options, "config", None):
        try:
            config_file = importlib.import_module("ogive.cli.config_file")
            options.config_of.set_defaults(**config_file.read(options.config, options.config_of))
        except OgiveError as exc:
            print(f"ogive: {exc}", file=sys.stderr)
            return EXIT_ERROR
        options = parse(parser, arguments)
    if not hasattr(options, "module"):
        getattr(options, "group_parser", parser).print_help()
        return EXIT_USAGE
    try:
        run: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(options.module), options.function)
        return run(options)
    except NoNameServer as exc:
        print(f"ogive: {exc}. Start one with `ogive up`, or name another with -n HOST:PORT.", file=sys.stderr)
        return EXIT_ERROR
    except OgiveError as exc:
        print(f"ogive: {exc}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe went away: nothing is left to say, also not at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """As parse_args; but what a command does not know is shown with that command's usage and the nearest option that it has."""
    options, unknown = parser.parse_known_args(arguments)
    command: argparse.ArgumentParser = getattr(options, "command_parser", getattr(options, "group_parser", parser))
    if unknown:
        known = [option for action in command._actions for option in action.option_strings]
        near = [f"{word} (is {match[0]} meant?)" if (match := _nearest(word, known)) else word for word in unknown]
        command.error(f"unrecognized arguments: {' '.join(near)}")
    return options


def _nearest(word: str, known: Sequence[str]) -> list[str]:
    return difflib.get_close_matches(word.partition("=")[0], known, n=1) if word.startswith("--") else []


def build_parser() -> argparse.ArgumentParser:
    """Every command with its options and help."""
    parser = argparse.ArgumentParser(
        prog="ogive", description="Apache RocketMQ for Python: broker, name server and tools.", epilog=_FIRST_STEPS
    )
    parser.add_argument("--version", action="version", version=f"ogive {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    _up(commands)
    _demo(commands)
    _topic(commands)
    _group(commands)
    _broker(commands)
    _lag(commands)
    _check(commands)
    _run(commands)
    _send(commands)
    _tail(commands)
    _message(commands)
    _trace(commands)
    _dead_letter(commands)
    add_pipelines(commands, _command, _client_options)
    _bench(commands)
    _context(commands)
    _user(commands)
    _acl(commands)
    _store(commands)
    _errors(commands)
    return parser


Subparsers = argparse._SubParsersAction  # argparse gives the type no public name


def _command(
    commands: "Subparsers[argparse.ArgumentParser]", name: str, function: str, text: str, more: str = ""
) -> argparse.ArgumentParser:
    """*function* is ``module:function`` under ogive.cli; *more* stands only in the command's own help."""
    module, _, attribute = function.partition(":")
    command = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}. {more}")
    command.set_defaults(module=f"ogive.cli.{module}", function=attribute, command_parser=command)
    return command


def _yes_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("-y", "--yes", action="store_true", help="do it without asking")


def _client_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-n",
        "--name-server",
        metavar="HOST:PORT",
        help="name servers, separated by ';' (default: NAMESRV_ADDR from the environment, else those of the context in use, see "
        "`ogive context`, else 127.0.0.1:9876)",
    )
    _secret_options(command)


def _secret_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--credentials",
        metavar="FILE",
        help="a file with the lines accessKey: NAME and secretKey: SECRET (default: OGIVE_CREDENTIALS from the environment)",
    )
    command.add_argument(
        "--cafile",
        metavar="FILE",
        help="use TLS, and trust the authorities in this file (default: OGIVE_CAFILE from the environment)",
    )


def _json_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def _up(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(commands, "up", "up:run", "run a broker and its name server on this machine until Ctrl-C or SIGTERM")
    command.set_defaults(config_of=command, first_user=None)
    command.add_argument(
        "--config",
        metavar="FILE",
        help="settings from a TOML file, under the names of these options without --; or from Apache's broker.conf (*.conf, *.properties)",
    )
    command.add_argument("--data", metavar="DIR", default="ogive-data", help="where messages are kept (default: ./ogive-data)")
    command.add_argument("--host", metavar="IP", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument(
        "--insecure-listen",
        action="store_true",
        help="allow an address that is not loopback without --acl: everybody who reaches it can administer the broker",
    )
    command.add_argument(
        "--advertised-host",
        metavar="IP",
        help="where clients reach this machine, if not at --host: behind NAT, in a container; needed with 0.0.0.0 or ::",
    )
    command.add_argument(
        "--acl",
        action="store_true",
        help="ask everybody for credentials; users and what they may are kept with the data (`ogive user`, `ogive acl`)",
    )
    command.add_argument(
        "--credentials",
        metavar="FILE",
        default=os.environ.get("OGIVE_CREDENTIALS"),
        help="with --acl: the super user to make if there is none of that name, as lines accessKey: NAME and secretKey: SECRET",
    )
    command.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve /metrics (Prometheus), /health and /ready there over HTTP; 0 takes a free port",
    )
    command.add_argument(
        "--metrics-host", metavar="IP", default="127.0.0.1", help="address for that; it asks nobody for credentials (default: 127.0.0.1)"
    )
    command.add_argument("--log-format", choices=("text", "json"), default="text", help="of the lines on standard error (default: text)")
    command.add_argument("--tls-cert", metavar="FILE", help="speak TLS: the certificate with its chain, as PEM; read again at SIGHUP")
    command.add_argument("--tls-key", metavar="FILE", help="the certificate's key, without password")
    command.add_argument(
        "--tls-mode",
        choices=("enforcing", "permissive"),
        default="enforcing",
        help="enforcing: only TLS (default); permissive: also connections without it, on the same ports",
    )
    command.add_argument("--tls-client-ca", metavar="FILE", help="ask clients for certificates of these authorities")
    command.add_argument(
        "--tls-client-auth",
        choices=("required", "optional"),
        default="required",
        help="with --tls-client-ca: whether each needs one (default: required)",
    )
    command.add_argument("--name-server-port", type=int, default=9876, metavar="PORT", help="0 takes a free port (default: 9876)")
    command.add_argument("--broker-port", type=int, default=10911, metavar="PORT", help="0 takes a free port (default: 10911)")
    command.add_argument(
        "--flush",
        choices=("sync", "async"),
        default="sync",
        help="sync: an acknowledged message survives a power cut (default); async: at most 500 ms or 4 MiB of the newest may be lost",
    )
    command.add_argument(
        "--keep-hours", metavar="HOURS", type=float, default=72.0, help="remove messages when they are older (default: 72)"
    )
    command.add_argument("--delete-at", metavar="HOURS", default="4", help="hours of the day when that is done, such as 4,16 (default: 4)")
    command.add_argument(
        "--delete-above", metavar="PERCENT", type=float, default=75.0, help="do it at any hour while the disk is fuller (default: 75)"
    )
    command.add_argument(
        "--delete-young-above",
        metavar="PERCENT",
        type=float,
        help="while the disk is fuller, remove the oldest messages whatever their age (default: never; then a full disk refuses sends)",
    )
    command.add_argument("--broker-name", metavar="NAME", default="broker-a", help="name in routes and queues (default: broker-a)")
    command.add_argument("--cluster", metavar="NAME", default="DefaultCluster", help="name of the cluster (default: DefaultCluster)")
    command.add_argument(
        "--delay-levels", metavar="LIST", help="delays of the levels 1, 2, ..., for example '1s 5s 10s' (default: Apache's 18 levels)"
    )
    command.add_argument(
        "--transaction-timeout", metavar="SECONDS", type=float, default=6.0, help="ask about no transaction that is younger (default: 6)"
    )
    command.add_argument(
        "--transaction-check-interval",
        metavar="SECONDS",
        type=float,
        default=30.0,
        help="time between two rounds of questions (default: 30)",
    )
    command.add_argument(
        "--transaction-check-max", metavar="N", type=int, default=15, help="questions that were asked before giving up (default: 15)"
    )
    command.add_argument(
        "--duplicate-window",
        metavar="SECONDS",
        type=float,
        default=0.0,
        help="store a message whose unique key was stored in the last SECONDS only once (default: 0, every message is stored)",
    )
    command.add_argument("--no-auto-create-topics", action="store_true", help="refuse messages to topics that nobody created")
    command.add_argument("-v", "--verbose", action="count", default=0, help="log more; twice for details")


def _run(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "run",
        "run:run",
        "run listeners until Ctrl-C or SIGTERM",
        "A TARGET is module:listener, such as app:bill for `bill` in app.py here, or a module alone for all of its listeners. At the end "
        "no new call begins, running ones are waited for, and what was consumed is told to the brokers.",
    )
    command.add_argument("targets", nargs="+", metavar="TARGET", help="module:listener, or a module")
    command.add_argument(
        "--wait", type=float, default=10.0, metavar="SECONDS", help="how long running calls are waited for at the end (default: 10)"
    )
    command.add_argument(
        "--engine",
        choices=("local", "spark"),
        default="local",
        help="local: in this process (default); spark: on a Spark job's executors",
    )
    spark = command.add_argument_group("with --engine spark")
    spark.add_argument("--master", default="local[*,4]", help="Spark's master (default: local[*,4], this machine, each task tried 4 times)")
    spark.add_argument("--memory", default="1g", help="heap of Spark's driver (default: 1g)")
    spark.add_argument(
        "--checkpoint",
        metavar="DIR",
        default="ogive-checkpoint",
        help="keeps the progress over restarts (default: ./ogive-checkpoint)",
    )
    spark.add_argument("--once", action="store_true", help="end when everything is consumed that was there at the start")
    spark.add_argument(
        "--py-files",
        action="append",
        default=[],
        metavar="FILE",
        help="send this module to the executors; may be given several times",
    )
    command.add_argument("-v", "--verbose", action="count", default=0, help="log more; twice for details")
    _client_options(command)


def _demo(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(commands, "demo", "demo:run", "run a year of flights through broker, consumers and Spark, and check every figure")
    command.add_argument("--events", type=int, metavar="N", help="only the first N of 1,001,615 events")
    command.add_argument("--report", metavar="FILE", default="report.html", help="where the report goes (default: report.html)")
    command.add_argument("--keep", action="store_true", help="keep the broker's data and the Parquet files")


def _topic(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    group = commands.add_parser("topic", help="list, show, create and delete topics", description="List, show, create and delete topics.")
    group.set_defaults(group_parser=group)
    topics = group.add_subparsers(metavar="COMMAND")
    command = _command(topics, "list", "topics:list_topics", "list the topics with their queues and messages")
    command.add_argument("--all", action="store_true", help="also system, retry and dead-letter topics")
    _client_options(command)
    _json_option(command)
    command = _command(topics, "create", "topics:create_topic", "create a topic, or change its number of queues")
    command.add_argument("topic", help="letters, digits, - and _")
    command.add_argument("--queues", type=int, default=8, metavar="N", help="queues on each broker (default: 8)")
    _client_options(command)
    command = _command(topics, "show", "topics:show_topic", "show a topic's settings, brokers, queues and the groups that consume it")
    command.add_argument("topic")
    _client_options(command)
    _json_option(command)
    command = _command(topics, "delete", "topics:delete_topic", "delete a topic with all its messages, on every broker")
    command.add_argument("topic")
    _yes_option(command)
    _client_options(command)


def _group(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "list, show, create, move and delete consumer groups"
    parser = commands.add_parser("group", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    groups = parser.add_subparsers(metavar="COMMAND")
    command = _command(groups, "list", "groups:list_groups", "list the consumer groups with their members and lag")
    command.add_argument("--all", action="store_true", help="also the brokers' own groups")
    _client_options(command)
    _json_option(command)
    command = _command(groups, "show", "groups:show_group", "show a group's settings, members, subscriptions and progress")
    command.add_argument("group")
    _client_options(command)
    _json_option(command)
    command = _command(
        groups, "create", "groups:create_group", "create a group, or change it", "The first member of a group makes it, too."
    )
    command.add_argument("group", help="letters, digits, - and _")
    command.add_argument("--max-retries", type=int, default=16, metavar="N", help="retries before the dead letters (default: 16)")
    command.add_argument("--retry-queues", type=int, default=1, metavar="N", help="queues of its retry topic (default: 1)")
    _client_options(command)
    command = _command(
        groups,
        "reset",
        "groups:reset_group",
        "put a group elsewhere in a topic: to its start, its end, or a time",
        "Members may be online: they go on at the new place within seconds. --dry-run shows what would change.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument(
        "--to", required=True, metavar="PLACE", help="earliest, latest, or a time such as 2026-11-01T08:00 (local, unless it names a zone)"
    )
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    _client_options(command)
    _json_option(command)
    command = _command(
        groups,
        "skip",
        "groups:skip_backlog",
        "have a group skip all messages that wait for it in a topic",
        "The same as `reset --to latest`. --dry-run shows how many would be skipped.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    _client_options(command)
    _json_option(command)
    command = _command(
        groups, "delete", "groups:delete_group", "delete a group that has no members online", "Its retry and dead-letter topics stay."
    )
    command.add_argument("group")
    command.add_argument("--offsets", action="store_true", help="also forget how far it has come")
    _yes_option(command)
    _client_options(command)


def _broker(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "list and show brokers"
    parser = commands.add_parser("broker", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    brokers = parser.add_subparsers(metavar="COMMAND")
    command = _command(
        brokers, "list", "brokers:list_brokers", "list the brokers with their rates and totals", "Exit code 1: one of them does not answer."
    )
    _client_options(command)
    _json_option(command)
    command = _command(brokers, "show", "brokers:show_broker", "show all figures of a broker")
    command.add_argument("broker", metavar="NAME", help="its name, or HOST:PORT")
    _client_options(command)
    _json_option(command)


def _lag(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "lag",
        "lag:run",
        "show how far a consumer group is behind, queue by queue",
        "OFFSET is the next message that the group takes, END the one that the queue gets next, LAG what lies between, MEMBER the client "
        "that holds the queue now.",
    )
    command.add_argument("group", help="a consumer group: the group=... of its listeners")
    command.add_argument("--topic", metavar="TOPIC", help="only this topic")
    command.add_argument("--watch", action="store_true", help="show it again every two seconds until Ctrl-C")
    _client_options(command)
    _json_option(command)


def _check(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("check", help="test a condition, for cron and monitoring", description="Conditions as exit codes.")
    parser.set_defaults(group_parser=parser)
    checks = parser.add_subparsers(metavar="COMMAND")
    command = _command(
        checks,
        "lag",
        "check:lag",
        "test that a group is not too far behind",
        "Exit code 0: within the limit; 3: above it; 1: nobody can tell (no broker, or the group never consumed).",
    )
    command.add_argument("group")
    command.add_argument(
        "--max", type=int, required=True, metavar="N", help="messages that the group may be behind, in all queues together"
    )
    command.add_argument("--topic", metavar="TOPIC", help="only this topic")
    _client_options(command)


def _send(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "send",
        "messages:send",
        "send a message; its body is standard input, or --body",
        "Prints where the message stands (topic/broker/queue and offset) and its id.",
    )
    command.add_argument("topic", help="made on first use, unless the broker runs with --no-auto-create-topics")
    source = command.add_mutually_exclusive_group()
    source.add_argument("--body", metavar="TEXT", help="the body; without it standard input is read to its end")
    source.add_argument("--lines", action="store_true", help="every line of standard input is a message of its own")
    command.add_argument("--tag", help="a word by which consumers can choose messages")
    command.add_argument(
        "--key",
        action="append",
        default=[],
        dest="keys",
        metavar="KEY",
        help="by which messages are looked up, such as an order's number; may be given several times",
    )
    command.add_argument(
        "--property",
        action="append",
        default=[],
        dest="properties",
        metavar="NAME=VALUE",
        help="goes along with the body; may be given several times",
    )
    command.add_argument("--sharding-key", metavar="KEY", help="messages with equal keys go to one queue, in order")
    command.add_argument(
        "--delay-level",
        type=int,
        default=0,
        metavar="N",
        help="deliver after the broker's N-th delay: with the usual table 1 is 1 s, 18 is 2 h",
    )
    _client_options(command)
    _json_option(command)


def _tail(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "tail",
        "messages:tail",
        "show messages of a topic as they arrive, without a consumer group",
        "A line each: when it was stored (UTC), queue/offset, tag, keys, body. Runs until Ctrl-C, or for --count messages.",
    )
    command.add_argument("topic")
    command.add_argument("--tag", default="*", metavar="EXPRESSION", help="only these tags, for example 'paid || refunded'")
    command.add_argument(
        "--from",
        dest="start",
        choices=("earliest", "latest"),
        default="latest",
        help="earliest: what the topic holds, too; latest: only what comes from now on (default)",
    )
    command.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    _client_options(command)
    _json_option(command)


def _message(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "message",
        "find:run",
        "show a message by its id, its key, or its place",
        "Ids are those that producers print (unique key) or brokers give (offset id). Unique keys and keys are looked up in the brokers' "
        "index of keys.",
    )
    command.add_argument("id", nargs="?", metavar="ID")
    command.add_argument("--topic", metavar="TOPIC", help="where to look; needed with --key and --offset")
    command.add_argument("--key", metavar="KEY", help="all messages with this key")
    command.add_argument("--offset", type=int, metavar="N", help="the N-th message of a queue")
    command.add_argument("--queue", type=int, default=0, metavar="N", help="of which queue (default: 0)")
    command.add_argument("--broker", metavar="NAME", help="on which broker, where the topic has several")
    _client_options(command)
    _json_option(command)


def _trace(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(
        commands,
        "trace",
        "trace:run",
        "show what happened to a message: who sent it, who consumed it, when and how",
        "Producers and consumers write it down when tracing is switched on in them (trace=True).",
    )
    command.add_argument("key", metavar="ID", help="the message's id, or one of its keys")
    command.add_argument(
        "--trace-topic", default="RMQ_SYS_TRACE_TOPIC", metavar="TOPIC", help="where clients write traces to (default: %(default)s)"
    )
    _client_options(command)
    _json_option(command)


def _bench(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "measure how fast a cluster takes messages and gives them back"
    parser = commands.add_parser("bench", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    measures = parser.add_subparsers(metavar="COMMAND")
    command = _command(
        measures, "produce", "bench:produce", "send messages and show rate and latency", "A line each second, then the total."
    )
    command.add_argument("--topic", default="OgiveBench", metavar="TOPIC", help="where to (default: OgiveBench)")
    command.add_argument("--size", type=int, default=1024, metavar="BYTES", help="of each body (default: 1024)")
    command.add_argument("--in-flight", type=int, default=64, metavar="N", help="sends at the same time (default: 64)")
    _bench_options(command)
    command = _command(
        measures, "consume", "bench:consume", "receive messages, the oldest first, and show the rate", "Exit code 1: none came."
    )
    command.add_argument("--topic", default="OgiveBench", metavar="TOPIC", help="where from (default: OgiveBench)")
    command.add_argument("--group", default="ogive-bench", metavar="GROUP", help="as whom; its place is kept (default: ogive-bench)")
    _bench_options(command)


def _bench_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--for", dest="duration", default="10s", metavar="TIME", help="how long, such as 30s or 2m (default: 10s)")
    command.add_argument("--count", type=int, metavar="N", help="stop after N messages")
    _client_options(command)
    _json_option(command)


def _context(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "name clusters, and choose the one that commands go to"
    parser = commands.add_parser(
        "context",
        help=text,
        description=f"{text.capitalize()}. They are kept in ogive/contexts.json under XDG_CONFIG_HOME or ~/.config; OGIVE_CONTEXT names "
        "another one for a single command.",
    )
    parser.set_defaults(group_parser=parser)
    contexts = parser.add_subparsers(metavar="COMMAND")
    command = _command(contexts, "list", "contexts:list_contexts", "list the contexts; * marks the one in use")
    _json_option(command)
    command = _command(contexts, "add", "contexts:add", "add a context, or change it", "The first one is used at once.")
    command.add_argument("context", metavar="NAME")
    command.add_argument("-n", "--name-server", required=True, metavar="HOST:PORT", help="name servers, separated by ';'")
    _secret_options(command)
    command.add_argument("--use", action="store_true", help="use it from now on")
    command = _command(contexts, "use", "contexts:use", "use a context from now on")
    command.add_argument("context", metavar="NAME")
    command = _command(contexts, "remove", "contexts:remove", "remove a context")
    command.add_argument("context", metavar="NAME")


def _dead_letter(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "show what a group could not consume, and send it again"
    parser = commands.add_parser("dead-letter", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    letters = parser.add_subparsers(metavar="COMMAND")
    command = _command(letters, "list", "dead_letters:list_letters", "list the dead letters of a group, the oldest first")
    command.add_argument("group")
    command.add_argument("--since", metavar="TIME", help="only those stored since a time such as 2026-11-01T08:00")
    command.add_argument("--limit", type=int, default=100, metavar="N", help="at most N (default: 100)")
    _client_options(command)
    _json_option(command)
    command = _command(
        letters,
        "send",
        "dead_letters:send",
        "give dead letters to their group once more",
        "Only this group gets them, with all its retries. They stay in the list: sending twice delivers twice.",
    )
    command.add_argument("group")
    command.add_argument("ids", nargs="*", metavar="ID", help="which; `ogive dead-letter list` shows the ids")
    command.add_argument("--all", action="store_true", help="every one (at most the 10,000 oldest)")
    command.add_argument("--since", metavar="TIME", help="only those stored since a time such as 2026-11-01T08:00")
    _client_options(command)


def _store(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "check and repair the directory of a broker that is stopped"
    parser = commands.add_parser("store", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    stores = parser.add_subparsers(metavar="COMMAND")
    command = _command(
        stores,
        "verify",
        "store:verify",
        "read everything in a broker's directory and say what is damaged; changes nothing",
        "Exit code 0: nothing is wrong; 3: something is; 1: it cannot be looked at, for example because a broker runs on it.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    _json_option(command)
    command = _command(
        stores,
        "repair",
        "store:repair",
        "make everything again that the messages themselves do not hold: queues, index, tables from their backups",
        "Deletes no message that can be read. Exit code 0: nothing is wrong any more; 3: messages are lost; 1: it cannot be done.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    _json_option(command)


def _errors(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    command = _command(commands, "errors", "codes:run", "explain a response code of brokers and name servers; without one list all")
    command.add_argument("code", nargs="?", metavar="CODE", help="a number or name, such as 17 or TOPIC_NOT_EXIST")
    _json_option(command)


def _user(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "list, create, change and delete users of a broker with access control"
    parser = commands.add_parser("user", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    users = parser.add_subparsers(metavar="COMMAND")
    command = _command(users, "list", "users:list_users", "list the users")
    _client_options(command)
    _json_option(command)
    secret = "The password is asked for, or is the first line of standard input."
    command = _command(users, "create", "users:create_user", "create a user", secret)
    command.add_argument("user", metavar="NAME")
    command.add_argument("--super", dest="super_user", action="store_true", help="one who may do everything")
    _client_options(command)
    command = _command(users, "update", "users:update_user", "change a user", secret)
    command.add_argument("user", metavar="NAME")
    command.add_argument("--password", action="store_true", help="give a new password")
    kind, state = command.add_mutually_exclusive_group(), command.add_mutually_exclusive_group()
    kind.add_argument("--super", dest="super_user", action="store_true", default=None, help="may do everything")
    kind.add_argument("--normal", dest="super_user", action="store_false", default=None, help="may do what rules allow")
    state.add_argument("--enable", dest="enabled", action="store_true", default=None, help="let the user in again")
    state.add_argument("--disable", dest="enabled", action="store_false", default=None, help="let the user in no more")
    _client_options(command)
    command = _command(users, "delete", "users:delete_user", "delete a user with all rules")
    command.add_argument("user", metavar="NAME")
    _yes_option(command)
    _client_options(command)


def _acl(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    text = "list, make and delete rules: what users may do"
    parser = commands.add_parser("acl", help=text, description=f"{text.capitalize()}.")
    parser.set_defaults(group_parser=parser)
    rules = parser.add_subparsers(metavar="COMMAND")
    command = _command(rules, "list", "users:list_rules", "list the rules")
    command.add_argument("user", metavar="NAME", nargs="?", help="only of this user")
    _client_options(command)
    _json_option(command)
    for word, what in (("allow", "let a user do something"), ("deny", "forbid a user what a wider rule allows")):
        command = _command(
            rules,
            word,
            f"users:{word}",
            what,
            "Of the rules that fit, the most exact decides: a name before a prefix before all of a kind. What no rule allows is denied.",
        )
        command.add_argument("user", metavar="NAME")
        command.add_argument(
            "resource", metavar="RESOURCE", help="Topic:Orders, Group:billing, a prefix such as 'Topic:Ord*', 'Cluster:*', or '*'"
        )
        command.add_argument(
            "actions", metavar="ACTIONS", help="of Pub, Sub, Create, Update, Delete, Get, List, All; several joined by commas"
        )
        command.add_argument(
            "--from",
            dest="source_ips",
            action="append",
            default=[],
            metavar="NETWORK",
            help="only from this address or network; repeatable",
        )
        _client_options(command)
    command = _command(rules, "delete", "users:delete_rules", "delete the rules of a user")
    command.add_argument("user", metavar="NAME")
    command.add_argument("resource", metavar="RESOURCE", nargs="?", help="only that on this resource, as `ogive acl list` shows it")
    _client_options(command)
