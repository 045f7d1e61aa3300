"""The blocking facade: same words, one loop per process, and what happens around threads, forks,
interrupts and the end of the program.
"""

import asyncio
import concurrent.futures
import contextlib
import gc
import inspect
import logging
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any
from unittest import mock

import pytest

import ogive
from ogive import aio
from ogive.client import portal as portals
from ogive.client.config import ProducerConfig
from ogive.client.sending.accumulator import Accumulator
from ogive.client.sending.pending import PendingSend
from ogive.errors import IllegalStateError, InvalidOption, MessageIllegal, NoNameServer, OgiveError
from ogive.model import MessageQueue
from ogive.testing.fake_broker import SILENT, WAIT_S, FakeBroker
from ogive.wire.codes import RequestCode
from tests.unit.client.interrupting import Sweep, interrupting
from tests.unit.client.serving import on_a_thread

SEND = RequestCode.SEND_MESSAGE_V2
PAIRS = [
    (ogive.Producer, aio.Producer),
    (ogive.Admin, aio.Admin),
    (ogive.PushConsumer, aio.PushConsumer),
    (ogive.PullConsumer, aio.PullConsumer),
    (ogive.SimpleConsumer, aio.SimpleConsumer),
]
# reaches into the loop
ONLY_ASYNC = {"client", "publisher", "budget_s", "close_for", "unsubscribe_for", "take_back"}
ONLY_BLOCKING = {"close_at_exit"}
# an iterator, a context manager: each of its own world
OTHER_RESULT = {"transaction", "batches"}


def test_testing_is_there_after_import_ogive_alone() -> None:
    """Who tests without a broker imports nothing else of ogive."""
    result = run_python("import ogive; print(ogive.testing.message('Orders', b'4711').text)")
    assert (result.returncode, result.stdout, result.stderr) == (0, "4711\n", "")


