"""Statuses of responses: own refusals, and those for the errors of brokers."""

from typing import Final

from ogive.access.policy import AccessRefused
from ogive.errors import (
    BrokerError,
    InvalidExpression,
    InvalidOption,
    NoRoute,
    OgiveError,
    RequestTimeout,
    ResponseCode,
    TooManyRequests,
)
from ogive.model import SendStatus
from ogive.proxy import rocketmq_pb2 as pb

_BY_CODE: Final[dict[int, pb.Code]] = {
    ResponseCode.SYSTEM_BUSY: pb.TOO_MANY_REQUESTS,
    ResponseCode.POLLING_FULL: pb.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: pb.NOT_IMPLEMENTED,
    ResponseCode.MESSAGE_ILLEGAL: pb.BAD_REQUEST,
    ResponseCode.NO_PERMISSION: pb.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: pb.TOPIC_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: pb.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: pb.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.INVALID_PARAMETER: pb.BAD_REQUEST,
    ResponseCode.ILLEGAL_OPERATION: pb.BAD_REQUEST,
}
_STORED: Final = {
    SendStatus.SEND_OK: (pb.OK, "OK"),
    SendStatus.FLUSH_DISK_TIMEOUT: (pb.MASTER_PERSISTENCE_TIMEOUT, "the disk takes too long"),
    SendStatus.FLUSH_SLAVE_TIMEOUT: (pb.SLAVE_PERSISTENCE_TIMEOUT, "the slave takes too long"),
    SendStatus.SLAVE_NOT_AVAILABLE: (pb.HA_NOT_AVAILABLE, "no slave is available"),
}


class Illegal(OgiveError):
    """A request that is answered with this status."""

    def __init__(self, code: pb.Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def ok() -> pb.Status:
    return pb.Status(code=pb.OK, message="OK")


def status_of_send(status: SendStatus) -> pb.Status:
    """Return the status of a message that is stored."""
    code, message = _STORED[status]
    return pb.Status(code=code, message=message)


def status_of(error: OgiveError) -> pb.Status:
    """Return the status for *error*."""
    message = str(error)
    match error:
        case Illegal():
            code = error.code
        case AccessRefused():
            code = pb.FORBIDDEN
        case BrokerError():
            code = _BY_CODE.get(error.code, pb.INTERNAL_SERVER_ERROR)
            message = error.remark or message
        case InvalidExpression():
            code = pb.ILLEGAL_FILTER_EXPRESSION
        case InvalidOption():
            code = pb.BAD_REQUEST
        case NoRoute():
            code = pb.TOPIC_NOT_FOUND
        case TooManyRequests():
            code = pb.TOO_MANY_REQUESTS
        case RequestTimeout():
            code = pb.PROXY_TIMEOUT
        case _:
            code = pb.INTERNAL_SERVER_ERROR
    return pb.Status(code=code, message=message)
