"""How Sphinx builds these pages; `make docs` runs it."""

project = "custom_autograd"
copyright = "2026, the custom_autograd authors"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "custom_autograd"
exclude_patterns = ["_build"]
