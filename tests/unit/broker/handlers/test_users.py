"""Users and their rules, as requests ask for them."""

import hashlib
import hmac

from ogive.wire.bodies.acls import acls_loads, users_loads
from ogive.wire.bodies.json_fields import dumps
from ogive.wire.codes import RequestCode
from tests.raw_client import RawClient
from tests.unit.audit import ROOT, table_with_root
from tests.unit.broker.conftest import StartBroker


async def test_lists_hold_what_the_filters_name(start_broker: StartBroker) -> None:
    broker = await start_broker(access=await table_with_root())
    async with await RawClient.open(broker.address, credentials=ROOT) as client:
        for name, topic in (("ann", "Orders"), ("anna", "Bills"), ("bob", "Orders")):
            user = dumps({"username": name, "password": "long-enough"})
            await client.ok(RequestCode.AUTH_CREATE_USER, user, username=name)
            rule = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
            acl = dumps({"policies": [{"policyType": "CUSTOM", "entries": [rule]}]})
            await client.ok(RequestCode.AUTH_CREATE_ACL, acl, subject=f"User:{name}")

        async def users(filter: str) -> list[str]:
            answer = await client.ok(RequestCode.AUTH_LIST_USER, filter=filter)
            return [user.username for user in users_loads(answer.body)]

        async def subjects(subject: str, resource: str) -> list[str]:
            answer = await client.ok(
                RequestCode.AUTH_LIST_ACL, subjectFilter=subject, resourceFilter=resource
            )
            return [acl.subject for acl in acls_loads(answer.body)]

        assert await users("ann") == ["ann", "anna"]
        assert await users("bob") == ["bob"]
        assert await subjects("", "") == ["User:ann", "User:anna", "User:bob"]
        assert await subjects("ann", "") == ["User:ann", "User:anna"]
        assert await subjects("", "Orders") == ["User:ann", "User:bob"]
        assert await subjects("bob", "Bills") == []


async def test_a_question_with_a_signature_is_for_the_user_who_made_it(
    start_broker: StartBroker,
) -> None:
    broker = await start_broker(access=await table_with_root())
    made = hmac.new(b"long-enough", b"now", hashlib.sha1).hexdigest()
    async with await RawClient.open(broker.address, credentials=ROOT) as client:
        user = dumps({"username": "ann", "password": "long-enough"})
        await client.ok(RequestCode.AUTH_CREATE_USER, user, username="ann")

        async def is_by(name: str, text: str, signature: str) -> bool:
            fields = {"username": name, "signedText": text, "textSignature": signature}
            return bool((await client.ok(RequestCode.AUTH_GET_USER, **fields)).body)

        assert await is_by("ann", "now", made)
        assert await is_by("ann", "now", made.upper())
        assert not await is_by("ann", "then", made)
        assert not await is_by("ann", "now", "é")
        assert not await is_by("ann", "now", "")
        assert not await is_by("nobody", "now", made)
        user = dumps({"username": "ann", "userStatus": "disable"})
        await client.ok(RequestCode.AUTH_UPDATE_USER, user, username="ann")
        assert not await is_by("ann", "now", made)
