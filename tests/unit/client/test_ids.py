"""Names that must be unique."""

import errno
import multiprocessing
import os
import re
from datetime import UTC, datetime
from unittest.mock import patch

import pytest

from ogive.client.ids import UniqueKeys, local_ip, make_client_id
from tests.zones import local_zone

NOON = int(datetime(2026, 11, 21, 12).astimezone().timestamp() * 1000)
NOVEMBER, DECEMBER, NEW_YEAR = (
    int(datetime(*day).astimezone().timestamp() * 1000)
    for day in ((2026, 11, 1), (2026, 12, 1), (2027, 1, 1))
)


def ms_since_month_began(key: str) -> int:
    return int(key[20:28], 16)


@pytest.mark.feature(33)
def test_clients_of_one_process_have_different_ids() -> None:
    ids = {make_client_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(rf"{re.escape(local_ip())}@{os.getpid()}#\d+", one) for one in ids)


def test_containers_with_one_address_and_one_pid_have_different_ids() -> None:
    with (
        patch("ogive.client.ids.local_ip", return_value="172.17.0.2"),
        patch("os.getpid", return_value=1),
    ):
        assert make_client_id() != make_client_id()


def test_a_given_instance_name_makes_the_id_stable() -> None:
    assert make_client_id("screens") == make_client_id("screens") == f"{local_ip()}@screens"


def test_keys_have_the_layout_that_other_tools_read() -> None:
    with (
        patch("ogive.client.ids.local_ip", return_value="10.0.0.7"),
        patch("os.getpid", return_value=0x12345),
    ):
        key = UniqueKeys().next(NOON)
    assert re.fullmatch(r"[0-9A-F]{32}", key)
    assert (key[:8], key[8:12]) == ("0A000007", "2345")
    assert ms_since_month_began(key) == NOON - NOVEMBER
    assert key[28:] == "0000"


@pytest.mark.parametrize("step_ms", [0, 1, -60_000])
def test_keys_of_one_generator_grow_whatever_the_clock_does(step_ms: int) -> None:
    keys = UniqueKeys()
    made = [keys.next(NOON + i * step_ms) for i in range(70_000)]
    assert made == sorted(set(made))


def test_a_new_month_begins_with_a_new_random_part() -> None:
    keys = UniqueKeys()
    before, after = keys.next(NEW_YEAR - 1), keys.next(NEW_YEAR)
    assert before[12:20] != after[12:20]
    assert (ms_since_month_began(before), ms_since_month_began(after)) == (
        NEW_YEAR - 1 - DECEMBER,
        0,
    )


@pytest.mark.parametrize(
    ("zone", "now", "month_began"),
    [
        pytest.param(
            "Europe/Berlin", (2026, 3, 30, 12), (2026, 2, 28, 23), id="begins in the month"
        ),
        pytest.param(
            "Europe/Berlin", (2026, 10, 26, 12), (2026, 9, 30, 22), id="ends in the month"
        ),
        pytest.param("Europe/Berlin", (2026, 10, 24, 12), (2026, 9, 30, 22), id="ends in a week"),
        pytest.param(
            "America/New_York", (2026, 11, 20, 12), (2026, 11, 1, 4), id="ends on the 1st"
        ),
        pytest.param("America/Havana", (2026, 11, 20, 12), (2026, 11, 1, 5), id="two midnights"),
        pytest.param("America/Asuncion", (2017, 10, 20, 12), (2017, 10, 1, 4), id="no midnight"),
        pytest.param("Australia/Lord_Howe", (2026, 4, 20, 0), (2026, 3, 31, 13), id="half an hour"),
    ],
)
def test_the_month_begins_at_local_midnight_as_the_zone_was_then(
    zone: str,
    now: tuple[int, int, int, int],
    month_began: tuple[int, int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms, began_ms = (
        int(datetime(*at, tzinfo=UTC).timestamp() * 1000) for at in (now, month_began)
    )
    with local_zone(zone, monkeypatch):
        assert ms_since_month_began(UniqueKeys().next(now_ms)) == now_ms - began_ms


def test_messages_have_keys_also_while_no_more_files_may_be_opened() -> None:
    with patch("socket.socket", side_effect=OSError(errno.EMFILE, "too many open files")):
        assert local_ip() == "127.0.0.1"
        assert UniqueKeys().next(NOON).startswith("7F000001")


def test_generators_do_not_make_the_same_keys() -> None:
    assert len({UniqueKeys().next(NOON) for _ in range(100)}) == 100


def _client_id(results: "multiprocessing.SimpleQueue[str]") -> None:
    results.put(make_client_id())


@pytest.mark.feature(33)
def test_processes_have_different_ids() -> None:
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    processes = [context.Process(target=_client_id, args=(results,)) for _ in range(2)]
    for process in processes:
        process.start()
    ids = {results.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(ids) == 2
