"""Shows that the tests of what must never happen can fail: each guard is taken out in a copy of the source, and its test must go red.

``python -m tests.never.mutations [CASE ...]`` runs all rows, or those of some cases, and prints a table; test_mutations.py runs them
nightly.
A row whose text is not in the source (any more), or stands there twice, is an error: whoever changes a guarded line mends its row.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
RUN_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Mutation:
    """In *file* (below src/ogive) *old* becomes *new*, and *test* (below tests) must fail."""

    case: str
    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        return f"{self.case}-{Path(self.file).stem}"


def never(case: str, file: str, old: str, new: str, test: str) -> Mutation:
    return Mutation(case, file, old, new, f"never/{test}")


REBALANCE, ORDERLY, PULLS = "client/consumer/rebalance.py", "client/consumer/orderly.py", "client/consumer/pull_service.py"
PROCESS_QUEUE, SEND_BACK, INSTANCE = "client/consumer/process_queue.py", "client/consumer/send_back.py", "client/instance.py"
OWNER: Final = "client/owner.py"

MUTATIONS: Final = (
    never(
        "1", REBALANCE,
        "where %s stands in it cannot be learned: %s\", queue, self._group.name, exc)\n            return None",
        "where %s stands in it cannot be learned: %s\", queue, self._group.name, exc)\n            return 0",
        "test_loss.py::test_case_1_a_failed_offset_query_never_becomes_no_offset[error-concurrent-start]",
    ),
    never(
        "1", "client/api/offsets.py", "except QueryNotFound:\n        return None", "except BrokerError:\n        return None",
        "test_loss.py::test_case_1_a_failed_offset_query_never_becomes_no_offset[error-orderly-rebalance]",
    ),
    never(
        "2", PROCESS_QUEUE, "return next(iter(self._pending), self.pull_offset)", "return self.pull_offset",
        "test_loss.py::test_case_2_no_message_is_lost_when_a_pull_consumers_queue_goes_away_and_comes_back_quickly",
    ),
    never(
        "3", "client/consumer/offset_store.py", "self._offsets.pop(queue, None)", "self._offsets.clear()",
        "test_loss.py::test_case_3_giving_one_queue_away_touches_no_other_queues_offset[never]",
    ),
    never(
        "4", PULLS, "await self._repair(process_queue, result.next_offset)", "process_queue.pull_offset = result.next_offset",
        "test_loss.py::test_case_4_an_illegal_offset_is_repaired_once_and_holds_up_no_other_queue[12]",
    ),
    never(
        "5", SEND_BACK, "elif await self._send(message, delay_level):", "elif await self._send(message, delay_level) or True:",
        "test_loss.py::test_case_5_a_failed_send_back_does_not_advance_the_offset",
    ),
    never(
        "6", "client/consumer/concurrent.py", "for message in messages[failure.done :]:", "for message in messages:",
        "test_loss.py::test_case_6_a_failing_batch_sends_back_exactly_the_failed_messages_once",
    ),
    never(
        "7", "client/consumer/outcome.py",
        "    return Failure(why=f\"its listener returned {shown(answer)}, which is no result\"), False\n", "    return None, True\n",
        "test_failures.py::test_case_7_what_is_no_clear_success_comes_again[True-plain]",
    ),
    never(
        "7", "client/consumer/outcome.py",
        "    return Failure(why=shown(error))\n", "    return None  # type: ignore[return-value]\n",
        "test_failures.py::test_case_7_what_is_no_clear_success_comes_again[raise-async]",
    ),
    never(
        "8", "client/consumer/calls.py", "max_reconsume_times=max_retries,\n                timeout_s=api.SEND_BACK_TIMEOUT_S",
        "max_reconsume_times=max_retries + 1,\n                timeout_s=api.SEND_BACK_TIMEOUT_S",
        "test_failures.py::test_case_8_retries_go_on_to_the_limit_and_end_in_the_dead_letters_at_once",
    ),
    never(
        "9", "client/consumer/allocate.py", "start = index * share + min(index, extra)", "start = index * share",
        "test_failures.py::test_case_9_members_that_see_the_same_share_every_queue_without_overlap[average]",
    ),
    never(
        "9", "client/consumer/allocate.py", "bisect.bisect_left(points, _ring_point(_queue_text(queue)))",
        "bisect.bisect_left(points, _ring_point(queue.broker_name))",
        "test_failures.py::test_case_9_the_vectors_of_javas_strategies",
    ),
    never(
        "10", "client/ids.py", "secrets.randbits(64)", "0",
        "test_failures.py::test_case_10_two_containers_with_one_address_and_pid_1_have_different_ids",
    ),
    never(
        "11", PULLS, "            self._report_unwanted(subscription)\n", "            pass\n",
        "test_failures.py::test_case_11_members_that_subscribe_differently_are_told",
    ),
    never(
        "12", "client/consumer/member.py", "            await self._rebalancer.give_up_all()\n", "",
        "test_repetition.py::test_case_12_a_clean_shutdown_leaves_no_repetition[async]",
    ),
    never(
        "13", PULLS, "        task = self._tasks.get(process_queue)\n", "        return\n",
        "test_repetition.py::test_case_13_a_queue_that_goes_and_comes_back_has_one_loop",
    ),
    never(
        "14", SEND_BACK, "if self._closed or key in self._under_way or message.queue_offset not in process_queue:",
        "if self._closed or key in self._under_way:",
        "test_repetition.py::test_case_14_a_call_over_the_consume_timeout_is_sent_back_once_and_its_late_result_is_ignored[plain]",
    ),
    never(
        "15", REBALANCE, "            await self._unlock(quiet)\n", "            pass\n",
        "test_stuck.py::test_case_15_locks_are_given_back_after_the_last_progress",
    ),
    never(
        "16", ORDERLY, " and lease_time(time.monotonic()) < process_queue.leased_until", "",
        "test_stuck.py::test_case_16_an_orderly_queue_recovers_after_its_lock_was_refused[error]",
    ),
    Mutation(
        "16", REBALANCE, "                self._renewed(held[queue])\n", "",
        "unit/client/consumer/test_orderly.py::test_a_renewal_that_comes_back_after_the_lease_starts_the_queue_again",
    ),
    Mutation(
        "16", "broker/locks.py", "        expires_at = self._now() + self._lease_s\n", "        expires_at = self._now()\n",
        "unit/broker/test_server.py::test_a_restart_gives_a_locked_queue_to_nobody_else",
    ),
    never(
        "17", PULLS, "                await self._after_failure(process_queue, exc)\n", "                return\n",
        "test_stuck.py::test_case_17_whatever_a_pull_comes_to_the_queue_is_pulled_again[hang up-concurrent]",
    ),
    never(
        "18", "transport/connection.py",
        'self.abort(f"{self.remote_address} sent nothing while requests waited for their whole timeout")', "pass",
        "test_stuck.py::test_case_18_a_link_that_swallows_everything_is_replaced",
    ),
    never(
        "18", INSTANCE, "self._refresh_routes, name=\"routes\"", "self._beat_all, name=\"routes\"",
        "test_stuck.py::test_case_18_a_broker_at_a_new_address_new_queues_and_a_new_broker_need_no_restart",
    ),
    never(
        "19", INSTANCE, "            for address in self.heartbeat_addresses():\n                self._beat_soon(address)",
        "            for address in self.heartbeat_addresses():\n                await self._beat(address)",
        "test_stuck.py::test_case_19_a_dead_address_holds_up_nobody_else",
    ),
    never(
        "20", PULLS, "            or process_queue.count > config.max_cached_messages\n", "",
        "test_stuck.py::test_case_20_a_listener_that_hangs_stops_neither_other_topics_nor_heartbeats[plain]",
    ),
    never(
        "21", OWNER,
        "        if self._client is not None and self._shared is None:\n            await self._client.close()", "        pass",
        "test_resources.py::test_case_21_starts_and_stops_leave_nothing_behind[15]",
    ),
    never(
        "22", OWNER, "        if self._client is not None and self._shared is None:", "        if self._client is not None:",
        "test_resources.py::test_case_22_closing_one_of_two_on_a_client_leaves_the_other_working[consumer]",
    ),
    never(
        "23", INSTANCE, "await asyncio.gather(*(self._unregister_at(address, producer_group, consumer_group) for address in addresses))",
        "[await self._unregister_at(address, producer_group, consumer_group) for address in addresses]",
        "test_resources.py::test_case_23_dead_brokers_do_not_add_up_at_shutdown",
    ),
    never(
        "23", "client/consumer/workers.py", "daemon=True", "daemon=False",
        "test_resources.py::test_case_23_a_process_ends_by_itself[a listener that hangs]",
    ),
    never(
        "24", "client/consumer/local_offsets.py", "except (OSError, ProtocolError) as exc:", "except OSError as exc:",
        "test_resources.py::test_case_24_a_damaged_offset_file_costs_the_place_and_not_the_start[half]",
    ),
    never(
        "25", "client/producer.py", "return self.config.send_timeout_s if timeout_s is None",
        "return self._owner.client.config.request_timeout_s if timeout_s is None",
        "test_resources.py::test_case_25_a_send_ends_within_its_own_time_and_not_within_somebody_elses[asyncio-name server]",
    ),
    never(
        "25", "client/sending/failures.py", "else outgoing.tries <= retries", "else outgoing.tries < retries",
        "test_resources.py::test_case_25_as_many_tries_as_were_set[4]",
    ),
    never(
        "25", "client/broker_requests.py", "checks = self._checks.get(group)", "checks = next(iter(self._checks.values()), None)",
        "test_resources.py::test_case_25_a_check_reaches_the_producer_of_its_group_among_several_on_a_client",
    ),
    never(
        "hostile", "wire/message.py", "if check_crc and body_crc(record.body) != record.body_crc:", "if False:",
        "test_hostile_servers.py::test_a_client_survives[a broker delivers a message whose checksum is wrong]",
    ),
    Mutation(
        "15", "broker/locks.py", "lease.expires_at = client_id, now + self._lease_s", "lease.expires_at = client_id, now + 1e6",
        "rel/test_orderly_holders.py::test_case_15_the_queues_of_a_killed_holder_go_to_the_other_when_its_lease_is_over",
    ),
    Mutation(
        "T17", "transport/connection.py", "calls.pop(command.opaque, None)", "calls.pop(next(iter(calls), 0), None)",
        "rel/test_network_faults.py::test_faults_of_the_network_mix_up_lose_and_invent_nothing[60]",
    ),
    Mutation(
        "T17", "errors.py",
        "in flight: it may or may not have been carried out.\"\"\"\n\n    outcome_unknown = True",
        "in flight: it may or may not have been carried out.\"\"\"\n\n    outcome_unknown = False",
        "rel/test_network_faults.py::test_faults_of_the_network_mix_up_lose_and_invent_nothing[60]",
    ),
    Mutation(
        "T18", "client/name_servers.py", "self._preferred + doubted", "self._preferred",
        "rel/test_name_server_faults.py::test_an_old_route_at_one_name_server_is_left_for_the_others",
    ),
    Mutation(
        "T18", "client/name_servers.py", "                    self.trouble = str(exc)\n                    continue\n",
        "                    self.trouble = str(exc)\n                    raise\n",
        "rel/test_name_server_faults.py::test_one_bad_name_server_of_two_fails_no_call[lies-the first]",
    ),
    never(
        "damaged", PULLS, "        readings.only(len(broken.intact))\n", "",
        "test_damaged.py::test_a_queue_waits_in_front_of_what_is_no_message[concurrent]",
    ),
    never(
        "damaged", "client/consumer/damage.py", "        if self._count < READINGS:", "        if True:",
        "test_damaged.py::test_a_queue_goes_on_behind_a_message_that_is_stored_damaged[concurrent-3]",
    ),
    never(
        "damaged", "client/consumer/damage.py", "*record, damaged.read_crc)", "*record)",
        "test_damaged.py::test_damage_on_the_way_passes_nothing_over",
    ),
    never(
        "damaged", "client/api/pulling.py", "exc.next_offset = raw.next_offset", "exc.next_offset = exc.queue_offset + 1",
        "test_damaged.py::test_a_damaged_place_is_not_believed[within the answer]",
    ),
    never(
        "damaged", "client/consumer/calls.py", "            exc.broker_id = answering_id\n", "            exc.broker_id = MASTER_ID\n",
        "test_damaged.py::test_a_slave_s_damage_passes_nothing_over",
    ),
    Mutation(
        "hostile", "wire/bodies/routes.py", "        if count > MAX_BROKERS:", "        if False:",
        "unit/client/test_route_table.py::test_a_route_with_20_000_brokers_is_refused_and_the_known_one_stays",
    ),
    never(
        "hostile", "client/api/pulling.py", "    if answer.next_begin_offset < 0:", "    if False:",
        "test_hostile_servers.py::test_a_client_survives[a broker sends the group to a negative place]",
    ),
)  # fmt: skip


class StaleRow(AssertionError):
    """The text that a row replaces does not stand exactly once in the source."""


def mutate(mutation: Mutation, source: Path) -> None:
    """Change the copy of src/ogive in *source*. Raises StaleRow."""
    file = source / "ogive" / mutation.file
    text = file.read_text("utf-8")
    found = text.count(mutation.old)
    if found != 1:
        raise StaleRow(f"{mutation.name}: what it replaces stands {found} times in {mutation.file}: {mutation.old!r}")
    file.write_text(text.replace(mutation.old, mutation.new), "utf-8")


def check_rows() -> None:
    """Every row fits the source and names a test that exists. Raises StaleRow."""
    for mutation in MUTATIONS:
        text = (ROOT / "src" / "ogive" / mutation.file).read_text("utf-8")
        found = text.count(mutation.old)
        if found != 1:
            raise StaleRow(f"{mutation.name}: what it replaces stands {found} times in {mutation.file}: {mutation.old!r}")
        file, _, test = mutation.test.partition("::")
        if f"def {test.partition('[')[0]}(" not in (ROOT / "tests" / file).read_text("utf-8"):
            raise StaleRow(f"{mutation.name}: there is no {mutation.test}")


def check_ids(mutations: Iterable[Mutation]) -> None:
    """pytest finds each row's test, its parameters included. Raises StaleRow."""
    named = {mutation.test for mutation in mutations}
    files = sorted({f"tests/{test.partition('::')[0]}" for test in named})
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nightly", "--collect-only", *files]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {line.removeprefix("tests/") for line in listed}
    if stale := named - found - {test.partition("[")[0] for test in found}:
        raise StaleRow(f"pytest does not find {', '.join(sorted(stale))}")


