"""Users and policies in memory and in their file."""

import asyncio
import errno
import json
import logging
import os
from pathlib import Path

import pytest

from ogive.access.policy import AccessRefused
from ogive.access.user_table import AccessTable
from ogive.errors import InvalidOption, OgiveError, ResponseCode, StoreError
from ogive.store.fs import Data, OsFs
from ogive.wire.bodies.acls import Acl, Policy, PolicyEntry, User

ROOT = User(username="root", password="root-secret", user_type="Super")
ALICE = User(username="alice", password="alice-secret")


def rules(name: str, *resources: str, decision: str = "Allow") -> Acl:
    entries = tuple(
        PolicyEntry.from_json({"resource": text, "actions": ["Pub"], "decision": decision})
        for text in resources
    )
    return Acl(subject=f"User:{name}", policies=(Policy(entries=entries),))


async def filled(directory: Path | None = None) -> AccessTable:
    table = AccessTable(directory)
    await table.create_user(ROOT)
    await table.create_user(ALICE)
    await table.put_acl(rules("alice", "Topic:A", "Topic:B"))
    return table


async def test_everything_is_in_the_file_before_it_counts(tmp_path: Path) -> None:
    table = await filled(tmp_path / "access")
    again = AccessTable(tmp_path / "access")
    assert again.users == table.users
    assert again.acls == table.acls
    assert again.users["alice"] == User(
        username="alice", password="alice-secret", user_type="Normal", status="enable"
    )


async def test_nobody_else_on_the_machine_may_read_the_file(tmp_path: Path) -> None:
    (tmp_path / "access").mkdir(mode=0o755)
    await filled(tmp_path / "access")
    assert (tmp_path / "access").stat().st_mode & 0o077 == 0


async def test_an_update_changes_what_it_names() -> None:
    table = await filled()
    await table.update_user(User(username="alice", status="disable"))
    assert table.users["alice"] == User(
        username="alice", password="alice-secret", user_type="Normal", status="disable"
    )
    await table.update_user(User(username="alice", password="new"))
    found = table.find("alice")
    assert found is not None
    assert found[1].secret_key == "new"


async def test_a_deleted_user_leaves_no_rules_for_the_next_of_that_name() -> None:
    table = await filled()
    await table.delete_user("alice")
    assert table.find("alice") is None
    await table.create_user(ALICE)
    assert table.acls == {}


@pytest.mark.parametrize("name", ["", " ", "a b", "a:b", "*", "x" * 129, "a\x00b"])
async def test_a_name_that_could_be_taken_for_something_else_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption):
        await AccessTable().create_user(User(username=name, password="p"))


async def test_what_cannot_be_is_refused_and_changes_nothing() -> None:
    table = await filled()
    before = (table.users, table.acls, table.version)
    cases = [
        (table.create_user(ALICE), ResponseCode.NO_PERMISSION),
        (table.update_user(User(username="bob", password="x")), ResponseCode.USER_NOT_EXIST),
        (table.put_acl(rules("bob", "Topic:A")), ResponseCode.USER_NOT_EXIST),
        (table.delete_acl("User:bob"), ResponseCode.POLICY_NOT_EXIST),
        (table.delete_user("root"), ResponseCode.NO_PERMISSION),
        (table.update_user(User(username="root", status="disable")), ResponseCode.NO_PERMISSION),
        (table.update_user(User(username="root", user_type="Normal")), ResponseCode.NO_PERMISSION),
    ]
    for call, code in cases:
        with pytest.raises(AccessRefused) as refused:
            await call
        assert refused.value.code == code
    with pytest.raises(InvalidOption):
        await table.create_user(User(username="carol"))
    with pytest.raises(InvalidOption):
        await table.put_acl(Acl(subject="Role:x", policies=()))
    assert (table.users, table.acls, table.version) == before


