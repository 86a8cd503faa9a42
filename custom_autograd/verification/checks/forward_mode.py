"""Forward-mode tangents agree with finite differences, or the op reports that it has none."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.calls.call import contiguous
from custom_autograd.verification.calls.layouts import conjugated, expanded, sliced, transposed
from custom_autograd.verification.harness.base import (
    PASSED,
    Finding,
    failed,
    find_refusal,
    first_line,
    rule_behind,
    skipped,
)
from custom_autograd.verification.harness.comparison import find_difference, judged
from custom_autograd.verification.harness.differentiable import (
    TensorFunction,
    function_of,
    push_forward,
    reference_of,
    require_tangents,
    signed_like,
    with_reference_gradients,
)
from custom_autograd.verification.harness.numerical import Precision, differences, precision_of
from custom_autograd.verification.harness.targets import Target
from custom_autograd.verification.harness.wrong_gradients import OfInputs, chosen_subsets


class ForwardMode(OfInputs):
    """J v against a central difference, for every subset of the inputs; for all of them, v in other layouts too."""

    name = "forward_mode"
    code = "T03"
    group = "derivatives"
    needs = ("gradcheck", "linearity")
    purpose = "forward-mode tangents are right and linear, or the op reports that it has none"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per subset of the inputs."""
        function = with_reference_gradients(function_of(target, sample))
        require_tangents(function)
        precision = precision_of(function, function.inputs)
        for chosen in chosen_subsets(function, self.only):
            part = function.restricted_to(chosen)
            v = signed_like(part.inputs)
            try:
                tangents = push_forward(part, v)
            except Exception as error:  # noqa: BLE001 - distinguished there, and raised again where it is unknown
                yield _raised(error)
                return
            finding = _compare(part, v, tangents, precision)
            yield finding
            if finding.status == "failed":
                return
            if len(chosen) == len(function.positions):
                yield _check_linear(part, v, tangents)
                finding = _check_transform(part, v, tangents)
                yield finding
                if finding.status != "failed":
                    yield from _check_layouts(part)


def _check_transform(function: TensorFunction, v: Sequence[Tensor], tangents: Sequence[Tensor]) -> Finding:
    """Compare J v of torch.func.jvp with that of dual tensors."""
    names = [f"tangent of {name}" for name in function.output_names]
    try:
        found = _push_by_transform(function, v, [x.detach() for x in function.inputs])
    except Exception as error:  # noqa: BLE001 - transforms have checks of their own
        return skipped(f"torch.func.jvp raises {first_line(error)}")
    difference = find_difference(found, tangents, names=names, factor=10.0)
    is_without_rules = function.target.overload is not None and not function.target.kernels
    return judged(difference, "by torch.func.jvp: {} for dual tensors", cause=RECORDED if is_without_rules else "")


RECORDED = "no rule is registered at an Autograd key, so what the kernel does is recorded, but not under transforms"


def _check_linear(function: TensorFunction, v: Sequence[Tensor], of_v: Sequence[Tensor]) -> Finding:
    """Check J (0.7 v - 1.9 w) = 0.7 J v - 1.9 J w, J 0 = 0, and J (a v) = a J v for large and small a."""
    w = signed_like(function.inputs)
    of_w = push_forward(function, w)
    mixed = [0.7 * one - 1.9 * other for one, other in zip(v, w, strict=True)]
    expected = [0.7 * one - 1.9 * other for one, other in zip(of_v, of_w, strict=True)]
    rows: list[tuple[str, Sequence[Tensor], Sequence[Tensor]]]
    rows = [("J (0.7 v - 1.9 w)", push_forward(function, mixed), expected)]
    rows.append(("J 0", push_forward(function, [x * 0 for x in v]), [x * 0 for x in of_v]))
    for scale in (1e4, 1e-4):
        scaled = [x / scale for x in push_forward(function, [scale * x for x in v])]
        rows.append((f"J ({scale:g} v) / {scale:g}", scaled, list(of_v)))
    names = [f"tangent of {name}" for name in function.output_names]
    for identity, found, right in rows:
        if not all(bool(torch.isfinite(x).all()) for x in right):
            continue
        difference = find_difference(found, right, names=names, factor=10.0)
        if difference is not None:
            return failed(f"forward mode is not linear in the tangent: {identity}: {difference}", cause=NOT_LINEAR)
    return PASSED


NOT_LINEAR = "the jvp clamps, takes a norm, or has a branch on the size of a tangent"


def _check_layouts(function: TensorFunction) -> Iterator[Finding]:
    """Compare J v for inputs and tangents as views, as views above the op make them, with that of contiguous copies.

    Torch gives a tangent the strides of its input: it is expanded where the input is.
    """
    if function.is_random():
        return  # what is drawn follows the order in memory
    inputs = tuple(x.detach() for x in function.inputs)
    v = signed_like(inputs)
    for label, change in LAYOUTS:
        views = [(change(x), change(t)) for x, t in zip(inputs, v, strict=True)]
        if any(view is not None for view, _ in views):
            primals = [x if view is None else view for (view, _), x in zip(views, inputs, strict=True)]
            tangents = [t if view is None else view for (_, view), t in zip(views, v, strict=True)]
            yield from _compare_layouts(function, label, primals, tangents)