def run(mutation: Mutation) -> tuple[bool, str]:
    """(whether the test failed, the end of what it said)."""
    with tempfile.TemporaryDirectory(prefix="ogive-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info"))
        mutate(mutation, source)
        where = subprocess.run(
            [sys.executable, "-c", "import ogive; print(ogive.__file__)"],
            env=environment(source),
            capture_output=True,
            text=True,
            check=True,
        )
        if not where.stdout.startswith(str(source)):
            raise AssertionError(f"the copy is not what is tested: {where.stdout}")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--nightly",
            "--timeout",
            "100",
            f"tests/{mutation.test}",
        ]
        try:
            ended = subprocess.run(
                command, cwd=ROOT, env=environment(source), capture_output=True, text=True, errors="replace", timeout=RUN_S, check=False
            )
        except subprocess.TimeoutExpired:
            return True, "it hung"
        if ended.returncode not in (0, 1):  # 2 to 5: pytest itself could not run the test
            raise AssertionError(f"{mutation.name}: {ended.stdout[-2000:]}{ended.stderr[-2000:]}")
        return ended.returncode == 1, ended.stdout[-2000:]


def environment(source: Path) -> dict[str, str]:
    # the compiled part is a twin of what is changed here; figures of a broken copy are nobody's
    own = {"OGIVE_NATIVE": "0", "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "OGIVE_TEST_WAIT_S": "20"}
    return {name: value for name, value in os.environ.items() if name not in ("OGIVE_FIGURES", "OGIVE_RAN")} | own


def main(cases: list[str]) -> int:
    check_rows()
    survived = 0
    for mutation in MUTATIONS:
        if cases and mutation.case not in cases:
            continue
        began = time.monotonic()
        caught, said = run(mutation)
        survived += not caught
        verdict, seconds = "caught" if caught else "SURVIVED", time.monotonic() - began
        print(f"{mutation.case:>4}  {verdict:8}  {seconds:5.1f} s  {mutation.file}  {mutation.test}", flush=True)
        if not caught:
            print(said)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
