"""Faults that a broker and a client must never have, and the tests that must fail with each.

*old* occurs exactly once in src/ogive, in whatever file: a row outlives the move of a function and
the renaming of a module, and a name that is changed in source and tests by one command is changed
here too. A change of a guarded line changes its row.
"case N" is a case of tests/never, "TN" a test of docs/reliability.md.
"""

from dataclasses import dataclass
from typing import Final


class StaleRow(AssertionError):
    """The text of a row is not exactly once in the source, or its test does not exist."""


@dataclass(frozen=True, slots=True)
class Named:
    """In the source *old* becomes *new*, and each of *tests* (below tests) must fail."""

    fault: str
    old: str
    new: str
    tests: tuple[str, ...]


NAMED: Final = (
    Named(
        "a queue is taken over while another member has it",
        "            queues = await self._claims.free(topic, queues, others)\n",
        "            pass\n",
        (
            "unit/client/consumer/test_hand_over.py::test_a_queue_that_another_member_still_has_is_left_alone_until_it_has_given_it_up",
            "rel/test_simulation.py::test_members_come_and_go_and_only_their_deaths_cost_a_second_delivery[0]",
        ),
    ),
    Named(
        "a queue is given up before its commit",
        "        return not self._group.store.is_saved(process_queue.queue)\n",
        "        return False\n",
        ("unit/client/consumer/test_hand_over.py::test_a_queue_is_held_until_a_broker_has_taken_its_progress",),
    ),
    Named(
        "ack before fdatasync",
        "        if self._sync_each:\n            self._log.write(chunks)\n            self._log.sync()\n",
        "        if self._sync_each:\n            self._log.write(chunks)\n",
        (
            "rel/test_store_power_loss.py::test_power_cut_loses_nothing_that_was_acknowledged[sync]",
            "rel/test_power_cut.py::test_power_cuts_lose_nothing_acknowledged",
        ),
    ),
    Named(
        "durable mark moves after a failed sync",
        '            self._fail("writing the commit log", exc, groups)\n            return\n',
        "            pass\n",
        ("rel/test_store_faults.py::test_after_the_first_io_error_nothing_is_acknowledged[quick-fdatasync-commitlog-1]",),
    ),
    Named(
        "retry of failed sync acknowledges",
        '            self._fail("writing the commit log", exc, groups)\n            return\n',
        "            self._log.sync()\n",
        ("rel/test_store_faults.py::test_after_the_first_io_error_nothing_is_acknowledged[quick-fdatasync-commitlog-1]",),
    ),
    Named(
        "no fdatasync before rename",
        "        fs.pwrite(handle, data, 0)\n        fs.fdatasync(handle)\n",
        "        fs.pwrite(handle, data, 0)\n        pass\n",
        (
            "rel/test_store_power_loss.py::test_power_cut_loses_nothing_that_was_acknowledged[sync]",
            "rel/test_store_power_loss.py::test_table_is_old_or_new_after_a_power_cut",
        ),
    ),
    Named(
        "no directory fsync",
        "    fs.rename(temporary, path)\n    fs.fsync_dir(path.parent)\n",
        "    fs.rename(temporary, path)\n",
        (
            "rel/test_store_power_loss.py::test_power_cut_loses_nothing_that_was_acknowledged[sync]",
            "rel/test_store_power_loss.py::test_table_is_old_or_new_after_a_power_cut",
        ),
    ),
    Named(
        "dispatch before durable",
        "            self._post(group)\n",
        (
            "            self._post(group)\n"
            "            for queue, entry, _ in group.entries:\n"
            "                queue.append(entry)\n"
            "            group.entries.clear()\n"
        ),
        ("rel/test_store_faults.py::test_nothing_is_visible_before_it_is_durable",),
    ),
    Named(
        "recovery stops at the first bad record in a middle segment",
        "            follower = self.next_valid(position)\n            if follower is None:\n                for",
        "            follower = None\n            if follower is None:\n                for",
        (
            "rel/test_bit_flips.py::test_damage_anywhere_costs_at_most_the_records_that_were_hit[quick]",
            "rel/test_store_damage.py::test_one_flipped_bit_costs_at_most_its_record[False]",
        ),
    ),
    Named(
        "record checksum covers the body only",
        "        and tail == crc_property(crc32(view[at : end - CRC_BYTES]) & 0x7FFFFFFF)\n",
        "        and crc32(view[body_at : body_at + body_size]) & 0x7FFFFFFF == body_crc\n",
        (
            "rel/test_bit_flips.py::test_damage_anywhere_costs_at_most_the_records_that_were_hit[quick]",
            "rel/test_store_damage.py::test_one_flipped_bit_costs_at_most_its_record[False]",
        ),
    ),
    Named(
        "consume queue not rebuilt",
        "                lost.append(state)\n",
        "                pass\n",
        ("rel/test_store_damage.py::test_derived_files_are_made_again_from_the_log[30-stopped]",),
    ),
    Named(
        "responses matched by order, T17",
        "calls.pop(command.opaque, None)",
        "calls.pop(next(iter(calls), 0), None)",
        (
            "rel/test_network_faults.py::test_faults_of_the_network_mix_up_lose_and_invent_nothing[60]",
            "unit/transport/test_connection.py::test_answers_are_matched_by_opaque_not_by_order",
        ),
    ),
    Named(
        "queue lock not checked before consume, case 16",
        " and lease_time(time.monotonic()) < process_queue.leased_until",
        "",
        (
            "rel/test_orderly_holders.py::test_pauses_of_every_part_bring_no_two_calls_of_a_queue_together[5]",
            "rel/test_rebalance_storm.py::test_a_storm_of_joins_and_leaves_loses_nothing_and_keeps_the_order[8]",
            "never/test_stuck.py::test_case_16_an_orderly_queue_recovers_after_its_lock_was_refused[error]",
        ),
    ),
    Named(
        "queue lock not renewed",
        'self._jobs.append(group.every(config.lock_renew_s, self._rebalancer.renew_locks, "renew locks"))',
        "pass",
        (
            "rel/test_orderly_holders.py::test_pauses_of_every_part_bring_no_two_calls_of_a_queue_together[5]",
            "rel/test_rebalance_storm.py::test_a_storm_of_joins_and_leaves_loses_nothing_and_keeps_the_order[8]",
        ),
    ),
    Named(
        "offset committed = highest done, case 2",
        "return next(iter(self._pending), self.pull_offset)",
        "return self.pull_offset",
        (
            "rel/test_consumer_kill.py::test_killed_consumers_lose_no_message[8-1500]",
            "unit/client/consumer/test_process_queue.py::test_the_lowest_unfinished_offset_is_what_may_be_committed",
            "never/test_loss.py::test_case_2_no_message_is_lost_when_a_pull_consumers_queue_goes_away_and_comes_back_quickly",
        ),
    ),
    Named(
        "declared length is believed",
        "if not 4 <= size <= self._max:",
        "if not 4 <= size:",
        (
            "rel/test_hostile_input.py::test_no_length_and_no_bomb_costs_more_than_itself[broker-1]",
            "never/test_hostile_servers.py::test_a_client_survives[a send's answer declares 2 GiB]",
            "property/test_wire.py::test_impossible_length_is_a_fault_behind_the_good_frames[16777213]",
        ),
    ),
    Named(
        "inflate without cap, at the client",
        "        plain = inflater.decompress(body, limit + 1)\n",
        "        plain = inflater.decompress(body)[:limit]\n",
        (
            "never/test_hostile_servers.py::test_a_client_survives[a broker delivers a bomb of zeros]",
            "property/test_wire.py::test_a_zlib_bomb_takes_no_more_memory_than_the_limit",
        ),
    ),
    Named(
        "inflate without cap, at the name server",
        "inflater.decompress(body, limit)",
        "inflater.decompress(body)",
        ("rel/test_hostile_input.py::test_no_length_and_no_bomb_costs_more_than_itself[name server-1]",),
    ),
    Named(
        "one request code missing from the permission table",
        '    **_rows(topic_at("offset", SUB, GET), C.VIEW_MESSAGE_BY_ID),\n',
        "",
        (
            "unit/access/test_needs.py::test_every_code_of_the_protocol_has_a_row",
            "unit/access/test_matrix.py::test_a_user_with_rules_for_the_topic_and_the_group_sends_and_consumes",
        ),
    ),
    Named(
        "outgoing buffer without limit",
        "return connection in self._queues or connection.unsent_bytes >= most or self._unread.is_full",
        "return False",
        (
            "rel/test_crowds.py::test_readers_that_do_not_read_are_closed_and_memory_stays_bounded[quick-40-none]",
            "unit/broker/handlers/test_pull.py::test_a_client_that_does_not_read_gets_no_further_bodies_until_it_does",
        ),
    ),
    Named(
        "case 1",
        'where %s stands in it cannot be learned: %s", queue, self._group.name, exc)\n            return None',
        'where %s stands in it cannot be learned: %s", queue, self._group.name, exc)\n            return 0',
        ("never/test_loss.py::test_case_1_a_failed_offset_query_never_becomes_no_offset[error-concurrent-start]",),
    ),
    Named(
        "case 1",
        "except QueryNotFound:\n        return None",
        "except BrokerError:\n        return None",
        ("never/test_loss.py::test_case_1_a_failed_offset_query_never_becomes_no_offset[error-orderly-rebalance]",),
    ),
    Named(
        "case 3",
        "self._offsets.pop(queue, None)",
        "self._offsets.clear()",
        ("never/test_loss.py::test_case_3_giving_one_queue_away_touches_no_other_queues_offset[never]",),
    ),
    Named(
        "case 4",
        "await self._repair(process_queue, result.next_offset)",
        "process_queue.pull_offset = result.next_offset",
        ("never/test_loss.py::test_case_4_an_illegal_offset_is_repaired_once_and_holds_up_no_other_queue[12]",),
    ),
    Named(
        "case 5",
        "                self._strand(process_queue, message)\n                return\n",
        "                self._returned(process_queue, message)\n                return\n",
        ("never/test_loss.py::test_case_5_a_failed_send_back_does_not_advance_the_offset",),
    ),
    Named(
        "case 6",
        "for message in messages[failure.done :]:",
        "for message in messages:",
        ("never/test_loss.py::test_case_6_a_failing_batch_sends_back_exactly_the_failed_messages_once",),
    ),
    Named(
        "case 7",
        '    return Failure(why=f"its listener returned {shown(answer)}, which is no result"), False\n',
        "    return None, True\n",
        ("never/test_failures.py::test_case_7_what_is_no_clear_success_comes_again[True-plain]",),
    ),
    Named(
        "case 7",
        "    return Failure(why=shown(error))\n",
        "    return None  # type: ignore[return-value]\n",
        ("never/test_failures.py::test_case_7_what_is_no_clear_success_comes_again[raise-async]",),
    ),
    Named(
        "case 8",
        "max_reconsume_times=max_retries,\n                timeout_s=api.SEND_BACK_TIMEOUT_S",
        "max_reconsume_times=max_retries + 1,\n                timeout_s=api.SEND_BACK_TIMEOUT_S",
        ("never/test_failures.py::test_case_8_retries_go_on_to_the_limit_and_end_in_the_dead_letters_at_once",),
    ),
    Named(
        "case 9",
        "start = index * share + min(index, extra)",
        "start = index * share",
        ("never/test_failures.py::test_case_9_members_that_see_the_same_share_every_queue_without_overlap[average]",),
    ),
    Named(
        "case 9",
        "bisect.bisect_left(points, _ring_point(_queue_text(queue)))",
        "bisect.bisect_left(points, _ring_point(queue.broker_name))",
        ("never/test_failures.py::test_case_9_the_vectors_of_javas_strategies",),
    ),
    Named(
        "case 10",
        "secrets.randbits(64)",
        "0",
        ("never/test_failures.py::test_case_10_two_containers_with_one_address_and_pid_1_have_different_ids",),
    ),
    Named(
        "case 11",
        "            self._report_unwanted(subscription)\n",
        "            pass\n",
        ("never/test_failures.py::test_case_11_members_that_subscribe_differently_are_told",),
    ),
    Named(
        "case 12",
        "            await self._rebalancer.give_up_all()\n",
        "",
        ("never/test_repetition.py::test_case_12_a_clean_shutdown_leaves_no_repetition[async]",),
    ),
    Named(
        "case 13",
        "        task = self._tasks.get(process_queue)\n",
        "        return\n",
        ("never/test_repetition.py::test_case_13_a_queue_that_goes_and_comes_back_has_one_loop",),
    ),
    Named(
        "case 14",
        "if self._closed or key in self._under_way or message.queue_offset not in process_queue:",
        "if self._closed or key in self._under_way:",
        ("never/test_repetition.py::test_case_14_a_call_over_the_consume_timeout_is_sent_back_once_and_its_late_result_is_ignored[plain]",),
    ),
    Named(
        "case 15",
        "            await self._unlock(quiet)\n",
        "            pass\n",
        ("never/test_stuck.py::test_case_15_locks_are_given_back_after_the_last_progress",),
    ),
    Named(
        "case 16",
        "                self._renewed(held[queue])\n",
        "",
        ("unit/client/consumer/test_orderly.py::test_a_renewal_that_comes_back_after_the_lease_starts_the_queue_again",),
    ),
    Named(
        "case 16",
        "        expires_at = self._now() + self._lease_s\n",
        "        expires_at = self._now()\n",
        ("unit/broker/test_server.py::test_a_restart_gives_a_locked_queue_to_nobody_else",),
    ),
    Named(
        "case 17",
        "                await self._after_failure(process_queue, exc)\n",
        "                return\n",
        ("never/test_stuck.py::test_case_17_whatever_a_pull_comes_to_the_queue_is_pulled_again[hang up-concurrent]",),
    ),
    Named(
        "case 18",
        'self.abort(f"{self.remote_address} sent nothing while requests waited for their whole timeout")',
        "pass",
        ("never/test_stuck.py::test_case_18_a_link_that_swallows_everything_is_replaced",),
    ),
    Named(
        "case 18",
        'self._refresh_routes, name="routes"',
        'self._beat_all, name="routes"',
        ("never/test_stuck.py::test_case_18_a_broker_at_a_new_address_new_queues_and_a_new_broker_need_no_restart",),
    ),
    Named(
        "case 19",
        "            for address in self.heartbeat_addresses():\n                self._beat_soon(address)",
        "            for address in self.heartbeat_addresses():\n                await self._beat(address)",
        ("never/test_stuck.py::test_case_19_a_dead_address_holds_up_nobody_else",),
    ),
    Named(
        "case 20",
        "            or process_queue.count > config.max_cached_messages\n",
        "",
        ("never/test_stuck.py::test_case_20_a_listener_that_hangs_stops_neither_other_topics_nor_heartbeats[plain]",),
    ),
    Named(
        "case 21",
        "        if self._client is not None and self._shared is None:\n            await self._client.close()",
        "        pass",
        ("never/test_resources.py::test_case_21_starts_and_stops_leave_nothing_behind[15]",),
    ),
    Named(
        "case 22",
        "        if self._client is not None and self._shared is None:",
        "        if self._client is not None:",
        ("never/test_resources.py::test_case_22_closing_one_of_two_on_a_client_leaves_the_other_working[consumer]",),
    ),
    Named(
        "case 23",
        "await asyncio.gather(*(self._unregister_at(address, producer_group, consumer_group) for address in addresses))",
        "[await self._unregister_at(address, producer_group, consumer_group) for address in addresses]",
        ("never/test_resources.py::test_case_23_dead_brokers_do_not_add_up_at_shutdown",),
    ),
    Named(
        "case 23",
        "thread = threading.Thread(target=self._run, args=(inbox,), name=IDLE_NAME, daemon=True)",
        "thread = threading.Thread(target=self._run, args=(inbox,), name=IDLE_NAME, daemon=False)",
        ("never/test_resources.py::test_case_23_a_process_ends_by_itself[a listener that hangs]",),
    ),
    Named(
        "case 24",
        "except (OSError, ProtocolError) as exc:",
        "except OSError as exc:",
        ("never/test_resources.py::test_case_24_a_damaged_offset_file_costs_the_place_and_not_the_start[half]",),
    ),
    Named(
        "case 25",
        "return self.config.send_timeout_s if timeout_s is None",
        "return self._owner.client.config.request_timeout_s if timeout_s is None",
        ("never/test_resources.py::test_case_25_a_send_ends_within_its_own_time_and_not_within_somebody_elses[asyncio-name server]",),
    ),
    Named(
        "case 25",
        "else outgoing.tries <= retries",
        "else outgoing.tries < retries",
        ("never/test_resources.py::test_case_25_as_many_tries_as_were_set[4]",),
    ),
    Named(
        "case 25",
        "checks = self._checks.get(group)",
        "checks = next(iter(self._checks.values()), None)",
        ("never/test_resources.py::test_case_25_a_check_reaches_the_producer_of_its_group_among_several_on_a_client",),
    ),
    Named(
        "hostile server",
        "if check_crc and body_crc(record.body) != record.body_crc:",
        "if False:",
        ("never/test_hostile_servers.py::test_a_client_survives[a broker delivers a message whose checksum is wrong]",),
    ),
    Named(
        "case 15",
        "lease.expires_at = client_id, now + self._lease_s",
        "lease.expires_at = client_id, now + 1e6",
        ("rel/test_orderly_holders.py::test_case_15_the_queues_of_a_killed_holder_go_to_the_other_when_its_lease_is_over",),
    ),
    Named(
        "T17",
        'in flight: it may or may not have been carried out."""\n\n    outcome_unknown = True',
        'in flight: it may or may not have been carried out."""\n\n    outcome_unknown = False',
        ("rel/test_network_faults.py::test_faults_of_the_network_mix_up_lose_and_invent_nothing[60]",),
    ),
    Named(
        "T18",
        "self._preferred + doubted",
        "self._preferred",
        ("rel/test_name_server_faults.py::test_an_old_route_at_one_name_server_is_left_for_the_others",),
    ),
    Named(
        "T18",
        "                    self.trouble = str(exc)\n                    continue\n",
        "                    self.trouble = str(exc)\n                    raise\n",
        ("rel/test_name_server_faults.py::test_one_bad_name_server_of_two_fails_no_call[lies-the first]",),
    ),
    Named(
        "damaged message",
        "        readings.only(len(broken.intact))\n",
        "",
        ("never/test_damaged.py::test_a_queue_waits_in_front_of_what_is_no_message[concurrent]",),
    ),
    Named(
        "damaged message",
        "        if self._count < READINGS:",
        "        if True:",
        ("never/test_damaged.py::test_a_queue_goes_on_behind_a_message_that_is_stored_damaged[concurrent-3]",),
    ),
    Named(
        "damaged message",
        "*record, damaged.read_crc)",
        "*record)",
        ("never/test_damaged.py::test_damage_on_the_way_passes_nothing_over",),
    ),
    Named(
        "damaged message",
        "exc.next_offset = raw.next_offset",
        "exc.next_offset = exc.queue_offset + 1",
        ("never/test_damaged.py::test_a_damaged_place_is_not_believed[within the answer]",),
    ),
    Named(
        "damaged message",
        "            exc.broker_id = answering_id\n",
        "            exc.broker_id = MASTER_ID\n",
        ("never/test_damaged.py::test_a_slave_s_damage_passes_nothing_over",),
    ),
    Named(
        "hostile server",
        "        if count > MAX_BROKERS:",
        "        if False:",
        ("unit/client/test_route_table.py::test_a_route_with_20_000_brokers_is_refused_and_the_known_one_stays",),
    ),
    Named(
        "hostile server",
        "    if answer.next_begin_offset < 0:",
        "    if False:",
        ("never/test_hostile_servers.py::test_a_client_survives[a broker sends the group to a negative place]",),
    ),
)
