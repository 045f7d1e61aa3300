"""``ogive pipeline`` without Spark and without a broker: options, and what is refused."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

pytest.importorskip("pyspark")

import ogive
from ogive import pipelines
from ogive.cli.main import main
from ogive.cli.parser import build_parser
from ogive.errors import NoNameServer, NoRoute
from ogive.pipelines import Stop, Summary
from ogive.testing.fake_broker import FakeBroker


def test_a_redrive_only_shows_unless_it_is_told_yes() -> None:
    plain = build_parser().parse_args(["pipeline", "redrive", "billing", "--state", "s"])
    assert not plain.yes
    assert (
        build_parser().parse_args(["pipeline", "redrive", "billing", "--state", "s", "--yes"]).yes
    )


@pytest.mark.parametrize("rate", ["0", "-1", "many"])
def test_a_rate_is_a_number_above_zero(rate: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(
            ["pipeline", "replay", "--from", "T", "--state", "s", "--rate", rate]
        )
    assert "above zero" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def no_word_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NAMESRV_ADDR", "OGIVE_CREDENTIALS", "OGIVE_CAFILE", "OGIVE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    file = tmp_path / "tools.yml"
    file.write_text("accessKey: me\nsecretKey: very secret\n")
    return file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """What each pipeline was asked to do; Spark is not started."""
    calls: dict[str, dict[str, Any]] = {}

    def job(name: str) -> Callable[..., Summary]:
        def call(_: object, **keywords: Any) -> Summary:
            calls[name] = keywords
            return Summary(name)

        return call

    for name in (
        "archive",
        "archive_table",
        "replay",
        "redrive",
        "mirror",
        "trace_report",
        "reconcile",
    ):
        monkeypatch.setattr(pipelines, name, job(name))

    def run(work: pipelines.Job, **settings: Any) -> Summary:
        calls["spark"] = settings["config"]
        return work(cast(Any, None), Stop())

    monkeypatch.setattr(pipelines, "run", run)
    monkeypatch.setattr("ogive.cli.pipeline_commands._ask", lambda *_: None)
    monkeypatch.setattr("ogive.cli.pipeline_commands._ask_other", lambda *_: None)
    return calls


COMMANDS = {
    "archive": ["--topic", "T", "--to", "lake"],
    "replay": ["--from", "T", "--to", "U", "--state", "s"],
    "redrive": ["billing", "--state", "s"],
    "mirror": ["--topic", "T", "--target", "there:1", "--state", "s"],
    "trace-report": ["--to", "page.html"],
    "reconcile": ["T", "U"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_pipeline_gets_the_files_of_the_shared_options(
    name: str, secrets: Path, asked: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, never what is in them."""
    monkeypatch.chdir(secrets.parent)
    monkeypatch.setenv("NAMESRV_ADDR", "here:1")
    monkeypatch.setenv("OGIVE_CREDENTIALS", secrets.name)
    authorities = str(secrets.parent / "ca.pem")
    trustme.CA().cert_pem.write_to_path(authorities)
    mine = str(secrets.parent / "mine.pem")
    trustme.CA().issue_cert("me").private_key_and_cert_chain_pem.write_to_path(mine)
    assert (
        main(["pipeline", name, *COMMANDS[name], "--cafile", authorities, "--certfile", mine]) == 0
    )
    given = asked[name.replace("-", "_")]
    assert given.get("name_server", given.get("source")) == "here:1"
    assert given["security"] == {
        "credentials": str(secrets),
        "tls": "true",
        "tls.ca": authorities,
        "tls.certificate": mine,
    }
    assert "very secret" not in str(given)


