"""The options of who may do what, and where: user, acl, context."""

from ogive.cli.options import Commands, add_cluster, add_command, add_group, add_json, add_secrets, add_yes


def user(commands: Commands) -> None:
    users = add_group(commands, "user", "list, create, change and delete users of a broker with access control")
    command = add_command(users, "list", "users:list_users", "list the users")
    add_cluster(command)
    add_json(command)
    secret = "The password is asked for, or is the first line of standard input."
    command = add_command(users, "create", "users:create_user", "create a user", secret)
    command.add_argument("user", metavar="NAME")
    command.add_argument("--super", dest="super_user", action="store_true", help="one who may do everything")
    add_cluster(command)
    command = add_command(users, "update", "users:update_user", "change a user", secret)
    command.add_argument("user", metavar="NAME")
    command.add_argument("--password", action="store_true", help="give a new password")
    kind, state = command.add_mutually_exclusive_group(), command.add_mutually_exclusive_group()
    kind.add_argument("--super", dest="super_user", action="store_true", default=None, help="may do everything")
    kind.add_argument("--normal", dest="super_user", action="store_false", default=None, help="may do what rules allow")
    state.add_argument("--enable", dest="enabled", action="store_true", default=None, help="let the user in again")
    state.add_argument("--disable", dest="enabled", action="store_false", default=None, help="let the user in no more")
    add_cluster(command)
    command = add_command(users, "delete", "users:delete_user", "delete a user with all rules")
    command.add_argument("user", metavar="NAME")
    add_yes(command)
    add_cluster(command)


def acl(commands: Commands) -> None:
    rules = add_group(commands, "acl", "list, make and delete rules: what users may do")
    command = add_command(rules, "list", "users:list_rules", "list the rules")
    command.add_argument("user", metavar="NAME", nargs="?", help="only of this user")
    add_cluster(command)
    add_json(command)
    for word, what in (("allow", "let a user do something"), ("deny", "forbid a user what a wider rule allows")):
        command = add_command(
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
        add_cluster(command)
    command = add_command(rules, "delete", "users:delete_rules", "delete the rules of a user")
    command.add_argument("user", metavar="NAME")
    command.add_argument("resource", metavar="RESOURCE", nargs="?", help="only that on this resource, as `ogive acl list` shows it")
    add_cluster(command)


def context(commands: Commands) -> None:
    contexts = add_group(
        commands,
        "context",
        "name clusters, and choose the one that commands go to",
        "They are kept in ogive/contexts.json under XDG_CONFIG_HOME or ~/.config; OGIVE_CONTEXT names another one for a single command.",
    )
    command = add_command(contexts, "list", "contexts:list_contexts", "list the contexts; * marks the one in use")
    add_json(command)
    command = add_command(contexts, "add", "contexts:add", "add a context, or change it", "The first one is used at once.")
    command.add_argument("context", metavar="NAME")
    command.add_argument("-n", "--name-server", required=True, metavar="HOST:PORT", help="name servers, separated by ';'")
    add_secrets(command)
    command.add_argument("--use", action="store_true", help="use it from now on")
    command = add_command(contexts, "use", "contexts:use", "use a context from now on")
    command.add_argument("context", metavar="NAME")
    command = add_command(contexts, "remove", "contexts:remove", "remove a context")
    command.add_argument("context", metavar="NAME")
