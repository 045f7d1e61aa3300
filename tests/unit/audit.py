"""What the tests of the log of administration share."""

import pytest

from ogive.access import audit
from ogive.access.table import AccessTable
from ogive.wire.acl import Credentials
from ogive.wire.bodies import User

LOGGER = audit.__name__
ROOT = Credentials(access_key="root", secret_key="root-secret")


def lines(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records if record.name == LOGGER]


async def table_with_root() -> AccessTable:
    table = AccessTable()
    await table.create_user(User(username="root", password="root-secret", user_type="Super"))
    return table
