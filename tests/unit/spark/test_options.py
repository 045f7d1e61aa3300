"""Options: read without regard to case, refused with the option's name and what it should be."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from ogive.client.config import ClientConfig
from ogive.errors import InvalidOption
from ogive.spark.cluster_options import NAMES
from ogive.spark.offsets import AtTime, AtTimes, Behind, parse_time
from ogive.spark.options import (
    DEFAULT_MAX_OFFSETS_PER_TRIGGER,
    SinkOptions,
    SourceOptions,
    access_of,
)
from ogive.wire.signing import Credentials


def source(**options: str) -> SourceOptions:
    return SourceOptions.parse({"subscribe": "Orders", **options})


def test_defaults() -> None:
    options = source()
    assert options.selection.topics == ("Orders",)
    assert options.access.name_servers == ("127.0.0.1:9876",)
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
        includeMetadata="true",
        startingOffsetsByTimestampStrategy="error",
        minOffsetsPerTrigger="5",
        maxBytesPerTrigger="64m",
        maxBytesPerSecond="10m",
        maxPullsPerBroker="7",
        maxTriggerDelay="30 seconds",
        offsetCommitInterval="5s",
        queues="0, 3",
        pollTimeoutMs="1500",
        **{"fetchOffset.numRetries": "0", "fetchOffset.retryIntervalMs": "10"},
    )
    assert (
        options.min_offsets_per_trigger,
        options.max_bytes_per_trigger,
        options.max_trigger_delay_s,
    ) == (5, 64 << 20, 30.0)
    assert (options.max_bytes_per_second, options.max_pulls_per_broker) == (10 << 20, 7)
    assert (
        options.starting_strategy,
        options.offset_commit_interval_s,
        options.include_metadata,
    ) == ("error", 5.0, True)
    assert (options.poll_timeout_s, options.fetch_retries, options.fetch_retry_interval_s) == (
        1.5,
        0,
        0.01,
    )
    assert options.selection.queue_ids == frozenset({0, 3})
    assert options.access.name_servers == ("a:1", "b:2")
    assert options.selection.topics == ("%DLQ%billing", "Orders")
    assert options.starting == {"Orders": {"broker-a": {0: 23, 1: -2}}}
    assert options.ending == {"Orders": {"": {0: 50}}}
    assert (options.max_offsets_per_trigger, options.max_partitions) == (10, 3)
    assert (
        options.preserve_order,
        options.commit_offsets,
        options.fail_on_data_loss,
        options.include_properties,
    ) == (False,) * 4
    assert options.consumer_group == "billing"
    assert options.tags == frozenset({"paid", "refunded"})
    assert options.subscription == "paid || refunded"


@pytest.mark.parametrize("name", ["subscribe", "SUBSCRIBE", "topic", "path"])
def test_the_topic_goes_by_several_names(name: str) -> None:
    assert SourceOptions.parse({name: "Orders"}).selection.topics == ("Orders",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingOffset": "latest"},
            "unknown option 'startingOffset': did you mean startingOffsets",
        ),
        (
            {"kafka.bootstrap.servers": "x"},
            "unknown option 'kafka.bootstrap.servers': the option is nameServer",
        ),
        ({"groupIdPrefix": "x"}, "unknown option 'groupIdPrefix': the option is consumerGroup"),
        ({"subExpression": "x"}, "unknown option 'subExpression': the option is tags"),
        ({"pullBatchSize": "32"}, "maxOffsetsPerTrigger and maxBytesPerTrigger bound a batch"),
        ({"topicsPattern": "a.*"}, "the option is subscribePattern"),
        ({"predefinedSubscription": "x"}, "the option is consumerGroup"),
        ({"subscriptionName": "x"}, "the option is consumerGroup"),
        ({"groupId": "x"}, "the option is consumerGroup"),
        ({"service.url": "pulsar://x"}, "the option is nameServer"),
        ({"endpoints": "x"}, "the option is nameServer"),
        ({"consumeFromWhere": "x"}, "the option is startingOffsets"),
        (
            {"kafka.max.poll.records": "5"},
            "maxOffsetsPerTrigger and maxBytesPerTrigger bound a batch",
        ),
        ({"kafka.sasl.jaas.config": "x"}, "credentials, or accessKey and secretKey"),
        ({"kafka.ssl.truststore.location": "x"}, "the options are tls, tls.ca"),
        ({"password": "x"}, "the option is secretKey"),
        ({"sqlExpression": "a > 1"}, "the option is sqlFilter"),
        ({"numPartitions": "5"}, "the options are minPartitions and maxPartitions"),
        ({"deadLetterTopic": "x"}, "deadLetterTopic is an option of writing"),
        ({"owner": "me"}, "USING rocketmq needs columns"),
        (
            {"startingOffsets": "latest-5", "endingOffsets": "latest-10"},
            "starts at latest-5, behind its end, which is latest-10",
        ),
        (
            {"startingOffsets": "latest", "endingOffsets": "latest-5"},
            "starts at latest, behind its end, which is latest-5",
        ),
        (
            {"kafka.fetch.max.wait.ms": "5"},
            "options of Kafka's clients mean nothing here; known options: nameServer",
        ),
        ({"option.subscribe": "Orders", "subscribe": "Orders"}, "USING rocketmq needs columns"),
        ({"something": "5"}, "unknown option 'something': known options: nameServer"),
        (
            {"maxOffsetsPerTrigger": "0"},
            "maxOffsetsPerTrigger='0': expected a whole number above zero",
        ),
        ({"maxPartitions": "many"}, "maxPartitions='many'"),
        ({"failOnDataLoss": "yes"}, "failOnDataLoss='yes': expected true or false"),
        (
            {"startingOffsets": "newest"},
            "startingOffsets='newest': expected earliest, latest, latest-1000, group, or JSON",
        ),
        (
            {"startingTimestamp": "yesterday"},
            "startingTimestamp='yesterday': expected milliseconds since 1970",
        ),
        ({"startingTimestamp": "-10"}, "or -10m"),
        ({"startingOffsetsByTimestamp": "[1]"}, "startingOffsetsByTimestamp='[1]': expected JSON"),
        ({"startingOffsetsByTimestamp": '{"Orders": {"0": "soon"}}'}, "startingOffsetsByTimestamp"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "expected error or latest"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger='much': expected bytes"),
        ({"maxTriggerDelay": "15"}, "maxTriggerDelay='15': expected a time like"),
        (
            {"minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "10"},
            "minOffsetsPerTrigger is 20, more than maxOffsetsPerTrigger, which is 10",
        ),
        (
            {"minPartitions": "5", "maxPartitions": "2"},
            "minPartitions is 5, more than maxPartitions, which is 2",
        ),
        (
            {"minPartitions": "5", "preserveOrder": "true"},
            "preserveOrder=true keeps every queue in one partition",
        ),
        ({"subscribePattern": "a.*"}, "subscribe and subscribePattern are given"),
        ({"sqlFilter": "amount >"}, "sqlFilter='amount >'"),
        (
            {"sqlFilter": "amount > 3", "tags": "paid"},
            "tags and sqlFilter are given: one filter at a time",
        ),
        ({"queues": "first"}, "queues='first'"),
        ({"fetchOffset.numRetries": "-1"}, "fetchOffset.numRetries"),
        ({"accessKey": "me"}, "credentials are two options: accessKey and secretKey"),
        (
            {"accessKey": "me", "secretKey": "x", "credentials": "tools.yml"},
            "credentials are given twice",
        ),
        ({"tls.ca": "ca.pem"}, "tls.ca needs the option tls=true"),
        ({"tls": "true", "tls.key": "key.pem"}, "tls.key needs the option tls.certificate"),
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
    assert (
        source(nameServer=text).access.name_servers == ClientConfig(name_server=text).name_servers
    )


def test_an_option_given_twice_under_two_names_is_refused() -> None:
    """Else one of two topics is silently not read, and which one depends on the order of the
    options.
    """
    with pytest.raises(
        InvalidOption, match="'path' says 'Refunds', but subscribe is 'Orders' already"
    ):
        source(path="Refunds")
    with pytest.raises(InvalidOption, match="'path' says 'Refunds', but topic is 'Orders' already"):
        SinkOptions.parse({"topic": "Orders", "path": "Refunds"})
    assert source(path="Orders").selection.topics == ("Orders",)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1767225600000", 1767225600000),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01T00:00:00", 1767225600000),
        ("2026-01-01T01:00:00+01:00", 1767225600000),
        ("-10m", 1_000_000_000 - 600_000),
        ("-1500ms", 1_000_000_000 - 1500),
        ("-2 hours", 1_000_000_000 - 7_200_000),
    ],
)
def test_times(text: str, ms: int) -> None:
    assert parse_time("startingTimestamp", text, 1_000_000_000) == ms


def test_a_time_comes_before_times_and_those_before_offsets() -> None:
    """As in Kafka's source."""
    times = '{"Orders": {"0": 5, "1": "2026-01-01T00:00:00Z"}}'
    both = source(startingOffsetsByTimestamp=times, startingOffsets="earliest")
    assert both.starting == AtTimes({"Orders": {"": {0: 5, 1: 1767225600000}}})
    assert source(startingTimestamp="7", startingOffsetsByTimestamp=times).starting == AtTime(7)
    assert source(startingOffsets="latest-1000").starting == Behind(1000)
    assert source(endingOffsets="latest - 5").ending == Behind(5)


