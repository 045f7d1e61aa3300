"""Who holds which topic: registration rules of RouteInfoManager.java, with a clock and connections
that the test makes up.
"""

from dataclasses import replace

import pytest

from ogive.namesrv.route_table import (
    LOST_KEPT_S,
    BrokerIdentity,
    BrokerRegistration,
    Master,
    RegistrationRefused,
    RouteTable,
)
from ogive.wire.bodies.configs import DataVersion, TopicConfig
from ogive.wire.bodies.routes import MAX_QUEUES, ClusterInfo, QueueData

A = BrokerIdentity(cluster="C", name="broker-a", broker_id=0, address="10.0.0.1:10911")
A_SLAVE = BrokerIdentity(cluster="C", name="broker-a", broker_id=1, address="10.0.0.2:10911")
B = BrokerIdentity(cluster="C", name="broker-b", broker_id=0, address="10.0.0.3:10911")
V1, V2 = DataVersion(1, 1000), DataVersion(2, 2000)


def topics(
    *names: str, queues: int = 4, perm: int = 6, sys_flag: int = 0
) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            name=name, read_queues=queues, write_queues=queues, perm=perm, sys_flag=sys_flag
        )
        for name in names
    }


def registration(
    broker: BrokerIdentity = A,
    version: DataVersion = V1,
    table: dict[str, TopicConfig] | None = None,
) -> BrokerRegistration:
    return BrokerRegistration(
        broker=broker, data_version=version, topics=topics("T", "U") if table is None else table
    )


def a_table(*brokers: BrokerIdentity) -> RouteTable:
    """Each of *brokers* holds T and U, registered at time 0 on connection 1."""
    table = RouteTable()
    for broker in brokers:
        table.register(registration(broker), now=0.0, owner=1)
    return table


def brokers_of(table: RouteTable, topic: str) -> dict[str, dict[int, str]]:
    route = table.route(topic)
    return (
        {}
        if route is None
        else {broker.broker_name: dict(broker.addresses) for broker in route.brokers}
    )


# --- coming ---------------------------------------------------------------------------------------


def test_a_route_names_every_broker_of_the_topic_with_its_queues() -> None:
    table = a_table(A)
    table.register(registration(B, table=topics("T", "V", queues=8)), now=0.0, owner=2)
    route = table.route("T")
    assert route is not None
    assert [(q.broker_name, q.read_queues, q.write_queues, q.perm) for q in route.queues] == [
        ("broker-a", 4, 4, 6),
        ("broker-b", 8, 8, 6),
    ]
    assert brokers_of(table, "T") == {"broker-a": {0: A.address}, "broker-b": {0: B.address}}
    assert table.route("nowhere") is None


def test_a_broker_that_is_not_known_may_not_register_exactly_one_topic() -> None:
    """It is taken for the update of one topic by a broker that this name server has lost."""
    table = RouteTable()
    with pytest.raises(RegistrationRefused, match="register broker failed"):
        table.register(registration(table=topics("T")), now=0.0, owner=1)
    table.register(registration(table={}), now=0.0, owner=1)
    table.register(registration(version=V2, table=topics("T")), now=0.0, owner=1)
    assert table.topics() == ["T"]


def test_topics_change_with_the_data_version_only() -> None:
    table = a_table(A)
    table.register(registration(version=V1, table=topics("T", "U", queues=9)), now=1.0, owner=1)
    route = table.route("T")
    assert route is not None
    assert route.queues[0].read_queues == 4
    table.register(registration(version=V2, table=topics("T", "U", queues=9)), now=2.0, owner=1)
    route = table.route("T")
    assert route is not None
    assert route.queues[0].read_queues == 9


def test_a_topic_that_is_missing_here_is_added_also_under_an_old_version() -> None:
    table = a_table(A)
    table.delete_topic("T")
    table.register(registration(version=V1), now=1.0, owner=1)
    assert sorted(table.topics()) == ["T", "U"]


