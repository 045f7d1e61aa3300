"""Each request of request_cases.py goes to Apache's 5.5.0 and to ours.

differences.txt records every difference of the answers exactly; docs/differences.md gives the
reason for each.
"""

import asyncio
import fnmatch
import re
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from ogive.errors import ConnectError, ResponseCode, TransportError
from ogive.testing import Broker
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand
from tests.interop.apache import Apache
from tests.interop.request_cases import CLIENT, GROUP, ONLINE, QUEUES, TOPIC, Case, cases
from tests.raw_client import RawClient, messages

PAGE: Final = Path(__file__).parents[2] / "docs" / "differences.md"
RECORD: Final = Path(__file__).with_name("differences.txt")
"""A line for each request that is answered otherwise: code, case, Apache's answer, ours."""
NO_ANSWER_S: Final = 15.0
EACH: Final = 3
"""Messages in each queue of the topic that is read."""
_EXCEPTION: Final = re.compile(r"\s*(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b|.*\bException\b")
_NOTHING: Final = (None, "", "not set any response code", "OK")
_VARIES: Final = {
    "msgId",
    "transactionId",
    "recallHandle",
    "queueOffset",
    "queueId",
    "timestamp",
    "indexLastUpdateTimestamp",
    "indexLastUpdatePhyoffset",
    "version",
    "suggestWhichBrokerId",
    "topicSysFlag",
    "groupSysFlag",
    "batchUniqId",
    "totalTopicNum",
    "totalGroupNum",
}
"""Headers whose values are each broker's own; their names are compared."""
Answer = RemotingCommand | None


@dataclass(frozen=True, slots=True)
class Difference:
    code: int
    case: str
    theirs: str
    ours: str

    def __str__(self) -> str:
        return f"{self.code} | {self.case} | {self.theirs} | {self.ours}"


@dataclass(frozen=True, slots=True)
class Row:
    """The reason for some differences. Texts are patterns as in shells."""

    codes: str
    case: str
    theirs: str
    ours: str
    reason: str

    def fits(self, found: Difference) -> bool:
        return (
            any(_in_range(found.code, part.strip()) for part in self.codes.split(","))
            and any(fnmatch.fnmatchcase(found.case, part.strip()) for part in self.case.split(";"))
            and fnmatch.fnmatchcase(found.theirs, self.theirs)
            and fnmatch.fnmatchcase(found.ours, self.ours)
        )

    def __str__(self) -> str:
        return f"| {self.codes} | {self.case} | {self.theirs} | {self.ours} | {self.reason} |"


def _in_range(code: int, text: str) -> bool:
    first, _, last = text.partition(" to ")
    return text == "all" or (int(first) <= code <= int(last) if last else code == int(first))


