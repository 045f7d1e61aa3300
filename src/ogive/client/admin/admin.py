"""Admin, put together from its families of calls."""

from ogive.client.admin.access import AccessCalls
from ogive.client.admin.groups import GroupCalls
from ogive.client.admin.messages import MessageCalls
from ogive.client.admin.namespaced import bordered
from ogive.client.admin.offsets import OffsetCalls
from ogive.client.admin.topics import TopicCalls
from ogive.keywords import explains


@explains
@bordered
class Admin(TopicCalls, GroupCalls, OffsetCalls, MessageCalls, AccessCalls):
    """Administration of a cluster: ``async with Admin() as admin``.

    Changes are made at every master, of all clusters unless one is given. *client* takes either
    settings, instead of *name_server*, or a running client to share, which stays open.
    """
