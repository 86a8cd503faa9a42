"""The results of a verification, and the ways to read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.report import documents, html, junit, text
from custom_autograd.verification.report.results import Result
from custom_autograd.verification.report.runs import Run


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a verification found.

    Args:
        results: one per op, check and sample, in the order in which they were found.
        sources: the generated source of each op that has one, by the op's name.
        run: the run of `custom-autograd check` that it comes from; None for a report made in Python.
    """

    results: tuple[Result, ...]
    sources: Mapping[str, str] = field(default_factory=dict)
    run: Run | None = None

    @property
    def ok(self) -> bool:
        """Return True if nothing failed and nothing raised. What was skipped is in `results`, with its reason."""
        return not any(result.is_finding for result in self.results)

    def raise_for_failures(self) -> None:
        """Raise if something failed or raised.

        Raises:
            CheckError: with the findings, and the counts of everything.
        """
        if not self.ok:
            raise CheckError(text.format_failures(self.results))

    def to_json(self) -> str:
        """Return the results as JSON: an object with `format`, `ok`, `counts`, `results`, `sources` and `run`."""
        return documents.format_json(self.results, self.sources, self.run)

    @classmethod
    def from_json(cls, text: str) -> "Report":
        """Return the report that `to_json` wrote.

        Raises:
            ValueError: it is no such document, or of a format that is not known here.
        """
        results, sources, run = documents.parse_json(text)
        return cls(tuple(results), sources, run)

    def to_markdown(self) -> str:
        """Return a table of ops and checks, then each finding, what is accepted, and each reason for a skip."""
        return documents.format_markdown(self.results)

    def to_junit(self) -> str:
        """Return JUnit XML, which CI services read: a test suite per op, a test case per check and sample."""
        return junit.format_junit(self.results)

    def to_html(self) -> str:
        """Return one page that needs nothing else: matrix, findings, plots and generated source, in light and dark."""
        return html.format_page(self.results, self.sources)

    def _repr_html_(self) -> str:
        """Return the matrix and the findings, as a notebook shows them."""
        return html.format_fragment(self.results)

    def __str__(self) -> str:
        """Return what a terminal shows."""
        return text.format_report(self.results)
