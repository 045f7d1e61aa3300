"""Which stretches of the log have a sum, and what the sums say of bytes that are read back."""

import random

from ogive.store.commitlog import BlockChecksums

STRETCH, SEGMENT = 64, 1000
"""A segment ends within a stretch."""


def noted(log: bytes, start: int, end: int, *, most: int = 100, seed: int = 1) -> BlockChecksums:
    """Bytes *start* to *end* of *log*, all of one segment, in chunks of every length."""
    stretches = BlockChecksums(STRETCH, SEGMENT, most)
    note(stretches, log, start, end, seed)
    return stretches


def note(stretches: BlockChecksums, log: bytes, start: int, end: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    while start < end:
        stop = min(end, start + rng.choice((1, 7, 63, 64, 65, 128, 300)))
        stretches.note(start, log[start:stop])
        start = stop


def test_a_stretch_has_a_sum_once_all_of_it_was_written_in_whatever_pieces() -> None:
    log = random.Random(0).randbytes(960)
    for seed in range(50):
        stretches = noted(log, 0, 959, seed=seed)
        assert stretches.covering(0, 959) == (0, 896)
        assert stretches.covering(70, 129) == (64, 192)
        assert stretches.covering(64, 128) == (64, 128)
        # not all of it is there
        assert stretches.covering(900, 950) == (896, 896)
        note(stretches, log, 959, 960)
        assert stretches.covering(900, 960) == (896, 960)
        assert stretches.covering(960, 970) == (960, 960)
        assert stretches.hold(0, log)


def test_bytes_that_are_not_those_that_were_written_do_not_hold_and_their_sum_is_forgotten() -> (
    None
):
    log = random.Random(0).randbytes(960)
    for at in range(64, 320):
        stretches = noted(log, 0, 960)
        damaged = bytearray(log[64:320])
        damaged[at - 64] ^= 1 << at % 8
        assert not stretches.hold(64, bytes(damaged))
        hit = at - at % STRETCH
        assert stretches.covering(64, 320) == (64, hit)
        assert stretches.covering(hit + STRETCH, 960) == (hit + STRETCH, 960)
        assert stretches.hold(hit + STRETCH, log[hit + STRETCH :])
    stretches = noted(log, 0, 960)
    assert not stretches.hold(0, log[64:128] + log[:64])
    assert stretches.covering(0, 64) == stretches.covering(0, 128) == (0, 0)


def test_what_a_start_found_has_no_sum() -> None:
    log = random.Random(0).randbytes(960)
    stretches = noted(log, 200, 960)
    assert stretches.covering(0, 960) == (0, 0)
    assert stretches.covering(130, 960) == (128, 128)
    assert stretches.covering(200, 960) == (192, 192)
    assert stretches.covering(256, 960) == (256, 960)
    assert stretches.hold(256, log[256:])
    assert noted(log, 192, 960).covering(192, 960) == (192, 960)


def test_a_segment_and_the_room_left_in_it_end_a_stretch() -> None:
    """A blank record says how much room is left: nothing is written there.

    Or the room is as long as that record is.
    """
    for first_end in (990, SEGMENT):
        log = random.Random(0).randbytes(2 * SEGMENT)
        stretches = noted(log, 0, first_end)
        note(stretches, log, SEGMENT, 2 * SEGMENT)
        assert stretches.covering(0, SEGMENT) == (0, 960)
        # 960 to 1024 would be of two files
        assert stretches.covering(960, SEGMENT) == (960, 960)
        assert stretches.covering(1024, 2 * SEGMENT) == (1024, 1984)
        assert stretches.hold(1024, log[1024:1984])


def test_a_hole_in_what_was_written_is_in_no_stretch() -> None:
    log = random.Random(0).randbytes(960)
    stretches = noted(log, 0, 300)
    note(stretches, log, 310, 960)
    assert stretches.covering(0, 960) == (0, 256)
    assert stretches.covering(256, 960) == (256, 256)
    assert stretches.covering(320, 960) == (320, 960)
    assert stretches.hold(320, log[320:])


def test_the_oldest_sums_go_first_and_there_are_never_many() -> None:
    log = random.Random(0).randbytes(100 * STRETCH)
    stretches = BlockChecksums(STRETCH, len(log), 8)
    for end in range(STRETCH, len(log) + 1, STRETCH):
        note(stretches, log, end - STRETCH, end)
        known = [
            at for at in range(0, len(log), STRETCH) if stretches.covering(at, at + STRETCH)[1] > at
        ]
        assert known == list(range(known[0], end, STRETCH))
        assert min(8, end // STRETCH) <= len(known) <= 9
        assert stretches.hold(known[0], log[known[0] : end])


def test_the_sums_of_segments_that_are_removed_go_too() -> None:
    log = random.Random(0).randbytes(20 * STRETCH)
    stretches = BlockChecksums(STRETCH, 10 * STRETCH)
    note(stretches, log, 0, 10 * STRETCH)
    note(stretches, log, 10 * STRETCH, 15 * STRETCH)
    stretches.forget_before(10 * STRETCH)
    stretches.forget_before(0)
    assert stretches.covering(0, STRETCH) == (0, 0)
    assert stretches.covering(9 * STRETCH, 11 * STRETCH) == (9 * STRETCH, 9 * STRETCH)
    assert stretches.covering(10 * STRETCH, 15 * STRETCH) == (10 * STRETCH, 15 * STRETCH)
    assert stretches.hold(10 * STRETCH, log[10 * STRETCH : 15 * STRETCH])
    stretches.forget_before(100 * STRETCH)
    note(stretches, log, 15 * STRETCH, 20 * STRETCH)
    assert stretches.covering(10 * STRETCH, 20 * STRETCH) == (10 * STRETCH, 10 * STRETCH)
    assert stretches.covering(15 * STRETCH, 20 * STRETCH) == (15 * STRETCH, 20 * STRETCH)
    assert stretches.hold(15 * STRETCH, log[15 * STRETCH :])
