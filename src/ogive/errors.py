"""The exceptions that ogive raises, and the answer codes behind them.

A class exists only where a caller would act differently; what to do about it is in the attributes
of OgiveError.
"""

import enum
import re
from collections.abc import Sequence
from typing import ClassVar, Final


class ResponseCode(enum.IntEnum):
    """Answer codes. Source: ResponseCode.java and RemotingSysResponseCode.java, 5.5."""

    RPC_TIME_OUT = -1006
    RPC_SEND_TO_CHANNEL_FAILED = -1004
    RPC_ADDR_IS_NULL = -1002
    RPC_UNKNOWN = -1000
    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


class OgiveError(Exception):
    """Base class of ogive's exceptions."""

    retry_other_broker: ClassVar[bool] = False
    """True if the same call may succeed at another broker."""
    refresh_route: ClassVar[bool] = False
    """True if the route may be out of date: fetch it again before the next try."""
    outcome_unknown: ClassVar[bool] = False
    """True if the request may or may not have been carried out."""


class InvalidOption(OgiveError, ValueError):
    """An argument or setting has an invalid value. Nothing was changed."""


class InvalidExpression(InvalidOption):
    """An SQL92 filter that cannot be parsed.

    *at* is the position in *text*, in characters from 0.
    """

    def __init__(self, message: str, text: str, at: int) -> None:
        start = max(0, at - 30)
        around = text[start : at + 30].replace("\n", " ")
        super().__init__(
            f"{message}, at character {at + 1}: {'...' if start else ''}"
            f"{around[: at - start]}[HERE]{around[at - start :]}"
        )
        self.text = text
        self.at = at


class Refused(OgiveError):
    """Raised by a server's handler: the request is answered with this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark


class IllegalStateError(OgiveError):
    """An object was used before its start or after its end, or an internal state machine was asked
    for an impossible step.
    """


class ProtocolError(OgiveError):
    """Bytes that are not a valid frame, header, body or record. Decoders raise nothing else."""


class CompressionUnavailable(OgiveError):
    """The library for this compression is not installed."""


# --- transport ------------------------------------------------------------------------------------


class TransportError(OgiveError):
    """A request could not be sent, or its answer did not come."""

    retry_other_broker = True

    def __init__(self, message: str, address: str = "") -> None:
        super().__init__(message)
        self.address = address


class ConnectError(TransportError):
    """No connection could be made to the address; the request was never sent."""

    refresh_route = True


class ConnectionLost(TransportError):
    """The connection broke while a request was in flight: it may or may not have been carried
    out.
    """

    outcome_unknown = True
    refresh_route = True


class RequestTimeout(TransportError):
    """No answer came in time: the request may or may not have been carried out."""

    outcome_unknown = True


class TooManyRequests(TransportError):
    """Too many requests to this peer are in flight; this one was never sent."""


# --- name server and routes -----------------------------------------------------------------------


class NoNameServer(OgiveError):
    """None of the configured name servers answered."""


class NotANameServer(NoNameServer):
    """Something else answers at the name server's address, usually a broker.

    Waiting does not help.
    """


class NoRoute(OgiveError):
    """The name server answered, but knows no broker for the topic.

    *fact* is the text without advice on how to create it.
    """

    refresh_route = True

    def __init__(self, fact: str, advice: str = "") -> None:
        super().__init__(f"{fact} {advice}" if advice else fact)
        self.fact = fact


# --- brokers --------------------------------------------------------------------------------------


_GROUP_DISABLED: Final = re.compile(r"subscription group no permission, (\S+)")
_TIMER_TOO_LONG: Final = re.compile(r"should not be bigger than the max delay (\d+)ms")


def _way_out(remark: str) -> str:
    """Return the advice for a remark of a broker that has none; empty for any other remark."""
    if found := _GROUP_DISABLED.search(remark):
        return f" (the group is disabled: `ogive group update {found[1]} --enable`)"
    if found := _TIMER_TOO_LONG.search(remark):
        days = int(found[1]) / 86_400_000
        return (
            f" ({days:g} day{'' if days == 1 else 's'}; `ogive up --max-timer-delay SECONDS`, "
            "or Apache's timerMaxDelaySec, allows more)"
        )
    return ""


class BrokerError(OgiveError):
    """A broker or name server answered with an error code; subclasses stand for codes that callers
    treat differently.

    *address* is empty where the client itself refused what every broker would refuse with that
    code.
    """

    codes: ClassVar[tuple[int, ...]] = ()
    """Answer codes that are raised as this class."""

    def __init__(self, code: int, remark: str | None, address: str = "") -> None:
        name = (
            ResponseCode(code).name if code in ResponseCode._value2member_map_ else "unknown code"
        )
        said = (remark or "no remark") + _way_out(remark or "")
        super().__init__(
            f"{address} answered {code} {name}: {said}" if address else f"{said} ({code} {name})"
        )
        self.code = code
        self.remark = remark or ""
        self.address = address


class BrokerInternalError(BrokerError):
    """SYSTEM_ERROR, the broker's catch-all."""

    codes = (ResponseCode.SYSTEM_ERROR,)
    retry_other_broker = True


