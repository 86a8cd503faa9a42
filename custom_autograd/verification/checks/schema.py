"""The schema is correct, by this package's own verification and by PyTorch's, torch.library.opcheck.

What is written to is declared, what is declared is written to, and nothing is shared; known limits of opcheck are
distinguished.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from custom_autograd.core.errors import KernelError, KernelUnavailable
from custom_autograd.core.messages import quote
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.calls import layouts
from custom_autograd.verification.calls.call_arguments import scalars, with_value
from custom_autograd.verification.harness.agreement import VARIED, accepted_sizes
from custom_autograd.verification.harness.base import (
    PASSED,
    Check,
    Finding,
    NothingToCheckError,
    failed,
    find_refusal,
    first_line,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, is_same
from custom_autograd.verification.harness.differentiable import without_refused_gradients
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.pace import Pace
from custom_autograd.verification.harness.records import output_names
from custom_autograd.verification.harness.settings import is_random
from custom_autograd.verification.harness.sweeps import copy, has_arithmetic
from custom_autograd.verification.harness.targets import Target, call_on, dense
from custom_autograd.verification.harness.tracing import SPARSE


@dataclass(frozen=True)
class SchemaCheck(Check):
    """Writes by version counter and by bytes, shared memory by address: NumPy and data_ptr() hide from the first.

    Attributes:
        samples: all those of the op: what is written to may keep its value in one of them.
    """

    samples: tuple[Sample, ...] = ()

    name = "schema"
    code = "F02"
    group = "values"
    is_quick = True
    purpose = (
        "no undeclared writes, no unwritten declared arguments, no shared memory, no pointwise tag that does not hold"
    )

    def among(self, target: Target, samples: Sequence[Sample]) -> Check:
        """Return the check with these samples."""
        del target
        return replace(self, samples=tuple(samples))

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per layout and size, then one per argument declared as written to."""
        written = target.written_positions(sample)
        usual = layouts.of_all(sample, written=written)
        pace = Pace(target, sample)
        for label, variant in itertools.chain(usual, accepted_sizes(target, sample), _scalars(target, sample)):
            if reason := pace.why_not(variant):
                yield skipped(f"{label}: {reason}")
                continue
            finding = _check_variant(target, variant, label)
            if finding.status != "skipped" or not (label.startswith(VARIED) or "=" in label):
                yield finding
        yield from _check_declared(target, sample, self.samples)
        yield from _check_grads(target, sample)
        yield from _check_pointwise(target, sample)


