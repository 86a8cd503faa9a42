"""The verdict of one check on an op: what the tests of the checks look at."""

from collections.abc import Callable
from typing import Any

from custom_autograd.verification.check import check
from custom_autograd.verification.report import Result


def verdict(name: str, samples: Any) -> Callable[..., Result]:
    """Return a function that runs one check on an op, with these samples, and returns its one result."""

    def result_of(op: Any, *, isolated: bool = False, **options: Any) -> Result:
        (result,) = check(op, samples, checks=[name], isolated=isolated, **options).results
        return result

    return result_of
