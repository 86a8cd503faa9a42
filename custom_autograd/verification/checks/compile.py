"""Compiled with torch.compile(fullgraph=True), values and gradients equal those of eager."""

from collections.abc import Iterable, Iterator
from contextlib import nullcontext

import torch

from custom_autograd.capabilities.inlining import without_inlining
from custom_autograd.schema.samples import Sample
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
from custom_autograd.verification.harness.passes import (
    BACKEND,
    eager_results,
    find_change,
    fresh,
    is_limit_of_torch,
    require_no_generator,
    run,
)
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target


def _ways(target: Target) -> Iterator[tuple[str, bool, bool]]:
    """Yield what a report calls a way to compile, whether shapes are dynamic, and whether the op stays one node."""
    record = record_of(target)
    is_inlined = record is not None and record.is_inlined
    for label, is_dynamic in (("static shapes", False), ("dynamic shapes", True)):
        yield label + is_inlined * ", inlined", is_dynamic, False
        if is_inlined:
            yield f"{label}, not inlined", is_dynamic, True


class Compile(Check):
    """The aot_eager backend: everything that torch.compile does to an op, without generating code."""

    name = "compile"
    code = "C04"
    group = "compiler"
    most_samples = 2
    purpose = "compiled without a graph break, values and gradients equal eager ones"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding for static shapes, one for dynamic ones; two of each for an op that is inlined."""
        require_no_generator(sample)
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        expected, cotangents = eager_results(target, sample)
        for label, is_dynamic, is_whole in _ways(target):
            function = torch.compile(fresh(target.call), backend=BACKEND, fullgraph=True, dynamic=is_dynamic)
            try:
                with without_inlining() if is_whole else nullcontext():
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