def rows() -> list[Row]:
    """Return the rows of the tables in docs/differences.md."""
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`").strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and len(cells) == 5 and re.match(r"\d|all", cells[0]):
            found.append(Row(*cells))
    return found


def recorded() -> list[Difference]:
    """Return what differences.txt holds."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return [
        Difference(int(code), case, theirs, ours)
        for code, case, theirs, ours in (line.split(" | ") for line in lines)
    ]


def compared(theirs: Answer, ours: Answer) -> tuple[str, str]:
    """Both answers as texts, which are equal if they do not differ: code, kind of remark, and the
    headers that differ.
    """
    one, other = _headers(theirs), _headers(ours)
    return _text(theirs, one, other), _text(ours, other, one)


def _headers(answer: Answer) -> dict[str, str]:
    return (
        {}
        if answer is None
        else {name: "?" if name in _VARIES else value for name, value in answer.ext_fields.items()}
    )


def _text(answer: Answer, own: Mapping[str, str], others: Mapping[str, str]) -> str:
    if answer is None:
        return "no answer"
    kind = (
        "plain"
        if answer.remark in _NOTHING
        else "exception"
        if _EXCEPTION.match(answer.remark or "")
        else "words"
    )
    differing = [
        name if value == "?" or name not in others else f"{name}={value}"
        for name, value in sorted(own.items())
        if others.get(name) != value
    ]
    return " ".join(
        [
            str(answer.code),
            *([] if kind == "plain" else [kind]),
            *(["with", *differing] if differing else []),
        ]
    )


class Peer:
    """One of the two brokers. A connection that the broker closes is opened again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client: RawClient | None = None
        self.member: RawClient | None = None

    async def __aenter__(self) -> "Peer":
        self._client = await RawClient.open(self._address)
        self.member = await RawClient.open(self._address)
        await self._prepare(self._client, self.member)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in filter(None, (self._client, self.member)):
            client.connection.close()
            await client.connection.wait_closed()

    @staticmethod
    async def _prepare(client: RawClient, member: RawClient) -> None:
        for topic in (TOPIC, "Sent"):
            await client.ok(
                RequestCode.UPDATE_AND_CREATE_TOPIC,
                topic=topic,
                defaultTopic="TBW102",
                readQueueNums=QUEUES,
                writeQueueNums=QUEUES,
                perm=6,
                topicFilterType="SINGLE_TAG",
                topicSysFlag=0,
                order=False,
            )
        for name in (GROUP, ONLINE):
            body = (
                b'{"groupName":"%s","consumeEnable":true,"retryQueueNums":1,"retryMaxTimes":16}'
                % name.encode()
            )
            await client.ok(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body)
        for queue in range(QUEUES):
            for _ in range(EACH):
                await client.send(TOPIC, b"reading", queue=queue)
            async with asyncio.timeout(60):
                while (answer := await client.pull(GROUP, TOPIC, 0, queue=queue)).code or len(
                    messages(answer)
                ) < EACH:
                    pass
            await client.ok(
                RequestCode.UPDATE_CONSUMER_OFFSET,
                consumerGroup=GROUP,
                topic=TOPIC,
                queueId=queue,
                commitOffset=1,
            )
        await member.heartbeat(CLIENT, ONLINE, TOPIC)

    async def ask(self, case: Case) -> Answer:
        """None where no answer comes."""
        for _ in range(2):
            if self._client is None or self._client.connection.closed:
                self._client = await RawClient.open(self._address)
            try:
                async with asyncio.timeout(NO_ANSWER_S):
                    return await self._client.call(case.code, case.body, **case.fields)
            except TimeoutError:
                return None
            except ConnectError:
                continue
            except TransportError:
                return None
        return None


async def differences(theirs: str, ours: str) -> tuple[int, list[Difference]]:
    """How many requests were sent to each, and those that were answered differently."""
    found, count = [], 0
    async with AsyncExitStack() as stack:
        one, other = [await stack.enter_async_context(Peer(address)) for address in (theirs, ours)]
        for case in cases():
            answers = await asyncio.gather(one.ask(case), other.ask(case))
            count += 1
            texts = compared(*answers)
            if texts[0] != texts[1]:
                found.append(Difference(case.code, case.name, *texts))
    return count, found


@pytest.mark.timeout(400)
async def test_every_request_is_answered_as_by_apache_or_as_recorded(
    apache_broker: Apache, ogive_broker: Broker, tmp_path: Path
) -> None:
    count, found = await differences(apache_broker.address, ogive_broker.address)
    assert count >= 2_000
    known = recorded()
    new = tmp_path / RECORD.name
    new.write_text("".join(f"{one}\n" for one in found), encoding="utf-8")
    changes = [f"- {one}" for one in known if one not in found] + [
        f"+ {one}" for one in found if one not in known
    ]
    assert not changes, (
        f"the answers differ from each other otherwise than {RECORD.name} says. {new} is as they "
        "are now:\n" + "\n".join(changes)
    )
    assert found == known


def test_the_page_has_a_reason_for_each_recorded_difference_and_no_other_rows() -> None:
    table, known = rows(), recorded()
    unexplained = [str(one) for one in known if not any(row.fits(one) for row in table)]
    stale = [str(row) for row in table if not any(row.fits(one) for one in known)]
    assert not unexplained, f"no row of {PAGE.name} says why:\n" + "\n".join(unexplained)
    assert not stale, f"rows of {PAGE.name} fit nothing:\n" + "\n".join(stale)


def test_an_answer_differs_by_its_code_its_kind_of_remark_and_its_headers() -> None:
    def answer(code: int, remark: str | None = None, **fields: str) -> RemotingCommand:
        return RemotingCommand(code, fields, remark=remark)

    assert compared(answer(0, "OK", offset="1"), answer(0, None, offset="1")) == ("0", "0")
    assert compared(answer(0, msgId="a"), answer(0, msgId="b")) == ("0", "0")
    assert compared(answer(0, offset="1"), answer(0, offset="2")) == (
        "0 with offset=1",
        "0 with offset=2",
    )
    assert compared(answer(1, "java.lang.NullPointerException"), answer(1, "no topic")) == (
        "1 exception",
        "1 words",
    )
    assert compared(answer(ResponseCode.NO_PERMISSION, "no", forbiddenType="1"), None) == (
        "16 words with forbiddenType",
        "no answer",
    )
