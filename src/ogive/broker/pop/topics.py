"""Retry topics of groups that pop.

There are two names for the retry topic of a group on a topic, see ogive.wire.pop. The older one is
ambiguous: ``%RETRY%a_b`` is that of group a on topic b, and of the group a_b when it pulls. So a
copy says whose it is, in ORIGIN_GROUP, and where a group of such a name exists, the newer name is
used.
"""

from collections.abc import Mapping

from ogive.broker.services import Context
from ogive.model import PropertyName
from ogive.wire.bodies.configs import TopicConfig
from ogive.wire.pop import RETRY_V1, RETRY_V2, read_topic, retry_flag


def retry_topics(ctx: Context, group: str, topic: str) -> list[str]:
    """Return the retry topics that a group reads with *topic*, whether they exist or not."""
    config = ctx.config.pop
    names = [read_topic(group, topic, RETRY_V2)]
    if config.read_retry_v1 or not config.retry_v2:
        names.append(read_topic(group, topic, RETRY_V1))
    return names


def retry_topics_of_all(ctx: Context, topic: str) -> list[str]:
    """Return the retry topics of all groups on a topic.

    Left out is what may be another group's retry topic, or that of another topic.
    """
    return [
        name
        for group in ctx.groups.all()
        for flag in (RETRY_V1, RETRY_V2)
        if (name := read_topic(group, topic, flag)) in ctx.topics
        and not (flag == RETRY_V1 and _is_shared(ctx, group, topic))
    ]


def retry_topics_of_group(ctx: Context, group: str) -> list[str]:
    """Return the retry topics of a group on all topics, without what may be another's."""
    older, newer = (read_topic(group, "", flag) for flag in (RETRY_V1, RETRY_V2))
    return [
        name
        for name in ctx.topics.all()
        if name.startswith(newer)
        or (
            name.startswith(older)
            and (topic := name.removeprefix(older)) in ctx.topics
            and not _is_shared(ctx, group, topic)
        )
    ]


def _is_shared(ctx: Context, group: str, topic: str) -> bool:
    """Return True if the older name is also that of another group, or of other names: a_b and c,
    beside a and b_c.
    """
    parts = f"{group}_{topic}".split("_")
    pairs = [("_".join(parts[:at]), "_".join(parts[at:])) for at in range(1, len(parts))]
    return is_ambiguous(ctx, group, topic) or any(
        pair != (group, topic) and pair[0] in ctx.groups and pair[1] in ctx.topics for pair in pairs
    )


def ensure_retry_topic(ctx: Context, group: str, topic: str) -> TopicConfig:
    """Return the retry topic for messages that were read from *topic*, and make it.

    Raises InvalidOption, Rejected.
    """
    if retry_flag(topic):
        name = topic
    else:
        newer = ctx.config.pop.retry_v2 or is_ambiguous(ctx, group, topic)
        name = read_topic(group, topic, RETRY_V2 if newer else RETRY_V1)
    original = ctx.topics.get(topic) if ctx.config.pop.separate_retry_queues else None
    known = ctx.topics.get(name)
    made = ctx.topics.ensure_pop_retry(name, 1 if original is None else original.write_queues)
    for queue_id in range(known.read_queues if known is not None else 0, made.read_queues):
        if ctx.offsets.get(group, name, queue_id) is None:
            ctx.offsets.note(group, name, queue_id, 0)
    return made


def is_ambiguous(ctx: Context, group: str, topic: str) -> bool:
    """Return True if the older name is that of another group's retry topic."""
    return f"{group}_{topic}" in ctx.groups


def is_ours(ctx: Context, group: str, topic: str, properties: Mapping[str, str]) -> bool:
    """Return True if a message in the retry topic of the older name is for this group."""
    origin = properties.get("ORIGIN_GROUP")
    if origin is not None:
        return origin == group
    # a broker before 5.4 wrote it; one that was sent back by a pulling group is not ours
    return PropertyName.RETRY_TOPIC not in properties or not is_ambiguous(ctx, group, topic)
