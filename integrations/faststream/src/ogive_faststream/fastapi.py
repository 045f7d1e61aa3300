"""Router of FastAPI whose handlers subscribe to topics."""

from collections.abc import Callable
from typing import Any, Final

from fastapi.datastructures import Default
from faststream import ContextRepo
from faststream._internal.fastapi import StreamRouter

from ogive_faststream.broker import RocketMQBroker
from ogive_faststream.publisher import Publisher

DEFAULTS: Final[dict[str, Any]] = {
    "dependencies": (),
    "response_model": Default(None),
    "response_model_include": None,
    "response_model_exclude": None,
    "response_model_by_alias": True,
    "response_model_exclude_unset": False,
    "response_model_exclude_defaults": False,
    "response_model_exclude_none": False,
}


class RocketMQRouter(StreamRouter[Any]):
    """Router that starts and stops a broker with the application: ``app.include_router(router)``.

    Its options are those of RocketMQBroker and ``fastapi.APIRouter``; the broker's tags are
    *specification_tags*.
    """

    broker_class = RocketMQBroker
    broker: RocketMQBroker

    def __init__(
        self,
        name_server: str = "127.0.0.1:9876",
        *,
        context: ContextRepo | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name_server, context=context, **options)

    def subscriber(
        self, topic: str, *, group: str, **options: Any
    ) -> Callable[[Callable[..., Any]], Any]:
        """Subscribe a handler, whose dependencies are FastAPI's.

        The options are those of RocketMQBroker.subscriber, and the ``response_model`` and its like
        of FastAPI's routes.
        """
        decorator: Callable[[Callable[..., Any]], Any] = super().subscriber(
            topic, group=group, **DEFAULTS | options
        )
        return decorator

    def publisher(self, topic: str, **options: Any) -> Publisher:
        """Return a publisher, as RocketMQBroker.publisher does."""
        return self.broker.publisher(topic, **options)
