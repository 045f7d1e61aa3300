"""The options of the commands about topics, groups, brokers and stores."""

from typing import Final

from ogive.cli.options import Commands, add_cluster, add_command, add_group, add_json, add_yes

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
        topics, "list", "topics:list_topics", "list the topics with their queues and messages"
    )
    command.add_argument(
        "--all", "--system", action="store_true", help="also system, retry and dead-letter topics"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "create",
        "topics:create_topic",
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
        "topic_update:run",
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
        "topics:show_topic",
        "show a topic's settings, brokers, queues and the groups that consume it",
    )
    command.add_argument("topic")
    add_cluster(command)
    add_json(command)
    command = add_command(
        topics,
        "delete",
        "topics:delete_topic",
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
        groups, "list", "groups:list_groups", "list the consumer groups with their members and lag"
    )
    command.add_argument("--all", action="store_true", help="also the brokers' own groups")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "show",
        "groups:show_group",
        "show a group's settings, members, subscriptions and progress",
    )
    command.add_argument("group")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "create",
        "groups:create_group",
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
        "groups:update_group",
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
        "groups:reset_group",
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
        "groups:skip_backlog",
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
        "groups:clone_group",
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
        "groups:delete_group",
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
        "brokers:list_brokers",
        "list the brokers with their rates and totals",
        "Exit code 1: one of them does not answer.",
    )
    add_cluster(command)
    add_json(command)
    command = add_command(brokers, "show", "brokers:show_broker", "show all figures of a broker")
    command.add_argument("broker", metavar="NAME", help="its name, or HOST:PORT")
    add_cluster(command)
    add_json(command)


def lag(commands: Commands) -> None:
    command = add_command(
        commands,
        "lag",
        "lag:run",
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
        "check:lag",
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
        "store:verify",
        "read everything in a broker's directory and say what is damaged; changes nothing",
        "Exit code 0: nothing is wrong; 3: something is; 1: it cannot be checked, for example "
        "because a broker is using it.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
    command = add_command(
        stores,
        "repair",
        "store:repair",
        "rebuild everything but the messages themselves: queues and index from the messages, "
        "tables from their backups",
        "Deletes no readable message. Exit code 0: all is well now; 3: messages are lost; 1: it "
        "cannot be done.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