def _scalars(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the call with other scalars if it draws random numbers: no such calls are explored."""
    for name, other in scalars(target, sample) if is_random(target, sample) else ():
        yield f"{name}={other!r}", with_value(target, sample, name, other)


def _check_pointwise(target: Target, sample: Sample) -> Iterator[Finding]:
    """Check that an op tagged as pointwise gives for the first row what it gives there for the whole."""
    tags: Sequence[torch.Tag] = () if target.overload is None else target.overload.tags
    if torch.Tag.pointwise not in tags or torch.Tag.nondeterministic_seeded in tags:
        return
    plain = sample.map(Tensor.detach)
    try:
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in plain.tensors()))
    except RuntimeError:  # lists of tensors, each of a shape of its own
        return

    def first_row(tensor: Tensor) -> Tensor:
        is_cut = tensor.dim() == len(shape) and tensor.shape[0] == shape[0]
        return tensor.narrow(0, 0, 1).clone() if is_cut else tensor.clone()

    if shape and shape[0] > 1:
        with torch.no_grad():
            whole, row = call_on(target.call, plain.map(Tensor.clone)), call_on(target.call, plain.map(first_row))
        expected = [first_row(output) for output in whole]
        names = output_names(target, len(row))
        difference = find_difference(row, expected, names=names)
        if difference is not None:
            problem = f"tagged pointwise, called with the first row alone: {difference} there with the others"
            yield failed(problem, cause="a result depends on more than the elements in its place: take the tag off")
        else:
            yield PASSED


def _check_variant(target: Target, sample: Sample, label: str) -> Finding:
    before = copy(sample).tensors()
    versions = [verification.version_of(tensor) for tensor in sample.tensors()]
    with torch.no_grad():
        try:
            outputs = call_on(target.full, sample)
        except Exception as error:
            if label == "as given":
                raise
            is_unavailable = isinstance(error, KernelUnavailable) or find_refusal(error) is not None
            if isinstance(error, KernelError) and not is_unavailable:  # what validation finds, and no refusal
                return failed(f"{label}: {first_line(error)}", cause=error.do or "")
            return skipped(f"{label}: the op refuses it ({first_line(error)})")
        problem = _find_write(target, sample, before, versions) or _find_sharing(target, sample, outputs)
        problem = problem or _find_reused_output(target, sample, outputs) or _find_inference(target, outputs)
    return PASSED if problem is None else failed(f"{label}: {problem}")


def _find_write(target: Target, sample: Sample, before: Sequence[Tensor], versions: Sequence[int | None]) -> str | None:
    for leaf, old, version in zip(sample.leaves(), before, versions, strict=True):
        if target.argument_of(leaf).is_mutated:
            continue
        name = target.name_of(leaf)
        if not is_same(dense(leaf.tensor), dense(old)):
            return f"'{name}' is written to, which the schema does not declare: mutates_args=('{name}',)"
        if verification.version_of(leaf.tensor) != version:
            return f"'{name}' is written to in place, with the values it had: mutates_args=('{name}',)"
    return None


def _find_sharing(target: Target, sample: Sample, outputs: Sequence[Tensor]) -> str | None:
    if target.may_alias:
        return None
    names = output_names(target, len(outputs))
    for position, output in enumerate(outputs):
        for leaf in sample.leaves():
            if not target.argument_of(leaf).is_mutated and shares_memory(output, leaf.tensor):
                return f"{names[position]} shares memory with '{target.name_of(leaf)}': return a copy"
        for other in range(position):
            if shares_memory(output, outputs[other]):
                return f"{names[position]} shares memory with {names[other]}: return a copy"
    return None


def _find_reused_output(target: Target, sample: Sample, outputs: Sequence[Tensor]) -> str | None:
    """Return a message if a second call reuses the memory of the first one's results, which are still in use."""
    if target.may_alias or target.is_mutating:
        return None
    again = call_on(target.full, sample)
    for name, first, second in zip(output_names(target, len(outputs)), outputs, again, strict=False):
        if shares_memory(first, second):
            return f"{name} of one call shares memory with that of the next: a buffer is returned again"
    return None


def _find_inference(target: Target, outputs: Sequence[Tensor]) -> str | None:
    """Return a message if an op returns what autograd cannot record."""
    if target.overload is None or torch.is_inference_mode_enabled():
        return None
    found = [name for name, y in zip(output_names(target, len(outputs)), outputs, strict=True) if y.is_inference()]
    advice = "compute under torch.no_grad(), or return a clone made after it"
    return f"{found[0]} is made in inference mode, so autograd cannot record it: {advice}" if found else None


def _check_grads(target: Target, sample: Sample) -> Iterator[Finding]:
    """Yield a failure if a call gives an input a .grad, as warp.from_torch does to what requires a gradient."""
    written, rows = target.written_positions(sample), enumerate(sample.tensors())
    tensors = [x.detach().clone().requires_grad_(x.requires_grad and place not in written) for place, x in rows]
    with torch.no_grad():
        call_on(target.full, sample.with_tensors(tensors))
    filled = [target.name_of(leaf) for leaf, x in zip(sample.leaves(), tensors, strict=True) if x.grad is not None]
    advice = "give the library that does so a detach() of it"
    yield failed(f"the call sets the .grad of {quote(filled)}: {advice}") if filled else PASSED


def _scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor * factor if has_arithmetic(tensor) else tensor


def _check_declared(target: Target, sample: Sample, samples: Sequence[Sample]) -> Iterator[Finding]:
    """Yield a failure for a declared argument that no variant writes to: it costs a copy in compiled graphs."""
    if not target.is_mutating:
        return
    written = _written(target, sample)
    present = {target.argument_of(leaf).name for leaf in sample.leaves() if leaf.tensor.numel()}
    declared = {argument.name for argument in target.arguments if argument.is_mutated} & present
    if not declared <= written:
        for other in samples:
            with contextlib.suppress(Exception):  # that sample has findings of its own
                written |= _written(target, other)
    for name in sorted(declared):
        yield PASSED if name in written else failed(f"'{name}' is declared as written to, but keeps its value")


def _written(target: Target, sample: Sample) -> set[str]:
    """Return the arguments that change in a call, also with other numbers: a histogram only counts what fits."""
    written: set[str] = set()
    for factor in (1.0, -3.7, 0.1, 0.0):
        variant = copy(sample).map(partial(_scaled, factor=factor))
        before = copy(variant).tensors()
        with torch.no_grad():
            call_on(target.full, variant)
        pairs = zip(variant.leaves(), before, strict=True)
        changed = (leaf for leaf, old in pairs if not is_same(dense(leaf.tensor), dense(old)))
        written |= {target.argument_of(leaf).name for leaf in changed}
    return written


def shares_memory(one: Tensor, other: Tensor) -> bool:
    """Return True if the address ranges of two strided tensors overlap."""
    if one.device != other.device or torch.strided not in (one.layout, other.layout) or one.layout != other.layout:
        return False
    (start, stop), (begin, end) = _addresses(one), _addresses(other)
    return max(start, begin) < min(stop, end)


def _addresses(tensor: Tensor) -> tuple[int, int]:
    if tensor.numel() == 0:
        return 0, 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


class Opcheck(Check):
    """Each of opcheck's tests is one finding."""

    name = "opcheck"
    code = "C03"
    group = "system"
    most_samples = 1
    purpose = "torch.library.opcheck passes, its static AOT test included"

    def applies_to(self, target: Target) -> str | None:
        """Return a reason unless it is an op of the dispatcher: opcheck takes no other."""
        return "opcheck needs an op of the dispatcher" if target.overload is None else None

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Run each test by itself, so that one failure does not hide the next."""
        assert target.overload is not None
        if not sample.tensors():
            raise NothingToCheckError("opcheck needs a tensor among the arguments")
        sample, refusal = without_refused_gradients(target, sample)
        if refusal is not None:
            yield skipped(refusal)
        is_drawing = has_generator(sample)
        if is_drawing:
            yield skipped("test_aot_dispatch_*: each of opcheck's calls would draw something else from the generator")
        for test in TESTS[:3] if is_drawing else TESTS:
            call = target.to_dispatcher(_copied_for_torch(target, sample))
            outcome = torch.library.opcheck(
                target.overload, call.args, call.kwargs, test_utils=test, raise_exception=False
            )
            yield _finding_of(test, outcome[test])


def _copied_for_torch(target: Target, sample: Sample) -> Sample:
    """Copy of the tensors; what is written to does not require grad, because opcheck cannot write to such leaves."""
    copies = sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad))
    for leaf in copies.leaves():
        if target.argument_of(leaf).is_mutated:
            leaf.tensor.requires_grad_(False)
    return copies


def _finding_of(test: str, outcome: object) -> Finding:
    if outcome == "SUCCESS":
        return PASSED
    if type(outcome).__name__ in DATA_DEPENDENT:
        return skipped(f"{test}: the size of its results depends on the data")
    if any(phrase in str(outcome) for phrase in SPARSE):
        return skipped(f"{test}: torch compiles no sparse tensor")
    if test.startswith("test_aot") and SUMMED in str(outcome):
        return skipped(f"{test}: opcheck adds up the results in the dtype of the first, which is an integer")
    refusal = find_refusal(outcome) if isinstance(outcome, BaseException) else None
    lines = [line for line in str(outcome).strip().splitlines() if line.strip()]
    first = "\n".join(lines[:6])  # opcheck repeats its advice at length
    return failed(f"{test}: {first}") if refusal is None else skipped(f"{test}: {refusal}")


TESTS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_static",
    "test_aot_dispatch_dynamic",
)

SUMMED = "can't be cast to the desired output type Long"
"""What torch raises where opcheck adds a floating result to one of integers, in place."""

DATA_DEPENDENT = ("DataDependentOutputException", "DynamicOutputShapeException")
"""How torch reports that static shapes cannot express a result; the classes have no public name."""
