"""How Sphinx builds these pages; `make docs` runs it through build.py."""

import re

from sphinx.application import Sphinx

import custom_autograd

project = "custom_autograd"
copyright = "2026, the custom_autograd authors"
version = release = custom_autograd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "custom_autograd"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"

myst_enable_extensions = ["attrs_inline"]
myst_heading_anchors = 4

# Docstrings say `x` for code, as Markdown does.
default_role = "code"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
autodoc_typehints = "none"  # the docstrings say what arguments are, in words
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# The reference documents the public names; classes of PyTorch and the standard library are not pages of this site, and
# nothing is fetched from theirs.
nitpick_ignore_regex = [("py:.*", r".*")]


def setup(app: Sphinx) -> None:
    """Docstrings are Markdown more than reStructuredText: a word that ends in an underscore is no link."""
    app.connect("autodoc-process-docstring", escape_underscores)


def escape_underscores(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Escapes each underscore that ends a word outside code."""
    del app, what, name, value, options
    for place, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [re.sub(r"(?<=\w)_(?!\w)", r"\\_", part) for part in parts[::2]]
        lines[place] = "`".join(parts) if not line.lstrip().startswith((">>>", "...")) else line
