"""Options of the commands about topics, groups, brokers, stores, users, rules and contexts."""

from typing import Final

from ogive.cli.options import (
    Commands,
    add_cluster,
    add_command,
    add_group,
    add_json,
    add_secrets,
    add_yes,
)


def user(commands: Commands) -> None:
    users = add_group(
        commands, "user", "list, create, change and delete users of a broker with access control"
    )
    command = add_command(users, "list", "user_commands:list_users", "list the users")
    add_cluster(command)
    add_json(command)
    how = "Asks for the password, or takes it from the first line of standard input."
    command = add_command(users, "create", "user_commands:create_user", "create a user", how)
    command.add_argument("user", metavar="NAME")
    command.add_argument(
        "--super", dest="super_user", action="store_true", help="the user may do everything"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(users, "update", "user_commands:update_user", "change a user", how)
    command.add_argument("user", metavar="NAME")
    command.add_argument("--password", action="store_true", help="give a new password")
    kind, state = command.add_mutually_exclusive_group(), command.add_mutually_exclusive_group()
    kind.add_argument(
        "--super", dest="super_user", action="store_true", default=None, help="may do everything"
    )
    kind.add_argument(
        "--normal",
        dest="super_user",
        action="store_false",
        default=None,
        help="may do what rules allow",
    )
    state.add_argument(
        "--enable", dest="enabled", action="store_true", default=None, help="unlock the user"
    )
    state.add_argument(
        "--disable", dest="enabled", action="store_false", default=None, help="lock the user out"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        users, "delete", "user_commands:delete_user", "delete a user and all rules for them"
    )
    command.add_argument("user", metavar="NAME")
    add_yes(command)
    add_cluster(command)
    add_json(command)


def acl(commands: Commands) -> None:
    rules = add_group(commands, "acl", "list, create and delete access rules")
    command = add_command(rules, "list", "user_commands:list_rules", "list the rules")
    command.add_argument("user", metavar="NAME", nargs="?", help="only of this user")
    add_cluster(command)
    add_json(command)
    for word, what in (
        ("allow", "let a user do something"),
        ("deny", "forbid a user something that a wider rule allows"),
    ):
        command = add_command(
            rules,
            word,
            f"user_commands:{word}",
            what,
            "The most specific matching rule decides: a name before a prefix before a whole kind. "
            "What no rule allows is denied. "
            "There is one rule for each user and resource: a new one takes the place of the old "
            "one, so name all actions.",
        )
        command.add_argument("user", metavar="NAME")
        command.add_argument(
            "resource",
            metavar="RESOURCE",
            help="Topic:Orders, Group:billing, a prefix such as 'Topic:Ord*', 'Cluster:*', or '*'",
        )
        command.add_argument(
            "actions",
            metavar="ACTIONS",
            help="of Pub, Sub, Create, Update, Delete, Get, List, All; several joined by commas",
        )
        command.add_argument(
            "--from",
            dest="source_ips",
            action="append",
            default=[],
            metavar="NETWORK",
            help="only from this address or network; repeatable",
        )
        add_cluster(command)
        add_json(command)
    command = add_command(
        rules, "delete", "user_commands:delete_rules", "delete the rules of a user"
    )
    command.add_argument("user", metavar="NAME")
    command.add_argument(
        "resource",
        metavar="RESOURCE",
        nargs="?",
        help="only on this resource, as shown by `ogive acl list`; without it all rules, after a "
        "question",
    )
    add_yes(command)
    add_cluster(command)
    add_json(command)


def context(commands: Commands) -> None:
    contexts = add_group(
        commands,
        "context",
        "give clusters names, and choose the one that commands use",
        "Contexts are kept in ogive/contexts.json under XDG_CONFIG_HOME or ~/.config. "
        "OGIVE_CONTEXT chooses one for a single command.",
    )
    command = add_command(
        contexts, "list", "connect:list_contexts", "list the contexts; * marks the one in use"
    )
    add_json(command)
    command = add_command(
        contexts,
        "add",
        "connect:add_context",
        "add a context, or replace it as a whole",
        "The first one is used at once.",
    )
    command.add_argument("context", metavar="NAME")
    command.add_argument(
        "-n",
        "--name-server",
        required=True,
        metavar="HOST:PORT",
        help="name servers, separated by ';'",
    )
    add_secrets(command)
    command.add_argument("--use", action="store_true", help="use it from now on")
    command = add_command(contexts, "use", "connect:use_context", "use a context from now on")
    command.add_argument("context", metavar="NAME")
    command = add_command(contexts, "remove", "connect:remove_context", "remove a context")
    command.add_argument("context", metavar="NAME")


# these two are copies of ogive.client.admin's, which takes too long to load for a help text
PERMISSIONS: Final = ("rw", "r", "w")
MESSAGE_TYPES: Final = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
RETRY_LIMIT: Final = (
    "retries before a message becomes a dead letter, for members that send no "
    "limit; those of ogive and Java do"
)


def topic(commands: Commands) -> None:
    topics = add_group(commands, "topic", "list, show, create, change and delete topics")
    command = add_command(
        topics,
        "list",
        "topic_commands:list_topics",
        "list the topics with their queues and messages",
    )
    command.add_argument(
        "--all", "--system", action="store_true", help="also system, retry and dead-letter topics"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "create",
        "topic_commands:create_topic",
        "create a topic; refused if it exists with other settings",
    )
    command.add_argument("topic", help="letters, digits, - and _")
    command.add_argument(
        "--queues",
        type=int,
        default=8,
        metavar="N",
        help="queues on each broker (default: 8, as with mqadmin; a topic that a send creates has "
        "4)",
    )
    command.add_argument(
        "--cluster",
        metavar="NAME",
        help="only on the brokers of this cluster (default: on all that the name server knows)",
    )
    command.add_argument(
        "--perm",
        choices=PERMISSIONS,
        default="rw",
        help="what clients may do: read, write, both (default: rw)",
    )
    command.add_argument(
        "--message-type",
        choices=MESSAGE_TYPES,
        help="what the topic is for; brokers that check it refuse the rest: `ogive up "
        "--enforce-message-types`, Apache's proxies",
    )
    command.add_argument(
        "--whole-batches",
        action="store_true",
        help="keep each batch as one record (queue.type=BatchCQ); stays so",
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "update",
        "topic_commands:update_topic",
        "change a topic's number of queues, permission or type",
        "Settings that are not given stay as they are. To remove queues without loss, lower "
        "--write-queues first, and --read-queues once "
        "the groups have consumed the others.",
    )
    command.add_argument("topic")
    command.add_argument(
        "--queues", type=int, metavar="N", help="queues on each broker, to read and to write"
    )
    command.add_argument("--read-queues", type=int, metavar="N", help="only those that groups read")
    command.add_argument(
        "--write-queues", type=int, metavar="N", help="only those that senders use"
    )
    command.add_argument(
        "--perm", choices=PERMISSIONS, help="what clients may do: read, write, both"
    )
    command.add_argument(
        "--message-type", choices=MESSAGE_TYPES, help="what the topic is for; UNSPECIFIED: anything"
    )
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_yes(command)
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "show",
        "topic_commands:show_topic",
        "show a topic's settings, brokers, queues and the groups that consume it",
    )
    command.add_argument("topic")
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "delete",
        "topic_commands:delete_topic",
        "delete a topic with all its messages, on every broker",
    )
    command.add_argument("topic")
    add_yes(command)
    add_cluster(command)
    add_json(command)