def test_queues_may_be_assigned() -> None:
    options = SourceOptions.parse({"assign": '{"Orders": [0, 2], "Refunds": {"broker-a": [1]}}'})
    assert options.selection.topics == ("Orders", "Refunds")
    assert options.selection.assigned == {
        "Orders": {"": frozenset({0, 2})},
        "Refunds": {"broker-a": frozenset({1})},
    }
    for wrong in (
        "{}",
        "[]",
        '{"Orders": []}',
        '{"Orders": [-1]}',
        '{"Orders": ["a"]}',
        '{"no spaces": [1]}',
        "x",
    ):
        with pytest.raises(InvalidOption, match="assign="):
            SourceOptions.parse({"assign": wrong})


def test_a_pattern_is_a_regular_expression() -> None:
    assert SourceOptions.parse({"subscribePattern": "Orders_.*"}).selection.pattern == "Orders_.*"
    with pytest.raises(InvalidOption, match=r"subscribePattern='\(' is not a regular expression"):
        SourceOptions.parse({"subscribePattern": "("})


def test_what_is_read_says_whose_a_checkpoint_is() -> None:
    """Another order of topics is the same query, other queues are not."""
    assert source(subscribe="a,b").selection.identity == source(subscribe="b, a").selection.identity
    ways = [
        {"subscribe": "a"},
        {"subscribe": "a", "queues": "0"},
        {"assign": '{"a": [0]}'},
        {"assign": '{"a": [1]}'},
        {"subscribePattern": "a"},
    ]
    assert len({SourceOptions.parse(way).selection.identity for way in ways}) == len(ways)


