"""Options of the commands about topics, groups, brokers, stores, users, rules and contexts."""

from typing import Final

from ogive.cli.options import CLUSTER, JSON, SECRETS, YES, Command, CommandGroup, either, option

# these two are copies of ogive.client.admin's, which takes too long to load for a help text
PERMISSIONS: Final = ("rw", "r", "w")

MESSAGE_TYPES: Final = (
    *("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "PRIORITY", "MIXED"),
)

RETRY_LIMIT: Final = (
    "retries before a message becomes a dead letter, for members that send no "
    "limit; those of ogive and Java do"
)


_ASKS: Final = "Asks for the password, or takes it from the first line of standard input."
_RULE: Final = (
    "The most specific matching rule decides: a name before a prefix before a whole kind. "
    "Without a matching rule the request is denied. "
    "There is one rule for each user and resource: a new one replaces the old one, so name all "
    "actions."
)
_RULE_OPTIONS: Final = (
    option("user", metavar="NAME"),
    option(
        "resource",
        metavar="RESOURCE",
        help="Topic:Orders, Group:billing, a prefix such as 'Topic:Ord*', 'Cluster:*', or '*'",
    ),
    option(
        "actions",
        metavar="ACTIONS",
        help="of Pub, Sub, Create, Update, Delete, Get, List, All; several joined by commas",
    ),
    option(
        "--from",
        dest="source_ips",
        action="append",
        default=[],
        metavar="NETWORK",
        help="only from this address or network; repeatable",
    ),
    *CLUSTER,
    JSON,
)

USER: Final = CommandGroup(
    "user",
    "list, create, change and delete users of a broker with access control",
    commands=(
        Command("list", "user_commands:list_users", "list the users", parts=(*CLUSTER, JSON)),
        Command(
            "create",
            "user_commands:create_user",
            "create a user",
            _ASKS,
            parts=(
                option("user", metavar="NAME"),
                option(
                    "--super",
                    dest="super_user",
                    action="store_true",
                    help="the user may do everything",
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "update",
            "user_commands:update_user",
            "change a user",
            _ASKS,
            parts=(
                option("user", metavar="NAME"),
                option("--password", action="store_true", help="give a new password"),
                either(
                    option(
                        "--super",
                        dest="super_user",
                        action="store_true",
                        default=None,
                        help="may do everything",
                    ),
                    option(
                        "--normal",
                        dest="super_user",
                        action="store_false",
                        default=None,
                        help="may do what rules allow",
                    ),
                ),
                either(
                    option(
                        "--enable",
                        dest="enabled",
                        action="store_true",
                        default=None,
                        help="unlock the user",
                    ),
                    option(
                        "--disable",
                        dest="enabled",
                        action="store_false",
                        default=None,
                        help="lock the user out",
                    ),
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "delete",
            "user_commands:delete_user",
            "delete a user and all rules for them",
            parts=(option("user", metavar="NAME"), YES, *CLUSTER, JSON),
        ),
    ),
)


ACL: Final = CommandGroup(
    "acl",
    "list, create and delete access rules",
    commands=(
        Command(
            "list",
            "user_commands:list_rules",
            "list the rules",
            parts=(
                option("user", metavar="NAME", nargs="?", help="only of this user"),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "allow",
            "user_commands:set_rule",
            "let a user do something",
            _RULE,
            parts=_RULE_OPTIONS,
            defaults={"allowed": True},
        ),
        Command(
            "deny",
            "user_commands:set_rule",
            "forbid a user something that a wider rule allows",
            _RULE,
            parts=_RULE_OPTIONS,
            defaults={"allowed": False},
        ),
        Command(
            "export",
            "settings_commands:export_rules",
            "print the rules as TOML, for `ogive apply`",
            parts=(*CLUSTER, JSON),
        ),
        Command(
            "delete",
            "user_commands:delete_rules",
            "delete the rules of a user",
            parts=(
                option("user", metavar="NAME"),
                option(
                    "resource",
                    metavar="RESOURCE",
                    nargs="?",
                    help="only on this resource, as shown by `ogive acl list`; without it all "
                    "rules, after a "
                    "question",
                ),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
    ),
)


CONTEXT: Final = CommandGroup(
    "context",
    "give clusters names, and choose the one that commands use",
    "Contexts are kept in ogive/contexts.json under XDG_CONFIG_HOME or ~/.config. "
    "OGIVE_CONTEXT chooses one for a single command.",
    commands=(
        Command(
            "list",
            "connect:list_contexts",
            "list the contexts; * marks the one in use",
            parts=(JSON,),
        ),
        Command(
            "add",
            "connect:add_context",
            "add a context, or replace it as a whole",
            "The first one is used at once.",
            parts=(
                option("context", metavar="NAME"),
                option(
                    "-n",
                    "--name-server",
                    required=True,
                    metavar="HOST:PORT",
                    help="name servers, separated by ';'",
                ),
                *SECRETS,
                option("--use", action="store_true", help="use it from now on"),
                JSON,
            ),
        ),
        Command(
            "use",
            "connect:use_context",
            "use a context from now on",
            parts=(option("context", metavar="NAME"), JSON),
        ),
        Command(
            "remove",
            "connect:remove_context",
            "remove a context",
            parts=(option("context", metavar="NAME"), JSON),
        ),
    ),
)

TOPIC: Final = CommandGroup(
    "topic",
    "list, show, create, change and delete topics",
    commands=(
        Command(
            "list",
            "topic_commands:list_topics",
            "list the topics with their queues and messages",
            parts=(
                option(
                    "--all",
                    "--system",
                    action="store_true",
                    help="also system, retry and dead-letter topics",
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "create",
            "topic_commands:create_topic",
            "create a topic; refused if it exists with other settings",
            parts=(
                option("topic", help="letters, digits, - and _"),
                option(
                    "--queues",
                    type=int,
                    default=8,
                    metavar="N",
                    help="queues on each broker (default: 8, as with mqadmin; a topic that a send "
                    "creates has "
                    "4)",
                ),
                option(
                    "--cluster",
                    metavar="NAME",
                    help="only on the brokers of this cluster (default: on all that the name "
                    "server knows)",
                ),
                option(
                    "--perm",
                    choices=PERMISSIONS,
                    default="rw",
                    help="what clients may do: read, write, both (default: rw)",
                ),
                option(
                    "--message-type",
                    choices=MESSAGE_TYPES,
                    help="type of its messages; Apache's proxies, and brokers that run with `ogive "
                    "up --enforce-message-types`, refuse other types",
                ),
                option(
                    "--whole-batches",
                    action="store_true",
                    help="keep each batch as one record (queue.type=BatchCQ); cannot be changed",
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "update",
            "topic_commands:update_topic",
            "change a topic's number of queues, permission or type",
            "Settings that are not given stay as they are. To remove queues without loss, lower "
            "--write-queues first, and --read-queues once "
            "the groups have consumed the others.",
            parts=(
                option("topic"),
                option(
                    "--queues",
                    type=int,
                    metavar="N",
                    help="queues on each broker, to read and to write",
                ),
                option("--read-queues", type=int, metavar="N", help="only those that groups read"),
                option("--write-queues", type=int, metavar="N", help="only those that senders use"),
                option(
                    "--perm", choices=PERMISSIONS, help="what clients may do: read, write, both"
                ),
                option(
                    "--message-type",
                    choices=MESSAGE_TYPES,
                    help="type of its messages; UNSPECIFIED: any type",
                ),
                option("--dry-run", action="store_true", help="only show what would change"),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "export",
            "settings_commands:export_topics",
            "print the settings of topics as TOML, for `ogive apply`",
            parts=(
                option("topics", nargs="*", metavar="TOPIC", help="default: all"),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "show",
            "topic_commands:show_topic",
            "show a topic's settings, brokers, queues and the groups that consume it",
            parts=(option("topic"), *CLUSTER, JSON),
        ),
        Command(
            "delete",
            "topic_commands:delete_topic",
            "delete a topic with all its messages, on every broker",
            parts=(option("topic"), YES, *CLUSTER, JSON),
        ),
    ),
)


GROUP: Final = CommandGroup(
    "group",
    "list, show, create, change, move and delete consumer groups",
    commands=(
        Command(
            "list",
            "group_commands:list_groups",
            "list the consumer groups with their members and lag",
            parts=(
                option("--all", action="store_true", help="also the brokers' own groups"),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "export",
            "settings_commands:export_groups",
            "print the settings of groups as TOML, for `ogive apply`",
            parts=(
                option("groups", nargs="*", metavar="GROUP", help="default: all"),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "show",
            "group_commands:show_group",
            "show a group's settings, members, subscriptions and progress",
            parts=(option("group"), *CLUSTER, JSON),
        ),
        Command(
            "create",
            "group_commands:create_group",
            "create a group; refused if it exists with other settings",
            "Not required: the first member of a group creates it, too.",
            parts=(
                option("group", help="letters, digits, - and _"),
                option(
                    "--max-retries",
                    type=int,
                    default=16,
                    metavar="N",
                    help=f"{RETRY_LIMIT} (default: 16)",
                ),
                option(
                    "--retry-queues",
                    type=int,
                    default=1,
                    metavar="N",
                    help="queues of its retry topic (default: 1)",
                ),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "update",
            "group_commands:update_group",
            "change a group",
            "Settings that are not given stay as they are.",
            parts=(
                option("group"),
                option("--max-retries", type=int, metavar="N", help=RETRY_LIMIT),
                option(
                    "--retry-queues",
                    type=int,
                    metavar="N",
                    help="queues of its retry topic once that is created; for an existing one: "
                    "`ogive topic "
                    "update %%RETRY%%GROUP --queues N`",
                ),
                either(
                    option(
                        "--broadcast",
                        action="store_true",
                        default=None,
                        help="members may broadcast: each gets every message",
                    ),
                    option(
                        "--no-broadcast",
                        dest="broadcast",
                        action="store_false",
                        default=None,
                        help="members may not broadcast",
                    ),
                ),
                either(
                    option(
                        "--enable",
                        dest="enabled",
                        action="store_true",
                        default=None,
                        help="members get messages again",
                    ),
                    option(
                        "--disable",
                        dest="enabled",
                        action="store_false",
                        default=None,
                        help="members get no messages until --enable",
                    ),
                ),
                either(
                    option(
                        "--orderly",
                        action="store_true",
                        default=None,
                        help="members that use gRPC get messages of a sharding key in order; "
                        "other members decide that for themselves",
                    ),
                    option(
                        "--no-orderly",
                        dest="orderly",
                        action="store_false",
                        default=None,
                        help="members that use gRPC get messages in any order",
                    ),
                ),
                option("--topic", metavar="TOPIC", help="for --consume-mode"),
                option(
                    "--consume-mode",
                    choices=("pull", "pop"),
                    help="what members that ask the brokers do with --topic: Java's push clients "
                    "with setClientRebalance(false). ogive's listeners have mode= for that, and "
                    "follow --share-queues",
                ),
                option(
                    "--share-queues",
                    type=int,
                    metavar="N",
                    help="with --consume-mode pop: so many other members pop a member's queues as "
                    "well (default: 0, all members pop from all queues)",
                ),
                option("--dry-run", action="store_true", help="only show what would change"),
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "reset",
            "group_commands:reset_group",
            "move a group to another place in a topic: its start, its end, a time, or an offset of "
            "one "
            "queue",
            "Members may be online: they continue at the new place within seconds. Shows the "
            "change "
            "and asks first where messages would be "
            "skipped or delivered again.",
            parts=(
                option("group"),
                option("topic"),
                option(
                    "--to",
                    required=True,
                    metavar="PLACE",
                    help="earliest, latest, a time such as 2026-11-01T08:00 (local, unless it "
                    "names a zone), or 2h for two hours ago; with --queue an offset",
                ),
                option(
                    "--queue",
                    type=int,
                    metavar="N",
                    help="only this queue of the topic, to the offset that --to gives",
                ),
                option(
                    "--broker",
                    metavar="NAME",
                    help="the broker of the queue, if the topic is on several brokers",
                ),
                option("--dry-run", action="store_true", help="only show what would change"),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "skip",
            "group_commands:skip_backlog",
            "make a group skip all messages that it has not consumed in a topic",
            "The same as `reset --to latest`. Shows the change and asks first.",
            parts=(
                option("group"),
                option("topic"),
                option("--dry-run", action="store_true", help="only show what would change"),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "clone",
            "group_commands:clone_group",
            "give a group the offsets of another one in a topic",
            "Queues in which the other group has no offset stay as they are. Members may be "
            "online. Shows the change and asks first if messages would be skipped or delivered "
            "again.",
            parts=(
                option("source", help="the group with the offsets; it is not changed"),
                option(
                    "group",
                    metavar="target",
                    help="the group that gets them; `ogive group create` creates a new one",
                ),
                option("topic"),
                option("--dry-run", action="store_true", help="only show what would change"),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
        Command(
            "delete",
            "group_commands:delete_group",
            "delete a group that has no members online",
            "Its retry and dead-letter topics stay.",
            parts=(
                option("group"),
                option("--offsets", action="store_true", help="also delete its progress"),
                YES,
                *CLUSTER,
                JSON,
            ),
        ),
    ),
)


BROKER: Final = CommandGroup(
    "broker",
    "list and show brokers",
    commands=(
        Command(
            "list",
            "broker_commands:list_brokers",
            "list the brokers with their rates and totals",
            "Exit code 1: one of them does not answer.",
            parts=(*CLUSTER, JSON),
        ),
        Command(
            "show",
            "broker_commands:show_broker",
            "show all figures of a broker",
            parts=(option("broker", metavar="NAME", help="its name, or HOST:PORT"), *CLUSTER, JSON),
        ),
    ),
)


LAG: Final = Command(
    "lag",
    "group_commands:show_lag",
    "show how far a consumer group is behind, queue by queue",
    "OFFSET is the next message for the group, END the next one for the queue, LAG the "
    "difference, SECONDS the age of the newest consumed message (0 without a lag), MEMBER the "
    "client that holds the queue now. A message that waits for its next try, or for its time, is "
    "counted when its delay is over.",
    parts=(
        option("group", help="a consumer group: the group=... of its listeners"),
        option("--topic", metavar="TOPIC", help="only this topic"),
        option(
            "--watch",
            action="store_true",
            help="show it again every two seconds until Ctrl-C (exit code 0), on a terminal with "
            "bars for the last lags of each queue",
        ),
        *CLUSTER,
        JSON,
    ),
)


CHECK: Final = CommandGroup(
    "check",
    "test a condition, for cron and monitoring",
    "The exit code is the answer.",
    commands=(
        Command(
            "lag",
            "group_commands:check_lag",
            "test that a group is not too far behind",
            "Exit code 0: within the limit; 3: above it; 1: unknown, because a broker is away, no "
            "member is online, or the group "
            "has no position in a topic that it consumes.",
            parts=(
                option("group"),
                option(
                    "--max",
                    type=int,
                    required=True,
                    metavar="N",
                    help="how many messages the group may be behind, over all queues",
                ),
                option("--topic", metavar="TOPIC", help="only this topic"),
                option(
                    "--without-members",
                    action="store_true",
                    help="accept that no member is online, as for a Spark query or a job that runs "
                    "now and "
                    "then",
                ),
                *CLUSTER,
                JSON,
            ),
        ),
    ),
)


DOCTOR: Final = Command(
    "doctor",
    "doctor:examine",
    "check this machine, this client and the cluster, and say how to fix each problem",
    "Prints ok, warning or error for each result, and below it how to fix the problem. Changes "
    "nothing. Clocks and disks of brokers are checked only for users who may read a broker's "
    "runtime figures. Exit code 0: all is ok; 3: there are warnings or errors.",
    parts=(
        option("--topic", metavar="TOPIC", help="also check that this user may read this topic"),
        option(
            "--data",
            metavar="DIR",
            help="check this machine for a broker with this directory; the cluster too if -n, "
            "NAMESRV_ADDR, a context or --topic asks for it",
        ),
        option(
            "--host",
            metavar="ADDRESS",
            help="with --data: the address where the broker will listen (default: that of `ogive "
            "up`)",
        ),
        option(
            "--name-server-port",
            type=int,
            metavar="PORT",
            help="with --data: the port of its name server (default: that of `ogive up`)",
        ),
        option(
            "--broker-port",
            type=int,
            metavar="PORT",
            help="with --data: the port of the broker (default: that of `ogive up`)",
        ),
        *CLUSTER,
        JSON,
    ),
)


APPLY: Final = Command(
    "apply",
    "settings_commands:apply",
    "make topics, groups and rules like those of a file",
    "The file is TOML, as `ogive topic export`, `ogive group export` and `ogive acl export` print "
    "it; their outputs may stand in one file. Shows the difference and asks. What the file does "
    "not name stays as it is.",
    parts=(
        option("file", metavar="FILE"),
        option("--dry-run", action="store_true", help="only show the difference"),
        YES,
        *CLUSTER,
        JSON,
    ),
)


STORE: Final = CommandGroup(
    "store",
    "copy, check and repair the directory of a broker",
    commands=(
        Command(
            "verify",
            "broker_commands:verify",
            "read everything in a broker's directory and say what is damaged; changes nothing",
            "Exit code 0: nothing is wrong; 3: something is; 1: it cannot be checked, for example "
            "because a broker is using it.",
            parts=(
                option("directory", metavar="DIR", help="the broker's --data, ours or Apache's"),
                JSON,
            ),
        ),
        Command(
            "backup",
            "broker_commands:backup",
            "copy a broker's directory, while the broker runs or not",
            "A broker starts on the copy as after a power cut at that moment. Interrupted, the "
            "same command goes on. Exit code 0: done; 3: the copy is damaged; 1: it cannot be "
            "done.",
            parts=(
                option("directory", metavar="DIR", help="the --data of a broker of ogive"),
                option("to", metavar="TO", help="a directory that does not exist yet"),
                option("--verify", action="store_true", help="read and check the copy"),
                JSON,
            ),
        ),
        Command(
            "export-leases",
            "broker_commands:export_leases",
            "write the popped messages that are out as Apache's broker keeps them",
            "A broker of ogive does this when it stops. After a crash, do it before Apache's "
            "broker starts on the directory. Exit code 0: done; 1: it cannot be done.",
            parts=(
                option("directory", metavar="DIR", help="the --data of a broker of ogive"),
                JSON,
            ),
        ),
        Command(
            "repair",
            "broker_commands:repair",
            "rebuild everything but the messages themselves: queues and index from the messages, "
            "tables from their backups",
            "Deletes no readable message. Exit code 0: all is well now; 3: messages are lost; 1: "
            "it "
            "cannot be done.",
            parts=(
                option("directory", metavar="DIR", help="the broker's --data, ours or Apache's"),
                JSON,
            ),
        ),
    ),
)
