"""The report as JSON, Markdown and HTML."""

import dataclasses
import json
from collections.abc import Sequence

from custom_autograd.report.results import STATUSES, Result, count, summarise
from custom_autograd.report.text import format_counts

JSON_FORMAT = 1
"""Raised when a key of the JSON document changes its meaning or goes away; new keys do not raise it."""


def format_json(results: Sequence[Result]) -> str:
    """An object with `format`, `ok`, `counts` by status, and `results`, each with the fields of `Result`."""
    document = {
        "format": JSON_FORMAT,
        "ok": not any(result.is_finding for result in results),
        "counts": {status: count(results, status) for status in STATUSES},
        "results": [dataclasses.asdict(result) for result in results],
    }
    return json.dumps(document, indent=2)


def format_markdown(results: Sequence[Result]) -> str:
    """A table of ops and checks, then a section per finding, then the reasons of what was skipped."""
    lines = ["# Verification report", "", f"{format_counts(results)}.", ""]
    lines += ["| op | check | status | passed | failed | skipped | error |", "|---|---|---|---|---|---|---|"]
    for row in summarise(results):
        cells = (row.op, row.check, row.status, row.passed, row.failed, row.skipped, row.error)
        lines.append("| " + " | ".join(_cell(str(cell)) for cell in cells) + " |")
    for result in results:
        if result.is_finding:
            lines += [
                "",
                f"## {result.status}: {result.op}, {result.check}, on {_cell(result.sample)}",
                "",
                *_block(result.message),
            ]
    skipped = [result for result in results if result.status == "skipped"]
    if skipped:
        reasons = dict.fromkeys(f"- {row.op}, {row.check}: {_cell(' '.join(row.message.split()))}" for row in skipped)
        lines += ["", "## skipped", "", *reasons]
    return "\n".join(lines) + "\n"


def format_html(results: Sequence[Result]) -> str:
    """One page that needs nothing else: style within, no script, light and dark by the reader's preference."""
    import jinja2  # comes with torch, and only this document needs it

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(PAGE).render(
        counts=format_counts(results),
        summaries=summarise(results),
        findings=[result for result in results if result.is_finding],
        skipped=[result for result in results if result.status == "skipped"],
    )


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _block(message: str) -> list[str]:
    """The message as an indented block, which no text in it can end."""
    return [f"    {line}" for line in message.splitlines()]


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Verification report: {{ counts }}</title>
<style>
:root { --text: #1b1f24; --ground: #fff; --line: #d0d7de; --soft: #f3f5f7;
  --passed: #1a7f37; --failed: #b3261e; --skipped: #6b6f76; --error: #9a4a00; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --ground: #14171a; --line: #3a4048; --soft: #1d2126;
    --passed: #57c878; --failed: #ff7b72; --skipped: #9aa1aa; --error: #f0a35e; } }
body { color: var(--text); background: var(--ground); font: 16px/1.5 system-ui, sans-serif;
  max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .35rem .75rem; border-bottom: 1px solid var(--line); }
th { position: sticky; top: 0; background: var(--ground); }
pre { background: var(--soft); padding: .75rem; overflow-x: auto; border-radius: .25rem; }
code { font-family: ui-monospace, monospace; }
.passed { color: var(--passed); } .failed { color: var(--failed); }
.skipped { color: var(--skipped); } .error { color: var(--error); }
</style>
</head>
<body>
<h1>Verification report</h1>
<p>{{ counts }}</p>
<div class="table"><table>
<thead><tr><th scope="col">op</th><th scope="col">check</th><th scope="col">status</th><th scope="col">passed</th>
<th scope="col">failed</th><th scope="col">skipped</th><th scope="col">error</th></tr></thead>
<tbody>
{% for row in summaries %}
<tr><td><code>{{ row.op }}</code></td><td>{{ row.check }}</td><td class="{{ row.status }}">{{ row.status }}</td>
<td>{{ row.passed }}</td><td>{{ row.failed }}</td><td>{{ row.skipped }}</td><td>{{ row.error }}</td></tr>
{% endfor %}
</tbody>
</table></div>
{% if findings %}
<h2>Findings</h2>
{% for result in findings %}
<section>
<h3><span class="{{ result.status }}">{{ result.status }}</span> <code>{{ result.op }}</code>: {{ result.check }}</h3>
<p>{{ result.sample }}</p>
<pre>{{ result.message }}</pre>
</section>
{% endfor %}
{% endif %}
{% if skipped %}
<h2>Skipped</h2>
<ul>
{% for result in skipped %}
<li><code>{{ result.op }}</code>: {{ result.check }}, on {{ result.sample }}: {{ result.message }}</li>
{% endfor %}
</ul>
{% endif %}
</body>
</html>
"""
