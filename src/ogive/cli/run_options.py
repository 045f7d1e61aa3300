"""Options of ``ogive up``, ``console``, ``proxy`` and ``run``."""

from typing import Any, Final

from ogive.cli.options import CLUSTER, VERBOSE, Command, Option, host, option, titled

MIB: Final = 1024 * 1024

ON_SPARK: Final[dict[str, Any]] = {
    "master": "local[*,4]",
    "memory": "1g",
    "checkpoint": "ogive-checkpoint",
    "once": False,
    "py_files": [],
}

"""Defaults of the options that only ``--engine spark`` has."""

NOT_ON_SPARK: Final[dict[str, Any]] = {
    "instance_name": None,
    "offsets_dir": None,
    "processes": 1,
    "http_port": None,
    "http_host": None,
    "insecure_http": False,
    "drain_delay": None,
    "stop_timeout": None,
}
"""Defaults of the options that only ``--engine local`` has."""


def _console_address(needed: str) -> tuple[Option, ...]:
    """Return the options for the console's address and log-in; *needed* says when."""
    return (
        option(
            "--console-host",
            type=host,
            metavar="IP",
            default="127.0.0.1",
            help="address for the console (default: 127.0.0.1)",
        ),
        option(
            "--console-credentials",
            metavar="FILE",
            help="the user and password for browsers, as lines accessKey: NAME and secretKey: "
            f"SECRET; {needed}",
        ),
        option(
            "--console-name",
            metavar="NAME",
            help="another host name by which browsers reach it, such as a proxy's",
        ),
        option(
            "--console-actions",
            action="store_true",
            help="offer changes, each with a preview, a confirmation and a line in the log. With "
            "access control the broker decides by the user that signs in; without, they need "
            "--console-credentials and loopback",
        ),
    )


LOG_FORMAT: Final = option(
    "--log-format",
    choices=("text", "json"),
    default="text",
    help="format of the log on standard error (default: text)",
)
_SERVER_TLS: Final = (
    option(
        "--tls-cert",
        metavar="FILE",
        help="speak TLS: the certificate with its chain, as PEM; read again at SIGHUP",
    ),
    option("--tls-key", metavar="FILE", help="the certificate's key, without password"),
    option(
        "--tls-mode",
        choices=("enforcing", "permissive"),
        help="enforcing: TLS only (default); permissive: with or without TLS, on the same ports",
    ),
    option(
        "--tls-client-ca",
        metavar="FILE",
        help="ask clients for a certificate of these authorities",
    ),
    option(
        "--tls-client-auth",
        choices=("required", "optional"),
        default="required",
        help="with --tls-client-ca: whether every client needs one (default: required)",
    ),
)


def _probes(work: str, more_ports: str = "") -> tuple[Option, ...]:
    """Return the options for pages about a process that does *work* until it stops."""
    return (
        option(
            "--http-port",
            type=int,
            metavar="PORT",
            help="serve /metrics (Prometheus), /health and /ready over HTTP on this port; 0 "
            f"takes a free one{more_ports}",
        ),
        option(
            "--http-host",
            type=host,
            metavar="IP",
            help="address for --http-port, which requires no credentials (default: 127.0.0.1)",
        ),
        option(
            "--insecure-http",
            action="store_true",
            help="allow an --http-host other than loopback: anyone who can reach it can read "
            "the figures",
        ),
        option(
            "--drain-delay",
            type=float,
            metavar="SECONDS",
            help=f"after a signal, answer /ready with 503 and still {work} for this long "
            "(default: 0)",
        ),
    )


_HOST: Final = option(
    "--host",
    type=host,
    metavar="IP",
    default="127.0.0.1",
    help="address to listen on (default: 127.0.0.1)",
)


