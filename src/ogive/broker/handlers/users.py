"""Users and policies: 3001 to 3010.

Source: AdminBrokerProcessor.java, 5.5; access/permissions.py says who may send them.

Behaviour
- Commands of mqadmin (createUser, updateAcl, ...) and of `ogive user` and `ogive acl` end here. A
  change is on stable storage before it is answered, and counts for this broker and for the name
  server beside it at once.
- Asking for something unknown succeeds, without a body; so does a question for a user with a text
  that the user did not sign.

Differs from Java
- A password is never answered (CVE-2024-23321); mqadmin prints "null" where Java's broker sends it
  in clear text. So its copyUser changes no password, and cannot make a user.
- A broker without access control refuses all of them: they would have no effect.
"""

from typing import TypeVar

from ogive.access.user_table import AccessTable, user_of
from ogive.broker.replies import Rejected, success
from ogive.broker.services import Context
from ogive.errors import InvalidOption, ProtocolError, ResponseCode
from ogive.transport.connection import Connection
from ogive.wire.bodies.acls import USER_SUBJECT, Acl, User, acls_dumps, users_dumps
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.command import RemotingCommand
from ogive.wire.headers.admin import (
    CreateAclRequest,
    CreateUserRequest,
    DeleteAclRequest,
    DeleteUserRequest,
    GetAclRequest,
    GetUserRequest,
    ListAclsRequest,
    ListUsersRequest,
    UpdateAclRequest,
    UpdateUserRequest,
)

K = TypeVar("K", User, Acl)


def _table(ctx: Context) -> AccessTable:
    if ctx.guard is None:
        raise Rejected(
            ResponseCode.NO_PERMISSION,
            "this broker runs without access control: start it with --acl",
        )
    return ctx.guard.table


# --- users ----------------------------------------------------------------------------------------


async def create_user(
    ctx: Context, connection: Connection, header: CreateUserRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).create_user(_user(header.username, body))
    return success()


async def update_user(
    ctx: Context, connection: Connection, header: UpdateUserRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).update_user(_user(header.username, body))
    return success()


def _user(name: str, body: bytes) -> User:
    """The header names the user, as for Java; a body that names another is a mistake."""
    user = _decode(User, body)
    if user.username and user.username != name:
        raise InvalidOption(
            f"the request is about user {name[:128]!r}, its body about {user.username[:128]!r}"
        )
    return User(username=name, password=user.password, user_type=user.user_type, status=user.status)


async def delete_user(
    ctx: Context, connection: Connection, header: DeleteUserRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).delete_user(header.username)
    return success()


def show_user(
    ctx: Context, connection: Connection, header: GetUserRequest, body: bytes
) -> RemotingCommand:
    if not header.username.strip():
        raise Rejected(ResponseCode.INVALID_PARAMETER, "The username is blank")
    table, text = _table(ctx), header.signed_text
    user = table.users.get(header.username)
    if text is not None and not table.has_signed(
        header.username, text, header.text_signature or ""
    ):
        user = None
    return success(body=b"" if user is None else dumps(user.to_json(with_password=False)))


def list_users(
    ctx: Context, connection: Connection, header: ListUsersRequest, body: bytes
) -> RemotingCommand:
    return success(
        body=users_dumps(
            user for name, user in _table(ctx).users.items() if (header.filter or "") in name
        )
    )


# --- policies -------------------------------------------------------------------------------------


async def create_acl(
    ctx: Context, connection: Connection, header: CreateAclRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).put_acl(_acl(header.subject, body))
    return success()


async def update_acl(
    ctx: Context, connection: Connection, header: UpdateAclRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).put_acl(_acl(header.subject, body))
    return success()


def _acl(subject: str, body: bytes) -> Acl:
    if not body:
        raise InvalidOption("The body of acl is null")
    return Acl(subject=subject, policies=_decode(Acl, body).policies)


async def delete_acl(
    ctx: Context, connection: Connection, header: DeleteAclRequest, body: bytes
) -> RemotingCommand:
    await _table(ctx).delete_acl(header.subject, header.policy_type, header.resource)
    return success()


def show_acl(
    ctx: Context, connection: Connection, header: GetAclRequest, body: bytes
) -> RemotingCommand:
    acl = _table(ctx).acls.get(USER_SUBJECT + user_of(header.subject))
    return success(body=b"" if acl is None else dumps(acl.to_json()))


def list_acls(
    ctx: Context, connection: Connection, header: ListAclsRequest, body: bytes
) -> RemotingCommand:
    resource = header.resource_filter or ""
    return success(
        body=acls_dumps(
            acl
            for subject, acl in _table(ctx).acls.items()
            if (header.subject_filter or "") in subject
            and any(
                resource in str(entry.resource)
                for policy in acl.policies
                for entry in policy.entries
            )
        )
    )


def _decode(kind: type[K], body: bytes) -> K:
    try:
        return kind.decode(body)
    except ProtocolError as exc:
        raise InvalidOption(str(exc)) from None
