"""The plain call of an op on a sample: where it raises, every check would, and none of them looks at the sample."""

import inspect
from collections.abc import Iterable

import torch

from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.core.messages import quote
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.agreement import values_of
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, find_refusal, first_line
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.report.matrix import ALL_CHECKS


class FirstCall(Check):
    """The op takes the sample; the runner makes this check before the first one of each sample."""

    name = ALL_CHECKS
    code = ""
    purpose = "the op takes its samples"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Yield one finding; an op that refuses its own sample fails, too."""
        missing = _missing_arguments(target, sample)
        if missing:
            yield failed(f"the sample has no value for {quote(missing)}", cause=CALL)
            return
        try:
            with torch.no_grad():
                values_of(target, target.call, sample)
        except CustomAutogradError as error:
            yield failed(str(error))
            return
        except Exception as error:
            if find_refusal(error) is None:
                raise
            yield failed(f"the op raises {first_line(error)}")
            return
        yield PASSED


CALL = "Sample(...) takes the arguments of one call of the op"


def _missing_arguments(target: Target, sample: Sample) -> list[str]:
    """Return the names of the arguments that a sample has no value for."""
    given = {argument.name for argument in target.arguments[: len(sample.args)]} | set(sample.kwargs)
    stars = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [row.name for row in target.arguments if row.default is inspect.Parameter.empty and row.kind not in stars]
    return [name for name in needed if name not in given]
