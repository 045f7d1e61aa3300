"""Processor time of one gRPC call, in servers that could carry the service for RocketMQ 5.

    pip install -r requirements/grpc-bench.txt
    python -m bench.grpc_servers                    # all servers, about two minutes
    python -m bench.grpc_servers ogive h2           # some of them
    python -m bench.grpc_servers --at 8081 --pid N  # a server that runs, such as Apache's proxy

Each server answers SendMessage with a result and stores nothing, so that HTTP/2, gRPC's framing and
protobuf's codec are all that is measured. The client is grpcio's, in a process of its own, with 32
calls of 1 KiB at once and the metadata of the official SDKs. Figures are medians of the rounds,
after one as warm-up. A server that runs needs the topic Bench, of type NORMAL.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from bench.processes import cpu_s, resident_mib
from ogive.proxy import rocketmq_pb2 as pb

SERVICE: Final = "apache.rocketmq.v2.MessagingService"
PATH: Final = f"/{SERVICE}/SendMessage"
CALLS_AT_ONCE: Final = 32
ROUNDS: Final = 5
ROUND_S: Final = 3.0
OK: Final = 20_000


def answered(request: Any) -> Any:
    message_id = request.messages[0].system_properties.message_id
    status = pb.Status(code=OK, message="OK")
    entry = pb.SendResultEntry(status=status, message_id=message_id, offset=12_345)
    return pb.SendMessageResponse(status=status, entries=[entry])


async def ogive_server() -> int:
    from ogive.proxy.calls import CallKind, Method
    from ogive.proxy.config import EndpointConfig
    from ogive.proxy.endpoint import Endpoint

    async def handle(request: Any, _: object) -> Any:
        return answered(request)

    method = Method("SendMessage", CallKind.UNARY, pb.SendMessageRequest, handle)
    endpoint = Endpoint({PATH: method}, EndpointConfig(port=0))
    await endpoint.start()
    return endpoint.port


async def grpclib_server() -> int:
    import grpclib.const
    import grpclib.server

    class Service:
        async def send(self, stream: Any) -> None:
            await stream.send_message(answered(await stream.recv_message()))

        def __mapping__(self) -> dict[str, Any]:
            unary = grpclib.const.Cardinality.UNARY_UNARY
            messages = pb.SendMessageRequest, pb.SendMessageResponse
            return {PATH: grpclib.const.Handler(self.send, unary, *messages)}

    server = grpclib.server.Server([Service()])
    await server.start("127.0.0.1", 0)
    return int(server._server.sockets[0].getsockname()[1])


async def grpcio_server() -> int:
    import grpc
    import grpc.aio

    async def handle(request: Any, _: object) -> Any:
        return answered(request)

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        handle, pb.SendMessageRequest.FromString, pb.SendMessageResponse.SerializeToString
    )
    handlers = grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": method})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    kept.append(server)
    return int(port)


async def h2_server() -> int:
    """h2 with all of its checks of headers turned off, and framing that fits on a page."""
    import h2.config
    import h2.connection
    import h2.events

    off = {
        f"{what}_{way}_headers": False
        for what in ("validate", "normalize")
        for way in ("inbound", "outbound")
    }

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            config = h2.config.H2Configuration(client_side=False, header_encoding=None, **off)
            self.h2 = h2.connection.H2Connection(config)
            self.h2.initiate_connection()
            self.h2.increment_flow_control_window(2**24)
            self.bodies: dict[int, bytearray] = {}
            self.tasks: set[asyncio.Task[None]] = set()
            self.flush()

        def flush(self) -> None:
            self.transport.write(self.h2.data_to_send())

        def data_received(self, data: bytes) -> None:
            for event in self.h2.receive_data(data):
                match event:
                    case h2.events.RequestReceived():
                        self.bodies[event.stream_id] = bytearray()
                    case h2.events.DataReceived():
                        self.bodies[event.stream_id] += event.data
                        size = event.flow_controlled_length
                        self.h2.acknowledge_received_data(size, event.stream_id)
                    case h2.events.StreamEnded():
                        task = asyncio.ensure_future(self.run(event.stream_id))
                        self.tasks.add(task)
                        task.add_done_callback(self.tasks.discard)
            self.flush()

        async def run(self, stream_id: int) -> None:
            request = pb.SendMessageRequest.FromString(bytes(self.bodies.pop(stream_id)[5:]))
            message = answered(request).SerializeToString()
            head = [(b":status", b"200"), (b"content-type", b"application/grpc")]
            self.h2.send_headers(stream_id, head)
            self.h2.send_data(stream_id, b"\0" + len(message).to_bytes(4, "big") + message)
            self.h2.send_headers(stream_id, [(b"grpc-status", b"0")], end_stream=True)
            self.flush()

    server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
    kept.append(server)
    return int(server.sockets[0].getsockname()[1])


kept: list[object] = []
SERVERS: Final[dict[str, Callable[[], Awaitable[int]]]] = {
    "ogive": ogive_server,
    "h2": h2_server,
    "grpclib": grpclib_server,
    "grpcio": grpcio_server,
}


async def serve(name: str) -> None:
    print(await SERVERS[name](), flush=True)
    await asyncio.Event().wait()


def request() -> Any:
    properties = pb.SystemProperties(
        message_id=f"01{time.time_ns():032x}",
        message_type=pb.MessageType.NORMAL,
        born_host="client",
        body_encoding=pb.Encoding.IDENTITY,
    )
    properties.born_timestamp.GetCurrentTime()
    message = pb.Message(system_properties=properties, body=b"x" * 1024)
    message.topic.name = "Bench"
    return pb.SendMessageRequest(messages=[message])


def metadata() -> tuple[tuple[str, str], ...]:
    return (
        ("x-mq-client-id", "client@1@0@abc"),
        ("x-mq-language", "PYTHON"),
        ("x-mq-client-version", "5.1.2"),
        ("x-mq-protocol", "v2"),
        ("x-mq-request-id", f"{time.time_ns():x}"),
        ("x-mq-date-time", "20261129T130000Z"),
        ("x-mq-namespace", ""),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 Credential=AK, SignedHeaders=x-mq-date-time, Signature={'0A' * 20}",
        ),
    )


async def measure(name: str, port: int, pid: int) -> None:
    import grpc.aio

    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            PATH,
            request_serializer=pb.SendMessageRequest.SerializeToString,
            response_deserializer=pb.SendMessageResponse.FromString,
        )
        done = 0

        async def send_until(end: float) -> None:
            nonlocal done
            while time.perf_counter() < end:
                response = await call(request(), timeout=10, metadata=metadata())
                assert response.status.code == OK, response
                done += 1

        rates, costs = [], []
        for _ in range(ROUNDS + 1):
            done, begun, used = 0, time.perf_counter(), cpu_s(pid)
            await asyncio.gather(*[send_until(begun + ROUND_S) for _ in range(CALLS_AT_ONCE)])
            rates.append(done / (time.perf_counter() - begun))
            costs.append((cpu_s(pid) - used) / done * 1e6)
    rate, cost = statistics.median(rates[1:]), statistics.median(costs[1:])
    print(
        f"{name:8} {rate:8,.0f} calls/s {cost:8,.0f} us of CPU a call {resident_mib(pid):6,.0f} MiB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.grpc_servers", description=__doc__)
    parser.add_argument("servers", nargs="*", choices=[*SERVERS, []], metavar="SERVER")
    parser.add_argument("--at", type=int, help="port of a server that runs")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
    elif options.at:
        asyncio.run(measure("given", options.at, options.pid))
    else:
        for name in options.servers or SERVERS:
            command = [sys.executable, "-m", "bench.grpc_servers", "--serve", name]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                try:
                    assert process.stdout is not None
                    asyncio.run(measure(name, int(process.stdout.readline()), process.pid))
                finally:
                    process.kill()


if __name__ == "__main__":
    main()
