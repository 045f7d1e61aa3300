"""Errors of ``with`` on objects of ``ogive.aio``, and of ``async with`` on blocking ones.

Type checkers refuse both by themselves.
"""

from typing import TYPE_CHECKING, NoReturn


class OnlyWith:
    """For classes that block."""

    if not TYPE_CHECKING:

        def __aenter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} blocks and takes `with`; the one for `async with` is "
                "in ogive.aio"
            )

        def __aexit__(self, *_: object) -> NoReturn:
            self.__aenter__()


class OnlyAsyncWith:
    """For classes of asyncio."""

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"this {type(self).__name__} is for asyncio and takes `async with`; the one that "
                "blocks is in ogive, not ogive.aio"
            )

        def __exit__(self, *_: object) -> NoReturn:
            self.__enter__()
