"""Put a built site into the site of all versions, and list them in versions.json.

    python docs/publish.py build/docs pages dev
    python docs/publish.py build/docs pages v0.2.1

pages/versions.json       what the menu of versions lists, in the format of pydata-sphinx-theme's switcher.json
     /index.html          leads to the newest release, or to the development version before the first one
     /0.2/  /dev/         the pages of a minor version, and those of the main branch
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path

DEVELOPMENT = "dev"
RELEASE = re.compile(r"v?(\d+\.\d+)\.\d+")
FOLDER = re.compile(r"\d+\.\d+")
INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>custom_autograd</title>
<meta http-equiv="refresh" content="0; url={0}">
<a href="{0}">The documentation of custom_autograd</a>
</html>
"""


def main() -> int:
    """Publish the version that the command line names."""
    parser = argparse.ArgumentParser(description="Adds a version to the site.")
    parser.add_argument("built", type=Path, help="the folder that docs/build.py --published wrote")
    parser.add_argument("site", type=Path, help="the folder of all versions")
    parser.add_argument("version", type=folder_of, help="'dev', or a release such as 'v0.2.1'")
    arguments = parser.parse_args()
    publish(arguments.built, arguments.site, arguments.version)
    return 0


def folder_of(version: str) -> str:
    """Return the folder of a version: those of a minor version replace each other.

    Raises:
        ArgumentTypeError: if the version is neither 'dev' nor a release.
    """
    if version == DEVELOPMENT:
        return version
    found = RELEASE.fullmatch(version)
    if found is None:
        raise argparse.ArgumentTypeError(f"expected 'dev' or a release such as 'v0.2.1', found {version!r}")
    return found[1]


def publish(built: Path, site: Path, folder: str) -> None:
    """Replace the pages of one version; those of the others stay as they are."""
    target = site / folder
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    versions = list_versions(site)
    (site / "versions.json").write_text(json.dumps(versions, indent=2) + "\n", encoding="utf-8")
    first = next((one for one in versions if one.get("preferred")), versions[0])
    (site / "index.html").write_text(INDEX.format(f"{first['url']}index.html"), encoding="utf-8")
    (site / ".nojekyll").touch()  # or GitHub Pages leaves out _static


def list_versions(site: Path) -> list[dict[str, object]]:
    """Return a row for each version: the development version, then the releases from the newest to the oldest."""
    names = {path.parent.name for path in site.glob("*/index.html")}
    releases = sorted(filter(FOLDER.fullmatch, names), key=lambda name: tuple(map(int, name.split("."))), reverse=True)
    rows = [row_of(name, name, is_preferred=name == releases[0]) for name in releases]
    return [row_of(DEVELOPMENT, "development", is_preferred=False)] * (DEVELOPMENT in names) + rows


def row_of(version: str, name: str, *, is_preferred: bool) -> dict[str, object]:
    """Return the row of one version; its address is relative to versions.json."""
    return {"version": version, "name": name, "url": f"{version}/", **({"preferred": True} if is_preferred else {})}


if __name__ == "__main__":
    sys.exit(main())
