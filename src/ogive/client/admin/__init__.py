"""Administration: topics, groups, offsets, messages, users.

Every call asks the brokers themselves; nothing is cached.
"""

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
    SettingChange,
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
    "SettingChange",
    "Topic",
    "TopicSummary",
    "UserRow",
]
