"""Settings of Sphinx for the site. Built by ``make docs``."""

import sys
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from ogive import __version__  # noqa: E402
from tools.docsite import sequence  # noqa: E402

project = "ogive"
author = "the contributors of ogive"
release = version = __version__
html_title = f"ogive {release}"
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"

myst_heading_anchors = 6
myst_fence_as_directive = {"mermaid"}

# the API
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_display_short_literal_types = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
add_module_names = False

html_theme = "furo"
html_static_path = [str(Path(__file__).parent / "static")]
html_favicon = str(Path(__file__).parent / "static" / "icon.svg")
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": False}
pygments_style = "friendly"
templates_path = []


class Mermaid(Directive):
    """The fence ``mermaid``: a picture in place of its text."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        try:
            picture = sequence.svg("\n".join(self.content))
        except sequence.NotASequence as exc:
            raise self.error(f"mermaid: {exc}") from None
        return [nodes.raw("", f'<div class="diagram">{picture}</div>', format="html")]


def setup(app: Sphinx) -> None:
    """Sphinx calls it once the settings are read."""
    app.add_directive("mermaid", Mermaid)
