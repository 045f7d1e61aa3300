"""``ogive bench`` against a broker that shows what came."""

from ogive.cli import bench
from ogive.cli.parser import build_parser
from ogive.testing import FakeBroker
from ogive.wire.codes import RequestCode


async def test_bench_sends_as_many_bytes_as_it_counts() -> None:
    """Bodies of zeros would be compressed to nothing."""
    async with FakeBroker({"OgiveBench": 1}) as broker:
        words = ["bench", "produce", "-n", broker.address, "--count", "1", "--size", "8192"]
        assert await bench.produce(build_parser(words).parse_args(words)) == 0
        (request,) = broker.of(RequestCode.SEND_MESSAGE_V2)
    assert len(request.body) == 8192
