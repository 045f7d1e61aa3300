"""``ogive run`` as a shell runs it: found, running, stopped by a signal, nothing lost.

Our broker only, as for the other commands.
"""

import os
import queue
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ogive
from ogive.testing import Broker
from tests.processes import free_port

pytestmark = pytest.mark.client_suite

APP = """
import time
import ogive

@ogive.listener("Work", group="workers", start="earliest")
def work(message: ogive.MessageExt) -> None:
    print("begun", message.text, flush=True)
    time.sleep({"for ever": 600, "long": 2}.get(message.text, 0.5))
    print("ended", message.text, flush=True)

@ogive.listener("News", group="readers", start="earliest")
async def read(message: ogive.MessageExt) -> None:
    print("read", message.text, flush=True)
"""


SHOW = """
import ogive

@ogive.listener("Prices", group="screens", start="earliest", broadcast=True)
def show(message: ogive.MessageExt) -> None:
    print(message.text, flush=True)
"""


@contextmanager
def running(directory: Path, name_server: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    (directory / "shop_app.py").write_text(APP)
    command = [sys.executable, "-m", "ogive", "run", *words, "-n", name_server]
    # without the working directory, as for the installed script
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    with subprocess.Popen(
        command,
        cwd=directory,
        env=environment,
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "nothing was printed"
    # unbuffered: what select sees is all that there is
    return process.stdout.readline().decode().strip()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_listeners_run_until_a_signal_and_what_runs_then_is_finished_and_counted(
    number: int, tmp_path: Path
) -> None:
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        for topic in ("Work", "News"):
            admin.create_topic(topic, queues=1)
        with running(tmp_path, broker.name_server, "shop_app:work", "shop_app:read") as process:
            assert [line(process), line(process)] == [
                "work: Work for group workers",
                "read: News for group readers",
            ]
            producer.send("News", b"one")
            assert line(process) == "read one"
            producer.send("Work", b"slow")
            assert line(process) == "begun slow"
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        assert (out, err, process.returncode) == (b"ended slow\n", b"", 0)
        assert [(row.consumer_offset, row.lag) for row in admin.lag("workers", "Work")] == [(1, 0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_search_for_a_name_server(number: int, tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        running(tmp_path, f"127.0.0.1:{silent.getsockname()[1]}", "shop_app:read") as process,
    ):
        assert line(process) == "read: News for group readers"
        with silent.accept()[0] as asked:
            asked.recv(1)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert (out, err, process.returncode) == (b"", b"", 0)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_waits_for_no_call(number: int, tmp_path: Path) -> None:
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Work", queues=1)
        with running(tmp_path, broker.name_server, "shop_app:work", "--wait", "600") as process:
            assert line(process) == "work: Work for group workers"
            producer.send("Work", b"for ever")
            assert line(process) == "begun for ever"
            process.send_signal(number)
            assert "waiting up to 600 s for 1 listener calls" in complaint(process, "waiting")
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
        assert (b"Traceback" in err, process.returncode) == (False, 130)
        assert admin.lag("workers", "Work")[0].lag == 1


def test_one_signal_of_each_kind_is_one_wish_to_end(tmp_path: Path) -> None:
    """Ctrl-C under --reload: SIGINT from the terminal, SIGTERM from the parent."""
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Work", queues=1)
        with running(tmp_path, broker.name_server, "shop_app:work", "--wait", "600") as process:
            assert line(process) == "work: Work for group workers"
            producer.send("Work", b"long")
            assert line(process) == "begun long"
            process.send_signal(signal.SIGINT)
            complaint(process, "waiting")
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
        assert (out, process.returncode) == (b"ended long\n", 0)


def complaint(process: subprocess.Popen[bytes], word: str) -> str:
    """The next line of standard error with *word* in it."""
    assert process.stderr is not None
    while True:
        ready, _, _ = select.select([process.stderr], [], [], 60)
        assert ready, f"nothing was said of {word}"
        said = process.stderr.readline().decode()
        assert said, f"it ended without a word of {word}"
        if word in said:
            return said.strip()


def test_a_save_starts_the_listeners_again_when_what_runs_is_finished_and_counted(
    tmp_path: Path,
) -> None:
    """And one that cannot be imported is shown, and the next save awaited."""
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Work", queues=1)
        app = tmp_path / "shop_app.py"
        with running(tmp_path, broker.name_server, "shop_app:work", "--reload") as process:
            assert complaint(process, "watching") == (
                f"ogive: watching 1 Python file in {tmp_path}; a save starts the listeners again, "
                "Ctrl-C ends this"
            )
            assert line(process) == "work: Work for group workers"
            producer.send("Work", b"one")
            assert line(process) == "begun one"
            app.write_text(APP.replace('"ended"', '"DONE!"'))
            assert [line(process), line(process)] == ["ended one", "work: Work for group workers"]
            producer.send("Work", b"two")
            assert [line(process), line(process)] == ["begun two", "DONE! two"]

            app.write_text("def broken(:\n")
            assert complaint(process, "SyntaxError") != ""
            assert (
                complaint(process, "waiting")
                == "ogive: the listeners ended with exit code 1; waiting for the next save"
            )
            producer.send("Work", b"three")
            app.write_text(APP)
            assert complaint(process, "changed") == "ogive: shop_app.py changed, starting again"
            assert [line(process) for _ in range(3)] == [
                "work: Work for group workers",
                "begun three",
                "ended three",
            ]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert [(row.consumer_offset, row.lag) for row in admin.lag("workers", "Work")] == [(3, 0)]


def test_members_of_a_broadcasting_group_on_one_machine_have_a_name_each(tmp_path: Path) -> None:
    """The error of the second one without a name says which option it wants."""
    shown = tmp_path / "progress"
    (tmp_path / "screen_app.py").write_text(SHOW)
    words = ("screen_app", "--offsets-dir", str(shown))
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Prices", queues=1)
        with running(tmp_path, broker.name_server, *words, "--instance-name", "left") as left:
            assert line(left) == "show: Prices for group screens"
            with running(tmp_path, broker.name_server, *words, "--instance-name", "right") as right:
                assert line(right) == "show: Prices for group screens"
                producer.send("Prices", b"12.50")
                assert [line(left), line(right)] == ["12.50", "12.50"]
                with running(
                    tmp_path, broker.name_server, *words, "--instance-name", "left"
                ) as third:
                    _, said = third.communicate(timeout=60)
                assert b"`ogive run --instance-name NAME`" in said
                for process in (left, right):
                    process.terminate()
                    assert process.wait(60) == 0
    assert sorted(path.name.partition("@")[2] for path in shown.iterdir()) == ["left", "right"]


ASYNC_APP = """
import asyncio
import signal
import sys
import ogive

@ogive.listener("Work", group="workers", start="earliest")
async def work(message: ogive.MessageExt) -> None:
    print("begun", flush=True)
    await asyncio.sleep(0.5)
    print("ended", flush=True)

async def main() -> None:
    before = signal.getsignal(signal.SIGTERM)
    await ogive.aio.run(work, name_server=sys.argv[1])
    assert signal.getsignal(signal.SIGTERM) == before
    print("after", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_asyncio_program_finishes_what_runs_at_a_signal_and_goes_on(
    number: int, tmp_path: Path
) -> None:
    (tmp_path / "service.py").write_text(ASYNC_APP)
    with (
        Broker() as broker,
        ogive.Producer(broker.name_server) as producer,
        ogive.Admin(broker.name_server) as admin,
    ):
        admin.create_topic("Work", queues=1)
        producer.send("Work", b"one")
        command = [sys.executable, "service.py", broker.name_server]
        with subprocess.Popen(
            command, cwd=tmp_path, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                assert line(process) == "begun"
                process.send_signal(number)
                assert [line(process), line(process)] == ["ended", "after"]
                assert process.wait(60) == 0
            finally:
                process.kill()
        assert sum(row.lag for row in admin.lag("workers")) == 0


def test_a_topic_beyond_the_limit_of_a_group_is_refused_and_the_others_go_on() -> None:
    got: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def to(topic: str) -> ogive.Listener:
        return ogive.listener(topic, group="billing", start="earliest")(
            lambda message: got.put(message.body)
        )

    with Broker(flush="async") as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("Orders", b"before")
        # With the retry topic 1,000. Those that do not exist are waited for.
        listeners = [to("Orders"), *(to(f"Later{n}") for n in range(998))]
        with ogive.PushConsumer(*listeners, name_server=broker.name_server) as consumer:
            with pytest.raises(ogive.MessageIllegal, match="1,001 topics"):
                consumer.subscribe(to("Refunds"))
            producer.send("Orders", b"after")
            assert sorted(got.get(timeout=60) for _ in range(2)) == [b"after", b"before"]
        with (
            pytest.raises(ogive.MessageIllegal, match="1,001 topics"),
            ogive.PullConsumer(
                *(f"Later{n}" for n in range(1_000)),
                "Orders",
                group="audit",
                name_server=broker.name_server,
            ),
        ):
            pass


def page(address: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()


def ready_pages(process: subprocess.Popen[bytes]) -> str:
    """Return the address of the pages, once the process is ready."""
    address = line(process).removeprefix("metrics ").removesuffix("/metrics")
    with patience() as again:
        while page(f"{address}/ready") != (200, "ready\n"):
            again()
    return address


@contextmanager
def patience() -> Iterator[Callable[[], None]]:
    """Yield a pause that fails after a minute of pauses."""
    give_up = time.monotonic() + 60

    def again() -> None:
        assert time.monotonic() < give_up
        time.sleep(0.05)

    yield again


def test_the_pages_of_a_worker_show_its_figures_and_fail_first_at_a_stop(tmp_path: Path) -> None:
    with Broker() as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("Work", b"one")
        words = ["shop_app:work", "--http-port", "0", "--drain-delay", "600"]
        with running(tmp_path, broker.name_server, *words) as process:
            assert line(process) == "work: Work for group workers"
            address = ready_pages(process)
            assert page(f"{address}/health") == (200, "ok\n")
            assert [line(process), line(process)] == ["begun one", "ended one"]
            process.send_signal(signal.SIGTERM)
            with patience() as again:
                while page(f"{address}/ready") != (503, "not ready: stopping\n"):
                    again()
            # it still consumes
            producer.send("Work", b"two")
            assert [line(process), line(process)] == ["begun two", "ended two"]
            status, text = page(f"{address}/metrics")
            assert status == 200
            figures = dict(row.rsplit(" ", 1) for row in text.splitlines() if row[0] != "#")
            (pulled,) = (
                int(value)
                for name, value in figures.items()
                if name.startswith('ogive_client_pulled_messages_total{topic="Work"')
            )
            assert pulled == 2
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            assert process.returncode == 130


def test_a_stop_that_takes_too_long_ends_with_an_exit_code_of_its_own(tmp_path: Path) -> None:
    with Broker() as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("Work", b"for ever")
        words = ["shop_app:work", "--wait", "600", "--stop-timeout", "0.5"]
        with running(tmp_path, broker.name_server, *words) as process:
            assert [line(process), line(process)] == [
                "work: Work for group workers",
                "begun for ever",
            ]
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert process.returncode == 124
            assert b"not stopped 0.5 s after the signal: the process ends" in err


BLOCKING = """
import logging
import time
import ogive

@ogive.listener("Work", group="workers", start="earliest")
async def work(message: ogive.MessageExt) -> None:
    print("begun", message.text, flush=True)
    if message.text == "log":
        # as while a line is written that nobody reads
        logging.getLogger().handlers[0].acquire()
    time.sleep(600)
"""


@pytest.mark.parametrize("text", ["loop", "log"])
def test_a_stop_ends_in_time_when_the_event_loop_is_blocked(text: str, tmp_path: Path) -> None:
    """By a listener, also one that holds up the log."""
    with Broker() as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("Work", text.encode())
        words = ["blocking_app:work", "--stop-timeout", "0.5"]
        (tmp_path / "blocking_app.py").write_text(BLOCKING)
        with running(tmp_path, broker.name_server, *words) as process:
            assert [line(process), line(process)] == [
                "work: Work for group workers",
                f"begun {text}",
            ]
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 124


def test_several_processes_each_have_a_port_and_stop_together(tmp_path: Path) -> None:
    port = free_port((0, 1))
    with Broker() as broker, ogive.Admin(broker.name_server) as admin:
        admin.create_topic("Work", queues=4)
        words = ["shop_app:work", "--processes", "2", "--http-port", str(port)]
        with running(tmp_path, broker.name_server, *words) as process:
            addresses = {line(process) for _ in range(4)} - {"work: Work for group workers"}
            assert addresses == {
                f"metrics http://127.0.0.1:{port + number}/metrics" for number in range(2)
            }
            for number in range(2):
                with patience() as again:
                    while page(f"http://127.0.0.1:{port + number}/ready")[0] != 200:
                        again()
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=60)
            assert (err, process.returncode) == (b"", 0)


def test_a_process_that_dies_ends_the_others(tmp_path: Path) -> None:
    dies = "import os, ogive\n" + SHOW.replace("print(message.text, flush=True)", "os._exit(3)")
    (tmp_path / "dying_app.py").write_text(dies)
    with Broker() as broker, ogive.Producer(broker.name_server) as producer:
        producer.send("Prices", b"one")
        words = ["dying_app", "--processes", "2", "--offsets-dir", str(tmp_path)]
        with running(tmp_path, broker.name_server, *words) as process:
            _, err = process.communicate(timeout=60)
            assert process.returncode == 3
            assert b"a process ended with exit code 3; the others are stopped" in err