def test_the_client_works_without_what_windows_lacks(broker: FakeBroker) -> None:
    """Windows has no fcntl, resource, pwd and SIGHUP, and its loops handle no signals."""
    result = run_python(
        """
        import asyncio, signal, sys, threading
        for module in "fcntl", "grp", "pwd", "resource", "termios":
            sys.modules[module] = None
        for name in "SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2":
            delattr(signal, name)
        def refuse(*_):
            raise NotImplementedError
        asyncio.SelectorEventLoop.add_signal_handler = refuse
        import ogive, ogive.aio
        came = threading.Event()
        @ogive.listener("Orders", group="billing", start="earliest")
        def bill(message):
            came.set()
        server = sys.argv[1]
        with ogive.Producer(server) as producer, ogive.PushConsumer(bill, name_server=server):
            producer.send("Orders", b"")
            print(came.wait(60))
        pulling = {"group": "pulling", "start": "earliest", "name_server": server}
        with ogive.PullConsumer("Orders", **pulling) as consumer:
            print(len(consumer.poll(20)))
        with ogive.Admin(sys.argv[1]) as admin:
            print(*admin.cluster_info().brokers)

        @ogive.listener("Orders", group="running", start="earliest")
        async def last(message):
            signal.raise_signal(signal.SIGINT)
        try:
            ogive.run(last, name_server=sys.argv[1])
        except KeyboardInterrupt:
            print("run ended")
        @ogive.listener("Orders", group="serving", start="earliest")
        async def last(message):
            signal.raise_signal(signal.SIGINT)
        try:
            asyncio.run(ogive.aio.run(last, name_server=sys.argv[1]))
        except KeyboardInterrupt:
            print("aio.run ended")
        """,
        broker.address,
    )
    assert (result.stdout, result.stderr) == ("True\n1\nbroker-a\nrun ended\naio.run ended\n", "")


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
async def test_the_wrong_kind_of_with_says_where_the_right_one_is(
    blocking: Any, awaited: Any
) -> None:
    """Both classes of a pair have one name."""
    arguments = (
        [ogive.listener("Orders", group="billing")(print)] if blocking is ogive.PushConsumer else []
    )
    settings = {"group": "billing"} if blocking is ogive.SimpleConsumer else {}
    blocks: Any = blocking(*arguments, **settings)
    with pytest.raises(
        TypeError,
        match=f"this {blocking.__name__} blocks and takes `with`; the one for `async with` is in "
        "ogive.aio",
    ):
        async with blocks:
            pass
    text = (
        f"this {awaited.__name__} is for asyncio and takes `async with`; the one that blocks is "
        "in ogive, not ogive.aio"
    )
    with pytest.raises(TypeError, match=text), awaited(*arguments, **settings):
        pass


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as fake:
        yield fake


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter: what is under test is the process itself.

    From 3.12 on it warns where threads run and somebody forks.
    """
    command = [
        sys.executable,
        "-W",
        "ignore:This process:DeprecationWarning",
        "-c",
        textwrap.dedent(code),
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


# --- the same words -------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocking", "awaited"), PAIRS)
def test_signatures_and_docstrings_are_those_of_the_asyncio_class(
    blocking: type, awaited: type
) -> None:
    def public(cls: type) -> dict[str, Callable[..., object]]:
        return {
            name: getattr(cls, name)
            for name in dir(cls)
            if not name.startswith("_") and name not in ONLY_ASYNC | ONLY_BLOCKING
        }

    ours, theirs = public(blocking), public(awaited)
    assert ours.keys() == theirs.keys()
    assert inspect.signature(blocking) == inspect.signature(awaited)
    for name, method in theirs.items():
        if callable(method):
            one, other = inspect.signature(ours[name]), inspect.signature(method)
            assert list(one.parameters.values()) == list(other.parameters.values()), name
            assert one.return_annotation == other.return_annotation or name in OTHER_RESULT, name
        own, said = inspect.getdoc(ours[name]), inspect.getdoc(method)
        assert own is not None
        assert said is not None
        assert own.startswith(said), name


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(ogive, name) is not None for name in ogive.__all__)
    assert set(ogive.__all__) <= set(dir(ogive))
    with pytest.raises(AttributeError, match="Produzer"):
        _ = ogive.Produzer  # type: ignore[attr-defined]  # the point
    with pytest.raises(
        AttributeError,
        match=r"has no attribute 'TooManyRequests': use ogive\.errors\.TooManyRequests",
    ):
        _ = ogive.TooManyRequests  # type: ignore[attr-defined]


def test_a_traceback_suggests_the_name_that_was_meant() -> None:
    result = run_python("import ogive; ogive.Prodcer")
    assert "Did you mean: 'Producer'?" in result.stderr


def test_common_errors_are_those_of_ogive_errors() -> None:
    classes = {
        name: error
        for name, error in vars(ogive.errors).items()
        if isinstance(error, type) and issubclass(error, OgiveError)
    }
    common = classes.keys() & set(ogive.__all__)
    assert {
        "OgiveError",
        "SendTimeout",
        "SendFailed",
        "BrokerError",
        "NoRoute",
        "MessageIllegal",
    } <= common
    assert all(getattr(ogive, name) is classes[name] for name in common)


def test_importing_ogive_starts_and_loads_nothing() -> None:
    result = run_python(
        """
        import sys, threading
        before = set(sys.modules)
        import ogive
        assert threading.active_count() == 1
        ours = ("ogive", "asyncio", "socket", "logging")
        print(sorted(name for name in set(sys.modules) - before if name.startswith(ours)))
        """
    )
    assert (result.stdout.strip(), result.stderr) == ("['ogive', 'ogive.version']", "")


# --- sending --------------------------------------------------------------------------------------


def test_messages_go_out_one_by_one_in_batches_and_in_a_pipeline(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address) as producer:
        assert producer.send("Orders", b"0", tag="paid").queue_offset == 0
        assert [result.queue_offset for result in producer.send_batch("Orders", [b"1", b"2"])] == [
            1,
            2,
        ]
        futures = [producer.submit("Orders", b"%d" % i) for i in range(3, 1000)]
        producer.flush()
        assert [future.result(0).queue_offset for future in futures] == list(range(3, 1000))
        producer.send_oneway("Orders", b"1000")
        assert producer.in_flight == 0
    assert broker.bodies("Orders")[0][:1000] == [b"%d" % i for i in range(1000)]


def test_a_batch_is_read_in_the_callers_thread_and_fails_with_its_iterable(
    broker: FakeBroker,
) -> None:
    def bodies() -> Iterator[bytes]:
        threads.add(threading.get_ident())
        yield from (b"%d" % i for i in range(300))
        if failing:
            raise ValueError("the caller's")

    threads: set[int] = set()
    failing = False
    with ogive.Producer(broker.address, config=ProducerConfig(max_batch_bytes=1024)) as producer:
        results = producer.send_batch("Orders", bodies())
        assert [result.queue_offset for result in results] == list(range(300))
        failing = True
        with pytest.raises(ValueError, match="the caller's"):
            producer.send_batch("Orders", bodies())
        assert producer.in_flight == 0
    assert threads == {threading.get_ident()}
    stored = broker.bodies("Orders")[0]
    assert stored[300:] == stored[: len(stored) - 300]


def test_submit_blocks_while_there_is_no_room_and_keeps_the_order(broker: FakeBroker) -> None:
    config = ProducerConfig(max_in_flight=3)
    with ogive.Producer(broker.address, config=config) as producer:
        names = [b"%d" % i for i in range(300)] + [bytes(100_000)]
        for name in names:
            producer.submit("Orders", name, sharding_key="N14228")
            assert producer.in_flight <= config.max_in_flight
        producer.flush()
    assert len(broker.bodies("Orders")[0]) == 301
    assert broker.bodies("Orders")[0][:300] == names[:300]


def test_what_is_submitted_while_the_loop_is_busy_keeps_within_max_in_flight(
    broker: FakeBroker,
) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def keep_busy(_: object) -> None:
        busy.set()
        go_on.wait(WAIT_S)

    with ogive.Producer(broker.address, config=ProducerConfig(max_in_flight=3)) as producer:
        producer.send("Orders", b"connects")
        broker.hold(RequestCode.SEND_MESSAGE_V2)
        producer.submit("Orders", b"first").add_done_callback(keep_busy)
        broker.release(RequestCode.SEND_MESSAGE_V2)
        assert busy.wait(WAIT_S)
        broker.hold(RequestCode.SEND_BATCH_MESSAGE)
        for _ in range(3):
            producer.submit("Orders", b"")
        fourth = threading.Thread(target=producer.submit, args=("Orders", b"fourth"))
        fourth.start()
        # Until it waits for room, or is taken too early.
        fourth.join(0.2)
        go_on.set()
        portals.portal().call(asyncio.sleep(0.1))
        in_flight = producer.in_flight
        broker.release(RequestCode.SEND_BATCH_MESSAGE)
        fourth.join(WAIT_S)
    assert in_flight == 3


def test_messages_of_a_thread_keep_their_order_while_another_thread_is_held_up(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that is to wake the loop for what was posted can be suspended just before it
    does.
    """
    held_up, go_on = threading.Event(), threading.Event()

    class Loop:
        def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
            self.loop = loop

        def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
            if threading.current_thread() is other:
                held_up.set()
                go_on.wait(WAIT_S)
            return self.loop.call_soon_threadsafe(*args, **kwargs)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.loop, name)

    with ogive.Producer(
        broker.address, config=ProducerConfig(compress_over_bytes=None)
    ) as producer:
        other = threading.Thread(
            target=producer.submit, args=("Orders", b"other"), kwargs={"sharding_key": "a"}
        )
        monkeypatch.setattr(portals.portal(), "loop", Loop(portals.portal().loop))
        other.start()
        assert held_up.wait(WAIT_S)
        bodies = [b"1", bytes(100_000), b"3"]
        for body in bodies[:2]:
            producer.submit("Orders", body, sharding_key="a")
        last = producer.submit("Orders", bodies[2], sharding_key="a")
        producer.flush()
        assert last.done()
        go_on.set()
        other.join(WAIT_S)
    assert broker.bodies("Orders") == {0: [b"other", *bodies]}