def test_a_namespace_goes_around_every_name_on_the_wire() -> None:
    options = source(
        namespace="shop", consumerGroup="billing", startingOffsets='{"Orders": {"0": 1}}'
    )
    assert (options.selection.topics, options.consumer_group) == (("shop%Orders",), "shop%billing")
    assert options.starting == {"shop%Orders": {"": {0: 1}}}
    assert SourceOptions.parse(
        {"namespace": "shop", "assign": '{"%DLQ%billing": [0]}'}
    ).selection.topics == ("%DLQ%shop%billing",)
    assert SinkOptions.parse({"namespace": "shop", "topic": "Orders"}).topic == "shop%Orders"
    with pytest.raises(InvalidOption, match="namespace 'a b'"):
        source(namespace="a b")


def test_the_secret_is_in_no_text() -> None:
    options = source(accessKey="me", secretKey="very secret", securityToken="token")
    assert options.access.credentials == Credentials(
        access_key="me", secret_key="very secret", security_token="token"
    )
    assert "very secret" not in repr(options)


def test_a_file_of_credentials_is_read_by_who_connects(tmp_path: Path) -> None:
    file = tmp_path / "tools.yml"
    access = source(credentials=str(file), nameServer="a:1;b:2").access
    with pytest.raises(InvalidOption, match=r"tools\.yml cannot be read"):
        access.client()
    file.write_text("accessKey: me\nsecretKey: very secret\n")
    assert access.client().credentials == Credentials(access_key="me", secret_key="very secret")
    assert "very secret" not in str(access.options())
    assert b"very secret" not in pickle.dumps(access)


