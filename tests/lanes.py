"""Lanes and parts of make test-slow: three tests at a time on two cores, and the time of each.

One worker *computes*: long sizes that keep a core busy and that no clock judges. One takes what starts Spark and what measures, or holds
leases against pauses, so that no two of those run beside each other. The third takes the rest, most of which waits: for deadlines, for
members that come and go, for processes that start. Long ones first, so that the workers end together; whose own kind is used up helps
with the rest.
"""

from collections.abc import Mapping
from typing import Final

PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    "spark": ("integration/test_spark", "integration/test_pipelines.py", "rel/test_spark", "rel/test_pipeline"),
    "interop": ("interop/",),
    "long": ("",),
}
"""The parts of make test-slow, by the beginnings of their tests' ids below tests/.

The first part that fits counts. A part takes at most 55 minutes on two quiet cores. A part that outgrows this is split.
"""

COMPUTES, APART, OTHERS = "computes", "apart", "others"

# The beginning of a test's id, below tests/, and about how many seconds it takes on two quiet cores. The longest that fits counts.
TAKES: Final[Mapping[str, Mapping[str, int]]] = {
    COMPUTES: {
        "rel/test_simulation.py": 250,
        "rel/test_hostile_dispatch.py": 60,
        "rel/test_hostile_input.py::test_a_decoder_raises": 60,
        "rel/test_store_power_loss.py::test_ten_thousand_power_cuts": 45,
        "rel/test_store_power_loss.py": 20,
        "rel/test_store_scale.py::test_everything": 50,
        "rel/test_store_scale.py": 15,
        "rel/test_bit_flips.py": 30,
        "rel/test_store_damage.py": 15,
        "rel/test_fuzz.py": 51,
        "rel/test_store_faults.py": 3,
    },
    APART: {
        "rel/test_soak.py": 360,
        "rel/test_orderly_holders.py": 141,
        "rel/test_rebalance_storm.py": 97,
        "rel/test_spark_kills.py": 90,
        "rel/test_spark_listener_kills.py": 45,
        "rel/test_pipeline_kills.py": 40,
        "rel/test_catch_up.py": 60,
        "rel/test_overload.py": 22,
        "rel/test_network_faults.py": 24,
        "rel/test_crowds.py::test_readers": 75,
        "rel/test_crowds.py": 10,
        "integration/test_spark": 20,
        "integration/test_pipelines.py": 15,
        "never/test_resources.py": 10,
    },
    OTHERS: {
        "interop/test_mixed_churn.py": 640,
        "rel/test_broker_kill.py": 130,
        "rel/test_consumer_kill.py": 74,
        "rel/test_timer_kill.py": 54,
        "rel/test_broker_scale.py": 50,
        "rel/test_name_server_faults.py": 25,
        "rel/test_transaction_kill.py": 43,
        "rel/test_poison.py": 43,
        "rel/test_death_at_calls.py": 40,
        "rel/test_spark_sink_kills.py": 35,
        "rel/test_retention_kill.py": 34,
        "rel/test_power_cut.py::test_with_asynchronous": 40,
        "interop/test_store_exchange": 30,
        "interop/test_t": 30,
        "rel/test_hostile_names.py": 20,
        "rel/test_hostile_input.py::test_hostile_frames": 16,
        "rel/test_mutants.py": 25,
        "never/test_hostile_servers.py": 1,
        "": 5,
    },
}
_BEGINNINGS: Final = sorted(((begins, lane) for lane, rows in TAKES.items() for begins in rows), key=lambda row: -len(row[0]))


def part_of(test: str) -> str:
    return next(part for part, begins in PARTS.items() if test.removeprefix("tests/").startswith(begins))


def lane_of(test: str) -> str:
    return _found(test)[1]


def seconds_of(test: str) -> int:
    begins, lane = _found(test)
    return TAKES[lane][begins]


def _found(test: str) -> tuple[str, str]:
    return next(row for row in _BEGINNINGS if test.removeprefix("tests/").startswith(row[0]))
