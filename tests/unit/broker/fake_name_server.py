"""A name server that is a socket which answers as the test says."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from ogive.errors import ResponseCode
from ogive.transport.connection import Connection
from ogive.transport.server import Server
from ogive.wire.bodies.configs import DataVersion
from ogive.wire.bodies.routes import RegisterBrokerBody
from ogive.wire.bodies.stats import kv_table_dumps
from ogive.wire.codes import Flag, RequestCode
from ogive.wire.command import RemotingCommand

LIMIT_S = 60.0


@dataclass
class FakeNameServer:
    """Holds the last table that was registered; *answers* turns it off and on, *order* is its
    ORDER_TOPIC_CONFIG.

    What comes while it is off is in *unanswered*.
    """

    answers: bool = True
    refuses: bool = False
    # what it does with a compressed registration: "refuses", "drops"
    plain_only: str = ""
    order: dict[str, str] = field(default_factory=dict)
    requests: list[RemotingCommand] = field(default_factory=list)
    unanswered: list[tuple[Connection, RemotingCommand]] = field(default_factory=list)
    held: RegisterBrokerBody | None = None
    port: int = 0
    _server: Server | None = None
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self) -> None:
        self._server = Server(self._handle, port=self.port)
        await self._server.start()
        self.port = self._server.port

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(grace_s=0.01)
            self._server = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _handle(self, connection: Connection, command: RemotingCommand) -> None:
        self.requests.append(command)
        self._heard.set()
        if not self.answers:
            self.unanswered.append((connection, command))
            return
        self._answer(connection, command)

    def answer_all(self) -> None:
        self.answers = True
        while self.unanswered:
            self._answer(*self.unanswered.pop(0))

    def _answer(self, connection: Connection, command: RemotingCommand) -> None:
        answer = RemotingCommand(ResponseCode.SUCCESS, opaque=command.opaque, flag=Flag.RESPONSE)
        if self.refuses:
            answer.code, answer.remark = ResponseCode.SYSTEM_ERROR, "go away"
        elif command.code == RequestCode.REGISTER_BROKER:
            compressed = command.ext_fields["compressed"] == "true"
            if compressed and self.plain_only == "drops":
                connection.close()
                return
            if compressed and self.plain_only:
                answer.code, answer.remark = (
                    ResponseCode.SYSTEM_ERROR,
                    "Failed to decode RegisterBrokerBody",
                )
            else:
                self.held = RegisterBrokerBody.decode(command.body, compressed=compressed)
            answer.body = kv_table_dumps(self.order) if self.order else b""
        elif command.code == RequestCode.QUERY_DATA_VERSION:
            same = self.held is not None and self.held.data_version == DataVersion.from_json(
                json.loads(command.body)
            )
            answer.ext_fields = {"changed": "false" if same else "true"}
        connection.reply(answer)

    def codes(self) -> list[int]:
        return [command.code for command in self.requests]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    def holds(self, topic: str) -> bool:
        return self.held is not None and topic in self.held.topics
