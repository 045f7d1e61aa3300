"""Which requests administer the broker, and what the log tells of each: see access/audit.py.

Left out: 306 and 401, which change nothing here, and what consumers do all day: commits (15),
locks, and messages that are sent back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from ogive.access.audit import About, Change, Secret, State, named
from ogive.access.table import user_of
from ogive.broker.context import Context
from ogive.broker.remote_config import CHANGEABLE, setting_text
from ogive.wire.bodies import (
    SubscriptionGroupConfig,
    TopicConfig,
    dumps,
    group_configs_loads,
    loads_object,
    topic_configs_loads,
)
from ogive.wire.bodies.access import USER_SUBJECT
from ogive.wire.codes import RequestCode
from ogive.wire.command import RemotingCommand


def _topics_of(command: RemotingCommand) -> About:
    return {"topic": tuple(config.name for config in topic_configs_loads(command.body))}


def _group_of(command: RemotingCommand) -> About:
    return {"group": (SubscriptionGroupConfig.from_json(loads_object(command.body)).name,)}


def _groups_of(command: RemotingCommand) -> About:
    return {"group": tuple(config.name for config in group_configs_loads(command.body))}


def _nothing(command: RemotingCommand) -> About:
    return {}


@dataclass(frozen=True, slots=True)
class _Settings:
    """Those of one of many topics or groups: compared as they are, and a text only where it is
    told.
    """

    config: TopicConfig | SubscriptionGroupConfig

    def __str__(self) -> str:
        return dumps(self.config.to_json()).decode()


# --- before and after -----------------------------------------------------------------------------


def _topics(ctx: Context, about: About) -> State:
    return _settings(about.get("topic", ()), ctx.topics.get)


def _groups(ctx: Context, about: About) -> State:
    return _settings(about.get("group", ()), ctx.groups.get)


def _readable(ctx: Context, about: About) -> State:
    (group,), (topic,) = about.get("group", ("",)), about.get("topic", ("",))
    return {"readable": ctx.groups.may_read(group, topic)}


def _settings(names: Iterable[str], get: Callable[[str], Any]) -> State:
    """The settings of one thing each for itself, those of several as one text for each."""
    configs = {name: _Settings(config) for name in names if (config := get(name)) is not None}
    if len(configs) == 1:
        (only,) = configs.values()
        return only.config.to_json()
    return configs


def _offsets(ctx: Context, about: About) -> State:
    """Of the group that is put elsewhere: in the topic that is named, or in all."""
    (group,) = about.get("to group") or about.get("group") or ("",)
    topics = about.get("topic") or ctx.offsets.topics_of(group)
    return {
        f"{topic}/{queue_id}": offset
        for topic in topics
        for queue_id, offset in sorted(ctx.offsets.queues_of(group, topic).items())
    }


def _user(ctx: Context, about: About) -> State:
    user = None if ctx.guard is None else ctx.guard.table.users.get(*about.get("user", ("",)))
    return (
        {}
        if user is None
        else {"type": user.user_type, "status": user.status, "password": Secret(user.password)}
    )


def _rules(ctx: Context, about: About) -> State:
    (subject,) = about.get("subject", ("",))
    acl = None if ctx.guard is None else ctx.guard.table.acls.get(USER_SUBJECT + user_of(subject))
    return {
        f"{policy.policy_type}/{entry.resource}": " ".join(
            [entry.decision, ",".join(entry.actions), *map(str, entry.source_ips)]
        )
        for policy in (acl.policies if acl is not None else ())
        for entry in policy.entries
    }


def _configuration(ctx: Context, about: About) -> State:
    return {name: setting_text(ctx.config, name) for name in CHANGEABLE}


C: Final = RequestCode

CHANGES: Final[dict[int, Change[Context]]] = {
    C.UPDATE_AND_CREATE_TOPIC: Change("create or change", named(topic="topic"), _topics),
    C.UPDATE_AND_CREATE_TOPIC_LIST: Change("create or change", _topics_of, _topics),
    C.DELETE_TOPIC_IN_BROKER: Change("delete", named(topic="topic"), _topics),
    C.CLEAN_UNUSED_TOPIC: Change("remove what is left of deleted topics", _nothing),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Change("create or change", _group_of, _groups),
    C.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Change("create or change", _groups_of, _groups),
    C.DELETE_SUBSCRIPTIONGROUP: Change("delete", named(group="groupName"), _groups),
    C.UPDATE_AND_GET_GROUP_FORBIDDEN: Change(
        "set the right to read of", named(group="group", topic="topic"), _readable
    ),
    C.INVOKE_BROKER_TO_RESET_OFFSET: Change(
        "reset the offsets of", named(group="group", topic="topic"), _offsets
    ),
    C.CLONE_GROUP_OFFSET: Change(
        "copy the offsets of",
        named(**{"group": "srcGroup", "to group": "destGroup", "topic": "topic"}),
        _offsets,
    ),
    C.UPDATE_BROKER_CONFIG: Change("change the broker's settings", _nothing, _configuration),
    C.DELETE_EXPIRED_COMMITLOG: Change("remove old messages at any hour", _nothing),
    C.AUTH_CREATE_USER: Change("create", named(user="username"), _user),
    C.AUTH_UPDATE_USER: Change("change", named(user="username"), _user),
    C.AUTH_DELETE_USER: Change("delete", named(user="username"), _user),
    C.AUTH_CREATE_ACL: Change("allow or deny", named(subject="subject"), _rules),
    C.AUTH_UPDATE_ACL: Change("allow or deny", named(subject="subject"), _rules),
    C.AUTH_DELETE_ACL: Change("remove rules of", named(subject="subject"), _rules),
}
