"""The exception for a request that access control refuses."""

from ogive.errors import OgiveError, ResponseCode


class AccessRefused(OgiveError):
    """The request is answered with this code and remark."""

    def __init__(self, remark: str, code: ResponseCode = ResponseCode.NO_PERMISSION) -> None:
        super().__init__(f"{code.name}: {remark}")
        self.code = code
        self.remark = remark
