"""`ogive up --config`: TOML under the names of the options, and Apache's broker.conf."""

import argparse
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from ogive.broker import BrokerConfig
from ogive.broker.config import PopConfig
from ogive.broker.handlers import admin
from ogive.cli import config_file
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.cli.up import broker_config, other_name_servers
from ogive.cli.up_checks import check_numbers
from ogive.errors import InvalidOption
from ogive.store.retention import RetentionConfig
from ogive.transport.tls import TlsConfig


def up(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["up", *words])


def read(path: Path, text: str) -> dict[str, Any]:
    path.write_text(text)
    return config_file.read(str(path), up().command_parser)


def test_every_option_of_the_command_line_can_stand_in_the_file(tmp_path: Path) -> None:
    command = up().command_parser
    lines, expected = [], {}
    for action in command._actions:
        if action.dest in ("help", "config", "verbose"):
            continue
        name = action.option_strings[-1].removeprefix("--")
        value: Any = (
            True if action.nargs == 0 else next(iter(action.choices)) if action.choices else 7
        )
        lines.append(f"{name} = {'true' if value is True else repr(value)}".replace("'", '"'))
        expected[action.dest] = (
            value
            if action.nargs == 0 or action.choices
            else action.type("7")
            if callable(action.type)
            else "7"
        )
    assert len(lines) > 20
    assert read(tmp_path / "ogive.toml", "\n".join(lines)) == expected