UP: Final = Command(
    "up",
    "up:run",
    "run a broker and its name server on this machine until Ctrl-C or SIGTERM",
    parts=(
        option(
            "--config",
            metavar="FILE",
            help="settings from a TOML file, under the names of these options without --; or from "
            "Apache's broker.conf (*.conf, *.properties)",
        ),
        option(
            "--data",
            metavar="DIR",
            default="ogive-data",
            help="where messages are kept (default: ./ogive-data)",
        ),
        titled(
            "addresses and names",
            _HOST,
            option(
                "--advertised-host",
                type=host,
                metavar="HOST",
                help="the address or name for clients, if not --host: behind NAT, in a container; "
                "needed "
                "with 0.0.0.0 or ::",
            ),
            option(
                "--insecure-listen",
                action="store_true",
                help="allow an address other than loopback without --acl (anyone who can reach it "
                "can "
                "administer the broker), or without TLS "
                "(anyone who can read the connections can repeat what was sent on them)",
            ),
            option(
                "--name-server-port",
                type=int,
                default=9876,
                metavar="PORT",
                help="0 takes a free port (default: 9876)",
            ),
            option(
                "--broker-port",
                type=int,
                default=10911,
                metavar="PORT",
                help="0 takes a free port (default: 10911)",
            ),
            option(
                "--grpc-port",
                type=int,
                metavar="PORT",
                help="for the official SDKs of RocketMQ 5, with and without TLS unless --tls-cert "
                "is given; 0 takes a free port (default: 8081, and none if that is in use)",
            ),
            option(
                "--grpc-advertised",
                metavar="HOST:PORT",
                help="where these SDKs reach it, if routes should not name the address that each "
                "was given: in a container, behind a load balancer",
            ),
            option("--no-grpc", action="store_true", help="serve no gRPC port"),
            option(
                "--broker-name",
                metavar="NAME",
                default="broker-a",
                help="name in routes and queues (default: broker-a)",
            ),
            option(
                "--cluster",
                metavar="NAME",
                default="DefaultCluster",
                help="name of the cluster (default: DefaultCluster)",
            ),
            option(
                "--region",
                metavar="NAME",
                default="DefaultRegion",
                help="MSG_REGION of each message (default: DefaultRegion)",
            ),
        ),
        titled(
            "name servers",
            option(
                "--name-servers",
                metavar="HOST:PORT,...",
                help="register the broker at these name servers, too, so that their clients find "
                "it; each broker needs its own --broker-name",
            ),
            option(
                "--name-servers-credentials",
                metavar="FILE",
                help="a user of these name servers, as lines accessKey: NAME and secretKey: SECRET",
            ),
            option(
                "--name-servers-cafile",
                metavar="FILE",
                help="use TLS to these name servers, and trust the authorities in this file",
            ),
            option(
                "--no-name-server",
                action="store_true",
                help="run no name server here: clients find the broker at --name-servers",
            ),
            option(
                "--no-broker",
                action="store_true",
                help="run a name server alone, at which the brokers of other processes register",
            ),
        ),
        titled(
            "access control and TLS",
            option(
                "--acl",
                action="store_true",
                help="require credentials; users and rules are kept with the data (`ogive user`, "
                "`ogive "
                "acl`)",
            ),
            option(
                "--credentials",
                metavar="FILE",
                help="with --acl: a super user, as lines accessKey: NAME and secretKey: SECRET; "
                "made if "
                "missing, else it keeps its password",
            ),
            *_SERVER_TLS,
        ),
        titled(
            "storage",
            option(
                "--flush",
                choices=("sync", "async"),
                default="sync",
                help="sync: an acknowledged message survives a power cut (default); async: at most "
                "500 ms "
                "or 4 MiB of the newest may be lost",
            ),
            option(
                "--segment-size",
                metavar="BYTES",
                type=int,
                default=64 * MIB,
                help="size of the log's files in a new directory; an existing one keeps its size "
                "(default: 67108864, 64 MiB)",
            ),
            option(
                "--empty-log",
                action="store_true",
                help="for one start: begin a new log if commitlog is empty although other files "
                "refer to messages, instead of refusing to start",
            ),
            option(
                "--keep-hours",
                metavar="HOURS",
                type=float,
                default=72.0,
                help="delete messages older than this (default: 72)",
            ),
            option(
                "--delete-at",
                metavar="HOURS",
                default="4",
                help="hours of the day at which to delete, such as 4,16 (default: 4)",
            ),
            option(
                "--delete-above",
                metavar="PERCENT",
                type=float,
                default=75.0,
                help="delete at any hour while the disk is fuller than this (default: 75)",
            ),
            option(
                "--delete-young-above",
                metavar="PERCENT",
                type=float,
                help="while the disk is fuller than this, delete the oldest messages at any age "
                "(default: never; on a full disk sends are refused)",
            ),
        ),
        titled(
            "messages",
            option(
                "--no-auto-create-topics",
                action="store_true",
                help="refuse messages to topics that do not exist, instead of creating them",
            ),
            option(
                "--no-auto-create-groups",
                action="store_true",
                help="refuse consumer groups that do not exist, instead of creating them",
            ),
            option(
                "--enforce-message-types",
                action="store_true",
                help="refuse messages of another type than the message.type of their topic "
                "(default: "
                "accept them, as Apache's broker does)",
            ),
            option(
                "--default-queues",
                metavar="N",
                type=int,
                default=8,
                help="limit for the queues of a topic that a send creates (default: 8). The "
                "producer asks "
                "for a number, usually for 4 "
                "(default_topic_queues in ogive, defaultTopicQueueNums in Java); `ogive topic "
                "create` "
                "makes 8",
            ),
            option(
                "--max-message-size",
                metavar="BYTES",
                type=int,
                default=4 * MIB,
                help="refuse messages with a larger body (default: 4 MiB)",
            ),
            option(
                "--no-property-filter",
                action="store_true",
                help="refuse consumers that filter by SQL92",
            ),
            option(
                "--max-timer-delay",
                metavar="SECONDS",
                type=float,
                default=7 * 86_400.0,
                help="refuse timer messages that are due later than in SECONDS (default: 604800, 7 "
                "days)",
            ),
            option(
                "--max-timer-messages",
                metavar="N",
                type=int,
                default=1_000_000,
                help="refuse timer messages while N wait, each in about 800 bytes of memory "
                "(default: 1000000)",
            ),
            option(
                "--delay-levels",
                metavar="LIST",
                help="delays of the levels 1, 2, ..., for example '1s 5s 10s' (default: Apache's "
                "18 "
                "levels)",
            ),
            option(
                "--duplicate-window",
                metavar="SECONDS",
                type=float,
                default=0.0,
                help="store a message only once if its producer sends it again within SECONDS, "
                "with the same unique key and body (default: 0, store all)",
            ),
            option(
                "--transaction-timeout",
                metavar="SECONDS",
                type=float,
                default=6.0,
                help="age at which an open transaction is first checked with a producer "
                "(default: 6)",
            ),
            option(
                "--transaction-check-interval",
                metavar="SECONDS",
                type=float,
                default=30.0,
                help="time between two rounds of such checks (default: 30)",
            ),
            option(
                "--transaction-check-max",
                metavar="N",
                type=int,
                default=15,
                help="checks of a transaction before it is given up (default: 15)",
            ),
            option(
                "--max-open-transactions",
                metavar="N",
                type=int,
                default=100_000,
                help="refuse transactional messages while N are open, each in about 800 bytes of "
                "memory (default: 100000)",
            ),
            option(
                "--max-unanswered-checks",
                metavar="N",
                type=int,
                default=2_000,
                help="limit of checks that wait for an answer; more are sent as answers arrive "
                "(default: 2000)",
            ),
            option(
                "--busy-poll",
                metavar="MICROSECONDS",
                type=float,
                default=200.0,
                help="before sleeping, poll for this long for the next request of a client that "
                "sends one after another (default: 200; 0: never poll)",
            ),
        ),
        titled(
            "metrics, console and log",
            option(
                "--metrics-port",
                type=int,
                metavar="PORT",
                help="serve /metrics (Prometheus), /health and /ready over HTTP on this port; 0 "
                "takes a "
                "free one",
            ),
            option(
                "--metrics-host",
                type=host,
                metavar="IP",
                default="127.0.0.1",
                help="address for --metrics-port, which requires no credentials (default: "
                "127.0.0.1)",
            ),
            option(
                "--insecure-metrics",
                action="store_true",
                help="allow a --metrics-host other than loopback: anyone who can reach it can read "
                "the "
                "figures",
            ),
            option(
                "--drain-delay",
                metavar="SECONDS",
                type=float,
                default=0.0,
                help="after a signal to stop, answer /ready with 503 and still serve requests for "
                "this long, so that a load balancer sends no new clients (default: 0)",
            ),
            option(
                "--console-port",
                type=int,
                metavar="PORT",
                help="serve the web console on this port, see `ogive console`; 0 takes a free one",
            ),
            *_console_address(
                "needed with another address; with --acl the file of --credentials, unless this "
                "names "
                "another"
            ),
            LOG_FORMAT,
            VERBOSE,
        ),
    ),
    defaults={
        "first_user": None,
        "name_servers_user": None,
        "broker_settings": {},
        "config_notes": (),
        "in_file": {},
    },
    environment={"credentials": "OGIVE_CREDENTIALS"},
)


