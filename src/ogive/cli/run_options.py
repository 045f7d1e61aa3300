"""The options of what keeps running: ``ogive up``, ``run`` and ``demo``."""

import os
from typing import Any, Final

from ogive.cli.options import Commands, add_cluster, add_command

ON_SPARK: Final[dict[str, Any]] = {"master": "local[*,4]", "memory": "1g", "checkpoint": "ogive-checkpoint", "once": False, "py_files": []}
"""What only ``--engine spark`` knows, with its defaults."""


def up(commands: Commands) -> None:
    command = add_command(commands, "up", "up:run", "run a broker and its name server on this machine until Ctrl-C or SIGTERM")
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


def run(commands: Commands) -> None:
    command = add_command(
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
    spark.add_argument("--master", help="Spark's master (default: local[*,4], this machine, each task tried 4 times)")
    spark.add_argument("--memory", help="heap of Spark's driver (default: 1g)")
    spark.add_argument("--checkpoint", metavar="DIR", help="keeps the progress over restarts (default: ./ogive-checkpoint)")
    spark.add_argument("--once", action="store_true", help="end when everything is consumed that was there at the start")
    spark.add_argument("--py-files", action="append", metavar="FILE", help="send this module to the executors; may be given several times")
    command.set_defaults(**ON_SPARK)
    command.add_argument("-v", "--verbose", action="count", default=0, help="log more; twice for details")
    add_cluster(command)


def demo(commands: Commands) -> None:
    command = add_command(commands, "demo", "demo:run", "run a year of flights through broker, consumers and Spark, and check every figure")
    command.add_argument("--events", type=int, metavar="N", help="only the first N of 1,001,615 events")
    command.add_argument("--report", metavar="FILE", default="report.html", help="where the report goes (default: report.html)")
    command.add_argument("--keep", action="store_true", help="keep the broker's data and the Parquet files")
