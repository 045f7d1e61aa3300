"""The fourteen faults that a broker must never have, each planted in a copy of the source: every test that stands for it must go red.

Those are the reliability tests that the list of faults names (T3, say), in their quick size where they have one, and the small tests that
say more exactly what is wrong. ``python -m tests.planted [FAULT ...]`` runs all of them, or those of faults whose names begin like that,
and prints the table; tests/rel/test_planted.py runs them nightly. How it is done, and why a row that does not fit the source is an error,
stands in tests/never/mutations.py.
"""

import sys
import time
from dataclasses import dataclass
from typing import Final

from tests.never.mutations import ROOT, Mutation, StaleRow, run


@dataclass(frozen=True, slots=True)
class Planted:
    """In *file* (below src/ogive) *old* becomes *new*, and each of *tests* (below tests) must fail."""

    fault: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def mutations(self) -> tuple[Mutation, ...]:
        return tuple(Mutation(self.fault, self.file, self.old, self.new, test) for test in self.tests)


POWER, FAULTS, DAMAGE = "rel/test_store_power_loss.py", "rel/test_store_faults.py", "rel/test_store_damage.py"
ACKNOWLEDGED: Final = f"{POWER}::test_power_cut_loses_nothing_that_was_acknowledged[sync]"  # T3
CUTS: Final = "rel/test_power_cut.py::test_power_cuts_lose_nothing_acknowledged"  # T4
FLIPS: Final = "rel/test_bit_flips.py::test_damage_anywhere_costs_at_most_the_records_that_were_hit[quick]"  # T6
TABLES: Final = f"{POWER}::test_table_is_old_or_new_after_a_power_cut"  # T8
KILLED: Final = "rel/test_consumer_kill.py::test_killed_consumers_lose_no_message[8-1500]"  # T15
PAUSES: Final = "rel/test_orderly_holders.py::test_pauses_of_every_part_bring_no_two_calls_of_a_queue_together[5]"  # T16
NETWORK: Final = "rel/test_network_faults.py::test_faults_of_the_network_mix_up_lose_and_invent_nothing[60]"  # T17
STORM: Final = "rel/test_rebalance_storm.py::test_a_storm_of_joins_and_leaves_loses_nothing_and_keeps_the_order[8]"  # T19
READERS: Final = "rel/test_crowds.py::test_readers_that_do_not_read_are_closed_and_memory_stays_bounded[quick-40-none]"  # T29
BOMBS: Final = "rel/test_hostile_input.py::test_no_length_and_no_bomb_costs_more_than_itself"  # T36
FIRST_ERROR: Final = f"{FAULTS}::test_after_the_first_io_error_nothing_is_acknowledged[quick-fdatasync-commitlog-1]"
ONE_BIT: Final = f"{DAMAGE}::test_one_flipped_bit_costs_at_most_its_record[False]"
REFUSE: Final = '            self._fail("writing the commit log", exc, groups)\n            return\n'

