"""The exception for a request that access control refuses."""

from ogive.errors import Refused, ResponseCode


class AccessRefused(Refused):
    """Mostly NO_PERMISSION.

    *why*: what the log says, where the answer says less, or how to mend it.
    """

    def __init__(
        self,
        remark: str,
        code: ResponseCode = ResponseCode.NO_PERMISSION,
        *,
        why: str | None = None,
    ) -> None:
        super().__init__(code, remark)
        self.why = why or remark
