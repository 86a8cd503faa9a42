"""A target as a function of those tensors of a sample that can have a gradient; everything else is closed over.

Tensors in lists are arguments of their own, an input that the target writes to is copied first and returned as an
output, and floating tensors are float64: what finite differences and torch.autograd.gradcheck can work on.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from custom_autograd.checks.base import NothingToCheckError, find_refusal, first_line
from custom_autograd.checks.sweeps import subsets
from custom_autograd.checks.targets import Function, Target, call_on
from custom_autograd.core.samples import Sample

TensorsFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]
"""Tensors in, one by one; floating and complex tensors out."""


@dataclass(frozen=True, slots=True)
class TensorFunction:
    """A target as a function of some tensors of a sample.

    Args:
        target: what is called.
        sample: where everything else comes from.
        positions: which tensors of the sample the arguments stand for.
        call: `target.call`, or `target.full`, which gives hidden outputs too.
    """

    target: Target
    sample: Sample
    positions: tuple[int, ...]
    call: Function

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The floating and complex results, then the values of the inputs that were written to."""
        leaves = self.sample.leaves()
        values = [leaf.tensor for leaf in leaves]
        for position, tensor in zip(self.positions, tensors, strict=True):
            values[position] = tensor
        written = [position for position, leaf in enumerate(leaves) if self.target.argument_of(leaf).is_mutated]
        for position in written:
            values[position] = values[position].clone()
        outputs = call_on(self.call, self.sample.with_tensors(values))
        outputs += tuple(values[position] for position in written if not _is_in(values[position], outputs))
        return tuple(output for output in outputs if can_have_gradient(output))

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The values of the arguments, each a leaf that requires grad."""
        tensors = self.sample.tensors()
        return tuple(tensors[position].detach().clone().requires_grad_() for position in self.positions)

    @property
    def names(self) -> tuple[str, ...]:
        """What a message calls the arguments."""
        leaves = self.sample.leaves()
        return tuple(self.target.name_of(leaves[position]) for position in self.positions)

    def restricted_to(self, chosen: Sequence[int]) -> "TensorFunction":
        """The function of only some of its arguments; the others keep their value and need no gradient."""
        return TensorFunction(self.target, self.sample, tuple(self.positions[i] for i in chosen), self.call)


def function_of(target: Target, sample: Sample, *, is_full: bool = False) -> TensorFunction:
    """The target as a function of every tensor of the sample that can have a gradient, in float64.

    Where tensors of the sample require grad, only those count; where none does, all floating and complex ones do.

    Raises:
        NothingToCheckError: there is no such tensor, or the target does not take float64.
    """
    double = sample.map(_to_double)
    chosen = _places(target, sample)
    if not chosen:
        raise NothingToCheckError("no tensor of the sample can have a gradient")
    function = TensorFunction(target, double, chosen, target.full if is_full else target.call)
    _call_once(function, sample)
    return function


def parts_by_inputs(target: Target, samples: Sequence[Sample]) -> dict[str, tuple[str, ...]]:
    """Every subset of the inputs of the samples that can have a gradient, by its label: "x_weight" -> (x, weight)."""
    found: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        leaves = sample.leaves()
        names = [target.name_of(leaves[place]) for place in _places(target, sample)]
        for chosen in subsets(len(names)) if names else ():
            part = tuple(names[i] for i in chosen)
            found.setdefault("_".join(re.sub(r"\W+", "", name) for name in part), part)
    return found


def chosen_subsets(function: TensorFunction, only: tuple[str, ...] | None) -> Iterator[tuple[int, ...]]:
    """Every subset of a function's arguments, or the one with these names.

    Raises:
        NothingToCheckError: there is none with these names.
    """
    found = list(subsets(len(function.positions)))
    if only is not None:
        found = [chosen for chosen in found if tuple(function.names[i] for i in chosen) == only]
        if not found:
            raise NothingToCheckError(f"the sample has no gradient for {', '.join(only)} together")
    yield from found


def _places(target: Target, sample: Sample) -> tuple[int, ...]:
    """Which tensors of the sample can have a gradient: those that require grad, or all that can if none does."""
    leaves = sample.leaves()
    able = [
        i for i, leaf in enumerate(leaves) if _is_candidate(leaf.tensor) and target.argument_of(leaf).is_differentiable
    ]
    return tuple([i for i in able if leaves[i].tensor.requires_grad] or able)


def without_refused_gradients(target: Target, sample: Sample) -> tuple[Sample, str | None]:
    """The sample as it is, or, where the op refuses a gradient, without tensors that require one, and the reason."""
    copies = sample.map(lambda x: x.detach().clone().requires_grad_(x.requires_grad))
    written = [target.argument_of(leaf).is_mutated for leaf in copies.leaves()]
    values = [x.clone() if is_written else x for x, is_written in zip(copies.tensors(), written, strict=True)]
    try:
        outputs = [y for y in call_on(target.call, copies.with_tensors(values)) if y.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    except RuntimeError as error:
        refusal = find_refusal(error)
        if refusal is None:
            raise
        return sample.map(Tensor.detach), f"gradients: {refusal}"
    return sample, None


def vector_jacobian(
    function: TensorsFunction, inputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """The gradient of <outputs, cotangents> for each input; zero where there is no connection."""
    leaves = tuple(value.detach().clone().requires_grad_() for value in inputs)
    outputs = function(*leaves)
    pairs = [(y, u) for y, u in zip(outputs, cotangents, strict=True) if y.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    grads = torch.autograd.grad([y for y, _ in pairs], leaves, [u for _, u in pairs], allow_unused=True)
    return tuple(torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, grads, strict=True))


def signed_like(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """A cotangent or tangent for each tensor, of both signs, from the global generator, which the runner seeds."""
    return tuple(torch.randn_like(tensor, memory_format=torch.contiguous_format).detach() for tensor in tensors)


def can_have_gradient(tensor: Tensor) -> bool:
    """Whether the dtype is floating or complex."""
    return tensor.is_floating_point() or tensor.is_complex()


def _is_candidate(tensor: Tensor) -> bool:
    return can_have_gradient(tensor) and tensor.layout == torch.strided


def _to_double(tensor: Tensor) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().clone()
    dtype = torch.complex128 if tensor.is_complex() else torch.float64 if tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to(dtype, memory_format=torch.contiguous_format, copy=True)


def _call_once(function: TensorFunction, original: Sample) -> None:
    """Raises NothingToCheckError if the target takes the sample as it is, but not in float64."""
    with torch.no_grad():
        try:
            outputs = function(*function.inputs)
        except Exception as error:
            call_on(function.call, original.map(lambda tensor: tensor.detach().clone()))
            raise NothingToCheckError(f"the op does not take float64: {first_line(error)}") from error
    if not outputs:
        raise NothingToCheckError("no result of the op can have a gradient")


def _is_in(tensor: Tensor, outputs: Sequence[Tensor]) -> bool:
    return any(tensor is output for output in outputs)
