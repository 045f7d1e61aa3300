"""The operator's object, of its families of calls."""

from ogive.client.admin.access import AccessCalls
from ogive.client.admin.groups import GroupCalls
from ogive.client.admin.messages import MessageCalls
from ogive.client.admin.namespaced import bordered
from ogive.client.admin.offsets import OffsetCalls
from ogive.client.admin.topics import TopicCalls


@bordered
class Admin(TopicCalls, GroupCalls, OffsetCalls, MessageCalls, AccessCalls):
    """``async with Admin() as admin``. *client*: settings (instead of *name_server*), or a running client to share.

    Calls that change something act on every master of the cluster, or of one that is named; names are checked before anybody is asked.
    """
