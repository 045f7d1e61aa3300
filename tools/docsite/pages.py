"""Put the pages of the site into one folder, with the same places that they have in the clone.

The pages are those that docs/README.md links to. Its headings become the parts of the table of
contents. Files and folders of the clone that a page links to, and that are no page, become pages
that show their text.
"""

import re
import shutil
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final

CONTENTS: Final = "docs/README.md"
INDEX: Final = "index.md"
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LANGUAGES: Final = {".py": "python", ".toml": "toml", ".sh": "sh", ".md": "markdown"}
IMAGES: Final = (".png", ".svg")
CLONING: Final = "git clone URL-OF-THIS-REPOSITORY ogive\n"
CLONE: Final = re.compile(r"\./ogive(?=[\[ `',\n])")
"""The clone, as pages name it for pip."""
MAX_SHOWN_BYTES: Final = 256 * 1024
"""Largest file that becomes a page."""


class BadPages(Exception):
    """A page that cannot be in the site. The text has a line for each fault."""


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the table of contents: a heading, and its pages with their titles."""

    caption: str
    pages: tuple[tuple[str, str], ...]


def parts(text: str) -> list[Part]:
    """Return the parts of *text*, the contents. Pages are named from the root of the clone."""
    found, section, caption = [], "", ""
    pages: list[tuple[str, str]] = []
    for line in [*text.splitlines(), "## "]:
        heading = re.match(r"(##+) ?(.*)", line)
        if heading:
            if pages:
                found.append(Part(caption, tuple(pages)))
            pages = []
            section = heading[2] if heading[1] == "##" else section
            caption = heading[2] if heading[1] == "##" else f"{section}: {heading[2].lower()}"
        elif entry := re.match(r"- \[(.+?)\]\(([^)#]+\.md)\)", line):
            pages.append((entry[1], normpath(f"docs/{entry[2]}")))
    return found


def index(text: str, generated: Mapping[str, str]) -> str:
    """Return the front page: the contents, seen from the root, and a toctree for each part.

    *generated*: titles by place of the pages that are made from the code, first in Reference.
    """
    made = [(title, place) for place, title in generated.items()]
    shown = LINK.sub(lambda found: f"]({_from_root(found[1])})", text)
    entries = "".join(f"- [{title}]({place})\n" for title, place in made)
    shown = shown.replace("\n## Reference\n\n", f"\n## Reference\n\n{entries}")
    trees = []
    for part in parts(text):
        pages = [*made, *part.pages] if part.caption == "Reference" else part.pages
        lines = "\n".join(f"{title} <{place.removesuffix('.md')}>" for title, place in pages)
        trees.append(f"```{{toctree}}\n:hidden:\n:caption: {part.caption}\n\n{lines}\n```\n")
    return f"{shown}\n{chr(10).join(trees)}"


def _from_root(target: str) -> str:
    return target if target.startswith(("#", "http")) else normpath(f"docs/{target}")


def stage(
    root: Path,
    folder: Path,
    generated: Mapping[str, tuple[str, str]],
    *,
    published: bool = False,
) -> None:
    """Write all pages below *folder*, which is replaced. Raises BadPages.

    *generated*: title and text by place of the pages that are made from the code. *published*:
    pages install ogive from PyPI, where a page of the clone installs it from the clone.
    """
    shutil.rmtree(folder, ignore_errors=True)
    contents = (root / CONTENTS).read_text("utf-8")
    listed = {place for part in parts(contents) for _, place in part.pages}
    there = {path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md")}
    if missing := sorted(there - listed - {CONTENTS}):
        raise BadPages("\n".join(f"{place} is not listed in {CONTENTS}" for place in missing))
    texts = {place: (root / place).read_text("utf-8") for place in sorted(listed)}
    titles = {place: title for place, (title, _) in generated.items()}
    if published:
        texts = {place: as_published(text) for place, text in texts.items()}
    texts[INDEX] = index(contents, titles)
    texts |= {place: text for place, (_, text) in generated.items()}
    shown: dict[str, str] = {}
    faults: list[str] = []
    for place, text in texts.items():
        texts[place] = _linked(root, place, text, set(texts), shown, faults)
    if faults:
        raise BadPages("\n".join(faults))
    for place, text in (texts | shown).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text(text, "utf-8")
    for image in (root / "docs").iterdir():
        if image.suffix in IMAGES:
            shutil.copy(image, folder / "docs")


def _linked(
    root: Path, place: str, text: str, pages: set[str], shown: dict[str, str], faults: list[str]
) -> str:
    """Return *text* with links to files and folders of the clone led to pages, in *shown*."""

    def replace(found: re.Match[str]) -> str:
        target, _, anchor = found[1].partition("#")
        if not target or "://" in target:
            return found[0]
        to = normpath(str(PurePosixPath(place).parent / target))
        if to == CONTENTS:
            to = INDEX
        if to in pages:
            return f"]({relpath(to, PurePosixPath(place).parent)}{'#' if anchor else ''}{anchor})"
        source = root / to
        if to.startswith("../") or not source.exists():
            faults.append(f"{place}: there is no {found[1]}")
            return found[0]
        if source.suffix in IMAGES:
            return found[0]
        page = f"source/{to}.md"
        shown.setdefault(page, source_page(root, to))
        return f"]({relpath(page, PurePosixPath(place).parent)})"

    return _outside_code(text, lambda prose: LINK.sub(replace, prose))


def _outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply *change* to the text between fenced blocks."""
    pieces, at = [], 0
    for fence in FENCE.finditer(text):
        pieces += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*pieces, change(text[at:])])


def is_published(root: Path) -> bool:
    """Return True if the settings of the documentation say that ogive is on PyPI."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    published: bool = project["tool"]["ogive"]["docs"]["published"]
    return published


def as_published(text: str) -> str:
    """Return *text* with installations from PyPI in place of those from a clone."""
    return CLONE.sub("ogive", text.replace(CLONING, ""))


def source_page(root: Path, place: str) -> str:
    """Return a page with the text of the file *place*, or of the files of that folder."""
    source = root / place
    files = [source] if source.is_file() else sorted(source.glob("*.*"))
    blocks = [_block(root, path) for path in files if path.suffix in LANGUAGES]
    return "\n".join(["---", "orphan: true", "nosearch: true", "---", f"# {place}", "", *blocks])


def _block(root: Path, path: Path) -> str:
    if path.stat().st_size > MAX_SHOWN_BYTES:
        raise BadPages(f"{path.relative_to(root)} is too large for a page")
    heading = f"## {path.name}\n\n"
    return f"{heading}````{LANGUAGES[path.suffix]}\n{path.read_text('utf-8').rstrip()}\n````\n"
