"""Build the site: copy these pages, add those that are generated from the code, and run Sphinx on both.

    python docs/build.py build/docs --checks build/gallery-checks.json
    python docs/build.py build/docs --published v0.2.1

The generated pages (the gallery, the API, the command line, the errors, llms.txt) are never in the source tree, so they
cannot be out of date. Sphinx reads from the folder `OUTPUT-source`, and warnings are errors.
Pages that publish.py is to put into a site of several versions have a menu of them; the others name their version.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from generate import api, errors, gallery, llms, memory, verification
from publish import DEVELOPMENT, folder_of
from sphinx.cmd.build import main as sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
TOOLS = ("generate", "build.py", "publish.py", "__pycache__")
BANNER = "This is the documentation of the development version, which can differ from the releases."


def main() -> int:
    """Write the pages and build them; return the exit code of Sphinx."""
    parser = argparse.ArgumentParser(description="Builds the site.")
    parser.add_argument("output", type=Path, help="the folder of the site")
    parser.add_argument("--checks", type=Path, help="the report of the gallery that custom-autograd check --json wrote")
    parser.add_argument("--published", type=folder_of, help="the version as publish.py gets it: 'dev' or a release")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    source = output.parent / f"{output.name}-source"
    stage(source, arguments.checks)
    return build(source, output, arguments.published)


def stage(source: Path, checks: Path | None) -> None:
    """Fill a folder with everything that Sphinx reads."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(DOCS, source, ignore=shutil.ignore_patterns(*TOOLS))
    shutil.copy(ROOT / "pyproject.toml", source)  # how-it-works prints the list of layers from it
    report = verification.read_report(checks) if checks is not None else None
    pages = {**gallery.pages(ROOT, report), **api.pages(), "reference/errors.md": errors.page(ROOT)}
    for name, text in pages.items():
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    measured = source / "how-to" / "keep-less-memory.md"
    measured.write_text(measured.read_text(encoding="utf-8").replace(memory.MARK, memory.section()), encoding="utf-8")
    (source / "llms.txt").write_text(llms.text_of(source), encoding="utf-8")


def build(source: Path, output: Path, published: str | None) -> int:
    """Run Sphinx, and return its exit code."""
    options = ["-W", "--keep-going", "--nitpicky", "--fresh-env", "--quiet", "-b", "html"]
    if published is not None:
        options += ["-A", f"published={published}"]
    if published == DEVELOPMENT:
        options += ["-D", f"html_theme_options.announcement={BANNER}"]
    return int(sphinx([*options, str(source), str(output)]))


if __name__ == "__main__":
    sys.exit(main())