class BrokerBusy(BrokerError):
    """The broker is overloaded: try again later, or another broker."""

    codes = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)
    retry_other_broker = True


class NotSupported(BrokerError):
    """The peer does not know the request code."""

    codes = (ResponseCode.REQUEST_CODE_NOT_SUPPORTED,)


class MessageIllegal(BrokerError):
    """The message itself is invalid: too large, or with an invalid name or property.

    Retrying does not help.
    """

    codes = (ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER)


class ServiceNotAvailable(BrokerError):
    """The broker takes no writes: its disk is full or failed, it is shutting down, or it is a
    slave.
    """

    codes = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY)
    retry_other_broker = True
    refresh_route = True


class NoPermission(BrokerError):
    """Access control or a permission bit forbids the request."""

    codes = (ResponseCode.NO_PERMISSION,)
    retry_other_broker = True


class TopicNotExist(BrokerError):
    """The broker does not have the topic, and does not create it."""

    codes = (ResponseCode.TOPIC_NOT_EXIST,)
    retry_other_broker = True
    refresh_route = True


class QueryNotFound(BrokerError):
    """The broker has nothing under that key, offset or name."""

    codes = (ResponseCode.QUERY_NOT_FOUND,)


class SubscriptionOutdated(BrokerError):
    """The broker does not know the group's current subscription; the next heartbeat tells it."""

    codes = (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    )


class SubscriptionInvalid(BrokerError):
    """The broker cannot parse the filter expression."""

    codes = (ResponseCode.SUBSCRIPTION_PARSE_FAILED,)


class GroupNotExist(BrokerError):
    """The broker does not have the consumer group, and does not create it."""

    codes = (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,)


class ConsumerNotOnline(BrokerError):
    """No live member of the group is connected to the broker."""

    codes = (ResponseCode.CONSUMER_NOT_ONLINE,)


_BY_CODE: Final[dict[int, type[BrokerError]]] = {
    code: cls
    for cls in (
        BrokerInternalError,
        BrokerBusy,
        NotSupported,
        MessageIllegal,
        ServiceNotAvailable,
        NoPermission,
        TopicNotExist,
        QueryNotFound,
        SubscriptionOutdated,
        SubscriptionInvalid,
        GroupNotExist,
        ConsumerNotOnline,
    )
    for code in cls.codes
}


def broker_error(code: int, remark: str | None, address: str = "") -> BrokerError:
    """The exception for an answer that is not SUCCESS."""
    return _BY_CODE.get(code, BrokerError)(code, remark, address)


class BodyUnreadable(OgiveError, ValueError):
    """The body of a message cannot be read as what the listener asked for (``as_=``)."""


# --- sending --------------------------------------------------------------------------------------


class SendFailed(OgiveError):
    """Every attempt failed, and the message was certainly not stored."""


class SendTimeout(OgiveError):
    """The time budget ran out, or the last answer never came: the message may or may not have been
    stored.
    """

    outcome_unknown = True


class ReplyTimeout(OgiveError):
    """No reply came in time: the request may or may not be carried out, now or later.

    A late reply is dropped.
    """

    outcome_unknown = True

    def __init__(self, message: str, correlation_id: str) -> None:
        super().__init__(message)
        self.correlation_id = correlation_id


# --- reading --------------------------------------------------------------------------------------


class DataLoss(OgiveError):
    """Messages to be read are gone from their queue: they were deleted, or the queue is shorter
    than it was.
    """


class LeaseEnded(OgiveError):
    """Popped messages cannot be acknowledged or held any longer: their lease has ended, they were
    acknowledged before, or another consumer received them.

    After the end of a lease the message is delivered again, to any member of the group. *messages*
    are those that it is about; others of the same call were acknowledged.
    """

    def __init__(self, message: str, messages: Sequence[object] = ()) -> None:
        super().__init__(message)
        self.messages = tuple(messages)


# --- store ----------------------------------------------------------------------------------------


class StoreError(OgiveError):
    """The store cannot do what was asked."""


class StoreLocked(StoreError):
    """Another process uses the directory."""


class StoreUnusable(StoreError):
    """The path cannot hold a store: it is no directory, cannot be written to, or its disk is
    full.
    """


class StoreCorrupt(StoreError):
    """The directory holds something other than a store, or damage that recovery must not guess
    about.
    """


class StoreFailed(StoreError):
    """A write or sync failed.

    That is final for this process: nothing more is written or acknowledged.
    """


class StoreFull(StoreError):
    """The disk is full: writes are refused, reads still work."""


class StoreBusy(StoreError):
    """Too many bytes are waiting to be written already."""
