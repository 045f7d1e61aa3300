r"""The properties of a message in their stored form: ``name \x01 value \x02`` of each, one after
another.
"""

from ogive.errors import MessageIllegal, ResponseCode
from ogive.model import Message, PropertyName, can_be_selected
from ogive.wire.message import MAX_PROPERTIES_BYTES


def property_text(
    topic: str,
    body: bytes,
    tag: str | None,
    keys: tuple[str, ...],
    sharding_key: str | None,
    delay_level: int,
) -> str:
    """The stored properties of a message that has none of its own.

    Raises what ``Message`` raises for the same arguments.

    The same checks without making the object, because this runs for every message; anything but
    plain text is left to ``Message``.
    """
    text, entries = "", 0
    if tag is not None:
        text, entries = f"TAGS\x01{tag}\x02", 1 if type(tag) is str and can_be_selected(tag) else -1
    if keys:
        try:
            joined = " ".join(keys)
        except TypeError:
            # the message says which key is no text
            joined = ""
        text += f"KEYS\x01{joined}\x02"
        entries += 1
        if joined.count(" ") != len(keys) - 1 or not all(keys):
            entries = -1
    if sharding_key is not None:
        text += f"__SHARDINGKEY\x01{sharding_key}\x02"
        entries += 1 if type(sharding_key) is str else -1
    if delay_level:
        text += f"DELAY\x01{delay_level}\x02"
        entries += 1
    if (
        text.count("\x02") != entries
        or text.count("\x01") != entries
        or tag == ""
        or sharding_key == ""
    ):
        return message_property_text(
            Message(
                topic, body, tag=tag, keys=keys, sharding_key=sharding_key, delay_level=delay_level
            )
        )
    return text


def message_property_text(message: Message) -> str:
    """The stored properties of *message*, without its unique key."""
    properties = dict(message.properties)
    if message.tag is not None:
        properties[PropertyName.TAGS] = message.tag
    if message.keys:
        properties[PropertyName.KEYS] = " ".join(message.keys)
    if message.sharding_key is not None:
        properties[PropertyName.SHARDING_KEY] = message.sharding_key
    if message.delay_level:
        properties[PropertyName.DELAY] = str(message.delay_level)
    if message.deliver_at is not None:
        properties[PropertyName.TIMER_DELIVER_MS] = str(
            round(message.deliver_at.timestamp() * 1000)
        )
    if message.delay_s is not None:
        properties[PropertyName.TIMER_DELAY_MS] = str(round(message.delay_s * 1000))
    if not message.wait_store_ok:
        properties[PropertyName.WAIT] = "false"
    return "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])


def with_unique_key(key: str, text: str) -> bytes:
    """All stored properties of a message.

    Raises MessageIllegal where a broker would refuse them.
    """
    try:
        raw = f"UNIQ_KEY\x01{key}\x02{text}".encode()
    except UnicodeEncodeError as exc:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL, f"a property cannot be written as UTF-8: {exc.reason}"
        ) from None
    if len(raw) > MAX_PROPERTIES_BYTES:
        raise MessageIllegal(
            ResponseCode.MESSAGE_ILLEGAL,
            f"{len(raw)} bytes of properties are over the limit of {MAX_PROPERTIES_BYTES}",
        )
    return raw
