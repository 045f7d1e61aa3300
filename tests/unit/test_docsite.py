"""The site of the docs: what its pages are made of, and which faults fail the build."""

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.docsite import api, browser, pages, reference, sequence

ROOT = Path(__file__).parents[2]
CONTENTS = """\
# Docs

## Tutorials

- [Begin](sample.md): here

## How-to guides

### Send

- [Design](../DESIGN.md)

## Reference

- [Words](sample_words.md)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the pages of CONTENTS."""
    texts = {
        "docs/README.md": CONTENTS,
        "docs/sample.md": "# Begin\n[design](../DESIGN.md#why), [run it](../run/sample.py)\n",
        "docs/sample_words.md": "# Words\n![](sample.png)\n```sh\nls [x](nowhere.md)\n```\n",
        "docs/sample.png": "",
        "DESIGN.md": "# Design\n## Why\n[b](docs/sample.md), [run](run), [all](docs/README.md)\n",
        "run/sample.py": "print('it')\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


# --- pages ----------------------------------------------------------------------------------------


def test_headings_of_the_contents_are_the_parts_of_the_site() -> None:
    assert pages.parts(CONTENTS) == [
        pages.Part("Tutorials", (("Begin", "docs/sample.md"),)),
        pages.Part("How-to guides: send", (("Design", "DESIGN.md"),)),
        pages.Part("Reference", (("Words", "docs/sample_words.md"),)),
    ]


def test_generated_pages_come_first_in_the_reference() -> None:
    text = pages.index(CONTENTS, {"reference/cli.md": "Commands"})
    assert (
        "## Reference\n\n- [Commands](reference/cli.md)\n- [Words](docs/sample_words.md)\n" in text
    )
    assert ":caption: Reference\n\nCommands <reference/cli>\nWords <docs/sample_words>\n" in text
    assert "[Design](DESIGN.md)" in text


def test_links_lead_to_pages_and_source_is_shown(clone: Path, tmp_path: Path) -> None:
    pages.stage(clone, tmp_path / "out", {"reference/cli.md": ("Commands", "# Commands\n")})
    texts = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_text()
        for path in (tmp_path / "out").rglob("*.*")
    }
    assert sorted(texts) == [
        "DESIGN.md",
        "docs/sample.md",
        "docs/sample.png",
        "docs/sample_words.md",
        "index.md",
        "reference/cli.md",
        "source/run.md",
        "source/run/sample.py.md",
    ]
    assert "(../DESIGN.md#why), [run it](../source/run/sample.py.md)" in texts["docs/sample.md"]
    assert "(docs/sample.md), [run](source/run.md), [all](index.md)" in texts["DESIGN.md"]
    assert "print('it')" in texts["source/run.md"]


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("docs/sample.md", "[x](nowhere.md)", "docs/sample.md: there is no nowhere.md"),
        ("docs/sample.md", "[x](../../etc)", "docs/sample.md: there is no ../../etc"),
        ("docs/sample_more.md", "# More", "docs/sample_more.md is not listed in docs/README.md"),
    ],
)
def test_a_page_that_leads_nowhere_or_that_nothing_leads_to_is_a_fault(
    file: str, text: str, fault: str, clone: Path, tmp_path: Path
) -> None:
    (clone / file).write_text(text)
    with pytest.raises(pages.BadPages, match=re.escape(fault)):
        pages.stage(clone, tmp_path / "out", {})


def test_the_pages_of_this_clone_have_no_broken_link(tmp_path: Path) -> None:
    pages.stage(ROOT, tmp_path / "out", {})


def test_a_heading_that_is_not_there_fails_the_build(clone: Path, tmp_path: Path) -> None:
    """As every warning of Sphinx does."""
    pytest.importorskip("myst_parser", reason="Sphinx is installed by make docs")
    (clone / "docs" / "sample.md").write_text("# Begin\n[x](sample_words.md#nothing)\n")
    source = tmp_path / "out" / "source"
    pages.stage(clone, source, {})
    code = (
        "import sys; from pathlib import Path; from tools.docsite.__main__ import sphinx; "
        "sys.exit(not sphinx(*map(Path, sys.argv[1:])))"
    )
    command = [sys.executable, "-c", code, str(source), str(tmp_path / "out")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "local id not found in doc 'docs/sample_words': 'nothing'" in done.stderr


# --- the API --------------------------------------------------------------------------------------


def test_every_public_name_has_a_docstring() -> None:
    """As make docs demands."""
    assert api.undocumented(api.by_module()) == []


class Documented:
    """A class."""

    field: int = 0
    """A field."""

    def method(self) -> None:
        """A method."""


class Silent(Documented):
    """A class with members that say nothing."""

    number: int = 0

    # overrides a documented one
    def method(self) -> None: ...

    def other(self) -> None: ...

    @property
    def value(self) -> int:
        return 0


def silent() -> None: ...


def test_a_public_name_without_a_docstring_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "is_ours", lambda cls: cls.__module__ == __name__)
    names = {"Documented": Documented, "Silent": Silent, "silent": silent}
    assert api.undocumented({__name__: names}) == [
        f"{__name__}.Silent.number",
        f"{__name__}.Silent.other",
        f"{__name__}.Silent.value",
        f"{__name__}.silent",
    ]


# --- reference ------------------------------------------------------------------------------------


def test_cells_of_a_table_are_one_line() -> None:
    assert reference.table(("a", "b"), [("x | y", "two\nlines")]) == (
        "| a | b |\n| --- | --- |\n| x \\| y | two lines |\n"
    )