def test_topics_that_a_later_registration_lacks_stay() -> None:
    table = a_table(A)
    table.register(registration(version=V2, table=topics("T", "V")), now=1.0, owner=1)
    assert sorted(table.topics()) == ["T", "U", "V"]


def test_an_address_under_a_new_id_loses_the_old_one() -> None:
    table = a_table(A)
    table.register(registration(replace(A, broker_id=2)), now=1.0, owner=1)
    assert table.member_group("C", "broker-a").addresses == {2: A.address}


def test_a_broker_id_at_a_new_address_replaces_the_old_one_unless_that_was_elected_later() -> None:
    table = a_table(A)
    moved = replace(A, address="10.0.0.9:10911")
    table.register(registration(moved), now=1.0, owner=2)
    assert table.member_group("C", "broker-a").addresses == {0: moved.address}

    table.register(registration(moved, DataVersion(3, 3000, state_version=7)), now=2.0, owner=2)
    table.register(registration(A, DataVersion(4, 4000, state_version=6)), now=3.0, owner=3)
    assert table.member_group("C", "broker-a").addresses == {0: moved.address}


def test_a_broker_that_comes_back_under_a_new_name_leaves_nothing_of_the_old_one() -> None:
    table = a_table(A)
    table.register(registration(replace(A, name="renamed")), now=1.0, owner=2)
    assert brokers_of(table, "T") == {"renamed": {0: A.address}}
    assert table.expire(1000.0)[0].name == "renamed"
    assert table.topics() == []


def test_a_slave_learns_its_master_and_changes_no_topics() -> None:
    table = RouteTable()
    table.register(replace(registration(A), ha_address="10.0.0.1:10912"), now=0.0, owner=1)
    master = table.register(registration(A_SLAVE, V2, topics("T", "only-here")), now=0.0, owner=2)
    assert master == Master(A.address, "10.0.0.1:10912")
    assert brokers_of(table, "T") == {"broker-a": {0: A.address, 1: A_SLAVE.address}}
    assert table.route("only-here") is None


@pytest.mark.parametrize(("acting", "perm"), [(True, 4), (False, 6), (None, None)])
def test_the_first_slave_may_bring_the_topics_without_the_right_to_write(
    acting: bool | None, perm: int | None
) -> None:
    """None: a broker of 4.9, which does not know the option."""
    table = RouteTable()
    table.register(replace(registration(A_SLAVE), acting_master=acting), now=0.0, owner=1)
    route = table.route("T")
    assert (None if route is None else route.queues[0].perm) == perm