def test_options_say_all_of_an_access() -> None:
    given = {
        "nameServer": "a:1;b:2",
        "namespace": "shop",
        "accessKey": "me",
        "secretKey": "s",
        "securityToken": "t",
        "tls": "true",
        "tls.ca": "ca.pem",
        "tls.certificate": "c.pem",
        "tls.key": "k.pem",
        "tls.verify": "false",
    }
    assert access_of(given).options() == given
    assert access_of({"nameServer": "a:1", "credentials": "tools.yml"}).options() == {
        "nameServer": "a:1",
        "credentials": "tools.yml",
    }
    assert given.keys() | {"credentials"} == set(NAMES)


def test_files_of_tls_that_cannot_be_read_are_named() -> None:
    access = source(**{"tls": "true", "tls.ca": "/nowhere/ca.pem"}).access
    with pytest.raises(InvalidOption, match=r"/nowhere/ca\.pem"):
        access.ssl_context()


def test_every_tag_is_no_filter() -> None:
    assert source(tags="*").tags is None


def test_sink_options() -> None:
    options = SinkOptions.parse(
        {"topic": "Orders", "nameServer": "a:1", "checkpointLocation": "/tmp/x", "maxInFlight": "8"}
    )
    assert (options.topic, options.access.name_servers, options.max_in_flight) == (
        "Orders",
        ("a:1",),
        8,
    )
    assert options.checkpoint == Path("/tmp/x")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("topics", "the option is topic, or a column topic"),
        ("subscribe", "the option is topic"),
        ("delayTimeLevel", "a column delayTimeLevel says it for each row"),
        ("shardingKey", "a column shardingKey says it for each row"),
        ("tag", "a column tags says it for each row"),
        ("startingOffsets", "startingOffsets is an option of reading"),
        ("failOnDataLoss", "failOnDataLoss is an option of reading"),
        ("kafka.acks", "brokers have acknowledged all of its rows"),
        ("enable.idempotence", "the option is delivery"),
        ("badRecordsPath", "the options are invalidRows and deadLetterTopic"),
        ("kafka.security.protocol", "the options are tls"),
        ("key", "a column keys says it for each row"),
        ("batch_size", "requests form themselves"),
        ("exactly.once", "the option is delivery"),
        ("error.handling", "the options are invalidRows and deadLetterTopic"),
        ("outputMode", "it is said in"),
    ],
)
def test_what_the_sink_does_not_know_is_told(name: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        SinkOptions.parse({"topic": "Orders", name: "x"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("consumer.tag", "the option is tags"),
        ("subscriptionExpression", "the option is tags"),
        ("topic_name", "the option is subscribe"),
        ("consumer.topic", "the option is subscribe"),
        ("scan.startup.mode", "the option is startingOffsets, or startingTimestamp"),
        ("consumer.offset.reset.to", "the option is startingOffsets"),
        ("pull.max.batch.size", "maxOffsetsPerTrigger and maxBytesPerTrigger bound a batch"),
        ("max-rate-per-partition", "maxOffsetsPerTrigger and maxBytesPerTrigger bound a batch"),
        ("tls.enable", "the option is tls"),
        ("acl.enabled", "the options are accessKey and secretKey"),
        ("commit.on.checkpoint", "the option is commitOffsets"),
        ("kafka.isolation.level", "messages of open transactions are never read"),
        ("field.delimiter", "parse makes columns of them"),
    ],
)
def test_names_of_other_connectors_are_told_however_they_are_joined(
    name: str, message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        source(**{name: "x"})


@pytest.mark.parametrize("unit", [10**3, 10**6])
def test_a_time_that_is_not_in_milliseconds_is_refused(unit: int) -> None:
    """A read that starts in the year 58861 would have no rows."""
    microseconds = str(1_795_230_231_293 * unit)
    with pytest.raises(InvalidOption, match="expected milliseconds since 1970"):
        source(startingTimestamp=microseconds)
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestamp"):
        source(startingOffsetsByTimestamp=f'{{"Orders": {{"0": {microseconds}}}}}')


TOO_LATE = "2026-01-02T00:00:00Z"
TOO_EARLY = "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"startingTimestamp": TOO_LATE, "endingTimestamp": TOO_EARLY},
            "the read starts at 2026-01-02T00:00:00Z, behind its end, which is "
            "2026-01-01T00:00:00Z",
        ),
        ({"startingTimestamp": "-5m", "endingTimestamp": "-10m"}, "behind its end"),
        (
            {
                "startingOffsetsByTimestamp": '{"Orders": {"b": {"0": 7, "1": 7}}}',
                "endingOffsetsByTimestamp": '{"Orders": {"b": {"0": 9, "1": 6}}}',
            },
            "the read starts for queue Orders/b/1 at",
        ),
        (
            {"startingTimestamp": "7", "endingOffsetsByTimestamp": '{"Orders": {"0": 6}}'},
            "for queue Orders/",
        ),
        (
            {"startingOffsetsByTimestamp": '{"Orders": {"0": 7}}', "endingTimestamp": "6"},
            "for queue Orders/",
        ),
        (
            {"startingOffsets": '{"Orders": {"0": 20}}', "endingOffsets": '{"Orders": {"0": 10}}'},
            "startingOffsets says 20 for queue .*, behind the end of the read, which is 10",
        ),
        (
            {"startingOffsets": '{"Orders": {"0": 5}}', "endingOffsets": '{"Orders": {"0": 0}}'},
            "startingOffsets says 5 for queue .*, behind the end of the read, which is 0",
        ),
    ],
)
def test_a_read_that_ends_before_it_starts_is_refused(
    options: dict[str, str], message: str
) -> None:
    """It would have no rows and say nothing; a stream as well."""
    with pytest.raises(InvalidOption, match=message):
        SourceOptions.parse({"subscribe": "Orders", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"startingTimestamp": TOO_EARLY, "endingTimestamp": TOO_EARLY},
        {"startingOffsets": '{"Orders": {"0": -1}}', "endingOffsets": '{"Orders": {"0": 10}}'},
        {"startingOffsets": "latest", "endingTimestamp": TOO_EARLY},
    ],
)
def test_a_read_whose_ends_cannot_be_compared_is_accepted(options: dict[str, str]) -> None:
    SourceOptions.parse({"subscribe": "Orders", **options})


@pytest.mark.parametrize(
    ("name", "message"),
    [("includeHeaders", "a column properties"), ("group", "the option is producerGroup")],
)
def test_names_of_other_sinks_say_what_to_write(name: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        SinkOptions.parse({"topic": "Orders", name: "x"})
