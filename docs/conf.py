"""Configure Sphinx; `make docs` runs it through build.py."""

import re

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import custom_autograd

project = "custom_autograd"
copyright = "2026, the custom_autograd authors"
version = release = custom_autograd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "furo"
html_title = "custom_autograd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_extra_path = ["llms.txt"]  # copied to the root of the site
html_show_sourcelink = False
html_copy_source = False
pygments_dark_style = "a11y-dark"  # accessible-pygments, as the style that furo chooses for light pages
smartquotes_action = "D"  # dashes only: quotes in messages stay unchanged

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4

# Docstrings say `x` for code, as Markdown does.
default_role = "code"
autodoc_typehints = "none"  # the docstrings describe the arguments
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# The reference documents the public names; it does not link to the sites of PyTorch and Python.
nitpick_ignore_regex = [("py:.*", r"(?!custom_autograd).*")]


def setup(app: Sphinx) -> None:
    """Read docstrings in Google style, with Markdown's backticks for code."""
    app.connect("autodoc-process-docstring", read_docstring)


def read_docstring(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Convert a docstring to reStructuredText.

    Napoleon reads the first line of a property's docstring as "type: text", but ours are sentences, so a property is
    read as a method. A word that ends in an underscore would be a link in reStructuredText, so it is escaped.
    """
    kind = "method" if what == "property" else what
    lines[:] = [escape_underscores(line) for line in lines]
    lines[:] = GoogleDocstring(lines, Config(), app, kind, name, value, options).lines()


def escape_underscores(line: str) -> str:
    """Escape each underscore that ends a word outside code."""
    if line.lstrip().startswith((">>>", "...")):
        return line
    parts = line.split("`")
    parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part) for part in parts[::2]]
    return "`".join(parts)