async def test_an_entry_replaces_the_one_for_the_same_resource_and_others_stay() -> None:
    table = await filled()
    await table.put_acl(rules("alice", "Topic:A", decision="Deny"))
    [policy] = table.acls["User:alice"].policies
    assert {str(entry.resource): entry.decision for entry in policy.entries} == {
        "Topic:A": "Deny",
        "Topic:B": "Allow",
    }
    await table.delete_acl("User:alice", None, "Topic:A")
    [policy] = table.acls["User:alice"].policies
    assert [str(entry.resource) for entry in policy.entries] == ["Topic:B"]
    await table.delete_acl("USER:alice")
    assert "User:alice" not in table.acls


async def test_the_number_of_users_is_bounded() -> None:
    table = AccessTable(max_users=2)
    await table.create_user(ROOT)
    await table.create_user(ALICE)
    with pytest.raises(InvalidOption, match="limit is 2"):
        await table.create_user(User(username="bob", password="p"))


class FullDisk(OsFs):
    full = False

    def pwrite(self, handle: int, data: Data, offset: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        super().pwrite(handle, data, offset)


async def test_a_change_that_cannot_be_saved_does_not_count(tmp_path: Path) -> None:
    disk = FullDisk()
    table = AccessTable(tmp_path / "access", fs=disk)
    await table.create_user(ROOT)
    disk.full = True
    with pytest.raises(StoreError, match="disk is full"):
        await table.create_user(ALICE)
    assert list(table.users) == ["root"]
    disk.full = False
    await table.create_user(ALICE)
    assert list(AccessTable(tmp_path / "access").users) == ["root", "alice"]


@pytest.mark.parametrize(
    "garbled",
    [
        b"",
        b"null",
        b"{",
        b'{"users":[{"username":"x"}]}',
        b'{"users":[],"acls":[{"subject":"User:x"}]}',
        b'{"users":7}',
    ],
)
async def test_a_damaged_file_is_set_aside_and_the_version_before_counts(
    tmp_path: Path, garbled: bytes
) -> None:
    """Never half of it: an entry that is left out might be one that denies."""
    await filled(tmp_path)
    (tmp_path / "access.json").write_bytes(garbled)
    table = AccessTable(tmp_path)
    assert list(table.users) == ["root", "alice"]
    # the file's last version had them
    assert table.acls == {}
    assert len(list(tmp_path.glob("access.json.corrupt-*"))) == 1


async def test_changes_made_together_all_last(tmp_path: Path) -> None:
    table = AccessTable(tmp_path)
    await asyncio.gather(
        *(
            table.create_user(User(username=f"u{i}", password="p", user_type="Super"))
            for i in range(20)
        )
    )
    assert len(AccessTable(tmp_path).users) == 20


async def test_no_password_is_in_any_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    table = await filled()
    texts = [
        repr(table.users),
        str(table.users["root"]),
        repr(table.find("root")),
        repr(table),
        repr(table.internal),
        repr(table.acls),
        caplog.text,
    ]
    assert not [text for text in texts if "secret" in text.lower().replace("secret_key", "")]
    with pytest.raises(OgiveError) as refused:
        await table.create_user(ROOT)
    assert "root-secret" not in f"{refused.value!r} {refused.value}"


async def test_what_the_process_asks_itself_with_stands_in_no_list_and_no_file(
    tmp_path: Path,
) -> None:
    table = await filled(tmp_path)
    name, secret = table.internal.access_key, table.internal.secret_key
    assert table.find(name) is not None
    assert name not in table.users
    assert secret not in (tmp_path / "access.json").read_text()
    assert json.loads((tmp_path / "access.json").read_text())["users"][0]["username"] == "root"
    assert AccessTable(tmp_path).internal.secret_key != secret
    with pytest.raises(InvalidOption):
        await table.create_user(User(username=name, password="guessed"))


def test_directories_above_are_for_their_owner_alone_too(tmp_path: Path) -> None:
    mask = os.umask(0o022)
    try:
        AccessTable(tmp_path / "store" / "config" / "access")
    finally:
        os.umask(mask)
    for path in (
        tmp_path / "store",
        tmp_path / "store" / "config",
        tmp_path / "store" / "config" / "access",
    ):
        assert path.stat().st_mode & 0o077 == 0
