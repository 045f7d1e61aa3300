"""Topics at a broker."""

from ogive.client.api.calling import REQUEST_TIMEOUT_S, ask
from ogive.client.api.paging import PAGE, pages
from ogive.model import MessageQueue
from ogive.transport.pool import ConnectionPool
from ogive.wire import headers as h
from ogive.wire.bodies import (
    TopicConfig,
    TopicOffset,
    group_list_loads,
    loads_object,
    topic_stats_loads,
)


async def create_topic(
    pool: ConnectionPool, address: str, topic: TopicConfig, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    """Create the topic, or change it to *topic*.

    The broker answers after it has told its name servers.
    """
    attributes = ",".join(f"+{name}={value}" for name, value in topic.attributes.items())
    header = h.CreateTopicRequest(
        topic=topic.name,
        read_queue_nums=topic.read_queues,
        write_queue_nums=topic.write_queues,
        perm=topic.perm,
        topic_filter_type=topic.filter_type,
        topic_sys_flag=topic.sys_flag,
        order=topic.order,
        attributes=attributes or None,
    )
    await ask(pool, address, header, timeout_s)


async def delete_topic(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> None:
    await ask(pool, address, h.DeleteTopicRequest(topic=topic), timeout_s)


async def topic_config(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> TopicConfig:
    """One topic's settings at a broker of 5.x; those of 4.x raise NotSupported."""
    return TopicConfig.from_json(
        loads_object(
            (await ask(pool, address, h.GetTopicConfigRequest(topic=topic), timeout_s)).body
        )
    )


async def topic_configs(
    pool: ConnectionPool, address: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[str, TopicConfig]:
    """Every topic of a broker; asked for by pages, which brokers before 5.4 do not know: they
    answer all at once.
    """
    return {
        name: TopicConfig.from_json(config)
        for name, config in await pages(
            lambda seq: h.GetAllTopicConfigRequest(
                topic_seq=seq, max_topic_num=PAGE, data_version=""
            ),
            "topicConfigTable",
            "totalTopicNum",
            pool,
            address,
            timeout_s,
        )
    }


async def topic_stats(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> dict[MessageQueue, TopicOffset]:
    """Minimum and maximum offset of every queue of *topic* at one broker."""
    return topic_stats_loads(
        (await ask(pool, address, h.GetTopicStatsRequest(topic=topic), timeout_s)).body
    )


async def topic_groups(
    pool: ConnectionPool, address: str, topic: str, *, timeout_s: float = REQUEST_TIMEOUT_S
) -> list[str]:
    """The groups that consume *topic* at this broker, or have."""
    return group_list_loads(
        (await ask(pool, address, h.QueryTopicConsumeByWhoRequest(topic=topic), timeout_s)).body
    )