def test_another_cluster_gets_its_own_credentials_only(
    secrets: Path, asked: dict[str, dict[str, Any]]
) -> None:
    mine = ["-n", "here:1", "--credentials", str(secrets)]
    there = {"credentials": str(secrets)}
    for name, extra in (("mirror", []), ("replay", ["--target", "there:1"])):
        assert main(["pipeline", name, *COMMANDS[name], *mine, *extra]) == 0
        assert (asked[name]["target"], asked[name]["target_security"]) == ("there:1", {})
        assert (
            main(
                [
                    "pipeline",
                    name,
                    *COMMANDS[name],
                    "-n",
                    "here:1",
                    *extra,
                    "--target-credentials",
                    str(secrets),
                ]
            )
            == 0
        )
        assert (asked[name]["security"], asked[name]["target_security"]) == ({}, there)
    assert main(["pipeline", "replay", *COMMANDS["replay"], *mine]) == 0
    assert (asked["replay"]["target"], asked["replay"]["target_security"]) == ("here:1", there)
    assert main(["pipeline", "reconcile", *COMMANDS["reconcile"], *mine]) == 0
    assert asked["reconcile"]["other_security"] == {}


@pytest.mark.parametrize(
    "option",
    [
        f"--{target}{file}"
        for target in ("", "target-")
        for file in ("credentials", "cafile", "certfile")
    ],
)
def test_a_file_that_cannot_be_read_is_told_before_spark_starts(
    option: str, asked: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["pipeline", "mirror", *COMMANDS["mirror"], option, "/nowhere/file"]) == 1
    assert "/nowhere/file" in capsys.readouterr().err
    assert not asked


async def test_a_topic_that_is_not_there_is_told_before_spark_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeBroker({}) as broker:
        # a group without dead letters has no topic of them
        for name in COMMANDS.keys() - {"redrive"}:
            assert (
                await asyncio.to_thread(
                    main, ["pipeline", name, *COMMANDS[name], "-n", broker.address]
                )
                == 1
            )
            err = capsys.readouterr().err
            assert ("trace=True" if name == "trace-report" else "has no route") in err
            assert "starting Spark" not in err


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon", "86401"])
def test_rounds_are_seconds_apart(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(
            ["pipeline", "archive", "--topic", "T", "--to", "d", "--every", seconds]
        )
    assert "above zero and at most a day" in capsys.readouterr().err


def test_an_archive_that_is_not_there_is_told_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "pipeline",
                "replay",
                "--from",
                f"archive:{tmp_path}/nothing",
                "--state",
                "s",
                "-n",
                "127.0.0.1:1",
            ]
        )
        == 1
    )
    assert (
        capsys.readouterr().err
        == f"ogive: {tmp_path}/nothing holds no archive; `ogive pipeline archive` makes one\n"
    )
    (tmp_path / "topic=FLIGHTS").mkdir()
    assert (
        main(["pipeline", "reconcile", f"archive:{tmp_path}#FLIGHT", "T", "-n", "127.0.0.1:1"]) == 1
    )
    assert (
        capsys.readouterr().err
        == f"ogive: the archive {tmp_path} has no topic FLIGHT, only FLIGHTS\n"
    )


async def test_an_archive_that_is_named_as_a_topic_is_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake" / "topic=FLIGHTS").mkdir(parents=True)
    async with FakeBroker({}) as broker:
        for place in ("lake", "./lake"):
            assert (
                await asyncio.to_thread(
                    main,
                    [
                        "pipeline",
                        "replay",
                        "--from",
                        place,
                        "--to",
                        "T",
                        "--state",
                        "s",
                        "-n",
                        broker.address,
                    ],
                )
                == 1
            )
            assert capsys.readouterr().err == (
                f"ogive: {place} is not a topic, but a folder with an archive: archive:{place} "
                "reads it\n"
            )