def test_the_command_line_page_has_every_command_with_its_options() -> None:
    page = reference.command_line_page()
    assert "### ogive topic create" in page
    assert "[`ogive topic create`](#ogive-topic-create)" in page
    assert "| `--queues` `N` | `8` |" in page


@dataclasses.dataclass
class Sample:
    """Settings."""

    wait_s: float = 2.5
    """Pause."""
    size_bytes: int = 64 * 1024
    names: tuple[str, ...] = ()


def test_a_setting_has_its_default_and_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = dataclasses.fields(Sample)
    assert [reference.setting(field, "Text.") for field in fields] == [
        ("`wait_s`", "`2.5`", "seconds", "Text."),
        ("`size_bytes`", "`65536` (64 KiB)", "bytes", "Text."),
        ("`names`", "`()`", "", "Text."),
    ]
    monkeypatch.setattr(reference, "CONFIGS", {"Sample": (Sample, "")})
    with pytest.raises(api.Undocumented, match=r"Sample\.size_bytes is not documented\n.*names is"):
        reference.settings_page({"spark.md": ""})


def test_the_settings_page_has_options_of_spark_and_variables() -> None:
    prose = {path.name: path.read_text("utf-8") for path in (ROOT / "docs").glob("*.md")}
    page = reference.settings_page(prose)
    assert "| `maxOffsetsPerTrigger` | `1000000` |" in page
    assert "| `OGIVE_CONTEXT` | [" in page
    assert "| `fileReservedTime` |" in page


def test_an_option_that_no_page_explains_is_named() -> None:
    with pytest.raises(api.Undocumented, match="option subscribe of Spark is not documented"):
        reference.settings_page({"spark.md": ""})


def test_the_error_page_has_every_code_and_what_it_is_raised_as() -> None:
    page = reference.error_page()
    assert "| 17 | `TOPIC_NOT_EXIST` | `TopicNotExist` |" in page
    assert "| `SendTimeout` |  |  | yes |" in page


def test_a_metric_without_a_text_is_named() -> None:
    with pytest.raises(api.Undocumented, match="metric ogive_connections has no text"):
        reference.metrics_page("", "")


async def test_the_metrics_page_has_a_text_for_each_metric() -> None:
    broker = await reference.broker_page()
    table = reference.metrics("metrics", "", broker)
    assert "| `rocketmq_broker_permission` | gauge |  | 2 write, 4 read |" in table


# --- diagrams -------------------------------------------------------------------------------------


SEQUENCE = """\
sequenceDiagram
    participant A as client <1>
    participant B as broker
    A->>B: send
    par
        Note over B: one<br/>two
    and
        B-->>A: stored
    end
"""


def test_a_sequence_is_drawn() -> None:
    drawn = sequence.svg(SEQUENCE)
    assert drawn.startswith('<svg class="sequence"')
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert texts == ["client &lt;1&gt;", "broker", "send", "par", "one", "two", "and", "stored"]
    assert not re.search("LEFT|RIGHT|WORD", drawn)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("flowchart LR", "only sequenceDiagram is known"),
        (SEQUENCE.replace("    par\n", "    loop\n"), "not known: loop"),
        (SEQUENCE.replace("A->>B", "C->>B"), "C is no participant"),
        (SEQUENCE.replace("    end\n", ""), "a block has no end"),
        ("sequenceDiagram\nend", "end outside a block"),
    ],
)
def test_what_is_no_sequence_is_refused(text: str, fault: str) -> None:
    with pytest.raises(sequence.NotASequence, match=fault):
        sequence.svg(text)


def test_every_diagram_of_the_docs_is_drawn() -> None:
    fences = [
        fence
        for page in (ROOT / "DESIGN.md", *sorted((ROOT / "docs").rglob("*.md")))
        for fence in re.findall(r"^```mermaid\n([^`]*)^```$", page.read_text("utf-8"), re.MULTILINE)
    ]
    assert fences
    assert all(map(sequence.svg, fences))


# --- the browser ----------------------------------------------------------------------------------


def event(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


def test_what_leaves_the_machine_fails_or_throws_is_a_fault() -> None:
    sent = "Network.requestWillBeSent"
    events = [
        event("Page.loadEventFired"),
        event(sent, request={"url": "http://127.0.0.1:1/a.js"}),
        event(sent, request={"url": "data:image/png;base64,AAAA"}),
        event(sent, request={"url": "https://fonts.example/x.css"}),
        event("Network.responseReceived", response={"url": "http://127.0.0.1:1/b", "status": 404}),
        event("Runtime.exceptionThrown", exceptionDetails={"text": "Uncaught"}),
    ]
    assert list(browser.faults_of(events)) == [
        "asks for https://fonts.example/x.css",
        "http://127.0.0.1:1/b is 404",
        "throws Uncaught",
    ]


def test_a_missing_chromium_is_one_sentence_that_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CHROMIUM", raising=False)
    with pytest.raises(browser.BrowserError, match="Debian: apt-get install chromium;"):
        browser.find()


def test_a_published_page_installs_from_pypi_and_needs_no_clone() -> None:
    page = pages.CLONING + "pip install './ogive[spark]' ./ogive\n./ogive-data\n"
    assert pages.as_published(page) == "pip install 'ogive[spark]' ogive\n./ogive-data\n"
    assert not pages.is_published(ROOT)
