"""Options: read without regard to case, refused with the option's name and what it should be."""

from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.errors import InvalidOption
from ogive.spark.options import DEFAULT_MAX_OFFSETS_PER_TRIGGER, SinkOptions, SourceOptions


def source(**options: str) -> SourceOptions:
    return SourceOptions.parse({"subscribe": "Orders", **options})


def test_defaults() -> None:
    options = source()
    assert options.topics == ("Orders",)
    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.max_offsets_per_trigger == DEFAULT_MAX_OFFSETS_PER_TRIGGER
    assert options.fail_on_data_loss
    assert options.subscription == "*"


def test_every_option_is_read() -> None:
    options = source(
        nameServer="a:1; b:2",
        subscribe="Orders, %DLQ%billing",
        startingOffsets='{"Orders": {"broker-a": {"0": 23, "1": -2}}}',
        endingOffsets='{"Orders": {"0": 50}}',
        maxOffsetsPerTrigger="10",
        maxPartitions="3",
        preserveOrder="false",
        consumerGroup="billing",
        commitOffsets="FALSE",
        failOnDataLoss="false",
        tags="refunded || paid",
        includeProperties="false",
    )
    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("%DLQ%billing", "Orders")
    assert options.starting_offsets == {"Orders": {"broker-a": {0: 23, 1: -2}}}
    assert options.ending_offsets == {"Orders": {"": {0: 50}}}
    assert (options.max_offsets_per_trigger, options.max_partitions) == (10, 3)
    assert (options.preserve_order, options.commit_offsets, options.fail_on_data_loss, options.include_properties) == (False,) * 4
    assert options.consumer_group == "billing"
    assert options.tags == frozenset({"paid", "refunded"})
    assert options.subscription == "paid || refunded"


@pytest.mark.parametrize("name", ["subscribe", "SUBSCRIBE", "topic", "path"])
def test_the_topic_goes_by_several_names(name: str) -> None:
    assert SourceOptions.parse({name: "Orders"}).topics == ("Orders",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "unknown option 'startingOffset': did you mean startingOffsets"),
        ({"kafka.bootstrap.servers": "x"}, "known options: nameServer"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger='0': expected a whole number above zero"),
        ({"maxPartitions": "many"}, "maxPartitions='many'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss='yes': expected true or false"),
        ({"startingOffsets": "newest"}, "startingOffsets='newest': expected earliest, latest, group, or JSON"),
        ({"startingOffsets": '{"Orders": {"broker-a": {"0": -3}}}'}, "startingOffsets"),
        ({"startingOffsets": '{"Orders": [1, 2]}'}, "startingOffsets"),
        ({"startingOffsets": "group"}, "needs the option consumerGroup"),
        ({"endingOffsets": "earliest"}, "endingOffsets=earliest"),
        ({"nameServer": "a:1,b:2"}, "name server 'a:1,b:2' is not of the form host:port"),
        ({"nameServer": "a:99999"}, "name server 'a:99999' is not of the form host:port"),
        ({"nameServer": ";"}, "no name server is given"),
        ({"subscribe": " , "}, "subscribe is missing"),
        ({"subscribe": "no spaces allowed"}, "topic name"),
        ({"tags": "||"}, "tags '||': expected a tag"),
        ({"consumerGroup": "a b"}, "group name"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        source(**options)
    assert message in str(caught.value)


@pytest.mark.parametrize("text", ["broker.example", "http://a:1; b", "[::1]:9876"])
def test_name_servers_mean_what_they_mean_to_every_client(text: str) -> None:
    assert source(nameServer=text).name_servers == ClientConfig(name_server=text).name_servers


def test_an_option_given_twice_under_two_names_is_refused() -> None:
    """Else one of two topics is silently not read, and which one depends on the order of the options."""
    with pytest.raises(InvalidOption, match="'path' says 'Refunds', but subscribe is 'Orders' already"):
        source(path="Refunds")
    with pytest.raises(InvalidOption, match="'path' says 'Refunds', but topic is 'Orders' already"):
        SinkOptions.parse({"topic": "Orders", "path": "Refunds"})
    assert source(path="Orders").topics == ("Orders",)


def test_every_tag_is_no_filter() -> None:
    assert source(tags="*").tags is None


def test_sink_options() -> None:
    options = SinkOptions.parse({"topic": "Orders", "nameServer": "a:1", "checkpointLocation": "/tmp/x", "maxInFlight": "8"})
    assert (options.topic, options.name_servers, options.max_in_flight) == ("Orders", ("a:1",), 8)
    with pytest.raises(InvalidOption, match="did you mean topic"):
        SinkOptions.parse({"topics": "Orders"})
