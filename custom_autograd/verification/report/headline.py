"""What a report says first: how much was found, how much was not looked at, and whose values nothing verifies."""

from collections.abc import Sequence

from custom_autograd.verification.report.results import STATUSES, Result, count

NO_REFERENCE = "no reference is registered (register_reference)"
"""The reason for which a check that needs a reference is skipped."""

VERIFYING = ("kernels", "parity", "gradcheck", "directional")
"""The checks besides `reference` that hold the values of an op against something: another kernel, or a gradient."""


def format_counts(results: Sequence[Result]) -> str:
    """Return one line, such as "12 passed, 1 failed, 3 skipped: 19 % was not looked at"."""
    counts = [f"{count(results, status)} {status}" for status in STATUSES if count(results, status)]
    if not counts:
        return "nothing was checked"
    skipped = sum(result.status == "skipped" and not result.accepted for result in results)
    share = f": {100 * skipped / len(results):.0f} % was not looked at" if skipped else ""
    return ", ".join(counts) + share


def format_warnings(results: Sequence[Result]) -> list[str]:
    """Return a warning for each op whose values nothing verifies, in the order of the ops."""
    return [f"{op}: {UNVERIFIED}" for op in dict.fromkeys(result.op for result in results) if _is_blind(op, results)]


def _is_blind(op: str, results: Sequence[Result]) -> bool:
    """Return True if an op has no reference, and no other check looked at its values."""
    own = [result for result in results if result.op == op]
    looked = {result.check for result in own if result.status != "skipped"}
    references = [result for result in own if result.check == "reference"]
    has_none = bool(references) and all(result.message == NO_REFERENCE for result in references)
    return has_none and not looked.intersection(VERIFYING)


UNVERIFIED = (
    "nothing verifies its values: it has neither a reference, nor a second kernel, nor a gradient; "
    "give it one with reference=True or register_reference"
)
