"""What a verification found: results as data, and the documents made of them."""

from custom_autograd.verification.report.report import Report
from custom_autograd.verification.report.results import Result, Status

__all__ = ["Report", "Result", "Status"]
