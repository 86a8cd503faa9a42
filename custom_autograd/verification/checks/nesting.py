"""Every nesting of torch.func's grad, jacrev, jacfwd, hessian, jvp and vmap gives what plain autograd gives.

The target is seen as f: one vector of all inputs -> one vector of all outputs, and as the number <c, f> + <f, f> / 2
for a fixed c. Its gradient g, the Jacobian J of f, the second derivative H of the number and H v for a fixed v come
from torch.autograd.grad, row by row. Each nesting is to give one of them, or a batch of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from custom_autograd.schema.samples import Sample
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
from custom_autograd.verification.harness.comparison import Difference, find_difference, judged, require_same
from custom_autograd.verification.harness.differentiable import (
    NO_TANGENT,
    TensorFunction,
    can_have_gradient,
    explain,
    function_of,
    gradients,
    reference_of,
    require_gradient,
    surrogates_of,
)
from custom_autograd.verification.harness.sweeps import free_sizes, resized
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.tracing import is_declared_here, refusal_of, takes

SMALL = 64
"""How many elements the inputs may have in all: a second derivative has as many rows."""

FACTOR = 10.0
"""Two orders of differentiation round more often than a call does."""


FORWARD_TWICE = "jacfwd(jacfwd)"
"""Silently wrong for any torch.autograd.Function: torch leaves the tangents of its jvp out (found in torch 2.13)."""


class Nesting(Check):
    """Each row of NESTINGS by value, on small float64 samples."""

    name = "nesting"
    code = "T02"
    group = "transforms"
    most_samples = 1
    needs = ("gradcheck", "second_order", "forward_mode", "vmap")
    purpose = "nested torch.func transforms equal loops of torch.autograd.grad"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per nesting; those that the op refuses are skipped by name."""
        function = function_of(target, _small(target, sample))
        if any(output.dtype not in (torch.float64, torch.complex128) for output in function(*function.inputs)):
            raise NothingToCheckError("its results are not float64, whatever its inputs are")
        point = Point.of(function)
        truth = _truth(point)
        require_same([_truth(point)["g"]], [truth["g"]])
        draws = function.is_random()
        for name, result, nest in NESTINGS:
            if result not in truth:
                continue
            if draws and "vmap" in name:
                yield skipped(f"{name}: it draws random numbers, others than a loop over the batch")
                continue
            try:
                found = nest(point)
            except Exception as error:  # noqa: BLE001 - whatever a transform raises is what there is to report
                refusal = refusal_of(target, error)
                yield failed(f"{name} raises {first_line(error)}") if refusal is None else skipped(f"{name}: {refusal}")
                continue
            difference = _find_worst(point, found, truth[result])
            if difference is None or _is_kink(point, nest, result):
                yield PASSED
            elif reason := _why_different(function, name, result, found):
                yield skipped(f"{name}: {reason}")
            elif _is_wrong_of_reference(point, nest, truth[result]):
                yield failed(f"{name}: {difference} by torch.autograd.grad", cause=OF_REFERENCE)
            else:
                yield judged(difference, f"{name}: {{}} by torch.autograd.grad")


def _why_different(function: TensorFunction, name: str, result: str, found: Tensor) -> str | None:
    """Return why a nesting rightly gives another result than plain autograd, or does so for any op; None if not."""
    surrogates, is_ours = surrogates_of(function), is_declared_here(function.target)
    if surrogates and (_is_forward(name) or result == "H v"):  # there is no J behind the rule, and H is not symmetric
        return explain(function, surrogates)
    if _is_forward(name) and function.target.tangent_surrogate:
        return f"{NO_TANGENT}: {function.target.tangent_surrogate}"
    if _is_forward(name) and not bool(found.any()) and not is_ours:
        return "torch gives no tangent there, and a zero in its place"
    if name == FORWARD_TWICE and not is_ours:
        return "torch takes the jvp of a torch.autograd.Function for constant there"
    return None


def _is_wrong_of_reference(point: "Point", nest: "Nest", expected: Tensor) -> bool:
    """Return True if the operations of the reference are wrong there by themselves, without the op around them."""
    if point.function.target.reference is None:
        return False
    try:
        found = nest(replace(point, function=reference_of(point.function)))
    except Exception:  # noqa: BLE001 - a reference may refuse what the op takes
        return False
    return _find_worst(point, found, expected) is not None