PLANTED: Final = (
    Planted(
        "ack before fdatasync", "store/writer.py",
        "        if self._sync_each:\n            self._log.write(chunks)\n            self._log.sync()\n",
        "        if self._sync_each:\n            self._log.write(chunks)\n",
        (ACKNOWLEDGED, CUTS),
    ),
    Planted("durable mark moves after a failed sync", "store/writer.py", REFUSE, "            pass\n", (FIRST_ERROR,)),
    Planted("retry of failed sync acknowledges", "store/writer.py", REFUSE, "            self._log.sync()\n", (FIRST_ERROR,)),
    Planted(
        "no fdatasync before rename", "store/tables.py", "        fs.fdatasync(handle)\n", "        pass\n",
        (ACKNOWLEDGED, TABLES),
    ),
    Planted(
        "no directory fsync", "store/tables.py", "    fs.rename(temporary, path)\n    fs.fsync_dir(path.parent)\n",
        "    fs.rename(temporary, path)\n",
        (ACKNOWLEDGED, TABLES),
    ),
    Planted(
        "dispatch before durable", "store/store.py", "            self._post(group)\n",
        "            self._post(group)\n            for queue, entry, _ in group.entries:\n                queue.append(entry)\n"
        "            group.entries.clear()\n",
        (f"{FAULTS}::test_nothing_is_visible_before_it_is_durable",),
    ),
    Planted(
        "recovery stops at the first bad record in a middle segment", "store/logscan.py",
        "            follower = self.next_valid(position)\n            if follower is None:\n                for",
        "            follower = None\n            if follower is None:\n                for",
        (FLIPS, ONE_BIT),
    ),
    Planted(
        "record checksum covers the body only", "store/record.py",
        "        and tail == crc_property(crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)\n",
        "        and crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF == body_crc\n",
        (FLIPS, ONE_BIT),
    ),
    Planted(
        "consume queue not rebuilt", "store/recovery.py", "                lost.append(state)\n", "                pass\n",
        (f"{DAMAGE}::test_derived_files_are_made_again_from_the_log[30-stopped]",),
    ),
    Planted(
        "responses matched by order", "transport/connection.py", "calls.pop(command.opaque, None)", "calls.pop(next(iter(calls), 0), None)",
        (NETWORK, "unit/transport/test_connection.py::test_answers_are_matched_by_opaque_not_by_order"),
    ),
    Planted(
        "queue lock not checked before consume", "client/consumer/orderly.py",
        " and lease_time(time.monotonic()) < process_queue.leased_until", "",
        (PAUSES, STORM, "never/test_stuck.py::test_case_16_an_orderly_queue_recovers_after_its_lock_was_refused[error]"),
    ),
    Planted(
        "queue lock not renewed", "client/consumer/member.py",
        'self._jobs.append(group.every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks"))', "pass",
        (PAUSES, STORM),
    ),
    Planted(
        "offset committed = highest done", "client/consumer/process_queue.py",
        "return next(iter(self._pending), self.pull_offset)", "return self.pull_offset",
        (KILLED, "unit/client/consumer/test_process_queue.py::test_the_lowest_unfinished_offset_is_what_may_be_committed"),
    ),
    Planted(
        "declared length is believed", "wire/frame.py", "if not 4 <= size <= self._max:", "if not 4 <= size:",
        (
            f"{BOMBS}[broker-1]", "never/test_hostile_servers.py::test_a_client_survives[a send's answer declares 2 GiB]",
            "property/test_wire.py::test_impossible_length_is_a_fault_behind_the_good_frames[16777213]",
        ),
    ),
    Planted(
        "inflate without cap, at the client", "wire/compression.py", "        plain = inflater.decompress(body, limit + 1)\n",
        "        plain = inflater.decompress(body)[:limit]\n",
        (
            "never/test_hostile_servers.py::test_a_client_survives[a broker delivers a bomb of zeros]",
            "property/test_wire.py::test_a_zlib_bomb_takes_no_more_memory_than_the_limit",
        ),
    ),
    Planted(
        "inflate without cap, at the name server", "wire/bodies/routes.py", "inflater.decompress(body, limit)", "inflater.decompress(body)",
        (f"{BOMBS}[name server-1]",),
    ),
    Planted(
        "one request code missing from the permission table", "access/needs.py",
        '    **_rows(topic_at("offset", SUB, GET), C.VIEW_MESSAGE_BY_ID),\n', "",
        (
            "unit/access/test_needs.py::test_every_code_of_the_protocol_has_a_row",
            "unit/access/test_matrix.py::test_a_user_with_rules_for_the_topic_and_the_group_sends_and_consumes",
        ),
    ),
    Planted(
        "outgoing buffer without limit", "broker/pull_hold.py",
        "return connection in self._queues or connection.unsent_bytes >= most or self._unread.is_full", "return False",
        (READERS, "unit/broker/handlers/test_pull.py::test_a_client_that_does_not_read_gets_no_further_bodies_until_it_does"),
    ),
)  # fmt: skip
"""Fourteen faults of the list, in eighteen rows: four of them are two."""


def check_planted() -> None:
    """Every row fits the source, and its tests are there. Raises StaleRow."""
    for row in PLANTED:
        text = (ROOT / "src" / "ogive" / row.file).read_text("utf-8")
        if text.count(row.old) != 1:
            raise StaleRow(f"{row.fault}: what it replaces stands {text.count(row.old)} times in {row.file}: {row.old!r}")
        for test in row.tests:
            file, _, name = test.partition("::")
            if f"def {name.partition('[')[0]}(" not in (ROOT / "tests" / file).read_text("utf-8"):
                raise StaleRow(f"{row.fault}: there is no {test}")


def main(faults: list[str]) -> int:
    check_planted()
    survived = 0
    print("| planted fault | verdict | by | s |\n|---|---|---|---|")
    for row in PLANTED:
        if faults and not row.fault.startswith(tuple(faults)):
            continue
        for mutation in row.mutations:
            began = time.monotonic()
            caught, said = run(mutation)
            survived += not caught
            verdict = "caught" if caught else "SURVIVED"
            print(f"| {row.fault} | {verdict} | `tests/{mutation.test}` | {time.monotonic() - began:.0f} |", flush=True)
            if not caught:
                print(said, file=sys.stderr)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