def group(commands: Commands) -> None:
    groups = add_group(
        commands, "group", "list, show, create, change, move and delete consumer groups"
    )
    command = add_command(
        groups,
        "list",
        "group_commands:list_groups",
        "list the consumer groups with their members and lag",
    )
    command.add_argument("--all", action="store_true", help="also the brokers' own groups")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "show",
        "group_commands:show_group",
        "show a group's settings, members, subscriptions and progress",
    )
    command.add_argument("group")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "create",
        "group_commands:create_group",
        "create a group; refused if it exists with other settings",
        "Not required: the first member of a group creates it, too.",
    )
    command.add_argument("group", help="letters, digits, - and _")
    command.add_argument(
        "--max-retries", type=int, default=16, metavar="N", help=f"{RETRY_LIMIT} (default: 16)"
    )
    command.add_argument(
        "--retry-queues",
        type=int,
        default=1,
        metavar="N",
        help="queues of its retry topic (default: 1)",
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "update",
        "group_commands:update_group",
        "change a group",
        "Settings that are not given stay as they are.",
    )
    command.add_argument("group")
    command.add_argument("--max-retries", type=int, metavar="N", help=RETRY_LIMIT)
    command.add_argument(
        "--retry-queues",
        type=int,
        metavar="N",
        help="queues of its retry topic once that is created; for an existing one: `ogive topic "
        "update %%RETRY%%GROUP --queues N`",
    )
    broadcast, state = (
        command.add_mutually_exclusive_group(),
        command.add_mutually_exclusive_group(),
    )
    broadcast.add_argument(
        "--broadcast",
        action="store_true",
        default=None,
        help="members may broadcast: each gets every message",
    )
    broadcast.add_argument(
        "--no-broadcast",
        dest="broadcast",
        action="store_false",
        default=None,
        help="members may not",
    )
    state.add_argument(
        "--enable",
        dest="enabled",
        action="store_true",
        default=None,
        help="members get messages again",
    )
    state.add_argument(
        "--disable",
        dest="enabled",
        action="store_false",
        default=None,
        help="members get nothing until --enable",
    )
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "reset",
        "group_commands:reset_group",
        "move a group to another place in a topic: its start, its end, a time, or an offset of one "
        "queue",
        "Members may be online: they continue at the new place within seconds. Shows the change "
        "and asks first where messages would be "
        "skipped or delivered again.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="earliest, latest, or a time such as 2026-11-01T08:00 (local, unless it names a "
        "zone); with --queue an offset",
    )
    command.add_argument(
        "--queue",
        type=int,
        metavar="N",
        help="only this queue of the topic, to the offset that --to gives",
    )
    command.add_argument(
        "--broker", metavar="NAME", help="whose queue, where the topic lives on several brokers"
    )
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_yes(command)
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "skip",
        "group_commands:skip_backlog",
        "make a group skip all messages that it has not consumed in a topic",
        "The same as `reset --to latest`. Shows the change and asks first.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_yes(command)
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "clone",
        "group_commands:clone_group",
        "put a group where another one stands in a topic",
        "In those queues in which the other has a place. Members may be online. Shows the change "
        "and asks first where messages would be "
        "skipped or delivered again.",
    )
    command.add_argument("source", help="the group whose place is taken over; it stays where it is")
    command.add_argument(
        "group",
        metavar="target",
        help="the group that is put there; `ogive group create` makes a new one",
    )
    command.add_argument("topic")
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_yes(command)
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "delete",
        "group_commands:delete_group",
        "delete a group that has no members online",
        "Its retry and dead-letter topics stay.",
    )
    command.add_argument("group")
    command.add_argument("--offsets", action="store_true", help="also delete its progress")
    add_yes(command)
    add_cluster(command)
    add_json(command)


