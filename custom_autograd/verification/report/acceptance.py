"""The failures that a project accepts in its pyproject.toml: reported as such, and failures once they pass.

[tool.custom_autograd.xfail]
"ns::op" = { gradcheck = "a kink at 0" }      check = reason, for all samples of the op together
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

from custom_autograd.core.errors import CheckError
from custom_autograd.core.messages import suggest
from custom_autograd.core.toml import parse_toml
from custom_autograd.verification.report import Report, Result

Accepted: TypeAlias = Mapping[str, Mapping[str, str]]
"""Op -> check -> reason."""

FILE = "pyproject.toml"
TABLE = "tool.custom_autograd.xfail"


def find_accepted(folder: Path, checks: Collection[str]) -> Accepted:
    """Return what the pyproject.toml of a folder accepts, or the nearest one above it.

    Args:
        folder: where the search begins.
        checks: the names of all checks.

    Raises:
        CheckError: the file cannot be read, the table has another form, or a check is unknown.
    """
    found = next((path for path in (one / FILE for one in (folder, *folder.parents)) if path.is_file()), None)
    text = "" if found is None else found.read_text(encoding="utf-8")
    if "custom_autograd" not in text:
        return {}
    table = _table(text)
    for op, reasons in table.items():
        _require_form(op, reasons)
        for check in reasons:
            if check not in checks:
                raise _unknown(f"'{op}' accepts a failure of '{check}'", "check", check, checks)
    return table


def require_known(accepted: Accepted, ops: Collection[str]) -> None:
    """Check the names of ops, where all of a project's ops are at hand.

    Raises:
        CheckError: no op has the name.
    """
    for op in accepted:
        if op not in ops:
            raise _unknown(f"it accepts a failure of '{op}'", "op", op, ops)


def accept(report: Report, accepted: Accepted) -> Report:
    """Return the report with accepted failures skipped, and a failure for each that passes on every sample."""
    if not accepted:
        return report
    results = list(report.results)
    for op, reasons in accepted.items():
        for check, reason in reasons.items():
            _accept(results, [i for i, row in enumerate(results) if (row.op, row.check) == (op, check)], reason)
    return replace(report, results=tuple(results))


def _accept(results: list[Result], positions: Iterable[int], reason: str) -> None:
    """Change the results of one check on one op."""
    own = list(positions)
    if not any(results[i].is_finding or results[i].accepted for i in own):
        passed = [i for i in own if results[i].status == "passed"]
        for i in passed[:1]:
            message = f"it passes, but {FILE} says that it fails, because {reason}: remove it from {TABLE}"
            results[i] = replace(results[i], status="failed", message=message)
        return
    for i in own:
        if results[i].is_finding:
            message = f"accepted, because {reason}\n{results[i].message}"
            results[i] = replace(results[i], status="skipped", message=message, accepted=reason, script="")


def _table(text: str) -> Mapping[str, Mapping[str, str]]:
    found: object = parse_toml(text, FILE, TABLE, CheckError)
    for key in TABLE.split("."):
        found = found.get(key, {}) if isinstance(found, dict) else {}
    if not isinstance(found, dict):
        raise _wrong_form("the table", found)
    return cast(Mapping[str, Mapping[str, str]], found)


def _require_form(op: str, reasons: object) -> None:
    if not isinstance(reasons, dict) or not reasons:
        raise _wrong_form(f"'{op}'", reasons)
    for check, reason in reasons.items():
        if not isinstance(reason, str) or not reason.strip():
            raise _wrong_form(f"'{op}', {check}", reason)


def _wrong_form(location: str, found: object) -> CheckError:
    return CheckError(
        FILE,
        f"{location} in [{TABLE}] has another form",
        expected='"ns::op" = { check = "why its failure is accepted" }',
        found=repr(found)[:80],
    )


def _unknown(problem: str, kind: str, name: str, names: Collection[str]) -> CheckError:
    return CheckError(
        FILE,
        f"{problem} in [{TABLE}], and there is no {kind} of that name",
        do=suggest(name, names) or f"remove it, or correct the name of the {kind}",
    )
