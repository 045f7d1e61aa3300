"""Users and access rules.

Source: the header classes of remoting/protocol/header, 5.5.
"""

from ogive.wire.codes import RequestCode
from ogive.wire.headers.codec import Header


class CreateUserRequest(Header):
    """AUTH_CREATE_USER (3001); the user is the body."""

    code = RequestCode.AUTH_CREATE_USER
    username: str


class UpdateUserRequest(Header):
    """AUTH_UPDATE_USER (3002); what changes is the body."""

    code = RequestCode.AUTH_UPDATE_USER
    username: str


class DeleteUserRequest(Header):
    """AUTH_DELETE_USER (3003)."""

    code = RequestCode.AUTH_DELETE_USER
    username: str


class GetUserRequest(Header):
    """AUTH_GET_USER (3004)."""

    code = RequestCode.AUTH_GET_USER
    username: str


class ListUsersRequest(Header):
    """AUTH_LIST_USER (3005); *filter* is a part of the name."""

    code = RequestCode.AUTH_LIST_USER
    filter: str | None = None


class CreateAclRequest(Header):
    """AUTH_CREATE_ACL (3006); the policies are the body."""

    code = RequestCode.AUTH_CREATE_ACL
    subject: str


class UpdateAclRequest(Header):
    """AUTH_UPDATE_ACL (3007); the policies are the body."""

    code = RequestCode.AUTH_UPDATE_ACL
    subject: str


class DeleteAclRequest(Header):
    """AUTH_DELETE_ACL (3008): all of a subject's, or those of one type, or on one resource."""

    code = RequestCode.AUTH_DELETE_ACL
    subject: str
    policy_type: str | None = None
    resource: str | None = None


class GetAclRequest(Header):
    """AUTH_GET_ACL (3009)."""

    code = RequestCode.AUTH_GET_ACL
    subject: str


class ListAclsRequest(Header):
    """AUTH_LIST_ACL (3010); filters are parts of the names."""

    code = RequestCode.AUTH_LIST_ACL
    subject_filter: str | None = None
    resource_filter: str | None = None