def test_many_threads_share_a_producer(broker: FakeBroker) -> None:
    with (
        ogive.Producer(broker.address) as producer,
        concurrent.futures.ThreadPoolExecutor(8) as threads,
    ):
        sent = list(threads.map(lambda i: producer.send("Orders", b"%d" % i), range(200)))
    assert sorted(result.queue_offset for result in sent) == list(range(200))
    assert len({result.id for result in sent}) == 200


def test_errors_arrive_where_they_are_caused(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address) as producer:
        with pytest.raises(MessageIllegal):
            producer.submit("Orders", b"", tag="")
        with pytest.raises(MessageIllegal, match="over the limit"):
            producer.send("Orders", b"", properties={"long": "x" * 40_000})
        future = producer.submit("Ordres", b"")
        assert isinstance(future.exception(WAIT_S), OgiveError)


def test_the_error_of_a_blocking_send_is_gone_when_its_catcher_is_done() -> None:
    """And does not wait for the garbage collector, with all that its frames hold."""
    outcome = portals.OneShot[None]()
    outcome.set_exception(OgiveError("refused"))
    assert outcome.done()
    errors: list[weakref.ref[OgiveError]] = []
    collecting = gc.isenabled()
    gc.disable()
    try:
        try:
            outcome.result()
        except OgiveError as exc:
            errors.append(weakref.ref(exc))
        assert [error() for error in errors] == [None]
    finally:
        if collecting:
            gc.enable()