CONSOLE: Final = Command(
    "console",
    "console_command:run",
    "serve web pages that show a cluster, ours or Apache's, until Ctrl-C or SIGTERM",
    "The pages are read-only, unless --console-actions is given: topics, groups, lag, messages, "
    "dead letters, with the commands for each. `ogive up --console-port PORT` serves them beside a "
    "broker.",
    parts=(
        option(
            "--port",
            dest="console_port",
            type=int,
            default=8090,
            metavar="PORT",
            help="0 takes a free port (default: 8090)",
        ),
        *_console_address(
            "needed with another address; with --credentials that file, unless this names another"
        ),
        option(
            "--tls-cert", metavar="FILE", help="serve HTTPS: the certificate with its chain, as PEM"
        ),
        option("--tls-key", metavar="FILE", help="the certificate's key, without password"),
        option(
            "--context",
            dest="contexts",
            action="append",
            metavar="NAME",
            help="show the cluster of this context; repeat it to switch between several, each with "
            "its own credentials",
        ),
        VERBOSE,
        *CLUSTER,
    ),
)


PROXY: Final = Command(
    "proxy",
    "proxy_command:run",
    "serve the official RocketMQ 5 SDKs in front of a cluster of ogive's or Apache's brokers, "
    "until Ctrl-C or SIGTERM",
    "A single broker of `ogive up` does not need it, because it serves the SDKs itself. For a "
    "cluster with access control give the --credentials of a super user; each client then needs "
    "credentials of its own.",
    parts=(
        titled(
            "addresses",
            _HOST,
            option(
                "--grpc-port",
                type=int,
                metavar="PORT",
                default=8081,
                help="port for the SDKs, with and without TLS unless --tls-cert is given; 0 takes "
                "a free port (default: 8081)",
            ),
            option(
                "--grpc-advertised",
                metavar="HOST:PORT",
                help="where the SDKs reach it, if routes should not name the address that each "
                "was given: in a container, behind a load balancer",
            ),
            option(
                "--insecure-listen",
                action="store_true",
                help="allow an address other than loopback without --credentials (anyone who can "
                "reach it can send and receive), or without TLS (anyone who can read the "
                "connections can repeat what was sent on them)",
            ),
        ),
        titled("TLS of the port", *_SERVER_TLS),
        titled("probes, metrics and log", *_probes("serve"), LOG_FORMAT, VERBOSE),
        titled(
            "the cluster",
            option(
                "--cluster",
                metavar="NAME",
                help="serve only this one of the clusters that the name servers know (default: all "
                "brokers, as one cluster)",
            ),
            *CLUSTER,
        ),
    ),
    defaults={"no_grpc": False},
)


