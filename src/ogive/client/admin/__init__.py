"""Administration: topics, groups, offsets, messages, users.

Every call asks the brokers themselves; nothing is cached.
"""

from ogive.client.admin.base import bordered
from ogive.client.admin.group_admin import GroupCalls
from ogive.client.admin.message_admin import MessageCalls
from ogive.client.admin.offset_admin import OffsetCalls
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
from ogive.client.admin.topic_admin import TopicCalls
from ogive.client.admin.user_admin import AccessCalls
from ogive.keywords import explains

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


@explains
@bordered
class Admin(TopicCalls, GroupCalls, OffsetCalls, MessageCalls, AccessCalls):
    """Administration of a cluster: ``async with Admin() as admin``.

    Changes are made at every master, of all clusters unless one is given. *client* takes either
    settings, instead of *name_server*, or a running client to share, which stays open.
    """
