"""The site: `make docs` writes it to build/docs. Pages are Markdown (MyST); tutorials are notebooks
in Markdown that run while the site is built; the reference is made of docstrings by reference.py.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import reference  # noqa: E402

from oneflow import __version__  # noqa: E402

project = "oneflow-actors"
copyright = "the oneflow-actors authors, Apache 2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["README.md"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
nitpicky = False
add_module_names = False
toc_object_entries = False
viewcode_line_numbers = True

nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "notebooks")
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

html_theme = "furo"
html_title = "oneflow-actors"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}
copybutton_exclude = ".linenos, .gp, .go"

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "security.md"}
"""Files above docs/ that have a page, and that page."""


def rewrite_links(text: str, page: str) -> str:
    """Return a page whose links to files above docs/ lead to their pages; other files of the
    repository, which the site does not hold, are named without a link.
    """

    def moved(match: re.Match[str]) -> str:
        words, target = match.groups()
        inner = target.removeprefix("../") if target.startswith("../") else target
        name, mark, anchor = inner.partition("#")
        if name in OUTSIDE and (target.startswith("../") or page in OUTSIDE.values()):
            return f"[{words}]({OUTSIDE[name]}{mark}{anchor})"
        if page in OUTSIDE.values() and name.startswith("docs/"):
            return f"[{words}]({name.removeprefix('docs/')}{mark}{anchor})"
        if target.startswith("../") and "/tutorials/" not in target and "tutorials" not in page:
            return words
        return match.group(0)

    return re.sub(r"\[([^\][]+)\]\((?!https?:|#)([^)\s]+)\)", moved, text)


def read_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill the pages of files above docs/, and mend the links of all."""
    for name, own in OUTSIDE.items():
        if own == f"{page}.md":
            source[0] = (HERE.parent / name).read_text()
    source[0] = rewrite_links(source[0], f"{page}.md")


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", lambda app: reference.write(HERE / "reference"))
    app.connect("source-read", read_page)
    for name in ("graph", "graph-after", "plan"):  # RUNTIME.md's texts, which a test reads
        app.add_lexer(name, TextLexer)
