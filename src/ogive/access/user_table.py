"""Users and their policies, in memory and in a file that only its owner can read.

Apache's brokers keep both in a RocksDB, which is not read here; ``mqadmin createUser``,
``createAcl`` and the like work on either broker. Source: AuthenticationMetadataManagerImpl.java,
AuthorizationMetadataManagerImpl.java, 5.5.

Differs from Java
- The last enabled super user cannot be deleted, disabled or made a normal user: otherwise no user
  could administer the broker.
- A deletion of a user deletes the user's policies, too.
"""

import asyncio
import dataclasses
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ogive.access.audit import INTERNAL_NAME
from ogive.access.policy import AccessRefused
from ogive.access.refusals import Refusals
from ogive.errors import InvalidOption, ProtocolError, ResponseCode, StoreError
from ogive.store.fs import Fs, OsFs, reason
from ogive.store.tables import JsonTable, make_lasting_dirs
from ogive.wire.bodies.acls import (
    DISABLED,
    ENABLED,
    MAX_ENTRIES,
    NORMAL,
    SUPER,
    USER_SUBJECT,
    Acl,
    Policy,
    PolicyEntry,
    User,
)
from ogive.wire.signing import Credentials

MAX_USERS: Final = 10_000
_NAME: Final = re.compile(r"[^\s:*\x00-\x1f\x7f]{1,128}")
_PRIVATE: Final = 0o700
_INTERNAL: Final = User(username=INTERNAL_NAME, user_type=SUPER, status=ENABLED)


