"""GROUPS, the kinds of checks: what `checks=` takes, and the markers of pytest."""

GROUPS = ("values", "layout", "derivatives", "metadata", "transforms", "compiler", "saving", "system", "other")
"""In the order of the documentation; "other" is that of a check that names none."""


def group_or_other(group: str) -> str:
    """Return the group itself, or "other" for one that another package made up."""
    return group if group in GROUPS else "other"