def broker(commands: Commands) -> None:
    brokers = add_group(commands, "broker", "list and show brokers")
    command = add_command(
        brokers,
        "list",
        "broker_commands:list_brokers",
        "list the brokers with their rates and totals",
        "Exit code 1: one of them does not answer.",
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        brokers, "show", "broker_commands:show_broker", "show all figures of a broker"
    )
    command.add_argument("broker", metavar="NAME", help="its name, or HOST:PORT")
    add_cluster(command)
    add_json(command)


def lag(commands: Commands) -> None:
    command = add_command(
        commands,
        "lag",
        "group_commands:show_lag",
        "show how far a consumer group is behind, queue by queue",
        "OFFSET is the next message for the group, END the next one for the queue, LAG the "
        "difference, MEMBER the client that holds the "
        "queue now. A message that waits for its next try, or for its time, is counted when its "
        "delay is over.",
    )
    command.add_argument("group", help="a consumer group: the group=... of its listeners")
    command.add_argument("--topic", metavar="TOPIC", help="only this topic")
    command.add_argument(
        "--watch", action="store_true", help="show it again every two seconds until Ctrl-C"
    )
    add_cluster(command)
    add_json(command)


def check(commands: Commands) -> None:
    checks = add_group(
        commands,
        "check",
        "test a condition, for cron and monitoring",
        "The exit code is the answer.",
    )
    command = add_command(
        checks,
        "lag",
        "group_commands:check_lag",
        "test that a group is not too far behind",
        "Exit code 0: within the limit; 3: above it; 1: unknown, because a broker is away, no "
        "member is online, or the group "
        "has no position in what it consumes.",
    )
    command.add_argument("group")
    command.add_argument(
        "--max",
        type=int,
        required=True,
        metavar="N",
        help="how many messages the group may be behind, over all queues",
    )
    command.add_argument("--topic", metavar="TOPIC", help="only this topic")
    command.add_argument(
        "--without-members",
        action="store_true",
        help="accept that no member is online, as for a Spark query or a job that runs now and "
        "then",
    )
    add_cluster(command)
    add_json(command)


def store(commands: Commands) -> None:
    stores = add_group(commands, "store", "check and repair the directory of a stopped broker")
    command = add_command(
        stores,
        "verify",
        "broker_commands:verify",
        "read everything in a broker's directory and say what is damaged; changes nothing",
        "Exit code 0: nothing is wrong; 3: something is; 1: it cannot be checked, for example "
        "because a broker is using it.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
    command = add_command(
        stores,
        "repair",
        "broker_commands:repair",
        "rebuild everything but the messages themselves: queues and index from the messages, "
        "tables from their backups",
        "Deletes no readable message. Exit code 0: all is well now; 3: messages are lost; 1: it "
        "cannot be done.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