@pytest.mark.parametrize(
    ("command", "option", "topic"),
    [
        (["mirror", "--topic", "T", "--target", "127.0.0.1:1", "--state", "s"], "--target", "T"),
        (
            ["replay", "--from", "T", "--to", "U", "--target", "127.0.0.1:1", "--state", "s"],
            "--target",
            "U",
        ),
        (["reconcile", "T", "U@127.0.0.1:1"], "U@127.0.0.1:1", "U"),
    ],
)
def test_another_cluster_that_does_not_answer_is_told_before_spark_starts(
    command: list[str],
    option: str,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(_: ogive.Admin, topic: str) -> None:
        raise NoNameServer(f"nobody has {topic}")

    monkeypatch.setattr("ogive.cli.pipeline_commands._ask", lambda *_: None)
    monkeypatch.setattr(ogive.Admin, "route", refuse)
    assert main(["pipeline", *command]) == 1
    assert capsys.readouterr().err == f"ogive: {option}: nobody has {topic}\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["mirror", "--topic", "T", "--target", "here:1", "--state", "s"],
            "other names with --prefix",
        ),
        (["replay", "--from", "T", "--state", "s"], "name another one with --to"),
    ],
)
def test_a_topic_that_would_be_copied_into_itself_is_told_before_spark_starts(
    command: list[str],
    said: str,
    asked: dict[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["pipeline", *command, "-n", "here:1"]) == 1
    assert said in capsys.readouterr().err
    assert not asked


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["archive", "--topic", "T", "--to"], "--to"),
        (["replay", "--from", "T", "--to", "U", "--state"], "--state"),
        (["redrive", "billing", "--state"], "--state"),
        (["mirror", "--topic", "T", "--target", "there:1", "--state"], "--state"),
        (["trace-report", "--to"], "--to"),
        (["reconcile", "T", "U", "--out"], "--out"),
    ],
)
def test_a_place_that_cannot_be_written_is_told_before_spark_starts(
    command: list[str],
    option: str,
    asked: dict[str, dict[str, Any]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    assert main(["pipeline", *command, f"{tmp_path}/file/lake/page", "-n", "here:1"]) == 1
    assert re.fullmatch(
        rf"ogive: {option} .*: {tmp_path}/file is a file, and a folder is expected\n",
        capsys.readouterr().err,
    )
    assert not asked


def test_a_folder_that_is_not_ours_is_told_before_spark_starts(
    asked: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # root, who may run this, may write everywhere
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert (
        main(["pipeline", "archive", "--topic", "T", "--to", f"{tmp_path}/lake", "-n", "here:1"])
        == 1
    )
    assert (
        capsys.readouterr().err
        == f"ogive: --to {tmp_path}/lake: this user may not write in {tmp_path}\n"
    )
    assert main(["pipeline", "trace-report", "--to", str(tmp_path), "-n", "here:1"]) == 1
    assert "that is a folder, and a file is expected" in capsys.readouterr().err
    assert not asked


WRITERS = [
    ["archive", "--topic", "T", "--to"],
    ["replay", "--from", "T", "--to", "U", "--state"],
    ["redrive", "billing", "--state"],
    ["mirror", "--topic", "T", "--target", "there:1", "--state"],
    ["trace-report", "--to"],
    ["reconcile", "T", "U", "--out"],
]


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
@pytest.mark.parametrize(
    "place",
    [
        "s3://lake/a",
        "s3a://lake/a",
        "hdfs:///lake",
        "gs://lake/a",
        "abfss://c@a.net/l",
        "dbfs:/lake",
    ],
)
def test_another_file_system_is_refused_by_a_dry_run_as_well(
    command: list[str],
    dry: list[str],
    place: str,
    asked: dict[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The run would fail, or write into a folder that is called s3: here."""
    assert main(["pipeline", *command, place, "-n", "here:1", *dry]) == 1
    assert (
        f"{command[-1]} {place}: pipelines rename and sync files themselves"
        in capsys.readouterr().err
    )
    assert not asked


@pytest.mark.parametrize("command", WRITERS, ids=lambda command: command[0])
def test_a_file_url_is_a_folder_of_this_machine(
    command: list[str], asked: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    assert main(["pipeline", *command, f"file://{tmp_path}/a", "-n", "here:1"]) == 0
    asked.pop("spark")
    (keywords,) = asked.values()
    assert tmp_path / "a" in keywords.values()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="the system has no /proc")
def test_a_file_system_that_takes_no_files_is_told_by_a_dry_run(
    asked: dict[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "pipeline",
                "archive",
                "--topic",
                "T",
                "--to",
                "/proc/lake",
                "-n",
                "here:1",
                "--dry-run",
            ]
        )
        == 1
    )
    assert re.search(
        "--to /proc/lake: (nothing can be written|this user may not write) in /proc",
        capsys.readouterr().err,
    )
    assert not asked


def test_the_progress_of_other_topics_is_told_before_spark_starts(
    asked: dict[str, dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "_checkpoint"
    for folder, text in (
        ("commits", "v1\n{}"),
        ("offsets", 'v1\n{}\n{"f":"x","q":{"T":{"broker-a":{"0":7}}},"v":1}'),
    ):
        (checkpoint / folder).mkdir(parents=True)
        (checkpoint / folder / "0").write_text(text)
    for command in (
        ["archive", "--to", str(tmp_path), "-n", "here:1", "--topic"],
        ["mirror", "--state", str(checkpoint), "-n", "here:1", "--target", "there:1", "--topic"],
    ):
        assert main(["pipeline", *command, "U"]) == 1
        assert (
            "_checkpoint holds the progress of T: name the topics of the first run, or another "
            "folder" in capsys.readouterr().err
        )
        assert not asked
        assert main(["pipeline", *command, "T"]) == 0
        asked.clear()


def test_a_group_without_dead_letters_needs_no_spark(
    asked: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise NoRoute("%DLQ%billing")

    monkeypatch.setattr("ogive.cli.pipeline_commands._ask", refuse)
    assert main(["pipeline", "redrive", "billing", "--state", "s", "-n", "here:1"]) == 0
    assert (
        capsys.readouterr().out
        == "redrive: 0 read, 0 would be written\n  group billing has no dead letters\n"
    )
    assert not asked


# --- archives in tables ---------------------------------------------------------------------------

TABLE = ["pipeline", "archive", "--topic", "T", "-n", "here:1", "--format"]


def test_a_table_gets_its_format_its_settings_and_the_bodies_parser(
    tmp_path: Path, asked: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders_of_test.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Order:\n    number: int\n"
    )
    (tmp_path / "o.json").write_text('{"properties": {"number": {"type": "integer"}}}')
    (tmp_path / "o.avsc").write_text('"long"')
    to = ["--to", "s3a://lake/t", "--state", "s", "--conf", "spark.x=a=b"]
    for schema in ("orders_of_test:Order", "o.json", "o.avsc"):
        assert main([*TABLE, "delta", *to, "--schema", schema]) == 0
        given = asked["archive_table"]
        assert (given["format"], given["to"]) == ("delta", "s3a://lake/t")
        assert given["parse"].keywords["on_error"] == "null"
    assert asked["spark"]["spark.x"] == "a=b"
    assert "Delta" in asked["spark"]["spark.sql.extensions"]
    assert main([*TABLE, "iceberg", "--to", "lake.shop.t", "--state", "s"]) == 0
    assert asked["archive_table"]["parse"] is None
    assert "iceberg" in asked["spark"]["spark.sql.extensions"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["delta", "--to", "t"], "--format delta needs --state DIR"),
        (["iceberg", "--to", "/t", "--state", "s"], "an Iceberg table has a name in a catalog"),
        (["iceberg", "--to", "shop.t", "--state", "s"], "such as lake.shop.orders"),
        (["delta", "--to", "t", "--state", "s3a://x/y"], "which s3a: does not allow"),
        (["parquet", "--to", "t", "--state", "s"], "are for --format delta and --format iceberg"),
        (["delta", "--to", "t", "--state", "s", "--conf", "x"], "--conf x: expected NAME=VALUE"),
        (["delta", "--to", "t", "--state", "s", "--conf", "a=b"], "with a name of Spark's"),
        (["delta", "--to", "t", "--state", "s", "--schema", "no.json"], "--schema no.json: "),
        (["delta", "--to", "t", "--state", "s", "--schema", "no_module:A"], "expected module:Cl"),
        (["delta", "--to", "t", "--state", "s", "--schema", "json:loads"], "is not a dataclass"),
        (["delta", "--to", "t", "--state", "s", "--schema", "json"], "expected module:Class"),
    ],
)
def test_what_no_table_can_be_is_told_before_spark_starts(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    asked: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TABLE, *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not asked