def test_a_failure_that_nobody_looks_at_is_logged(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with ogive.Producer(broker.address) as producer:
        producer.submit("Ordres", b"")
        seen = producer.submit("Ordres", b"")
        assert seen.exception(WAIT_S) is not None
        producer.flush()
        with caplog.at_level(logging.ERROR):
            del seen
            gc.collect()
    assert [record.message for record in caplog.records if "never retrieved" in record.message] == [
        "a submitted message failed, and the exception of its handle was never retrieved: topic "
        '"Ordres" has no route '
        f"on {broker.address}. "
        "Similar topics: Orders. Create it with `ogive topic create Ordres`; where auto-create is "
        "on, the first message does."
    ]


# --- pulling --------------------------------------------------------------------------------------


def fill(broker: FakeBroker, count: int) -> None:
    with ogive.Producer(broker.address) as producer:
        producer.send_batch("Orders", [b"%d" % i for i in range(count)])


def pull_consumer(broker: FakeBroker, **settings: object) -> ogive.PullConsumer:
    return ogive.PullConsumer(
        "Orders",
        name_server=broker.address,
        **{"group": "replay", "start": "earliest", **settings},  # type: ignore[arg-type]
    )


@pytest.mark.feature(115)
def test_batches_are_pulled_sought_and_committed(broker: FakeBroker) -> None:
    fill(broker, 10)
    seen: list[bytes] = []
    with pull_consumer(broker, auto_commit=False) as consumer:
        for batch in consumer.batches(max_messages=4):
            seen += [message.body for message in batch]
            consumer.commit()
            if len(seen) == 10:
                break
        (queue,) = consumer.assignment
        assert (consumer.committed(queue), consumer.position(queue), consumer.lag()) == (
            10,
            10,
            {queue: 0},
        )
        consumer.seek(queue, 7)
        assert [message.body for message in consumer.poll(max_messages=1)] == [b"7"]
        consumer.pause(queue)
        assert consumer.poll(0) == []
        consumer.resume(queue)
        assert consumer.pull(queue, 3, max_messages=1).messages[0].body == b"3"
        assert (
            consumer.beginning_offset(queue),
            consumer.end_offset(queue),
            consumer.queues("Orders"),
        ) == (0, 10, [queue])
        assert consumer.offset_at(queue, datetime.fromtimestamp(0, UTC)) == 0
    assert seen == [b"%d" % i for i in range(10)]


def test_a_function_that_learns_of_queues_may_use_its_consumer(broker: FakeBroker) -> None:
    fill(broker, 10)

    def on_change(gained: list[MessageQueue], lost: list[MessageQueue]) -> None:
        for queue in gained:
            consumer.seek(queue, 8)

    with pull_consumer(broker, on_change=on_change) as consumer:
        assert consumer.poll()[0].body == b"8"


def test_a_blocking_block_that_fails_has_not_finished_what_it_had_in_hand(
    broker: FakeBroker,
) -> None:
    fill(broker, 10)

    def fail() -> None:
        with pull_consumer(broker) as consumer:
            assert len(consumer.poll(max_messages=3)) == 3
            assert consumer.poll(max_messages=3) != []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert broker.offsets["replay", "Orders", 0] == 3


def test_a_program_that_ends_without_closing_has_not_finished_what_it_had_in_hand(
    broker: FakeBroker,
) -> None:
    """Nobody can tell whether it ended well; its consumer leaves the group at once."""
    fill(broker, 10)
    result = run_python(
        """
        import sys, ogive
        replay = {"group": "replay", "start": "earliest", "name_server": sys.argv[1]}
        consumer = ogive.PullConsumer("Orders", **replay)
        consumer.start()
        print(len(consumer.poll(max_messages=3)), len(consumer.poll(max_messages=4)))
        """,
        broker.address,
    )
    assert (result.stdout, result.stderr) == ("3 4\n", "")
    assert broker.offsets["replay", "Orders", 0] == 3
    assert not broker.members["replay"]


# --- life -----------------------------------------------------------------------------------------


@pytest.mark.feature(128)
def test_all_objects_of_a_process_share_one_thread(broker: FakeBroker) -> None:
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"")
        before = threading.active_count()
        for _ in range(20):
            with ogive.Producer(broker.address) as other, ogive.Admin(broker.address) as admin:
                other.send("Orders", b"")
                assert admin.cluster_info().clusters
        assert threading.active_count() <= before
        assert sum(thread.name == "ogive" for thread in threading.enumerate()) == 1


