"""The exception for a request that access control refuses."""

from ogive.errors import Refused, ResponseCode


class AccessRefused(Refused):
    """Mostly NO_PERMISSION."""

    def __init__(self, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> None:
        super().__init__(code, remark)
