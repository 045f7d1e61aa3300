"""What the tests of the log of administration share."""

import pytest

from ogive.access import audit
from ogive.access.user_table import AccessTable
from ogive.wire.bodies.acls import User
from ogive.wire.signing import Credentials

LOGGER = audit.__name__
ROOT = Credentials(access_key="root", secret_key="root-secret")


def lines(told: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in told.records if record.name == LOGGER]


async def table_with_root() -> AccessTable:
    table = AccessTable()
    await table.create_user(User(username="root", password="root-secret", user_type="Super"))
    return table