def test_use_outside_the_lifetime_is_explained() -> None:
    producer, admin = ogive.Producer(), ogive.Admin()
    calls: list[Callable[[], object]] = [
        producer.flush,
        lambda: producer.send("Orders", b""),
        admin.topics,
    ]
    for call in calls:
        with pytest.raises(
            IllegalStateError, match="is not started: start it, or use it in a `with` block"
        ):
            call()
    for one in (producer, admin):
        one.close()
        one.start()
        one.close()
        one.close()
    for call in calls:
        with pytest.raises(IllegalStateError, match="closed"):
            call()


def test_nothing_here_is_pickled() -> None:
    with pytest.raises(TypeError, match="make one where it is used"):
        pickle.dumps(ogive.Producer())


def test_a_blocking_call_on_the_loop_itself_is_refused(broker: FakeBroker) -> None:
    async def listener(producer: ogive.Producer) -> None:
        producer.send("Orders", b"")

    with (
        ogive.Producer(broker.address) as producer,
        pytest.raises(IllegalStateError, match=r"use ogive\.aio"),
    ):
        portals.portal().call(listener(producer))


def test_a_blocking_consumer_calls_listeners_only() -> None:
    with pytest.raises(InvalidOption, match=r"ogive\.aio\.PushConsumer"):
        ogive.PushConsumer("Orders", group="billing")


def test_an_address_among_listeners_is_explained() -> None:
    with pytest.raises(InvalidOption, match="given as name_server="):
        ogive.PushConsumer(ogive.listener("Orders", group="billing")(print), "10.0.0.1:9876")


def test_settings_of_another_kind_are_refused_at_once() -> None:
    makers: list[Any] = [ogive.Producer, partial(ogive.PullConsumer, "Orders", group="billing")]
    for make in makers:
        with pytest.raises(
            TypeError, match=r"config must be an ogive\.(Producer|Consumer)Config, not ClientConfig"
        ):
            make(config=ogive.ClientConfig())


def test_without_a_name_server_a_blocking_send_fails_in_time() -> None:
    with (
        ogive.Producer("127.0.0.1:1") as producer,
        pytest.raises(NoNameServer, match=r"127\.0\.0\.1:1"),
    ):
        producer.send("Orders", b"", timeout_s=1.0)


# --- processes ------------------------------------------------------------------------------------


