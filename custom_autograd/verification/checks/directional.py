"""The backward agrees with finite differences along random directions: of other numbers, and of complex ones."""

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample, range_of
from custom_autograd.verification.calls import sizes
from custom_autograd.verification.calls.call_arguments import scalars, with_value
from custom_autograd.verification.calls.directions import find_function, look_along
from custom_autograd.verification.calls.numbers import (
    OF_ALL,
    OTHER_SIGN,
    SMALL,
    TWENTY,
    VALUE_CHANGES,
    in_order,
)
from custom_autograd.verification.calls.ranges import within_range
from custom_autograd.verification.harness.agreement import TO_SAY, only_a_kernel_refuses, within_domain
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
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    cotangents_like,
    function_of,
    require_gradient,
    vector_jacobian,
    with_derivatives,
)
from custom_autograd.verification.harness.numerical import Precision, along_one, inner, precision_of
from custom_autograd.verification.harness.sweeps import has_arithmetic, is_ordered
from custom_autograd.verification.harness.targets import Target, call_on


class Directional(Check):
    """Two directions per input and variant, each a few calls, whatever the sizes; kinks are left out."""

    name = "directional"
    code = "G02"
    group = "derivatives"
    is_quick = True
    purpose = "the backward agrees with finite differences along random directions, whatever the numbers"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input and variant."""
        begin = time.process_time()
        yield from look_along(with_derivatives(function_of(target, sample)), "")
        others = () if target.reference is not None else _for_want_of_a_reference(target, sample)
        usual = _changed(sample, [text for text in OF_ALL if text not in SMALL])
        for label, variant in itertools.chain(usual, others):
            start = time.process_time()
            if start - begin > LONGEST:
                yield skipped(f"{label}: left out, with what follows, because others took {LONGEST:g} s")
                return
            function = find_function(target, variant)
            if (seconds := time.process_time() - start) > SLOWEST:  # a solver that does not converge there
                yield skipped(f"{label}: left out, because a call takes {seconds:.0f} s")
            elif function is not None:
                yield from look_along(function, f"{label}: ")


SLOWEST = 1.0  # s of CPU time; of one call, of which two directions take dozens
LONGEST = 5.0  # s of CPU time; of one sample, after which no other numbers and sizes are tried


def _for_want_of_a_reference(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the scalars, small numbers and sizes at which gradients are else compared with those of the reference."""
    others = ((f"{name}={other!r}", with_value(target, sample, name, other)) for name, other in scalars(target, sample))
    yield from within_domain(target, sample, others)
    yield from _changed(sample, SMALL[:1])
    yield from _changed_alone(target, sample)
    if all(x.is_floating_point() or x.is_complex() for x in sample.tensors()):
        found = ((text, resize(sample)) for _, text, resize in sizes.of(target, sample) if text.endswith(TILES))
        for label, variant in within_domain(target, sample, ((text, row) for text, row in found if row is not None)):
            pairs = zip(variant.tensors(), sample.tensors(), strict=True)
            yield label, variant.with_tensors([x.requires_grad_(y.requires_grad) for x, y in pairs])


TILES = ("-> 256", "multiples of 8")
"""The sizes of vectors and blocks: a kernel may take another way where they divide."""


def _changed(sample: Sample, texts: Sequence[str]) -> Iterator[tuple[str, Sample]]:
    """Yield the call with all of its floating and complex numbers changed, in each of these ways."""
    for text, change, _ in VALUE_CHANGES:
        if text in texts:
            changed = sample.map(partial(_moved, change=change))
            if any(x is not y for x, y in zip(changed.tensors(), sample.tensors(), strict=True)):
                yield text, changed


def _changed_alone(target: Target, sample: Sample) -> Iterator[tuple[str, Sample]]:
    """Yield the call with the numbers of one tensor next to the others large, or of the other sign."""
    tensors = sample.tensors()
    for position, leaf in enumerate(sample.leaves() if len(tensors) > 1 else ()):
        for text, change, _ in VALUE_CHANGES:
            if text in (TWENTY, OTHER_SIGN):
                moved = _moved(tensors[position], change)
                if moved is not tensors[position]:
                    changed = sample.with_tensors([*tensors[:position], moved, *tensors[position + 1 :]])
                    yield f"numbers of '{target.name_of(leaf)}' {text}", changed


