"""Administration, blocking."""

from ogive.client.admin import Admin as _Admin
from ogive.client.config import DEFAULT_NAME_SERVER, ClientConfig
from ogive.client.instance import ClientInstance
from ogive.client.portal import Facade, blocking
from ogive.keywords import explains


@explains
class Admin(Facade):
    """Administration of a cluster: ``with Admin() as admin``.

    Changes are made at every master, of all clusters unless one is given. *client* takes either
    settings, instead of *name_server*, or a running client to share, which stays open.
    """

    def __init__(
        self,
        name_server: str = DEFAULT_NAME_SERVER,
        *,
        client: ClientConfig | ClientInstance | None = None,
    ) -> None:
        super().__init__()
        self._asyncio = _Admin(name_server, client=client)

    def start(self) -> None:
        """Start the client. The first call connects."""
        self._begin(self._asyncio.start, self._asyncio.close)

    def close(self) -> None:
        """Close the client, unless it is shared."""
        self._end(self._asyncio.close)

    cluster_info = blocking(_Admin.cluster_info)

    # --- topics and brokers -----------------------------------------------------------------------

    create_topic = blocking(_Admin.create_topic)
    update_topic = blocking(_Admin.update_topic)
    delete_topic = blocking(_Admin.delete_topic)
    topics = blocking(_Admin.topics)
    topic = blocking(_Admin.topic)
    route = blocking(_Admin.route)
    offsets = blocking(_Admin.offsets)
    brokers = blocking(_Admin.brokers)
    delay_levels = blocking(_Admin.delay_levels)

    # --- groups -----------------------------------------------------------------------------------

    create_group = blocking(_Admin.create_group)
    update_group = blocking(_Admin.update_group)
    set_consume_mode = blocking(_Admin.set_consume_mode)
    delete_group = blocking(_Admin.delete_group)
    groups = blocking(_Admin.groups)
    group = blocking(_Admin.group)
    members = blocking(_Admin.members)
    producers = blocking(_Admin.producers)
    running_info = blocking(_Admin.running_info)
    lag = blocking(_Admin.lag)
    lag_gaps = blocking(_Admin.lag_gaps)

    # --- offsets ----------------------------------------------------------------------------------

    offsets_at = blocking(_Admin.offsets_at)
    positions = blocking(_Admin.positions)
    reset_offsets = blocking(_Admin.reset_offsets)
    skip_backlog = blocking(_Admin.skip_backlog)
    clone_offsets = blocking(_Admin.clone_offsets)

    # --- messages ---------------------------------------------------------------------------------

    message = blocking(_Admin.message)
    message_at = blocking(_Admin.message_at)
    messages = blocking(_Admin.messages)
    trace = blocking(_Admin.trace)
    dead_letters = blocking(_Admin.dead_letters)
    send_again = blocking(_Admin.send_again)
    was_sent_again = blocking(_Admin.was_sent_again)

    # --- users and policies -----------------------------------------------------------------------

    create_user = blocking(_Admin.create_user)
    update_user = blocking(_Admin.update_user)
    delete_user = blocking(_Admin.delete_user)
    users = blocking(_Admin.users)
    allow = blocking(_Admin.allow)
    deny = blocking(_Admin.deny)
    forget_rules = blocking(_Admin.forget_rules)
    access_rules = blocking(_Admin.access_rules)
