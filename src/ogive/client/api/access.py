"""Users and policies."""

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import Acl, User, acls_loads, dumps, users_loads


async def create_user(
    pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(
        pool,
        address,
        h.CreateUserRequest(username=user.username),
        timeout_s,
        dumps(user.to_json(with_password=True)),
    )


async def update_user(
    pool: ConnectionPool, address: str, user: User, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """What *user* says nothing about stays."""
    await ask(
        pool,
        address,
        h.UpdateUserRequest(username=user.username),
        timeout_s,
        dumps(user.to_json(with_password=True)),
    )


async def delete_user(
    pool: ConnectionPool, address: str, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, h.DeleteUserRequest(username=name), timeout_s)


async def list_users(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[User]:
    reply = await ask(pool, address, h.ListUsersRequest(), timeout_s)
    return users_loads(reply.body) if reply.body else []


async def update_acl(
    pool: ConnectionPool, address: str, acl: Acl, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Add policies; an entry replaces the one that there is for the same resource."""
    await ask(
        pool, address, h.UpdateAclRequest(subject=acl.subject), timeout_s, dumps(acl.to_json())
    )


async def delete_acl(
    pool: ConnectionPool,
    address: str,
    subject: str,
    resource: str | None = None,
    *,
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> None:
    await ask(pool, address, h.DeleteAclRequest(subject=subject, resource=resource), timeout_s)


async def list_acls(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[Acl]:
    reply = await ask(pool, address, h.ListAclsRequest(), timeout_s)
    return acls_loads(reply.body) if reply.body else []
