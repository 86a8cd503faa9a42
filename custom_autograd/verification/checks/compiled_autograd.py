"""A backward that is compiled as a whole (compiled autograd) gives the gradients of eager."""

from collections.abc import Iterable

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.verification import compiled_backward
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    failed,
    find_refusal,
    first_line,
    root_cause,
    skipped,
)
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.passes import eager_results, find_change, is_limit_of_torch, run
from custom_autograd.verification.harness.targets import Target


class CompiledAutograd(Check):
    """The op runs in eager; its backward is traced through the rules when it runs, and compiled."""

    name = "compiled_autograd"
    code = "C07"
    group = "compiler"
    most_samples = 1
    needs = ("compile",)
    purpose = "compiled autograd gives the gradients of eager"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding."""
        sample, refusal = without_refused_gradients(target, sample)
        expected, cotangents = eager_results(target, sample)
        if not cotangents:
            yield skipped(refusal or "no output carries a gradient")
            return
        try:
            with compiled_backward():
                found, _ = run(target, sample, target.call, cotangents)
        except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
            text = f"the compiled backward raises {first_line(root_cause(error))}"
            is_honest = find_refusal(error) is not None or is_limit_of_torch(error)
            yield skipped(text) if is_honest else failed(text)
            return
        difference = find_change(found, expected)
        yield PASSED if difference is None else difference.failed(f"compiled backward: {difference} in eager")
