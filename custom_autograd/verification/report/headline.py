"""The counts of a report, and the ops whose values nothing verifies."""

from collections.abc import Sequence

from custom_autograd.verification.report.results import STATUSES, Result, count

NO_REFERENCE = "no reference is registered (register_reference)"
"""The reason for which a check that needs a reference is skipped."""

VERIFYING = ("kernels", "parity")
"""The checks besides `reference` that compare the values of an op with those of something else: another kernel."""


def format_counts(results: Sequence[Result]) -> str:
    """Return one line, such as "12 passed, 1 failed, 3 not looked at"."""
    accepted = sum(bool(result.accepted) for result in results)
    counts = {WORDS.get(status, status): count(results, status) for status in STATUSES}
    counts[WORDS["skipped"]] -= accepted
    counts["accepted"] = accepted
    return ", ".join(f"{number} {word}" for word, number in counts.items() if number) or "nothing was checked"


def format_warnings(results: Sequence[Result]) -> list[str]:
    """Return a warning for each op whose values nothing verifies, in the order of the ops."""
    return [f"{op}: {UNVERIFIED}" for op in dict.fromkeys(result.op for result in results) if is_blind(op, results)]


def is_blind(op: str, results: Sequence[Result]) -> bool:
    """Return True if an op has no reference, and no other check looked at its values."""
    own = [result for result in results if result.op == op]
    looked = {result.check for result in own if result.status != "skipped"}
    references = [result for result in own if result.check == "reference"]
    has_none = bool(references) and all(result.message == NO_REFERENCE for result in references)
    return has_none and not looked.intersection(VERIFYING)


UNVERIFIED = "nothing verifies its values: register_reference (or reference=True), or a second kernel"

WORDS = {"skipped": "not looked at"}
"""What the counts call a status, if it is not its own name."""
