"""The page of all checks says what the checks say of themselves."""

from pathlib import Path

from custom_autograd.verification.checks import CHECKS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checks.md"


def test_every_check_has_its_row():
    quick = {True: "yes", False: ""}
    rows = [f"| `{row.name}` | {row.code} | {row.group} | {quick[row.is_quick]} | {row.purpose} |" for row in CHECKS]

    assert rows == [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]


def test_names_and_codes_are_unique():
    assert len(CHECKS) == len({row.name for row in CHECKS}) == len({row.code for row in CHECKS})