class AccessTable:
    """Users and policies, with their file. Event-loop only.

    A change is on stable storage before it applies. *version* grows with each change.
    """

    def __init__(
        self, directory: Path | None = None, *, fs: Fs | None = None, max_users: int = MAX_USERS
    ) -> None:
        """Load ``access.json`` of *directory* (blocking), or keep everything in memory. Raises
        StoreError.

        *internal* signs requests between the parts of one process: a super user that is in no file
        and no list.
        """
        self.internal = Credentials(access_key=INTERNAL_NAME, secret_key=secrets.token_urlsafe(32))
        self._max_users = max_users
        self._changing = asyncio.Lock()
        self._file: JsonTable | None = None
        self._users: dict[str, User] = {}
        self._acls: dict[str, Acl] = {}
        self.version = 0
        self.refusals = Refusals()
        """Log of denials of all servers that use this table."""
        if directory is not None:
            self._file = _open(directory, fs or OsFs())
            try:
                stored = self._file.load() or {}
            except OSError as exc:
                raise StoreError(
                    f"users and policies cannot be read from {directory}: {reason(exc)}"
                ) from exc
            self._users, self._acls = _parse(stored)
        self._credentials = _credentials(self._users)

    # --- reading ----------------------------------------------------------------------------------

    @property
    def users(self) -> Mapping[str, User]:
        return self._users

    @property
    def acls(self) -> Mapping[str, Acl]:
        """Policies by subject, ``User:name``."""
        return self._acls

    def find(self, name: str) -> tuple[User, Credentials] | None:
        """Return the user of an access key, and what its requests are signed with.

        ``SUPER:USER`` is a user on whose behalf a super user signs, see on_behalf().
        """
        if name == self.internal.access_key:
            return _INTERNAL, self.internal
        user = self._users.get(name)
        if user is not None:
            return user, self._credentials[name]
        signer, _, other = name.partition(":")
        user, signing = self._users.get(other), self._users.get(signer)
        if user is None or signing is None or signing.user_type != SUPER:
            return None
        if signing.status != ENABLED:
            return None
        return user, on_behalf(self._credentials[signer], other)

    def has_signed(self, name: str, text: str, signature: str) -> bool:
        """Return True if *signature*, in hex, is that of an enabled user over *text*."""
        user = self._users.get(name)
        # as much work for an unknown user as for a wrong signature
        credentials = self.internal if user is None else self._credentials[name]
        is_right = credentials.has_signed_text(text, signature)
        return is_right and user is not None and user.status == ENABLED

    def is_super(self, name: str) -> bool:
        return name in self._users and self._users[name].user_type == SUPER

    @property
    def has_super_user(self) -> bool:
        return _has_super_user(self._users)

    def mirror(self, users: Iterable[User], acls: Iterable[Acl], reader: Credentials) -> None:
        """Replace all users and rules in memory by those that a broker listed for *reader*, who
        signs on behalf of users whose passwords are not listed.
        """
        self._users = {user.username: user for user in users}
        self._acls = {acl.subject: acl for acl in acls}
        unlisted = {name: on_behalf(reader, name) for name in self._users}
        own = {reader.access_key: reader}
        self._credentials = unlisted | _credentials(self._users) | own
        self.version += 1

    # --- users ------------------------------------------------------------------------------------

    async def create_user(self, user: User) -> None:
        """Add a user, normal and enabled unless *user* says otherwise.

        Raises AccessRefused, InvalidOption, StoreError.
        """
        _check_name(user.username)
        if not user.password:
            raise InvalidOption(f"user {user.username} needs a password")
        made = dataclasses.replace(
            user, user_type=user.user_type or NORMAL, status=user.status or ENABLED
        )

        def change(users: dict[str, User], acls: dict[str, Acl]) -> None:
            if user.username in users:
                raise AccessRefused(f"The user is existed: {user.username}")
            if len(users) >= self._max_users:
                raise InvalidOption(
                    f"user {user.username}: there are {len(users)} users, the limit is "
                    f"{self._max_users}"
                )
            users[user.username] = made

        await self._change(change)

    async def update_user(self, user: User) -> None:
        """Change the given fields; None keeps a field. Raises AccessRefused, StoreError."""

        def change(users: dict[str, User], acls: dict[str, Acl]) -> None:
            known = _existing(users, user.username)
            users[user.username] = User(
                username=known.username,
                password=user.password or known.password,
                user_type=user.user_type or known.user_type,
                status=user.status or known.status,
            )

        await self._change(change)

    async def delete_user(self, name: str) -> None:
        """Delete a user; do nothing if it does not exist. Raises AccessRefused, StoreError."""

        def change(users: dict[str, User], acls: dict[str, Acl]) -> None:
            users.pop(name, None)
            acls.pop(USER_SUBJECT + name, None)

        await self._change(change)

    # --- policies ---------------------------------------------------------------------------------

    async def put_acl(self, acl: Acl) -> None:
        """Add policies; an entry replaces the existing one for the same resource.

        Raises AccessRefused, InvalidOption, StoreError.
        """

        def change(users: dict[str, User], acls: dict[str, Acl]) -> None:
            subject = _subject(users, acl.subject)
            known = acls.get(subject)
            acls[subject] = Acl(
                subject=subject,
                policies=_merged(known.policies if known is not None else (), acl.policies),
            )

        await self._change(change)

    async def delete_acl(
        self, subject: str, policy_type: str | None = None, resource: str | None = None
    ) -> None:
        """Delete all policies of the subject, or those of a type, or on one resource.

        Raises AccessRefused, StoreError.
        """

        def change(users: dict[str, User], acls: dict[str, Acl]) -> None:
            owner = USER_SUBJECT + user_of(subject)
            known = acls.get(owner)
            if known is None:
                raise AccessRefused(
                    f"The acl is not exist: {subject[:256]}", ResponseCode.POLICY_NOT_EXIST
                )
            left = tuple(
                policy
                for policy in (_without(policy, policy_type, resource) for policy in known.policies)
                if policy.entries
            )
            if left:
                acls[owner] = dataclasses.replace(known, policies=left)
            else:
                del acls[owner]

        await self._change(change)

    # --- changes ----------------------------------------------------------------------------------

    async def _change(self, change: Callable[[dict[str, User], dict[str, Acl]], None]) -> None:
        """Apply one change at a time, to the file first. If it raises, nothing has changed."""
        async with self._changing:
            users, acls = dict(self._users), dict(self._acls)
            change(users, acls)
            if _has_super_user(self._users) and not _has_super_user(users):
                raise AccessRefused(
                    "this is the last super user: nobody could administer access any more"
                )
            if self._file is not None:
                try:
                    await asyncio.to_thread(self._file.save, _render(users, acls))
                except OSError as exc:
                    raise StoreError(f"could not save users and policies: {reason(exc)}") from exc
            self._users, self._acls, self._credentials = users, acls, _credentials(users)
            self.version += 1


