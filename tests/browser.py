"""A console to look at, and who looks: real HTTP, one request a connection."""

import base64
import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from ogive.client.config import ClientConfig
from ogive.console.config import ConsoleConfig
from ogive.console.server import Console
from ogive.wire.signing import Credentials

WAIT_S = 60.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def words(self) -> str:
        """What a reader sees, with single spaces."""
        reader = _Words()
        reader.feed(self.text)
        return " ".join("".join(reader.found).split())


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_data(self, data: str) -> None:
        self.found.append(f"{data} ")


class Browser:
    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.address = address
        self._sent = (
            {}
            if credentials is None
            else {"Authorization": basic(credentials.access_key, credentials.secret_key)}
        )

    def get(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: str | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection(self.address, timeout=WAIT_S)
        try:
            connection.request(method, path, body, headers={**self._sent, **(headers or {})})
            answer = connection.getresponse()
            return Answer(
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read().decode(),
            )
        finally:
            connection.close()

    def confirm(self, page: Answer, **headers: str) -> Answer:
        """Press the button of a preview; *headers* take the place of the browser's own."""
        (place,) = re.findall(r'<form method="post" action="([^"]*)"', page.text)
        return self.post(place, f"token={token_of(page)}", **headers)

    def post(self, path: str, body: str, **headers: str) -> Answer:
        own = {
            "Origin": f"http://{self.address}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        return self.get(path, method="POST", body=body, headers=own | headers)


def token_of(page: Answer) -> str:
    (token,) = re.findall(r'name="token" value="([^"]*)"', page.text)
    return str(token)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def console_of(
    name_server: str, *, client: Mapping[str, Any] | None = None, **settings: Any
) -> Iterator[Browser]:
    """A console for the cluster; *settings* are ConsoleConfig's."""
    config = ConsoleConfig(
        client=ClientConfig(name_server=name_server, **(client or {})), port=0, **settings
    )
    with clusters_of(config) as browser:
        yield Browser(browser.address, config.credentials)


@contextmanager
def clusters_of(*configs: ConsoleConfig) -> Iterator[Browser]:
    """A console for several clusters, and a visitor without credentials."""
    console = Console(*configs)
    console.start()
    try:
        yield Browser(console.address)
    finally:
        console.stop()