@pytest.mark.parametrize(
    "refused",
    [
        registration(replace(A, cluster="other")),
        registration(replace(A, name="")),
        registration(replace(A, address="x" * 256)),
        registration(table=topics("", "T")),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(refused: BrokerRegistration) -> None:
    table = a_table(A)
    with pytest.raises(RegistrationRefused):
        table.register(replace(refused, data_version=V2), now=1.0, owner=1)
    assert table.data_version(A) == V1
    assert sorted(table.topics()) == ["T", "U"]


@pytest.mark.parametrize("queues", [-1, MAX_QUEUES + 1])
def test_a_topic_with_an_impossible_number_of_queues_is_left_out_and_the_others_are_routed(
    queues: int,
) -> None:
    table = RouteTable()
    table.register(
        registration(table=topics("T", "U") | topics("slip", queues=queues)), now=0.0, owner=1
    )
    assert sorted(table.topics()) == ["T", "U"]


def test_the_table_holds_so_many_brokers_and_topics_and_no_more() -> None:
    table = RouteTable(max_brokers=2, max_topics=5)
    table.register(registration(A), now=0.0, owner=1)
    with pytest.raises(RegistrationRefused, match="6 topics"):
        table.register(registration(B, table=topics("1", "2", "3", "4")), now=0.0, owner=2)
    table.register(registration(B), now=0.0, owner=2)
    with pytest.raises(RegistrationRefused, match="2 brokers"):
        table.register(registration(A_SLAVE), now=0.0, owner=3)
    table.add_topic(
        "fifth", [QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6)]
    )
    with pytest.raises(RegistrationRefused, match="5 topics"):
        table.add_topic(
            "sixth", [QueueData(broker_name="broker-a", read_queues=1, write_queues=1, perm=6)]
        )


def test_one_topic_can_be_added_for_brokers_that_are_known() -> None:
    table = a_table(A)
    table.add_topic(
        "V",
        [
            QueueData(broker_name=name, read_queues=3, write_queues=3, perm=6)
            for name in ("broker-a", "stranger")
        ],
    )
    assert brokers_of(table, "V") == {"broker-a": {0: A.address}}


# --- going ----------------------------------------------------------------------------------------


def test_with_the_last_address_the_queues_go_and_topics_without_brokers_vanish() -> None:
    table = a_table(A, A_SLAVE)
    table.register(registration(B, table=topics("U", "V")), now=0.0, owner=2)
    assert table.unregister(A_SLAVE, owner=1)
    assert "broker-a" in brokers_of(table, "T")
    assert table.unregister(A, owner=1)
    assert sorted(table.topics()) == ["U", "V"]
    assert brokers_of(table, "U") == {"broker-b": {0: B.address}}
    assert table.cluster_info().clusters == {"C": ("broker-b",)}
    assert not table.unregister(A, owner=1)


def test_a_broker_goes_with_its_connection() -> None:
    table = a_table(A)
    table.register(registration(B), now=0.0, owner=2)
    assert table.disconnected(2) == [B]
    assert brokers_of(table, "T") == {"broker-a": {0: A.address}}


def test_the_late_end_of_an_older_connection_does_not_take_the_broker_away() -> None:
    """It has been restarted, or has connected anew, and registered on connection 2 since."""
    table = a_table(A)
    table.register(registration(A), now=1.0, owner=2)
    assert table.disconnected(1) == []
    assert not table.unregister(A, owner=1)
    assert table.topics()
    assert table.disconnected(2) == [A]


@pytest.mark.parametrize("newest", [2, 3])
def test_a_sign_of_life_on_a_newer_connection_moves_the_broker_there(newest: int) -> None:
    table = a_table(A)
    table.heartbeat("C", A.address, now=1.0, owner=newest)
    table.heartbeat("C", A.address, now=1.0, owner=1)
    assert table.disconnected(1) == []
    assert table.disconnected(newest) == [A]


def test_a_broker_is_forgotten_after_its_own_time_without_a_sign() -> None:
    table = RouteTable(expiry_s=120.0)
    table.register(registration(A), now=0.0, owner=1)
    table.register(replace(registration(B), expiry_s=10.0), now=0.0, owner=2)
    assert table.expire(10.0) == []
    assert table.expire(10.1) == [B]
    table.heartbeat("C", A.address, now=100.0, owner=1)
    assert table.expire(219.0) == []
    assert table.expire(221.0) == [A]


def lost(table: RouteTable) -> list[str]:
    return sorted(ClusterInfo.decode(table.cluster_info().encode()).lost)


def test_a_broker_that_went_without_unregistering_is_named_for_a_day() -> None:
    table = a_table(A)
    table.register(registration(B), now=0.0, owner=2)
    table.disconnected(2)
    assert lost(table) == ["broker-b"]
    table.expire(1000.0)
    assert lost(table) == ["broker-a", "broker-b"]
    table.expire(LOST_KEPT_S + 1.0)
    assert lost(table) == []


def test_a_broker_that_comes_back_or_was_stopped_is_not_lost() -> None:
    table = a_table(A)
    table.register(registration(B), now=0.0, owner=2)
    table.disconnected(2)
    table.register(registration(B), now=1.0, owner=3)
    assert table.unregister(A, owner=1)
    assert lost(table) == []


def test_no_more_lost_brokers_are_kept_than_the_name_server_holds() -> None:
    table = RouteTable(max_brokers=2)
    for number in range(5):
        broker = replace(A, name=f"broker-{number}", address=f"127.0.0.1:{number + 1}")
        table.register(registration(broker), now=0.0, owner=number)
        table.disconnected(number)
    assert lost(table) == ["broker-3", "broker-4"]


def test_a_sign_of_life_of_a_stranger_changes_nothing() -> None:
    table = RouteTable()
    table.heartbeat("C", A.address, now=1.0, owner=1)
    assert table.data_version(A) is None
    assert table.cluster_info().brokers == {}


# --- operators and questions ----------------------------------------------------------------------


def test_closing_a_broker_for_writing_lasts_for_each_topic_until_its_configuration_changes() -> (
    None
):
    """A topic or group that is made anywhere changes the table: what is being drained must not fill
    again by that.
    """
    table = a_table(A, B)

    def perms(topic: str = "T") -> dict[str, int]:
        route = table.route(topic)
        assert route is not None
        return {queue.broker_name: queue.perm for queue in route.queues}

    assert table.set_writable("broker-a", False) == 2
    assert perms() == {"broker-a": 4, "broker-b": 6}
    table.register(registration(A, V1), now=1.0, owner=1)
    assert perms() == {"broker-a": 4, "broker-b": 6}
    table.register(registration(A, V2, topics("T", "U", "new")), now=2.0, owner=1)
    assert perms() == {"broker-a": 4, "broker-b": 6}
    assert perms("new") == {"broker-a": 6}
    table.register(registration(A, V1, topics("T", "U", "new", queues=8)), now=3.0, owner=1)
    assert perms() == {"broker-a": 6, "broker-b": 6}
    table.set_writable("broker-a", False)
    table.disconnected(1)
    for broker in (A, B):
        table.register(registration(broker), now=4.0, owner=2)
    assert perms() == {"broker-a": 6, "broker-b": 6}
    table.set_writable("broker-b", False)
    assert table.set_writable("broker-b", True) == 2
    assert perms() == {"broker-a": 6, "broker-b": 6}
    assert table.set_writable("stranger", False) == 0


def test_closing_a_broker_makes_no_more_objects_than_there_are_kinds_of_topics() -> None:
    """One each stopped a name server of ten thousand topics for a tenth of a second."""
    table = a_table()
    table.register(
        registration(A, table=topics("T", "U", "V") | topics("Other", queues=8)), now=0.0, owner=1
    )
    table.set_writable("broker-a", False)
    routes = [table.route(name) for name in ("T", "U", "V", "Other")]
    assert len({id(route.queues[0]) for route in routes if route is not None}) == 2
    assert [
        (route.queues[0].read_queues, route.queues[0].perm) for route in routes if route is not None
    ] == [(4, 4)] * 3 + [(8, 4)]


def test_a_topic_is_deleted_at_one_cluster_or_everywhere() -> None:
    other = BrokerIdentity(cluster="D", name="broker-d", broker_id=0, address="10.0.0.4:10911")
    table = a_table(A, other)
    table.delete_topic("T", "D")
    assert list(brokers_of(table, "T")) == ["broker-a"]
    table.delete_topic("T")
    table.delete_topic("T")
    assert table.route("T") is None
    assert list(brokers_of(table, "U")) == ["broker-a", "broker-d"]


def test_topics_are_listed_by_cluster_by_flag_and_as_the_system_s_own() -> None:
    table = RouteTable()
    mixed = (
        topics("plain", "P")
        | topics("unit", sys_flag=1)
        | topics("sub", sys_flag=2)
        | topics("both", sys_flag=3)
    )
    table.register(registration(A, table=mixed), now=0.0, owner=1)
    table.register(registration(replace(B, cluster="D")), now=0.0, owner=2)
    assert sorted(table.topics_of_cluster("D")) == ["T", "U"]
    assert table.topics_of_cluster("nowhere") == []
    assert sorted(table.topics_by_sys_flag(on=1)) == ["both", "unit"]
    assert sorted(table.topics_by_sys_flag(on=2)) == ["both", "sub"]
    assert table.topics_by_sys_flag(on=2, off=1) == ["sub"]
    assert table.system_topics() == ["C", "broker-a", "D", "broker-b"]
    assert table.any_address() == A.address
    assert table.member_group("C", "broker-b").addresses == {}