def on_behalf(signer: Credentials, user: str) -> Credentials:
    """Return the credentials with which super user *signer* sends requests that are carried out
    with the rights of *user*. No user's name has a colon.
    """
    return Credentials(access_key=f"{signer.access_key}:{user}", secret_key=signer.secret_key)


def _open(directory: Path, fs: Fs) -> JsonTable:
    """Open the file in a directory that only its owner may read.

    It holds passwords in clear text, because signatures are computed with them.
    """
    try:
        make_lasting_dirs(fs, directory)
        # the directory may have existed before
        directory.chmod(_PRIVATE)
    except OSError as exc:
        raise StoreError(
            f"users and policies cannot be kept in {directory}: {reason(exc)}"
        ) from exc
    return JsonTable(fs, directory / "access.json", valid=_is_access_table)


def _render(users: Mapping[str, User], acls: Mapping[str, Acl]) -> dict[str, Any]:
    return {
        "users": [user.to_json(with_password=True) for user in users.values()],
        "acls": [acl.to_json() for acl in acls.values()],
    }


def _parse(stored: dict[str, Any]) -> tuple[dict[str, User], dict[str, Acl]]:
    """Read users and policies.

    Raises ProtocolError for any invalid entry: an entry that is left out might be one that denies.
    """
    users = [User.from_json(value) for value in stored.get("users", [])]
    acls = [Acl.from_json(value) for value in stored.get("acls", [])]
    return {user.username: user for user in users}, {acl.subject: acl for acl in acls}


def _is_access_table(stored: dict[str, Any]) -> bool:
    try:
        users, _ = _parse(stored)
    except (ProtocolError, TypeError):
        return False
    return all(user.username and user.password for user in users.values())


def _credentials(users: Mapping[str, User]) -> dict[str, Credentials]:
    return {
        name: Credentials(access_key=name, secret_key=user.password)
        for name, user in users.items()
        if user.password
    }


def _has_super_user(users: Mapping[str, User]) -> bool:
    return any(user.user_type == SUPER and user.status != DISABLED for user in users.values())


def _check_name(name: str) -> None:
    if not name.strip():
        raise InvalidOption("The username is blank")
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"user name {name[:128]!r}: must have 1 to 128 characters, without spaces, colons and "
            "asterisks"
        )


def _existing(users: Mapping[str, User], name: str) -> User:
    if name not in users:
        raise AccessRefused(f"The user is not exist: {name[:128]}", ResponseCode.USER_NOT_EXIST)
    return users[name]


def _subject(users: Mapping[str, User], subject: str) -> str:
    name = user_of(subject)
    if not name:
        raise InvalidOption(f"subject {subject[:128]!r} is not of the form User:name")
    return USER_SUBJECT + _existing(users, name).username


def user_of(subject: str) -> str:
    """Return the name in ``User:name``, or "" for another form.

    As in Java, the word before the colon may be in any case.
    """
    kind, colon, name = subject.partition(":")
    return name if (kind + colon).lower() == USER_SUBJECT.lower() else ""


def _merged(old: Iterable[Policy], new: Iterable[Policy]) -> tuple[Policy, ...]:
    entries: dict[str, dict[str, PolicyEntry]] = {}
    for policy in (*old, *new):
        entries.setdefault(policy.policy_type, {}).update(
            {str(entry.resource): entry for entry in policy.entries}
        )
    for policy_type, found in entries.items():
        if len(found) > MAX_ENTRIES:
            raise InvalidOption(
                f"a {policy_type} policy with {len(found)} entries is over the limit of "
                f"{MAX_ENTRIES}"
            )
    return tuple(
        Policy(policy_type=policy_type, entries=tuple(found.values()))
        for policy_type, found in entries.items()
    )


def _without(policy: Policy, policy_type: str | None, resource: str | None) -> Policy:
    if policy_type and policy.policy_type.lower() != policy_type.lower():
        return policy
    kept = (
        tuple(entry for entry in policy.entries if str(entry.resource) != resource)
        if resource
        else ()
    )
    return dataclasses.replace(policy, entries=kept)
