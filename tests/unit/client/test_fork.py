"""Programs that use ogive, fork, and end the child in the usual ways."""

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from ogive.testing.fake_broker import After, FakeBroker
from ogive.wire.codes import RequestCode
from tests.unit.client.serving import on_a_thread

LIMIT_S = 60.0

LOOPS = {"uvloop": "import uvloop", "asyncio": "import sys; sys.modules['uvloop'] = None"}

PARENTS = {
    "address": """
        address = sys.argv[1]
        producer = ogive.Producer(address)
        producer.start()
        for _ in range(3):
            producer.send("Orders", b"parent")
    """,
    "name": """
        address = sys.argv[1].replace("127.0.0.1", "localhost")
        producer = ogive.Producer(address)
        producer.start()
        for _ in range(3):
            producer.send("Orders", b"parent")
    """,
    "own loop": """
        address = sys.argv[1].replace("127.0.0.1", "localhost")
        async def send():
            async with ogive.aio.Producer(address) as producer:
                await producer.send("Orders", b"parent")
        try:
            import uvloop
        except ImportError:
            asyncio.run(send())
        else:
            uvloop.run(send())
    """,
    "broker": """
        from ogive.testing.fake_broker import FakeBroker
        from ogive.transport.event_loop import new_event_loop
        address = sys.argv[1]
        async def serve():
            async with FakeBroker({"Orders": 1}):
                pass
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve())
    """,
}

CHILDREN = {
    "exit": "sys.exit(0)",
    "end of the program": "",
    "own producer": """
        with ogive.Producer(address) as own:
            for _ in range(3):
                own.send("Orders", b"child")
        sys.exit(0)
    """,
}


@pytest.fixture(scope="module")
def broker() -> Iterator[FakeBroker]:
    with on_a_thread() as broker:
        yield broker


def run(code: str, address: str) -> tuple[int, str, str]:
    result = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, address],
        check=False,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return result.returncode, result.stdout, result.stderr


def program(loop: str, parent: str, rest: str) -> str:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    head = "import asyncio, multiprocessing, os, sys\nimport ogive\n"
    return LOOPS[loop] + "\n" + head + textwrap.dedent(PARENTS[parent]) + textwrap.dedent(rest)


@pytest.mark.parametrize("child", CHILDREN)
@pytest.mark.parametrize("parent", PARENTS)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_forked_child_ends_in_good_order(
    broker: FakeBroker, loop: str, parent: str, child: str
) -> None:
    body = textwrap.indent(textwrap.dedent(CHILDREN[child]).strip() or "pass", "    ")
    code = program(
        loop,
        parent,
        f"pid = os.fork()\nif pid == 0:\n{body}\nelse:\n    "
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n",
    )
    assert run(code, broker.address) == (0, "0\n", "")


@pytest.mark.parametrize("parent", ["address", "name"])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_forked_process_of_multiprocessing_ends_in_good_order(
    broker: FakeBroker, loop: str, parent: str
) -> None:
    rest = """
        def work():
            with ogive.Producer(address) as own:
                own.send("Orders", b"child")
                own.send("Orders", b"child")
        forking = multiprocessing.get_context("fork")
        process = forking.Process(target=work)
        process.start()
        process.join()
        print(process.exitcode, producer.send("Orders", b"parent again").status.name)
        with forking.Pool(2) as pool:
            print(pool.map(abs, [-1, 1]))
        producer.close()
    """
    assert run(program(loop, parent, rest), broker.address) == (0, "0 SEND_OK\n[1, 1]\n", "")


@pytest.mark.parametrize("wait", ["handle.result()", "asyncio.run(awaited())"])
def test_a_message_of_the_parent_has_no_outcome_in_a_forked_child(
    broker: FakeBroker, wait: str
) -> None:
    rest = f"""
        async def awaited():
            return await handle
        producer.close()
        producer = ogive.Producer(address, config=ogive.ProducerConfig(send_timeout_s=5.0))
        producer.start()
        handle = producer.submit("Slow", b"parent")
        pid = os.fork()
        if pid == 0:
            try:
                {wait}
            except ogive.IllegalStateError as exc:
                print(exc, flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), handle.result().status.name)
        producer.close()
    """
    broker.topics["Slow"] = 1
    broker.script(RequestCode.SEND_MESSAGE_V2, None, None, None, After(1.0))
    code, out, err = run(program("asyncio", "address", rest), broker.address)
    assert (code, err) == (0, "")
    assert "submitted in a parent process" in out
    assert out.endswith("0 SEND_OK\n")