def _moved(tensor: Tensor, change: Callable[[Tensor], Tensor | None]) -> Tensor:
    """Return the tensor changed; itself where its numbers are not computed with, or leave the range of the sample."""
    is_number = has_arithmetic(tensor) and tensor.layout == torch.strided
    change = in_order(change) if is_ordered(tensor) else change
    found = within_range(change, range_of(tensor))(tensor.detach()) if is_number else None
    return tensor if found is None else found.requires_grad_(tensor.requires_grad)


DIRECTIONS = 3

ADVICE = "no sample is complex, so this is advice"


class Complex(Check):
    """A real sample made complex if the op takes it; what is found there is advice, since it is not declared."""

    name = "complex"
    code = "G10"
    group = "derivatives"
    purpose = "complex gradients are conjugate Wirtinger derivatives"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per input, along real, imaginary and mixed directions."""
        is_declared = any(tensor.is_complex() for tensor in sample.tensors())
        changed = _made_complex(target, sample)
        function = with_derivatives(function_of(target, changed))
        inputs = tuple(x.detach() for x in function.inputs)
        outputs = function(*function.inputs)
        require_gradient(outputs)
        cotangents = cotangents_like(outputs)
        try:
            grads = vector_jacobian(function, inputs, cotangents)
        except Exception as error:
            if is_declared or find_refusal(error) is not None:
                raise
            found = f"the backward raises {first_line(error)}; let the kernel refuse complex numbers too"
            yield skipped(f"{ADVICE}: {found}")
            return
        precision = precision_of(function, inputs)
        for position in range(len(grads)):
            finding = _check(function, inputs, position, cotangents, grads[position], precision)
            yield finding if is_declared or finding is PASSED else skipped(f"{ADVICE}: {finding.message}")


def _made_complex(target: Target, sample: Sample) -> Sample:
    """Return the sample with complex numbers in it.

    Raises:
        NothingToCheckError: the op refuses them, or does not answer in complex numbers.
    """
    if any(tensor.is_complex() for tensor in sample.tensors()):
        return sample
    if target.reference is None:
        raise NothingToCheckError(
            "no sample is complex, and no reference shows that the op is meant for complex numbers"
        )
    changed = sample.map(_with_imaginary_part)
    try:
        with torch.no_grad():
            outputs = call_on(target.call, changed.map(torch.clone))
            call_on(target.reference, changed.map(torch.clone))
    except Exception as error:
        advice = TO_SAY if only_a_kernel_refuses(target, changed) else ""
        raise NothingToCheckError(f"the op takes no complex numbers: {first_line(error)}{advice}") from error
    if not outputs or not all(output.is_complex() for output in outputs):
        raise NothingToCheckError("the op does not answer in complex numbers")
    return changed.map(lambda x: x.requires_grad_(x.is_complex()))


def _with_imaginary_part(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    real = tensor.detach().double()
    return torch.complex(real, torch.randn_like(real))


def _check(
    function: TensorFunction,
    inputs: Sequence[Tensor],
    position: int,
    cotangents: Sequence[Tensor],
    grad: Tensor,
    precision: Precision,
) -> Finding:
    for _ in range(DIRECTIONS):
        direction = torch.randn_like(inputs[position])
        estimate = along_one(function, inputs, position, direction, cotangents, precision)
        found, conjugate = inner([grad], [direction]), inner([grad.conj()], [direction])
        bound = 10 * estimate.error + 1e-6 + 1e-5 * float(grad.norm() * direction.norm())
        if estimate.is_kink or abs(found - estimate.value) <= bound:
            continue
        is_conjugate, name = abs(conjugate - estimate.value) <= bound, function.names[position]
        return failed(
            f"complex gradient of '{name}' along a direction is {found:.6g}, expected {estimate.value:.6g}: "
            "conjugate what the backward multiplies with, or let the kernel refuse complex numbers",
            cause="a conj() is missing, or there is one too many" if is_conjugate else "",
        )
    return PASSED
