"""Messages for tests of listeners, as a broker would have delivered them."""

import time
from collections.abc import Iterable, Mapping

from ogive.keywords import explained
from ogive.model import MessageExt, MessageQueue, PropertyName


@explained
def message(
    topic: str,
    body: bytes,
    *,
    tag: str | None = None,
    keys: str | Iterable[str] = (),
    properties: Mapping[str, str] | None = None,
    sharding_key: str | None = None,
    queue_id: int = 0,
    queue_offset: int = 0,
    reconsume_times: int = 0,
) -> MessageExt:
    """A received message to call a listener with: ``bill(message("Orders", b"4711", tag="paid"))``.

    Its times are now.
    """
    if not isinstance(body, bytes):
        raise TypeError(f"body must be bytes, not {type(body).__name__}: encode text first")
    now_ms = time.time_ns() // 1_000_000
    joined = keys if isinstance(keys, str) else " ".join(keys)
    known = {
        PropertyName.UNIQ_KEY: f"{now_ms:016X}{queue_id:08X}{queue_offset:08X}",
        PropertyName.TAGS: tag,
        PropertyName.KEYS: joined or None,
        PropertyName.SHARDING_KEY: sharding_key,
    }
    return MessageExt(
        topic=topic,
        body=body,
        properties=dict(properties or {})
        | {name: value for name, value in known.items() if value is not None},
        queue=MessageQueue(topic, "broker-a", queue_id),
        queue_offset=queue_offset,
        commitlog_offset=0,
        reconsume_times=reconsume_times,
        born_timestamp_ms=now_ms,
        store_timestamp_ms=now_ms,
        born_host="127.0.0.1:0",
        store_host="127.0.0.1:0",
        flag=0,
        sys_flag=0,
        stored_bytes=len(body),
    )
