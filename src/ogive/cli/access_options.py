"""The options of user, acl and context."""

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
    command = add_command(users, "list", "users:list_users", "list the users")
    add_cluster(command)
    add_json(command)
    how = "Asks for the password, or takes it from the first line of standard input."
    command = add_command(users, "create", "users:create_user", "create a user", how)
    command.add_argument("user", metavar="NAME")
    command.add_argument(
        "--super", dest="super_user", action="store_true", help="the user may do everything"
    )
    add_cluster(command)
    add_json(command)
    command = add_command(users, "update", "users:update_user", "change a user", how)
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
        users, "delete", "users:delete_user", "delete a user and all rules for them"
    )
    command.add_argument("user", metavar="NAME")
    add_yes(command)
    add_cluster(command)
    add_json(command)


def acl(commands: Commands) -> None:
    rules = add_group(commands, "acl", "list, create and delete access rules")
    command = add_command(rules, "list", "users:list_rules", "list the rules")
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
            f"users:{word}",
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
    command = add_command(rules, "delete", "users:delete_rules", "delete the rules of a user")
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
        contexts, "list", "contexts:list_contexts", "list the contexts; * marks the one in use"
    )
    add_json(command)
    command = add_command(
        contexts,
        "add",
        "contexts:add",
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
    command = add_command(contexts, "use", "contexts:use", "use a context from now on")
    command.add_argument("context", metavar="NAME")
    command = add_command(contexts, "remove", "contexts:remove", "remove a context")
    command.add_argument("context", metavar="NAME")