def _compare_layouts(
    function: TensorFunction, label: str, primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> Iterator[Finding]:
    try:
        with torch.no_grad():
            function(*primals)
        plain = [contiguous(t) for t in tangents], [contiguous(x) for x in primals]
        expected = push_forward(function, *plain)
    except Exception:  # noqa: BLE001 - an op may refuse what is equal along a dimension; layouts have a check
        return
    if not all(bool(torch.isfinite(tangent).all()) for tangent in expected):
        return
    names = [f"tangent of {name}" for name in function.output_names]
    for by, push in (("", push_forward), (", by torch.func.jvp", _push_by_transform)):
        try:
            found = push(function, tangents, primals)
        except Exception as error:  # noqa: BLE001 - reported, but for what is raised without a layout, too
            yield from _raised_for_layout(f"{label}{by}", error, functools.partial(push, function, *plain))
            return
        difference = find_difference(found, expected, names=names, factor=10.0)
        yield judged(difference, f"wrong for {label}{by}: {{}} for a contiguous copy of it", cause=MISREADS)


def _raised_for_layout(label: str, error: Exception, again: Callable[[], object]) -> Iterator[Finding]:
    try:
        again()
    except Exception:  # noqa: BLE001 - the layout is not what it raises for
        return
    refusal = find_refusal(error)
    text = f"forward mode raises {first_line(error)} for {label}, and not for a contiguous copy of it"
    yield failed(text, cause=MISREADS) if refusal is None else skipped(f"{label} is refused: {refusal}")


MISREADS = "the jvp misreads the memory of a tangent"


def _push_by_transform(
    function: TensorFunction, tangents: Sequence[Tensor], primals: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    found = torch.func.jvp(function, tuple(primals), tuple(tangents))[1]
    return tuple(tangent.detach() for tangent in found)


def _filled(tensor: Tensor) -> Tensor | None:
    """Return one element for all, with stride 0, as sum() leaves it for what is expanded."""
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return None
    return tensor.flatten()[0].clone().expand(tensor.shape)


LAYOUTS = (
    ("a transposed tangent", transposed),
    ("a sliced tangent", sliced),
    ("a tangent expanded along dimension 0", expanded),
    ("an expanded tangent", _filled),
    ("a lazily conjugated tangent", conjugated),
)
"""What views above the op make of a tangent, and of its input."""


def _raised(error: Exception) -> Finding:
    """Return a skip for an op without forward mode, and a failure for a jvp rule that does not fit its op."""
    refusal = find_refusal(error)
    if refusal is not None:
        return skipped(f"the op has no forward mode and raises: {refusal}")
    if isinstance(error, GradientError):
        return failed(f"the op raises {first_line(error)}", cause="the jvp rule does not fit the op")
    rule = rule_behind(error)
    if rule is not None:
        text = f"forward mode raises {first_line(error)} ({rule})"
        return failed(text, cause="a jvp rule that is registered takes the samples of its op, or it is taken away")
    raise error


def _compare(
    function: TensorFunction, v: Sequence[Tensor], tangents: Sequence[Tensor], precision: Precision
) -> Finding:
    names, outputs = ", ".join(f"'{name}'" for name in function.names), function.output_names
    for position, (found, expected) in enumerate(zip(tangents, _expected(function, v, precision.step), strict=True)):
        if found.shape != expected.shape:
            return failed(
                f"the tangent of {outputs[position]} has shape {tuple(found.shape)}, not {tuple(expected.shape)}"
            )
        bound = precision.absolute + precision.relative * expected.abs().max() if expected.numel() else 0.0
        if expected.numel() == 0 or not bool(((found - expected).abs() > bound).any()):
            continue
        if _is_kink(function, v, position, precision.step, float(bound)):
            return skipped(f"{outputs[position]} has no derivative along {names} here: the slopes on both sides differ")
        if not bool(found.any()):
            return failed(f"the tangent of {outputs[position]} along {names} is silently zero")
        return failed(f"the tangent of {outputs[position]} along {names} is wrong: {_worst(found, expected)}")
    return PASSED


def _is_kink(function: TensorFunction, v: Sequence[Tensor], position: int, step: float, bound: float) -> bool:
    """Return True if the one-sided slopes of an output keep their distance as the step halves, or there are none."""
    inputs = function.inputs

    def at(factor: float) -> Tensor:
        with torch.no_grad():
            return function(*(x.detach() + factor * step * t for x, t in zip(inputs, v, strict=True)))[position]

    middle = at(0.0)
    wide, narrow = (((at(s) - middle) - (middle - at(-s))).abs() / (s * step) for s in (1.0, 0.5))
    if not bool(torch.isfinite(wide).all() and torch.isfinite(narrow).all()):
        return True
    return bool((narrow > (0.75 * wide).clamp(min=2 * bound)).any())


def _worst(found: Tensor, expected: Tensor) -> str:
    index = int((found - expected).abs().argmax())
    one, other = found.flatten()[index].item(), expected.flatten()[index].item()
    return f"element {index} = {one:.6g}, expected {other:.6g} by finite differences"


def _expected(function: TensorFunction, v: Sequence[Tensor], step: float) -> tuple[Tensor, ...]:
    """Return the tangents by finite differences; by the reference if its gradients are not the derivative."""
    if function.target.reference_surrogate:
        return push_forward(reference_of(function), v)
    with torch.no_grad():
        return differences(function, function.inputs, v, step)