def test_a_forked_child_gets_a_clear_error_and_can_make_its_own(broker: FakeBroker) -> None:
    result = run_python(
        """
        import os, sys, ogive
        producer = ogive.Producer(sys.argv[1])
        producer.start()
        producer.send("Orders", b"parent")
        pid = os.fork()
        if pid == 0:
            try:
                producer.send("Orders", b"never")
            except ogive.errors.IllegalStateError as exc:
                print("child:", "forked child" in str(exc))
            with ogive.Producer(sys.argv[1]) as own:
                print("child:", own.send("Orders", b"child").queue_offset)
            sys.stdout.flush()
            sys.exit(0)
        status = os.waitpid(pid, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        print("parent:", code, producer.send("Orders", b"parent again").queue_offset)
        producer.close()
        """,
        broker.address,
    )
    assert (result.stdout.split("\n"), result.stderr) == (
        ["child: True", "child: 1", "parent: 0 2", ""],
        "",
    )


def test_a_program_that_forgets_to_close_still_sends_what_it_submitted_and_ends(
    broker: FakeBroker,
) -> None:
    result = run_python(
        """
        import sys, ogive
        producer = ogive.Producer(sys.argv[1])
        producer.start()
        for i in range(100):
            producer.submit("Orders", b"%d" % i)
        """,
        broker.address,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert broker.bodies("Orders") == {0: [b"%d" % i for i in range(100)]}
    assert len(broker.of(RequestCode.UNREGISTER_CLIENT)) == 1


def test_messages_of_a_producer_that_went_out_of_scope_are_sent_before_the_program_ends(
    broker: FakeBroker,
) -> None:
    result = run_python(
        """
        import sys, ogive
        def work():
            producer = ogive.Producer(sys.argv[1])
            producer.start()
            for i in range(100):
                producer.submit("Orders", b"%d" % i)
        work()
        """,
        broker.address,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert broker.bodies("Orders") == {0: [b"%d" % i for i in range(100)]}


def test_a_forked_child_that_leaves_the_block_of_its_parent_leaves_the_parents_producer_alone(
    broker: FakeBroker,
) -> None:
    result = run_python(
        """
        import os, sys, ogive
        with ogive.Producer(sys.argv[1]) as producer:
            producer.send("Orders", b"parent")
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            print(code, producer.send("Orders", b"parent again").queue_offset)
        """,
        broker.address,
    )
    assert (result.stdout, result.stderr) == ("3 1\n", "")


def test_use_after_the_end_of_the_program_is_explained_and_closing_again_harmless(
    broker: FakeBroker,
) -> None:
    result = run_python(
        """
        import atexit, sys, ogive
        def last():
            for start in (lambda: producer.send("Orders", b""), ogive.Producer().start):
                try:
                    start()
                except ogive.errors.IllegalStateError as exc:
                    print(exc)
            producer.close()
        atexit.register(last)
        producer = ogive.Producer(sys.argv[1])
        producer.start()
        producer.send("Orders", b"")
        """,
        broker.address,
    )
    text = (
        "the program is ending, and ogive's loop has stopped: nothing can be sent or asked any more"
    )
    assert (result.stdout, result.stderr) == (f"{text}\n{text}\n", "")


def test_a_program_ends_quietly_after_the_loop_has_used_threads() -> None:
    """As for the name of a host. At its end 3.12 starts no thread that could wait for them."""
    result = run_python(
        """
        import asyncio
        from ogive.client.portal import portal
        async def look_up():
            await asyncio.get_running_loop().getaddrinfo("localhost", 1)
            await asyncio.to_thread(print, "found", flush=True)
        portal().call(look_up())
        """
    )
    assert (result.stdout, result.stderr) == ("found\n", "")


def test_what_still_runs_at_the_end_of_the_program_is_cancelled_in_good_order() -> None:
    result = run_python(
        """
        import asyncio
        from ogive.client.portal import portal
        async def wait():
            try:
                await asyncio.Event().wait()
            finally:
                print("ended", flush=True)
        async def begin():
            return asyncio.create_task(wait())
        task = portal().call(begin())
        """
    )
    assert (result.stdout, result.stderr) == ("ended\n", "")


def test_code_on_the_loop_that_exits_does_not_take_the_loop_with_it(broker: FakeBroker) -> None:
    """An async listener that calls sys.exit() must not leave every blocking call of the program
    waiting for ever.
    """
    result = run_python(
        """
        import sys, ogive
        from ogive.client.portal import portal
        async def leave():
            sys.exit(3)
        with ogive.Producer(sys.argv[1]) as producer:
            producer.send("Orders", b"")
            try:
                portal().call(leave())
            except SystemExit as exc:
                print(exc.code)
            print(producer.send("Orders", b"").queue_offset)
        """,
        broker.address,
    )
    assert result.stdout == "3\n1\n"
    assert "SystemExit" in result.stderr


@pytest.mark.parametrize("exception", [RuntimeError("a bug"), SystemExit(3)], ids=["bug", "exit"])
def test_whatever_goes_wrong_on_the_loop_reaches_the_caller_and_nobody_else(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch, exception: BaseException
) -> None:
    """Many messages share one wake-up of the loop: what one of them breaks must not leave the
    others waiting.
    """
    start = Accumulator.start

    def fail_at_times(accumulator: Accumulator, run: list[PendingSend], *where: Any) -> None:
        if any(b"breaks" in pending.body for pending in run):
            raise exception
        start(accumulator, run, *where)

    monkeypatch.setattr(Accumulator, "start", fail_at_times)
    with ogive.Producer(broker.address, config=ProducerConfig(max_in_flight=4)) as producer:
        producer.send("Orders", b"goes")
        # beyond the bound on what is in flight, were the room not given back
        for _ in range(3):
            going_wrong = [producer.submit("Orders", b"breaks") for _ in range(2)]
            assert [future.exception(WAIT_S) for future in going_wrong] == [exception] * 2
            producer.submit("Orders", b"goes").result(WAIT_S)
        assert producer.in_flight == 0
        producer.flush()
    assert broker.bodies("Orders")[0] == [b"goes"] * 4


def test_a_callback_that_exits_takes_nothing_from_the_messages_that_went_with_its_own(
    broker: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcomes of a batch are told one after another: the first must not be the last, nor the
    way to the broker stay taken.
    """
    with ogive.Producer(broker.address, config=ProducerConfig(max_requests=1)) as producer:
        producer.send("Orders", b"")
        broker.hold(SEND)
        futures = [producer.submit("Orders", b"") for _ in range(20)]
        for future in futures:
            future.add_done_callback(lambda _: sys.exit(3))
        broker.release(SEND)
        assert len({future.result(WAIT_S) for future in futures}) == 20
        producer.send("Orders", b"")
        # what is done already is told in the thread that asks
        with pytest.raises(SystemExit):
            futures[0].add_done_callback(lambda _: sys.exit(3))
    assert sum("the callback" in record.message for record in caplog.records) == 20


def test_a_signal_handler_may_send_whatever_it_interrupts(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the moment in which the thread it runs in is about to wake the loop."""
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"before")
        loop, sent = portals.portal().loop, list[object]()
        wake = loop.call_soon_threadsafe

        def interrupted(*arguments: Any) -> object:
            if not sent:
                sent.append(None)
                signal.raise_signal(signal.SIGUSR1)
            return wake(*arguments)

        before = signal.signal(
            signal.SIGUSR1,
            lambda *_: sent.append(producer.submit("Orders", b"handler").result(WAIT_S)),
        )
        try:
            monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
            producer.submit("Orders", b"interrupted").result(WAIT_S)
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert len(sent) == 2


def test_at_the_end_of_a_program_consumers_close_before_what_their_listeners_use(
    broker: FakeBroker,
) -> None:
    """A listener that runs at that moment can still send."""
    broker.topics["Bills"] = 1
    fill(broker, 1)
    result = run_python(
        """
        import sys, threading, time, ogive
        running = threading.Event()
        @ogive.listener("Orders", group="billing", start="earliest")
        def bill(message):
            running.set()
            time.sleep(0.3)
            for producer in producers:
                producer.send("Bills", b"")
        producers = [ogive.Producer(sys.argv[1]) for _ in range(20)]
        consumer = ogive.PushConsumer(bill, name_server=sys.argv[1])
        for one in (*producers[:10], consumer, *producers[10:]):
            one.start()
        running.wait()
        """,
        broker.address,
    )
    assert (result.stdout, result.stderr) == ("", "")
    assert sum(map(len, broker.bodies("Bills").values())) == 20


def test_a_second_control_c_ends_a_program_whose_message_still_has_time(
    broker: FakeBroker,
) -> None:
    """The first one interrupts the send, and the end of the block waits for the message."""
    broker.on(RequestCode.SEND_MESSAGE_V2, SILENT)
    result = run_python(
        """
        import signal, sys, ogive
        def interrupt(*_):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, interrupt)
        with ogive.Producer(sys.argv[1]) as producer:
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            try:
                producer.send("Orders", b"4711", timeout_s=3600)
            finally:
                print("interrupted")
        """,
        broker.address,
    )
    assert result.stdout == "interrupted\n"
    # Python 3.13 also shows the lines of the program itself
    assert result.stderr.splitlines().count("KeyboardInterrupt") == 2


def test_what_is_posted_runs_whatever_became_of_that_before_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran = threading.Event()
    loop = portals.portal()

    def exits() -> None:
        raise SystemExit

    # on the loop, so that one round takes them
    async def post_both() -> None:
        loop.post(exits)
        loop.post(ran.set)

    loop.call(post_both())
    assert ran.wait(WAIT_S)
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_what_comes_after_a_control_c_in_the_middle_of_a_send_is_sent(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where the next cell goes on with the same producer."""
    with ogive.Producer(broker.address) as producer:
        producer.send("Orders", b"before")
        loop = portals.portal().loop
        with monkeypatch.context() as at_a_bad_moment:

            def interrupted(*_: object) -> None:
                raise KeyboardInterrupt

            at_a_bad_moment.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.submit("Orders", b"interrupted")
        producer.submit("Orders", b"after").result(WAIT_S)


def test_what_others_posted_while_control_c_ended_a_post_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, ran = portals.portal(), threading.Event()

    def interrupted(*_: object) -> None:
        monkeypatch.undo()
        # of another thread, which relies on the wake-up of this one
        loop.inbox.append((ran.set, (), None))
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "loop", mock.Mock(call_soon_threadsafe=interrupted))
    with pytest.raises(KeyboardInterrupt):
        loop.post(threading.Event().set)
    assert ran.wait(WAIT_S)


@interrupting
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_control_c_at_any_moment_of_a_call_leaves_the_loop_to_the_others() -> None:
    loop = portals.Portal()
    loop.ensure_running()

    async def work() -> int:
        await asyncio.sleep(0.001)
        results.append(len(results))
        return results[-1]

    results: list[int] = []
    kept: list[int] = []

    def call() -> None:
        kept.append(loop.call(work(), kept.append))

    def press() -> None:
        raise KeyboardInterrupt

    sweep = Sweep(15e-6)
    try:
        for number in range(300):
            with contextlib.suppress(KeyboardInterrupt):
                sweep.strike(call, press)
            alive = threading.Event()
            loop.loop.call_soon_threadsafe(alive.set)
            assert alive.wait(WAIT_S), f"after interrupt {number}"
            assert kept == results, f"a result is lost by interrupt {number}"
        assert sweep.struck > 50
        assert len(results) > 1
    finally:
        loop.stop()


def test_control_c_ends_a_blocking_call(broker: FakeBroker) -> None:
    broker.hold(SEND)
    code = """
        import sys, ogive
        config = ogive.ProducerConfig(send_timeout_s=20)
        with ogive.Producer(sys.argv[1], config=config) as producer:
            try:
                producer.send("Orders", b"")
            except KeyboardInterrupt:
                print("interrupted", flush=True)
                raise SystemExit(3)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), broker.address],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(1000):
            if broker.of(SEND) or process.poll() is not None:
                break
            threading.Event().wait(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        assert process.stdout.readline() == "interrupted\n"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        process.communicate()
