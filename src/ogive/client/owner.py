"""The client of a producer, consumer or admin: its own, to start and close, or a shared one."""

from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.namespace import Namespace
from ogive.errors import IllegalStateError, InvalidOption


class ClientOwner:
    """The client of one *user* (a producer, say): its own, which starts and closes with it, or a
    shared one, which it leaves alone.
    """

    def __init__(
        self, user: str, name_server: str, client: ClientConfig | ClientInstance | None
    ) -> None:
        """*client*: a running client to share, or the settings of an own one (instead of
        *name_server*). Raises InvalidOption for both.
        """
        if not isinstance(client, ClientConfig | ClientInstance | None):
            raise TypeError(f"client must be an ogive.ClientConfig, not {type(client).__name__}")
        if client is not None and name_server != DEFAULT_NAME_SERVER:
            raise InvalidOption(
                f"name server {name_server!r} stands beside client=, which has one itself: "
                "ClientConfig(name_server=...)"
            )
        self._user = user
        self._shared = client if isinstance(client, ClientInstance) else None
        self._config = (
            client if isinstance(client, ClientConfig) else ClientConfig(name_server=name_server)
        )
        self._client: ClientInstance | None = None

    @property
    def started(self) -> bool:
        return self._client is not None

    @property
    def namespace(self) -> Namespace:
        return (
            self._shared.namespace
            if self._shared is not None
            else Namespace(self._config.namespace or "")
        )

    @property
    def client(self) -> ClientInstance:
        """Raises IllegalStateError before the start."""
        if self._client is None:
            raise IllegalStateError(
                f"the {self._user} is not started: start it, or use it in an `async with` block"
            )
        return self._client

    async def start(self) -> ClientInstance:
        """Raises IllegalStateError the second time."""
        if self._client is not None:
            raise IllegalStateError(f"this {self._user} was started before; make a new one")
        self._client = self._shared or ClientInstance(self._config)
        if self._shared is None:
            await self._client.start()
        return self._client

    async def close(self) -> None:
        """Harmless when repeated."""
        if self._client is not None and self._shared is None:
            await self._client.close()
