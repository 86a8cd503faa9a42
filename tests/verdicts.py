"""The verdict of one check on an op: what the tests of the checks look at."""

from collections.abc import Callable
from typing import Any

from custom_autograd.verification.check import accepted_failures, case_of, check, select_checks
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.differentiable import with_surrogate
from custom_autograd.verification.harness.targets import target_of
from custom_autograd.verification.report import Result
from custom_autograd.verification.report.acceptance import accept


def verdict(name: str, samples: Any) -> Callable[..., Result]:
    """Return a function that runs one check on an op, with these samples, and returns its one result.

    In this process no smallest sample is looked for and no script is written: other tests look at those.
    """

    def result_of(
        op: Any, *, isolated: bool = False, seed: int = 0, surrogate: str | None = None, **options: Any
    ) -> Result:
        if isolated:
            (result,) = check(op, samples, checks=[name], seed=seed, surrogate=surrogate, **options).results
            return result
        case = case_of(with_surrogate(target_of(op), surrogate), samples, seed=seed, **options)
        found = runner.run([case], select_checks([name]), seed=seed, is_explained=False)
        (result,) = accept(found, accepted_failures()).results
        return result

    return result_of
