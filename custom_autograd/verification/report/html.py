"""The report as one HTML page, and as a fragment for notebooks; an op as a fragment too.

templates/page.html       the page: style and script within, nothing is loaded from elsewhere
templates/fragment.html   the matrix and the findings
templates/op.html         what is known of an op
templates/parts.html      what they share; the style is that of every page: rendering/templates/style.css
"""

import zlib
from collections.abc import Mapping, Sequence

from custom_autograd.rendering.pages import render
from custom_autograd.verification.report import plots
from custom_autograd.verification.report.headline import format_counts, format_warnings
from custom_autograd.verification.report.matrix import LABELS, anchors_of, make_matrix
from custom_autograd.verification.report.results import STATUSES, Result, count, skips_of

ROOM = "custom_autograd.verification.report"


def format_page(results: Sequence[Result], sources: Mapping[str, str]) -> str:
    """Return the whole page; every text in it is escaped."""
    return render(
        ROOM,
        "page.html",
        **_parts(results, ""),
        plots=plots.make_plots(results),
        area=plots,
        ops=_by_check(results),
        sources=sources,
        seconds=sum(result.seconds for result in results),
        seeds=sorted({result.seed for result in results}),
    )


def format_fragment(results: Sequence[Result]) -> str:
    """Return the matrix and the findings without a page around them; the ids in it are its own."""
    return render(ROOM, "fragment.html", **_parts(results, f"ca{zlib.crc32(repr(results).encode()):08x}-"))


def format_op(
    name: str, schema: str, location: str, coverage: Mapping[str, str], kernels: Mapping[str, str], source: str
) -> str:
    """Return what is known of an op, as a fragment."""
    tables = {"capability": coverage, "kernel": kernels}
    return render(ROOM, "op.html", name=name, schema=schema, location=location, tables=tables, source=source)


def _parts(results: Sequence[Result], prefix: str) -> dict[str, object]:
    counts: dict[str, int] = {status: count(results, status) for status in STATUSES}
    counts["accepted"] = sum(bool(result.accepted) for result in results)
    counts["skipped"] -= counts["accepted"]
    return {
        "prefix": prefix,
        "total": format_counts(results),
        "warnings": format_warnings(results),
        "counts": {name: number for name, number in counts.items() if number},
        "labels": LABELS,
        "matrix": make_matrix(results),
        "anchors": anchors_of(results),
        "findings": [result for result in results if result.is_finding],
        "accepted": [result for result in results if result.accepted],
        "skips": skips_of(results),
    }


def _by_check(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """Return op -> check -> its results, in the order of the run."""
    ops: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        ops.setdefault(result.op, {}).setdefault(result.check, []).append(result)
    return ops
