"""A listener inside a namespace: names on the wire carry it, messages for the application do
not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ogive.client.consumer.message_iterator import no_function
from ogive.client.consumer.subscription import OnChange
from ogive.client.listener import AnyListener, is_async
from ogive.client.namespace import Namespace
from ogive.model import MessageExt, MessageQueue


def wired(listener: AnyListener, namespace: Namespace) -> AnyListener:
    """The same listener, where there is no namespace."""
    if not namespace:
        return listener
    config = replace(
        listener.config,
        topic=namespace.wrap(listener.config.topic),
        group=namespace.wrap(listener.config.group),
    )
    function = listener.function
    if function is no_function:
        return replace(listener, config=config)

    def bare(argument: MessageExt | Sequence[MessageExt]) -> Any:
        if isinstance(argument, MessageExt):
            return namespace.strip_message(argument)
        return [namespace.strip_message(message) for message in argument]

    def plain(argument: Any) -> Any:
        return function(bare(argument))

    async def on_the_loop(argument: Any) -> Any:
        return await function(bare(argument))

    return replace(listener, config=config, function=on_the_loop if listener.is_async else plain)


def wired_on_change(on_change: OnChange | None, namespace: Namespace) -> OnChange | None:
    """*on_change* with the queues that the application knows."""
    if on_change is None or not namespace:
        return on_change
    told = on_change

    def bare(queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [namespace.strip_queue(queue) for queue in queues]

    def plain(taken: Sequence[MessageQueue], given_up: Sequence[MessageQueue]) -> Any:
        return told(bare(taken), bare(given_up))

    async def on_the_loop(taken: Sequence[MessageQueue], given_up: Sequence[MessageQueue]) -> Any:
        return await told(bare(taken), bare(given_up))

    return on_the_loop if is_async(told) else plain
