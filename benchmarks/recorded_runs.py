"""Runs that are recorded in a file per version of torch, and the tables of pages that are made of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def version_of(torch_version: str) -> str:
    """Return "2.13.0" for "2.13.0+cpu"; the file of a run is named after it."""
    return torch_version.partition("+")[0]


def read_recorded(folder: Path) -> list[dict[str, Any]]:
    """Return the recorded runs of a folder, that of the newest torch first."""
    files = sorted(folder.glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")], reverse=True)
    return [json.loads(path.read_text(encoding="utf-8")) for path in files]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [heads, ["---"] * len(heads), *rows])


def put_between(text: str, begin: str, end: str, content: str) -> str:
    """Return a page with other content between two of its lines.

    Raises:
        ValueError: if the page does not have them.
    """
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"expected the lines {begin} and {end}")
    return f"{before}{begin}\n{content}\n{end}{after}"
