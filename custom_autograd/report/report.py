"""The results of a verification, and the ways to read them."""

from dataclasses import dataclass

from custom_autograd.core.errors import CheckError
from custom_autograd.report import documents, text
from custom_autograd.report.results import Result


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a verification found.

    Args:
        results: one per op, check and sample, in the order in which they were found.
    """

    results: tuple[Result, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed and nothing raised. What was skipped is in `results`, with its reason."""
        return not any(result.is_finding for result in self.results)

    def raise_for_failures(self) -> None:
        """Raises if something failed or raised.

        Raises:
            CheckError: with the findings, and the counts of everything.
        """
        if not self.ok:
            raise CheckError(text.format_failures(self.results))

    def to_json(self) -> str:
        """The results as JSON: an object with `format`, `ok`, `counts` and `results`."""
        return documents.format_json(self.results)

    def to_markdown(self) -> str:
        """A table of ops and checks, then each finding and each reason for a skip."""
        return documents.format_markdown(self.results)

    def to_html(self) -> str:
        """One page that needs nothing else, in light and dark."""
        return documents.format_html(self.results)

    def __str__(self) -> str:
        """The table a terminal shows."""
        return text.format_report(self.results)
