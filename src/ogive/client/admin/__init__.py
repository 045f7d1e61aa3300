"""Operating a cluster: topics, groups, offsets, messages. Each call asks the brokers themselves."""

from ogive.client.admin.admin import Admin
from ogive.client.admin.records import (
    AccessRule,
    BrokerStatus,
    BrokerTopic,
    Group,
    GroupSummary,
    Member,
    OffsetReset,
    QueueLag,
    QueueOffsets,
    ResetTarget,
    Topic,
    TopicSummary,
    UserRow,
)

__all__ = [
    "AccessRule",
    "Admin",
    "BrokerStatus",
    "BrokerTopic",
    "Group",
    "GroupSummary",
    "Member",
    "OffsetReset",
    "QueueLag",
    "QueueOffsets",
    "ResetTarget",
    "Topic",
    "TopicSummary",
    "UserRow",
]
