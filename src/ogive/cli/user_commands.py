"""``ogive user ...`` and ``ogive acl ...``."""

import argparse
import asyncio
import difflib
import getpass
import sys

from ogive import aio
from ogive.cli.connect import client_config
from ogive.cli.output import confirm, print_done, print_rows
from ogive.client.admin import AccessRule
from ogive.errors import InvalidOption


async def list_users(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        users = await admin.users()
    rows = [
        (
            {"user": user.name, "super": user.super_user, "enabled": user.enabled},
            (
                user.name,
                "super" if user.super_user else "normal",
                "enabled" if user.enabled else "disabled",
            ),
        )
        for user in users
    ]
    print_rows(options, ("user", "kind", "status"), rows)
    return 0


# not a coroutine: Ctrl-C must end the question for the password at once
def create_user(options: argparse.Namespace) -> int:
    return asyncio.run(_create_user(options, _password(options.user)))


async def _create_user(options: argparse.Namespace, password: str) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        if options.user in {user.name for user in await admin.users()}:
            raise InvalidOption(
                f"user {options.user} exists already: `ogive user update {options.user}` changes it"
            )
        await admin.create_user(options.user, password, super_user=options.super_user)
    text = (
        f"user {options.user} may do "
        f"{'everything' if options.super_user else 'nothing yet: `ogive acl allow` says what'}"
    )
    print_done(options, text, user=options.user, super=options.super_user)
    return 0


def update_user(options: argparse.Namespace) -> int:  # likewise
    return asyncio.run(_update_user(options, _password(options.user) if options.password else None))


async def _update_user(options: argparse.Namespace, password: str | None) -> int:
    if password is None and options.super_user is None and options.enabled is None:
        raise InvalidOption(
            "nothing to change: --password, --super, --normal, --enable or --disable is needed"
        )
    async with aio.Admin(client=client_config(options)) as admin:
        await _check_user(admin, options.user)
        await admin.update_user(
            options.user, password=password, super_user=options.super_user, enabled=options.enabled
        )
    print_done(options, f"user {options.user} is changed", user=options.user, changed=True)
    return 0


async def delete_user(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        await _check_user(admin, options.user)
        confirm(f"delete user {options.user} with all rules?", yes=options.yes)
        await admin.delete_user(options.user)
    print_done(options, f"user {options.user} is deleted", user=options.user, deleted=True)
    return 0


async def _check_user(admin: aio.Admin, name: str) -> None:
    if name not in {user.name for user in await admin.users()}:
        raise InvalidOption(f"there is no user {name} (ogive user list)")


def _password(user: str) -> str:
    """Read the password at a terminal, else from the first line of standard input.

    It is never an argument: every user of the machine can read arguments.
    """
    if sys.stdin.isatty():
        try:
            password = getpass.getpass(f"password of {user}: ")
            again = getpass.getpass("once more: ")
        except EOFError:  # Ctrl-D
            raise InvalidOption("no password: nothing was changed") from None
        if again != password:
            raise InvalidOption("the two passwords differ: nothing was changed")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidOption(
            "the password is empty; it is asked for at a terminal, or is the first line of "
            "standard input"
        )
    return password


# --- rules ----------------------------------------------------------------------------------------


async def list_rules(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        rules = [rule for rule in await admin.access_rules() if options.user in (None, rule.user)]
        # a misspelt name would look like a user without rights
        if options.user is not None and not rules:
            await _check_user(admin, options.user)
    rows = [
        (
            {
                "user": rule.user,
                "resource": rule.resource,
                "actions": list(rule.actions),
                "allowed": rule.allowed,
                "source_ips": list(rule.source_ips),
                "default": rule.default,
            },
            (
                rule.user,
                "allow" if rule.allowed else "deny",
                rule.resource,
                ",".join(rule.actions),
                ",".join(rule.source_ips) or "anywhere",
            ),
        )
        for rule in rules
    ]
    print_rows(options, ("user", "rule", "resource", "actions", "from"), rows)
    return 0


async def set_rule(options: argparse.Namespace) -> int:
    """Carry out ``ogive acl allow`` and ``deny``."""
    allowed = options.allowed
    async with aio.Admin(client=client_config(options)) as admin:
        kind, colon, name = options.resource.partition(":")
        # brokers accept the kind in upper and lower case
        resource = f"{kind.capitalize()}{colon}{name}"
        old = [
            rule
            for rule in await admin.access_rules()
            if (rule.user, rule.resource) == (options.user, resource)
        ]
        await _check_user(admin, options.user)
        say = admin.allow if allowed else admin.deny
        await say(
            options.user,
            options.resource,
            options.actions.split(","),
            source_ips=tuple(options.source_ips),
        )
    text = (
        f"user {options.user} {'may' if allowed else 'may not'} {options.actions} on "
        f"{options.resource}{_before(old)}"
    )
    print_done(
        options,
        text,
        user=options.user,
        resource=options.resource,
        actions=options.actions.split(","),
        allowed=allowed,
    )
    return 0


def _before(old: list[AccessRule]) -> str:
    """Describe the rules that the new rule replaced."""
    words = [f"{'' if rule.allowed else 'not '}{','.join(rule.actions)}" for rule in old]
    return f" (before: {'; '.join(words)})" if words else ""


async def delete_rules(options: argparse.Namespace) -> int:
    async with aio.Admin(client=client_config(options)) as admin:
        known = sorted(
            {rule.resource for rule in await admin.access_rules() if rule.user == options.user}
        )
        if not known:
            raise InvalidOption(f"there are no rules for user {options.user} (ogive acl list)")
        if options.resource is None:
            confirm(
                f"delete all rules for user {options.user}: {', '.join(known)}?", yes=options.yes
            )
        elif options.resource not in known:
            similar = difflib.get_close_matches(options.resource, known)
            hint = f". Similar: {', '.join(similar)}" if similar else ""
            raise InvalidOption(
                f"user {options.user} has no rule for {options.resource}{hint} (ogive acl list "
                f"{options.user})"
            )
        await admin.forget_rules(options.user, options.resource)
    text = (
        "deleted the rules for user "
        f"{options.user}{f' on {options.resource}' if options.resource else ''}"
    )
    print_done(options, text, user=options.user, resource=options.resource, deleted=True)
    return 0
