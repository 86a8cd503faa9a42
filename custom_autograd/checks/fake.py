"""The fake kernel tells the truth about the real one: metadata of outputs, in every layout and size."""

import itertools
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from custom_autograd.checks.agreement import accepted_sizes
from custom_autograd.checks.base import PASSED, Check, Finding, failed, find_refusal, first_line, root_cause, skipped
from custom_autograd.checks.entries import has_derived_fake
from custom_autograd.checks.sweeps import layouts
from custom_autograd.checks.targets import Target, call_on
from custom_autograd.checks.variants import VARIED
from custom_autograd.core.samples import Sample
from custom_autograd.torch_private import verification


class Fake(Check):
    """What the fake kernel says, against what the real kernel returns."""

    name = "fake"
    code = "C01"
    group = "metadata"
    is_quick = True
    purpose = "fake outputs have the shape, stride, dtype and device of the real ones, in every layout and size"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """One finding per layout, and one per size."""
        written = target.written_places(sample)
        for label, variant in itertools.chain(layouts(sample, written=written), accepted_sizes(target, sample)):
            finding = _check_variant(target, variant, label)
            if finding.status != "skipped" or not label.startswith(VARIED):
                yield finding
            if label == "as given" and finding.status == "skipped":
                return


def _check_variant(target: Target, sample: Sample, label: str) -> Finding:
    with torch.no_grad():
        try:
            real = call_on(target.full, sample)
        except Exception as error:
            if label == "as given":
                raise
            return skipped(f"{label}: the op refuses it ({first_line(error)})")
        try:
            fake = _fake_outputs(target, sample)
        except (RuntimeError, TypeError, ValueError) as error:
            refusal = find_refusal(error)
            if refusal is not None:
                return skipped(refusal)
            if target.overload is None:
                return skipped(f"it has no fake kernel, and cannot be traced: {first_line(root_cause(error))}")
            return failed(f"{label}: the fake kernel raises {first_line(root_cause(error))}")
    difference = _find_difference(fake, real)
    if difference is None:
        return PASSED
    what, text = difference
    return failed(f"{label}: {text}", cause=_why(what, real) if has_derived_fake(target) else "")


def _fake_outputs(target: Target, sample: Sample) -> tuple[Tensor, ...]:
    with verification.fake_mode() as to_fake:
        return call_on(target.full, sample.map(to_fake))


def _find_difference(fake: Sequence[Tensor], real: Sequence[Tensor]) -> tuple[str, str] | None:
    """What differs first, and how; None where nothing does."""
    if len(fake) != len(real):
        return "number", f"the fake kernel returns {len(fake)} tensors, the real one {len(real)}"
    for position, (said, done) in enumerate(zip(fake, real, strict=True)):
        for what, one, other in _rows(said, done):
            if one != other:
                return what, f"output {position}: the fake kernel says {what} {one}, the real one gives {other}"
    return None


def _why(what: str, real: Sequence[Tensor]) -> str:
    """What to do about a reference whose outputs are not those of the kernel."""
    if what != "stride":
        return f"the fake is derived from the reference, which returns another {what}: register_fake"
    is_contiguous = all(output.layout == torch.strided and output.is_contiguous() for output in real)
    return f"{STRIDES}: {CONTIGUOUS if is_contiguous else OTHER}"


def _rows(said: Tensor, done: Tensor) -> list[tuple[str, object, object]]:
    """What is compared; sizes that depend on data are symbols, which stand for any size, and have no known strides."""
    rows: list[tuple[str, object, object]] = [("dtype", said.dtype, done.dtype), ("device", said.device, done.device)]
    rows.append(("layout", said.layout, done.layout))
    if any(not isinstance(size, int) for size in said.shape):
        return [*rows, ("number of dimensions", said.dim(), done.dim())]
    rows.append(("shape", tuple(said.shape), tuple(done.shape)))
    if done.layout == torch.strided and said.layout == torch.strided and said.shape == done.shape:
        rows.append(("stride", _strides(said), _strides(done)))
    return rows


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """The strides that matter: a dimension of size 1 may have any, and so may a tensor without elements."""
    if tensor.numel() == 0:
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1)


STRIDES = "all kernels of an op return the same strides, and the fake is derived from the reference"
CONTIGUOUS = "end the reference in .contiguous(), or register_fake with x.new_empty(x.shape)"
OTHER = "let the kernel return the strides of the reference, or register_fake those of the kernel"