RUN: Final = Command(
    "run",
    "run:run",
    "run listeners until Ctrl-C or SIGTERM",
    "A TARGET is module:listener, such as app:bill for `bill` in ./app.py, or a module for all "
    "of its listeners. Stopping waits for "
    "running calls and commits what was consumed; Ctrl-C again waits no longer.",
    parts=(
        option("targets", nargs="+", metavar="TARGET", help="module:listener, or a module"),
        option(
            "--wait",
            type=float,
            default=10.0,
            metavar="SECONDS",
            help="how long stopping waits for running calls (default: 10)",
        ),
        option(
            "--stop-timeout",
            type=float,
            metavar="SECONDS",
            help="end the process so long after a signal, whatever still runs, with exit code 124 "
            "(default: --drain-delay, --wait and 10 more)",
        ),
        option(
            "--processes",
            type=int,
            default=1,
            metavar="N",
            help="run so many processes with these listeners; if one ends, all are stopped "
            "(default: 1)",
        ),
        titled(
            "probes and metrics",
            *_probes("consume", ". With --processes the next ones are at PORT+1, PORT+2, ..."),
        ),
        option(
            "--reload",
            action="store_true",
            help="for development: restart when a Python file in or below this folder is saved, "
            "after "
            "running calls have ended",
        ),
        option(
            "--instance-name",
            metavar="NAME",
            help="for broadcasting listeners: each process of a group on this machine needs its "
            "own, "
            "under which its progress is kept "
            "(default: DEFAULT)",
        ),
        option(
            "--offsets-dir",
            metavar="DIR",
            help="for broadcasting listeners: where progress is kept (default: "
            "~/.rocketmq_offsets)",
        ),
        option(
            "--engine",
            choices=("local", "spark"),
            default="local",
            help="local: in this process (default); spark: on a Spark job's executors",
        ),
        titled(
            "with --engine spark",
            option(
                "--master",
                help="Spark's master (default: local[*,4], this machine, each task tried 4 times)",
            ),
            option("--memory", help="heap of Spark's driver (default: 1g)"),
            option(
                "--checkpoint",
                metavar="DIR",
                help="where the progress is kept between runs (default: ./ogive-checkpoint)",
            ),
            option(
                "--once",
                action="store_true",
                help="stop once everything that was there at the start is consumed",
            ),
            option(
                "--py-files",
                action="append",
                metavar="FILE",
                help="send this module to the executors; may be given several times",
            ),
        ),
        VERBOSE,
        *CLUSTER,
    ),
    defaults=ON_SPARK,
)