OF_REFERENCE = "the reference, called by itself, is wrong there too: an operation of PyTorch in it is, and not the op"


def _is_forward(name: str) -> bool:
    """Return True if a nesting uses forward mode, which torch.library ops silently lack."""
    return any(word in name for word in ("jacfwd", "jvp", "hessian"))


@dataclass(frozen=True, slots=True)
class Point:
    """A target as functions of one vector.

    Args:
        function: the target.
        xs: two points, each the vector of all inputs, (2, inputs).
        weights: c, (outputs,).
        v: the direction of H v, (inputs,).
    """

    function: TensorFunction
    xs: Tensor
    weights: Tensor
    v: Tensor

    @classmethod
    def of(cls, function: TensorFunction) -> "Point":
        """Return the functions at the inputs of the sample, and at inputs a little smaller."""
        inputs = function.inputs
        outputs = function(*inputs)
        if any(tensor.is_complex() for tensor in (*inputs, *outputs)):
            raise NothingToCheckError("the second derivatives of torch.func are those of real functions")
        x = torch.cat([value.detach().flatten() for value in inputs])
        size = sum(output.numel() for output in outputs)
        if not 0 < x.numel() <= SMALL or not size:
            raise NothingToCheckError(f"there are {x.numel()} inputs and {size} outputs, which is none or too many")
        weights = torch.randn(size, dtype=x.dtype, device=x.device)
        return cls(function, torch.stack([x, 0.9 * x]), weights, torch.randn_like(x))

    @property
    def x(self) -> Tensor:
        """Return the first of the points."""
        return self.xs[0]

    def outputs(self, x: Tensor) -> Tensor:
        """Return the f of the file's docstring."""
        tensors = self.function.sample.tensors()
        shapes = [tensors[position].shape for position in self.function.positions]
        parts = x.split([shape.numel() for shape in shapes])
        shaped = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        return torch.cat([output.flatten() for output in self.function(*shaped)])

    def number(self, x: Tensor) -> Tensor:
        """Return <c, f> + <f, f> / 2."""
        y = self.outputs(x)
        return (self.weights * y).sum() + (y * y).sum() / 2

    def along(self, x: Tensor, function: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the derivative of a function, or else of the number, along v, in forward mode."""
        return cast(Tensor, jvp(function or self.number, (x,), (self.v,))[1])

    def label(self, position: int) -> str:
        """Return what a message calls an element of the vector."""
        for name, value in zip(self.function.names, self.function.inputs, strict=True):
            if position < value.numel():
                return f"{name}[{position}]"
            position -= value.numel()
        raise IndexError(position)


Truth: TypeAlias = Mapping[str, Tensor]
"""What plain autograd gives, by name; "batched g" is that of both points."""


def _small(target: Target, sample: Sample) -> Sample:
    """Return the sample with sizes cut until it is small; as it is if it has integers, which may index what is cut."""
    if _is_small(sample) or not all(can_have_gradient(tensor) for tensor in sample.tensors()):
        return sample
    for divisor in (2, 4, 8):
        cut = resized(sample, {size: max(2, size // divisor) for size in free_sizes(sample) if size > 3})
        if _is_small(cut) and takes(target, cut, sample):
            return cut
    return sample


def _is_small(sample: Sample) -> bool:
    return sum(tensor.numel() for tensor in sample.tensors()) <= SMALL


def _truth(point: Point) -> Truth:
    rows = [_truth_at(point, x) for x in point.xs]
    shared = set(rows[0]) & set(rows[1])
    return {name: rows[0][name] for name in shared} | {
        f"batched {name}": torch.stack([row[name] for row in rows]) for name in shared
    }


def _truth_at(point: Point, at: Tensor) -> dict[str, Tensor]:
    """Return the g, J, H and H v of one point; without the last two if the op says that it has no second derivative."""
    x = at.detach().clone().requires_grad_()
    y = point.outputs(x)
    require_gradient([y])
    found = {"J": _rows(y, x), "g": _gradient(point, x)}
    try:
        g = _gradient(point, x, is_graph=True)
        second = _rows(g, x)
    except RuntimeError as error:
        if find_refusal(error, is_optional=True) is None:
            raise
        return found
    return found | {"H": second, "H v": second @ point.v}


def _gradient(point: Point, x: Tensor, *, is_graph: bool = False) -> Tensor:
    """Return the gradient of the number, which is zero where nothing depends on the inputs."""
    number = point.number(x)
    return gradients([number], [x], [torch.ones_like(number)], create_graph=is_graph)[0]


def _rows(y: Tensor, x: Tensor) -> Tensor:
    one = y.new_ones(())
    return torch.stack([gradients([element], [x], [one], retain_graph=True)[0] for element in y.unbind()])


def _is_kink(point: Point, nest: "Nest", result: str) -> bool:
    """Return True if the two agree a little aside: a kink has several derivatives, and each mode may take its own."""
    step = 1e-4 * torch.randn_like(point.xs)
    aside = Point(point.function, point.xs * (1 + step) + step, point.weights, point.v)
    truth = _truth(aside)
    return result in truth and find_difference([nest(aside)], [truth[result]], factor=FACTOR) is None


def _find_worst(point: Point, found: Tensor, expected: Tensor) -> Difference | None:
    """Return the worst entry that differs, with the input that it is a derivative by."""
    difference = find_difference([found], [expected], names=["the result"], factor=FACTOR)
    if difference is None or found.shape != expected.shape:
        return difference
    worst = (found - expected).abs().nan_to_num(nan=torch.inf).argmax()
    position = int(torch.unravel_index(worst, expected.shape)[-1])
    return replace(difference, message=f"d / d {point.label(position)}: {difference}")


def _own(blocks: Tensor) -> Tensor:
    """Return the Jacobian of each output of a batch by its own input, out of those by all inputs."""
    return torch.stack([blocks[position, :, position] for position in range(len(blocks))])


Nest: TypeAlias = Callable[[Point], Tensor]

NESTINGS: Sequence[tuple[str, str, Nest]] = (
    ("grad", "g", lambda p: grad(p.number)(p.x)),
    ("jacrev", "J", lambda p: jacrev(p.outputs)(p.x)),
    ("jacfwd", "J", lambda p: jacfwd(p.outputs)(p.x)),
    ("vmap(grad)", "batched g", lambda p: vmap(grad(p.number))(p.xs)),
    ("vmap(vmap(grad))", "batched g", lambda p: vmap(vmap(grad(p.number)))(p.xs[None])[0]),
    ("grad(vmap)", "batched g", lambda p: grad(lambda xs: vmap(p.number)(xs).sum())(p.xs)),
    ("vmap(jacrev)", "batched J", lambda p: vmap(jacrev(p.outputs))(p.xs)),
    ("vmap(jacfwd)", "batched J", lambda p: vmap(jacfwd(p.outputs))(p.xs)),
    ("jacrev(vmap)", "batched J", lambda p: _own(jacrev(vmap(p.outputs))(p.xs))),
    ("jacfwd(vmap)", "batched J", lambda p: _own(jacfwd(vmap(p.outputs))(p.xs))),
    ("hessian", "H", lambda p: hessian(p.number)(p.x)),
    ("jacrev(jacrev)", "H", lambda p: jacrev(jacrev(p.number))(p.x)),
    ("jacrev(jacfwd)", "H", lambda p: jacrev(jacfwd(p.number))(p.x)),
    (FORWARD_TWICE, "H", lambda p: jacfwd(jacfwd(p.number))(p.x)),
    ("grad(grad)", "H v", lambda p: grad(lambda x: grad(p.number)(x) @ p.v)(p.x)),
    ("grad(jvp)", "H v", lambda p: grad(p.along)(p.x)),
    ("jvp(grad)", "H v", lambda p: p.along(p.x, grad(p.number))),
    ("vmap(hessian)", "batched H", lambda p: vmap(hessian(p.number))(p.xs)),
    ("vmap(jvp(grad))", "batched H v", lambda p: vmap(lambda x: p.along(x, grad(p.number)))(p.xs)),
)
"""What it is called, what it is to give, and how."""
