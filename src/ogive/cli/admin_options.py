"""The options of the commands about topics, groups, brokers and stores."""

from ogive.cli.options import Commands, add_cluster, add_command, add_group, add_json, add_yes


def topic(commands: Commands) -> None:
    topics = add_group(commands, "topic", "list, show, create and delete topics")
    command = add_command(topics, "list", "topics:list_topics", "list the topics with their queues and messages")
    command.add_argument("--all", action="store_true", help="also system, retry and dead-letter topics")
    add_cluster(command)
    add_json(command)
    command = add_command(topics, "create", "topics:create_topic", "create a topic, or change its number of queues")
    command.add_argument("topic", help="letters, digits, - and _")
    command.add_argument("--queues", type=int, default=8, metavar="N", help="queues on each broker (default: 8)")
    add_cluster(command)
    command = add_command(topics, "show", "topics:show_topic", "show a topic's settings, brokers, queues and the groups that consume it")
    command.add_argument("topic")
    add_cluster(command)
    add_json(command)
    command = add_command(topics, "delete", "topics:delete_topic", "delete a topic with all its messages, on every broker")
    command.add_argument("topic")
    add_yes(command)
    add_cluster(command)


def group(commands: Commands) -> None:
    groups = add_group(commands, "group", "list, show, create, move and delete consumer groups")
    command = add_command(groups, "list", "groups:list_groups", "list the consumer groups with their members and lag")
    command.add_argument("--all", action="store_true", help="also the brokers' own groups")
    add_cluster(command)
    add_json(command)
    command = add_command(groups, "show", "groups:show_group", "show a group's settings, members, subscriptions and progress")
    command.add_argument("group")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups, "create", "groups:create_group", "create a group, or change it", "The first member of a group makes it, too."
    )
    command.add_argument("group", help="letters, digits, - and _")
    command.add_argument("--max-retries", type=int, default=16, metavar="N", help="retries before the dead letters (default: 16)")
    command.add_argument("--retry-queues", type=int, default=1, metavar="N", help="queues of its retry topic (default: 1)")
    add_cluster(command)
    command = add_command(
        groups,
        "reset",
        "groups:reset_group",
        "put a group elsewhere in a topic: to its start, its end, a time, or an offset of one queue",
        "Members may be online: they go on at the new place within seconds. --dry-run shows what would change.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="earliest, latest, or a time such as 2026-11-01T08:00 (local, unless it names a zone); with --queue an offset",
    )
    command.add_argument("--queue", type=int, metavar="N", help="only this queue of the topic, to the offset that --to gives")
    command.add_argument("--broker", metavar="NAME", help="whose queue, where the topic lives on several brokers")
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups,
        "skip",
        "groups:skip_backlog",
        "have a group skip all messages that wait for it in a topic",
        "The same as `reset --to latest`. --dry-run shows how many would be skipped.",
    )
    command.add_argument("group")
    command.add_argument("topic")
    command.add_argument("--dry-run", action="store_true", help="only show what would change")
    add_cluster(command)
    add_json(command)
    command = add_command(
        groups, "delete", "groups:delete_group", "delete a group that has no members online", "Its retry and dead-letter topics stay."
    )
    command.add_argument("group")
    command.add_argument("--offsets", action="store_true", help="also forget how far it has come")
    add_yes(command)
    add_cluster(command)


def broker(commands: Commands) -> None:
    brokers = add_group(commands, "broker", "list and show brokers")
    command = add_command(
        brokers, "list", "brokers:list_brokers", "list the brokers with their rates and totals", "Exit code 1: one of them does not answer."
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
        "OFFSET is the next message that the group takes, END the one that the queue gets next, LAG what lies between, MEMBER the client "
        "that holds the queue now.",
    )
    command.add_argument("group", help="a consumer group: the group=... of its listeners")
    command.add_argument("--topic", metavar="TOPIC", help="only this topic")
    command.add_argument("--watch", action="store_true", help="show it again every two seconds until Ctrl-C")
    add_cluster(command)
    add_json(command)


def check(commands: Commands) -> None:
    checks = add_group(commands, "check", "test a condition, for cron and monitoring", "The exit code is the answer.")
    command = add_command(
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
    add_cluster(command)


def store(commands: Commands) -> None:
    stores = add_group(commands, "store", "check and repair the directory of a broker that is stopped")
    command = add_command(
        stores,
        "verify",
        "store:verify",
        "read everything in a broker's directory and say what is damaged; changes nothing",
        "Exit code 0: nothing is wrong; 3: something is; 1: it cannot be looked at, for example because a broker runs on it.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
    command = add_command(
        stores,
        "repair",
        "store:repair",
        "make everything again that the messages themselves do not hold: queues, index, tables from their backups",
        "Deletes no message that can be read. Exit code 0: nothing is wrong any more; 3: messages are lost; 1: it cannot be done.",
    )
    command.add_argument("directory", metavar="DIR", help="the broker's --data, ours or Apache's")
    add_json(command)
