"""The fourteen faults that a broker must never have, each planted in a copy of the source: the test that stands for it must go red.

``python -m tests.planted`` runs all of them and prints the table; tests/rel/test_planted.py runs them nightly. How it is done, and why a
row that does not fit the source is an error, stands in tests/never/mutations.py.
"""

import sys
import time
from typing import Final

from tests.never.mutations import ROOT, Mutation, StaleRow, run

POWER, FAULTS, DAMAGE = "rel/test_store_power_loss.py", "rel/test_store_faults.py", "rel/test_store_damage.py"
FIRST_ERROR: Final = f"{FAULTS}::test_after_the_first_io_error_nothing_is_acknowledged[quick-fdatasync-commitlog-1]"
ONE_BIT: Final = f"{DAMAGE}::test_one_flipped_bit_costs_at_most_its_record[False]"
REFUSE: Final = '            self._fail("writing the commit log", exc, groups)\n            return\n'

PLANTED: Final = (
    Mutation(
        "ack before fdatasync", "store/writer.py",
        "        if self._sync_each:\n            self._log.write(chunks)\n            self._log.sync()\n",
        "        if self._sync_each:\n            self._log.write(chunks)\n",
        f"{POWER}::test_power_cut_loses_nothing_that_was_acknowledged[sync]",
    ),
    Mutation("durable mark moves after a failed sync", "store/writer.py", REFUSE, "            pass\n", FIRST_ERROR),
    Mutation("retry of failed sync acknowledges", "store/writer.py", REFUSE, "            self._log.sync()\n", FIRST_ERROR),
    Mutation(
        "no fdatasync before rename", "store/tables.py", "        fs.fdatasync(handle)\n", "        pass\n",
        f"{POWER}::test_table_is_old_or_new_after_a_power_cut",
    ),
    Mutation(
        "no directory fsync", "store/tables.py", "    fs.rename(temporary, path)\n    fs.fsync_dir(path.parent)\n",
        "    fs.rename(temporary, path)\n",
        f"{POWER}::test_table_is_old_or_new_after_a_power_cut",
    ),
    Mutation(
        "dispatch before durable", "store/store.py", "            self._writer.post(group)\n",
        "            self._writer.post(group)\n            for queue, entry, _ in group.entries:\n                queue.append(entry)\n"
        "            group.entries.clear()\n",
        f"{FAULTS}::test_nothing_is_visible_before_it_is_durable",
    ),
    Mutation(
        "recovery stops at the first bad record in a middle segment", "store/logscan.py",
        "            follower = self.next_valid(position)\n            if follower is None:\n                break\n            if torn",
        "            follower = None\n            if follower is None:\n                break\n            if torn",
        ONE_BIT,
    ),
    Mutation(
        "record checksum covers the body only", "store/record.py",
        "        and tail == crc_property(crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)\n",
        "        and crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF == body_crc\n",
        ONE_BIT,
    ),
    Mutation(
        "consume queue not rebuilt", "store/recovery.py", "                lost.append(state)\n", "                pass\n",
        f"{DAMAGE}::test_derived_files_are_made_again_from_the_log",
    ),
    Mutation(
        "responses matched by order", "transport/connection.py", "calls.pop(command.opaque, None)", "calls.pop(next(iter(calls), 0), None)",
        "unit/transport/test_connection.py::test_answers_are_matched_by_opaque_not_by_order",
    ),
    Mutation(
        "queue lock not checked before consume", "client/consumer/orderly.py",
        " and lease_time(time.monotonic()) < process_queue.leased_until", "",
        "never/test_stuck.py::test_case_16_an_orderly_queue_recovers_after_its_lock_was_refused[error]",
    ),
    Mutation(
        "offset committed = highest done", "client/consumer/process_queue.py",
        "return next(iter(self._pending), self.pull_offset)", "return self.pull_offset",
        "unit/client/consumer/test_process_queue.py::test_the_lowest_unfinished_offset_is_what_may_be_committed",
    ),
    Mutation(
        "declared length is believed", "wire/frame.py", "if not 4 <= size <= self._max:", "if not 4 <= size:",
        "property/test_wire.py::test_impossible_length_is_a_fault_behind_the_good_frames[16777213]",
    ),
    Mutation(
        "inflate without cap", "wire/compression.py", "        plain = inflater.decompress(body, limit + 1)\n",
        "        plain = inflater.decompress(body)[:limit]\n",
        "property/test_wire.py::test_a_zlib_bomb_takes_no_more_memory_than_the_limit",
    ),
    Mutation(
        "one request code missing from the permission table", "access/needs.py",
        '    **_rows(topic_at("offset", SUB, GET), C.VIEW_MESSAGE_BY_ID),\n', "",
        "unit/access/test_needs.py::test_every_code_of_the_protocol_has_a_row",
    ),
    Mutation(
        "outgoing buffer without limit", "broker/pull_hold.py",
        "return connection in self._queues or connection.unsent_bytes >= self._max", "return False",
        "unit/broker/handlers/test_pull.py::test_a_client_that_does_not_read_gets_no_further_bodies_until_it_does",
    ),
)  # fmt: skip
"""Fourteen faults of the list, in sixteen rows: two of them are two."""


def check_planted() -> None:
    """Every row fits the source, and its test is there. Raises StaleRow."""
    for row in PLANTED:
        text = (ROOT / "src" / "ogive" / row.file).read_text("utf-8")
        if text.count(row.old) != 1:
            raise StaleRow(f"{row.case}: what it replaces stands {text.count(row.old)} times in {row.file}: {row.old!r}")
        file, _, test = row.test.partition("::")
        if f"def {test.partition('[')[0]}(" not in (ROOT / "tests" / file).read_text("utf-8"):
            raise StaleRow(f"{row.case}: there is no {row.test}")


def main() -> int:
    check_planted()
    survived = 0
    print("| planted fault | verdict | by | s |\n|---|---|---|---|")
    for row in PLANTED:
        began = time.monotonic()
        caught, said = run(row)
        survived += not caught
        print(f"| {row.case} | {'caught' if caught else 'SURVIVED'} | `tests/{row.test}` | {time.monotonic() - began:.0f} |", flush=True)
        if not caught:
            print(said, file=sys.stderr)
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
