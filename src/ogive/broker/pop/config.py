"""Settings of POP consumption."""

from dataclasses import dataclass, fields

from ogive.errors import InvalidOption


@dataclass(frozen=True, slots=True, kw_only=True)
class PopConfig:
    """Behind each setting: its name in Apache's broker.conf, and the default there where it
    differs.
    """

    max_leases: int = 200_000
    """maxPopLeases (ours alone); reads whose messages are out, each takes some 800 bytes."""
    max_waiting_per_key: int = 1024
    """popPollingSize; requests that wait, of one group for one queue."""
    max_waiting_keys: int = 100_000
    """Limit of pairs of a group and a queue that requests wait for. Java: popPollingMapSize."""
    max_waiting: int = 100_000
    """Limit of requests that wait. Java: maxPopPollingSize."""
    retry_v2: bool = False
    """enableRetryTopicV2; name the retry topics of groups ``%RETRY%group+topic``."""
    read_retry_v1: bool = True
    """retrieveMessageFromPopRetryTopicV1; read those of the older name as well."""
    actual_retry_topic: bool = False
    """popResponseReturnActualRetryTopic; messages for another try keep the topic they are in."""
    limit_out: bool = False
    """enablePopMessageThreshold; read nothing from a queue with max_out messages out."""
    max_out: int = 10_000
    """Limit of messages of a queue that are out, with limit_out. Java: popInflightMessageThreshold.
    """
    retry_share: int = 20
    """popFromRetryProbability; percentage of requests that read the retry topic first."""
    priority_retry_share: int = 0
    """popFromRetryProbabilityForPriority; the same, for requests that read by priority."""
    priority_ascending: bool = True
    """priorityOrderAsc; queues with higher numbers have the higher priority."""
    separate_retry_queues: bool = False
    """useSeparateRetryQueue; a retry topic has as many queues as its topic, and a message for
    another try keeps its queue, and so its priority.
    """
    notify_unlocks: bool = True
    """enableNotifyAfterPopOrderLockRelease; wake requests when an orderly batch's time is over."""
    revive_queues: int = 8
    """reviveQueueNum; handles name so many queues of the revive topic of Apache's broker."""
    look_in_memory: bool = True
    """initPopOffsetByCheckMsgInMem; a new group that asks for the end begins at 0 while message 0
    is in memory.
    """

    def __post_init__(self) -> None:
        for name in ("retry_share", "priority_retry_share"):
            if not 0 <= (share := getattr(self, name)) <= 100:
                raise InvalidOption(f"{name}={share}: must be between 0 and 100")
        if not 0 < self.revive_queues <= 128:
            raise InvalidOption(f"revive_queues={self.revive_queues}: must be between 1 and 128")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.name.startswith("max_") and value <= 0:
                raise InvalidOption(f"{entry.name}={value}: must be more than 0")