def test_toml_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "ogive.toml"
    path.write_bytes(b'\xef\xbb\xbfcluster = "file"\n')
    assert config_file.read(str(path), up().command_parser) == {"cluster": "file"}
    path.write_bytes('cluster = "端"'.encode("gbk"))
    with pytest.raises(InvalidOption, match="not text in UTF-8"):
        config_file.read(str(path), up().command_parser)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_broker_conf_is_read_as_by_java(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "broker.conf"
    lines = [
        "listenPort 10921",
        "# 名字",
        "namesrvAddr = 10.0.0.1:9876;\\",
        "   10.0.0.2:9876",
        "brokerName:broker\\u002db",
        "flushDiskType=ASYNC_FLUSH  ",
    ]
    path.write_bytes(mark + "\r\n".join(lines).encode("gbk"))
    assert config_file.read(str(path), up().command_parser) == {
        "broker_port": 10921,
        "name_servers": "10.0.0.1:9876;10.0.0.2:9876",
        "broker_name": "broker-b",
        "flush": "async",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [("brokerName=\\u12", "not a Unicode escape"), ("storePathRootDir=/srv/données", "")],
)
def test_what_java_reads_otherwise_than_it_looks_is_told(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(text, encoding="utf-8")
    if said:
        with pytest.raises(InvalidOption, match=said):
            config_file.read(str(path), up().command_parser)
    else:
        assert (
            "characters beyond ASCII are read byte by byte"
            in config_file.read(str(path), up().command_parser)["config_notes"][0]
        )


def test_escapes_are_no_characters_that_are_read_otherwise_than_they_look(tmp_path: Path) -> None:
    assert read(tmp_path / "broker.conf", "brokerName=\\u4e2d\\u00e9") == {"broker_name": "中é"}


def test_a_line_without_a_name_is_shown_as_such(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    assert read(path, "= 5") == {"config_notes": [f"{path}: not used here: ''"]}


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    values = read(
        tmp_path / "ogive.toml", 'cluster = "file"\nflush = "async"\nbroker-port = 5\nacl = true'
    )
    parser = build_parser()
    options = parser.parse_args(["up"])
    options.command_parser.set_defaults(**values)
    options = parser.parse_args(["up", "--cluster", "line"])
    assert (options.cluster, options.flush, options.broker_port, options.acl) == (
        "line",
        "async",
        5,
        True,
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fluhs = 'sync'", "fluhs is not a setting; flush is"),
        ("zzz = 1", "there are acl"),
        ("flush = 'often'", "not one of sync, async"),
        ("acl = 'yes'", "true or false"),
        ("broker-port = 'x'", "not a number"),
        ("broker-port = true", "text or a number"),
        ("data = ['a']", "text or a number; several are one text, joined by commas"),
        ("data = {a = 1}", "text or a number$"),
        ("data = ", "not TOML"),
        ("[section]\nx = 1", r"\[section\] is a table: settings stand at the top level"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        read(tmp_path / "ogive.toml", text)


def test_a_file_that_is_not_there_ends_the_command_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--config", str(tmp_path / "absent.toml")]) == 1
    assert "absent.toml cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line", "more", "said"),
    [
        (
            "broker.conf",
            "maxMessageSize=99999999",
            (),
            "must be at most 4194304 bytes. maxMessageSize in {} says so.",
        ),
        (
            "ogive.toml",
            "segment-size = 5000",
            (),
            "must be a multiple of 512 and at least 4096. segment-size in {} says so.",
        ),
        (
            "broker.conf",
            "brokerName=a b",
            (),
            "--broker-name 'a b' may hold only letters, digits and % | - _ . brokerName in {} says "
            "so.",
        ),
        ("broker.conf", "tls.server.mode=enforcing", (), "tls.server.mode in {} says so."),
        (
            "broker.conf",
            "diskSpaceCleanForciblyRatio=60",
            (),
            "diskSpaceCleanForciblyRatio in {} says so.",
        ),
        # the text advises --acl
        (
            "ogive.toml",
            "acl = false\nhost = '0.0.0.0'",
            (),
            "if you want that. host in {} says so.",
        ),
        (
            "broker.conf",
            "maxMessageSize=99999999",
            ("--max-message-size", "0"),
            "--max-message-size 0: must be more than 0\n",
        ),
    ],
)
def test_an_error_about_a_value_of_the_file_says_where_it_stands(
    tmp_path: Path,
    name: str,
    line: str,
    more: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    path.write_text(line)
    assert main(["up", "--data", str(tmp_path / "store"), "--config", str(path), *more]) == 1
    text = capsys.readouterr().err
    assert said.format(path) in text
    assert ("says so" in said) == ("says so" in text)


def test_a_field_that_has_no_option_is_found_in_the_file() -> None:
    options = up()
    options.config, options.in_file = "b.conf", {"broker_settings": {"max_pull_bytes": -1}}
    assert (
        config_file.place_in_file("max_pull_bytes=-1: must be more than 0", options)
        == "maxTransferBytesOnMessageInMemory in b.conf says so."
    )
    assert config_file.place_in_file("max_pull_messages=0: must be more than 0", options) == ""


BROKER_CONF = """
# Apache's own
brokerClusterName = C
brokerName=b : with = signs
flushDiskType=ASYNC_FLUSH
transactionTimeOut=9000
autoCreateTopicEnable=false
deleteWhen=04;16
authenticationEnabled=true
authorizationEnabled = true
initAuthenticationUser={"username":"root","password":"secret-0815"}
brokerRole=ASYNC_MASTER
haListenPort=10912
namesrvAddr=10.0.0.1:9876
"""


def test_the_keys_of_broker_conf_that_we_have_are_taken_and_the_others_named_once(
    tmp_path: Path,
) -> None:
    values = read(tmp_path / "broker.conf", BROKER_CONF)
    user, notes = values.pop("first_user"), values.pop("config_notes")
    assert (user.access_key, user.secret_key) == ("root", "secret-0815")
    assert values == {
        "cluster": "C",
        "broker_name": "b : with = signs",
        "flush": "async",
        "transaction_timeout": 9.0,
        "no_auto_create_topics": True,
        "delete_at": "04,16",
        "acl": True,
        "name_servers": "10.0.0.1:9876",
    }
    assert notes == [f"{tmp_path / 'broker.conf'}: not used here: haListenPort"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("deleteWhn=04", "deleteWhn (did you mean deleteWhen?)"),
        ("brokerip1=10.0.0.1", "brokerip1 (did you mean brokerIP1?)"),
        ("brokerIP2=10.0.0.1", "brokerIP2"),
        ("a line without a sign", "a"),
        ("a\\ name\\ with\\ blanks", "'a name with blanks'"),
    ],
)
def test_a_misspelt_key_of_broker_conf_comes_with_the_one_that_is_meant(
    tmp_path: Path, line: str, said: str
) -> None:
    path = tmp_path / "broker.conf"
    assert read(path, f"brokerId=0\n{line}\n") == {
        "config_notes": [f"{path}: not used here: {said}"]
    }


def test_every_key_leads_to_an_option_or_a_setting() -> None:
    options = vars(up())
    assert {dest for dest, _ in config_file._KEYS.values()} <= options.keys()
    assert {name for name, _ in config_file._SETTINGS.values()} <= {
        field.name for field in fields(BrokerConfig)
    }


APACHES_NAME = re.compile(
    r"(?:#\s+|\"\"\"|Java:\s+|\()((?:[a-z]+\.)*[a-z]+[A-Z]\w*|tls(?:\.[a-zA-Z]+)+)(?!\w|\.\w)"
)
NOT_READ = {
    "rocketmq.broker.rebalance.lockMaxLiveTime": "a property of Java's process, which stands in no "
    "broker.conf",
    "useServerSideResetOffset": "code 222 always works as if it were true",
    **dict.fromkeys(
        (
            "filterServerNums",
            "msgTraceTopicName",
            "recallMessageEnable",
            "slaveReadEnable",
            "traceOn",
            "traceTopicEnable",
            "useTLS",
        ),
        "told because exportConfigs asks, and as the broker is in any case",
    ),
}


def test_every_setting_with_a_name_of_apaches_is_read_or_there_is_a_reason() -> None:
    """Those that the docstrings of the classes name, and those that the broker tells Apache's
    tools.
    """
    named = {
        name
        for kind in (BrokerConfig, RetentionConfig, TlsConfig)
        for name in APACHES_NAME.findall(inspect.getsource(kind))
    }
    told = set(re.findall(r'"([\w.]+)":', inspect.getsource(admin.settings)))
    assert len(named) > 35
    assert len(told) > 25
    assert (named | told) - set(config_file._KNOWN) == NOT_READ.keys()
    # which 5.x has no settings for
    places = config_file._PLACES.keys() - {"storePathCommitLog"}
    assert set(config_file._KNOWN) - told == {*config_file._SECRET, *places}


def test_the_documentation_has_every_key() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operating.md").read_text()
    assert [name for name in config_file._KNOWN if f"`{name}`" not in text] == []


EVERY_KEY = """
storePathRootDir=/data
listenPort=10999
brokerIP1=10.0.0.5
brokerId=0
brokerRole=SYNC_MASTER
regionId=R
mappedFileSizeCommitLog=1073741824
timerMaxDelaySec=86400
autoCreateSubscriptionGroup=false
defaultTopicQueueNums=16
enablePropertyFilter=false
maxMessageSize=1048576
transactionCheckMax=5
timerMaxWaiting=7
maxOpenTransactions=8
maxUnansweredChecks=9
diskMaxUsedSpaceRatio=80
diskSpaceCleanForciblyRatio=85
channelExpiredTimeout=60000
cleanResourceInterval=20000
flushConsumerOffsetInterval=2000
flushDelayOffsetInterval=3000
maxTransferBytesOnMessageInMemory=131072
maxTransferCountOnMessageInMemory=64
registerBrokerTimeoutMills=5000
registerNameServerPeriod=10000
sendThreadPoolQueueCapacity=500
storeReplyMessageEnable=false
"""


def test_what_stands_in_broker_conf_is_what_the_broker_runs_with(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(EVERY_KEY)
    parser = build_parser()
    options = parser.parse_args(["up"])
    options.command_parser.set_defaults(**config_file.read(str(path), options.command_parser))
    options = parser.parse_args(["up"])
    check_numbers(options)
    assert broker_config(options, ()) == BrokerConfig(
        data=Path("/data"),
        port=10999,
        advertised_host="10.0.0.5",
        region="R",
        segment_bytes=1024**3,
        timer_max_delay_s=86400.0,
        auto_create_groups=False,
        default_topic_queues=16,
        property_filter=False,
        max_message_bytes=1024**2,
        transaction_check_max=5,
        timer_max_waiting=7,
        max_open_transactions=8,
        max_unanswered_checks=9,
        retention=RetentionConfig(disk_share=0.8, force_share=0.85),
        client_expiry_s=60.0,
        retention_check_s=20.0,
        offsets_persist_s=2.0,
        delay_persist_s=3.0,
        max_pull_bytes=131072,
        max_pull_messages=64,
        name_server_timeout_s=5.0,
        register_period_s=10.0,
        max_sends_waiting=500,
        store_replies=False,
        busy_poll_s=options.busy_poll / 1e6,
    )


def test_without_options_the_broker_has_its_own_defaults() -> None:
    """They stand twice: the help must not load the broker."""
    options = up()
    assert broker_config(options, ()) == BrokerConfig(
        data=Path("ogive-data"), busy_poll_s=options.busy_poll / 1e6
    )


def test_who_signs_at_other_name_servers_can_stand_in_the_file(tmp_path: Path) -> None:
    found = read(
        tmp_path / "broker.conf",
        'innerClientAuthenticationCredentials={"accessKey":"b","secretKey":"s"}\n'
        "namesrvAddr=ns:9876",
    )
    assert (found["name_servers_user"].access_key, found["name_servers_user"].secret_key) == (
        "b",
        "s",
    )
    assert (
        other_name_servers(argparse.Namespace(**(vars(up()) | found))).credentials
        == found["name_servers_user"]
    )


@pytest.mark.parametrize(
    ("asked", "values"),
    [
        ("none", {}),
        ("optional", {"tls_client_ca": "ca.pem", "tls_client_auth": "optional"}),
        ("require", {"tls_client_ca": "ca.pem", "tls_client_auth": "required"}),
    ],
)
def test_certificates_of_clients_are_asked_for_as_in_apaches(
    tmp_path: Path, asked: str, values: dict[str, str]
) -> None:
    text = f"tls.server.trustCertPath=ca.pem\ntls.server.need.client.auth={asked}"
    assert read(tmp_path / "broker.conf", text) == values


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("brokerId=1", "brokerId cannot be '1': only 0, a master, is possible here"),
        ("brokerRole=SLAVE", "brokerRole cannot be 'SLAVE': only ASYNC_MASTER and SYNC_MASTER"),
        (
            "registerNameServerPeriod=0",
            "registerNameServerPeriod cannot be '0': must be more than 0",
        ),
        ("flushDiskType=X", "flushDiskType cannot be 'X': must be one of SYNC_FLUSH, ASYNC_FLUSH"),
        (
            "autoCreateTopicEnable=ja",
            "autoCreateTopicEnable cannot be 'ja': must be one of true, false",
        ),
        ("listenPort=x", "listenPort cannot be 'x': a whole number is expected"),
        ("fileReservedTime=long", "fileReservedTime cannot be 'long': a number is expected"),
        ("listenPort=10_911", "listenPort cannot be '10_911': a whole number is expected"),
        (
            "registerNameServerPeriod=1_000",
            "registerNameServerPeriod cannot be '1_000': a whole number is expected",
        ),
        ("fileReservedTime=7_2", "fileReservedTime cannot be '7_2': a number is expected"),
        ("fileReservedTime=nan", "fileReservedTime cannot be 'nan': a number is expected"),
        (
            "tls.server.mode=on",
            "tls.server.mode cannot be 'on': must be one of enforcing, permissive, disabled",
        ),
        ("aclEnable=true", "aclEnable cannot be 'true': users and rules of releases before 5"),
    ],
)
def test_what_this_broker_cannot_be_is_refused_by_name(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(InvalidOption, match=words):
        read(tmp_path / "broker.conf", line)


@pytest.mark.parametrize(
    ("mode", "cert", "values"),
    [
        ("disabled", True, {}),
        ("permissive", False, {}),
        ("permissive", True, {"tls_mode": "permissive", "tls_cert": "c", "tls_key": "k"}),
        ("enforcing", False, {"tls_mode": "enforcing"}),
    ],
)
def test_tls_is_as_apaches_keys_say(
    tmp_path: Path, mode: str, cert: bool, values: dict[str, str]
) -> None:
    """Enforcing without a certificate stays, and is refused later."""
    text = "tls.server.certPath=c\ntls.server.keyPath=k\n" if cert else ""
    assert read(tmp_path / "broker.conf", f"{text}tls.server.mode={mode}") == values


def test_everything_lies_below_the_root_and_no_key_says_otherwise(tmp_path: Path) -> None:
    """What is ignored here begins an empty log beside the messages."""
    root, text = (
        tmp_path / "store",
        "storePathRootDir={0}\nstorePathCommitLog={0}/commitlog\nabortFile={0}/../store/abort\n",
    )
    assert read(tmp_path / "broker.conf", text.format(root)) == {"data": str(root)}
    for name, place in config_file._PLACES.items():
        with pytest.raises(
            InvalidOption,
            match=f"{name} cannot be '/disk2/x': it is always {place} in storePathRootDir, which "
            f"is {root};",
        ):
            read(tmp_path / "broker.conf", f"storePathRootDir={root}\n{name}=/disk2/x")
    with pytest.raises(InvalidOption, match="storePathRootDir, which is not given"):
        read(tmp_path / "broker.conf", "storePathCommitLog=/store/commitlog")
    (tmp_path / "disk2").mkdir()
    root.mkdir()
    (root / "commitlog").symlink_to(tmp_path / "disk2")
    assert read(
        tmp_path / "broker.conf",
        f"storePathRootDir={root}\nstorePathCommitLog={tmp_path / 'disk2'}",
    ) == {"data": str(root)}


@pytest.mark.parametrize(
    "line",
    [
        "flushDiskType=SOMETIMES",
        "transactionTimeOut=soon",
        "autoCreateTopicEnable=1",
        'initAuthenticationUser={"username":"u","password":7}',
        'initAuthenticationUser={"password":"secret-0815"',
        "authenticationEnabled=true",
        "authorizationEnabled=true",
        'innerClientAuthenticationCredentials={"accessKey":"secret-0815"}',
    ],
)
def test_a_mistake_in_broker_conf_is_named_without_its_secrets(tmp_path: Path, line: str) -> None:
    with pytest.raises(InvalidOption, match=r"broker\.conf: ") as refused:
        read(tmp_path / "broker.conf", line)
    assert "secret-0815" not in str(refused.value)
    if line.startswith(("initAuth", "innerClient")):
        assert str(refused.value).endswith("is expected")


def test_text_with_control_characters_is_refused(tmp_path: Path) -> None:
    """A NUL in a path ended with a traceback, a line break in a line of Apache's broker.conf."""
    for text in ("a\\u0000b", "a\\nb"):
        with pytest.raises(InvalidOption, match=r"data: 'a.*b' holds a control character"):
            read(tmp_path / "ogive.toml", f'data = "{text}"')


def test_settings_of_pop_have_apaches_names(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "enableRetryTopicV2=true\npopFromRetryProbability=5\npopPollingSize=7\nreviveQueueNum=4\n"
        "reviveInterval=1000\n"
    )
    parser = build_parser()
    options = parser.parse_args(["up"])
    found = config_file.read(str(path), options.command_parser)
    assert found["broker_settings"] == {
        "pop": PopConfig(retry_v2=True, retry_share=5, max_waiting_per_key=7, revive_queues=4)
    }
    (note,) = found["config_notes"]
    assert "reviveInterval" in note
    path.write_text("popFromRetryProbability=101\n")
    with pytest.raises(InvalidOption, match="popFromRetryProbability cannot be '101'"):
        config_file.read(str(path), options.command_parser)
