"""Compiled with torch.compile(fullgraph=True), values and gradients equal those of eager."""

from collections.abc import Iterable

import torch

from custom_autograd.core.samples import Sample
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
from custom_autograd.verification.harness.compilation import (
    BACKEND,
    eager_results,
    find_change,
    fresh,
    is_limit_of_torch,
    require_no_generator,
    run,
)
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.targets import Target


class Compile(Check):
    """The aot_eager backend: everything that torch.compile does to an op, without generating code."""

    name = "compile"
    code = "C04"
    group = "compiler"
    most_samples = 2
    purpose = "compiled without a graph break, values and gradients equal eager ones"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for static shapes, one for dynamic ones."""
        require_no_generator(sample)
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        expected, cotangents = eager_results(target, sample)
        for is_dynamic in (False, True):
            label = "dynamic shapes" if is_dynamic else "static shapes"
            function = torch.compile(fresh(target.call), backend=BACKEND, fullgraph=True, dynamic=is_dynamic)
            try:
                found, _ = run(target, sample, function, cotangents)
            except Exception as error:  # noqa: BLE001 - whatever the compiler raises is what there is to report
                refusal = find_refusal(error)
                if refusal is not None:
                    yield skipped(f"compiling raises {refusal}")
                    return
                if is_limit_of_torch(error):
                    yield skipped(f"{label}: a limit of torch: {first_line(root_cause(error))}")
                    continue
                yield failed(f"{label}: compiling raises {first_line(root_cause(error))}")
                continue
            difference = find_change(found, expected)
            yield PASSED if difference is None else difference.failed(f"{label}: {difference} in eager")
