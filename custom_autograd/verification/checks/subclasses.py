"""Tensor subclasses and modes, of torch functions and of dispatch, see an op as one op and change nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from custom_autograd.execution.composition import find_composition
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.dispatch import is_taken_apart
from custom_autograd.torch_private.verification import Watch, Wrapped, name_of_overload
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, find_refusal, first_line, skipped
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, function_of, reference_of
from custom_autograd.verification.harness.passes import cotangents_of, why_not_own_op
from custom_autograd.verification.harness.records import record_of
from custom_autograd.verification.harness.targets import Target

Way = Callable[[TensorFunction, Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[str] | None]]
"""Outputs and gradients, and the names of the ops that were seen; None if it does not look."""


class Subclasses(Check):
    """A wrapper with __torch_dispatch__, a subclass with __torch_function__, and a mode of each kind."""

    name = "subclasses"
    code = "Y03"
    group = "system"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "tensor subclasses and modes see the op as one op, and values and gradients stay"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per kind."""
        function = function_of(target, sample)
        cotangents = cotangents_of(function, function.inputs)
        expected, _ = _plain(function, cotangents)
        names = function.output_names + [f"the gradient of '{name}'" for name in function.names]
        for label, way in WAYS:
            try:
                found, seen = way(function, cotangents)
            except Exception as error:  # noqa: BLE001 - an op may raise anything on a tensor that it does not know
                yield _refused(function, cotangents, way, label, error)
                continue
            difference = find_difference(found, expected, names=names)
            if difference is not None:
                yield failed(f"with {label}: {difference} without", cause="the op does not go through the dispatcher")
            yield from _seen(target, label, seen)


def _refused(function: TensorFunction, cotangents: Sequence[Tensor], way: Way, label: str, error: Exception) -> Finding:
    """Fail a registered op, which must take every tensor; skip other code, which may want plain ones."""
    target = function.target
    refusal = find_refusal(error, is_optional=True)
    if refusal is not None:
        return skipped(refusal)
    if why_not_own_op(target) is not None:
        return skipped(f"with {label} it raises {first_line(error)}")
    if target.reference is not None:
        try:
            way(reference_of(function), cotangents)
        except Exception as other:  # noqa: BLE001 - torch's own operations may not take every subclass
            return skipped(f"with {label} the reference raises {first_line(other)}")
    return failed(f"with {label} the op raises {first_line(error)}", cause="it takes plain tensors for granted")


def _seen(target: Target, label: str, seen: Sequence[str] | None) -> Iterator[Finding]:
    """Check that an op came by under its own name, once; what is decomposed by design never does."""
    overload, record = target.overload, record_of(target)
    is_made_of_others = record is not None and find_composition(record) is not None
    if seen is None or overload is None or why_not_own_op(target) is not None:
        yield PASSED
        return
    if is_made_of_others or is_taken_apart(overload.name()):
        yield PASSED
        return
    name = name_of_overload(overload)
    times = seen.count(name)
    others = ", ".join(dict.fromkeys(other for other in seen if other != name)) or "nothing"
    yield (
        PASSED
        if times == 1
        else failed(
            f"with {label} the op '{name}' is seen {times} times in one call, expected once; beside it, {others}",
            cause="the call goes round the dispatcher, or an autograd kernel calls the op again",
        )
    )


def _run(
    function: TensorFunction,
    cotangents: Sequence[Tensor],
    wrap: Callable[[Tensor], Tensor],
    unwrap: Callable[[Tensor], Tensor],
    seen: list[str] | None = None,
) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    """Return outputs and gradients, unwrapped, with the names of the ops that the forward was made of."""
    leaves = [wrap(value.detach().clone()).requires_grad_() for value in function.inputs]
    if seen is not None:
        seen.clear()  # making the leaves has been seen as well
    with kept_random_state():
        outputs = [output for output in function(*leaves) if output.requires_grad]
        ops = None if seen is None else list(seen)
        grads = torch.autograd.grad(outputs, leaves, [wrap(u.clone()) for u in cotangents], allow_unused=True)
    found = [unwrap(output) for output in outputs]
    found += [torch.zeros_like(unwrap(x)) if g is None else unwrap(g) for x, g in zip(leaves, grads, strict=True)]
    return [tensor.detach() for tensor in found], ops


def _plain(function: TensorFunction, cotangents: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    return _run(function, cotangents, lambda tensor: tensor, lambda tensor: tensor)


def _wrapper(function: TensorFunction, cotangents: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    seen: list[str] = []

    def unwrap(tensor: Tensor) -> Tensor:
        return tensor.held if isinstance(tensor, Wrapped) else tensor

    return _run(function, cotangents, lambda tensor: Wrapped(tensor, seen), unwrap, seen)


class _Labelled(Tensor):
    """A subclass that does nothing of its own in __torch_function__."""


def _subclass(function: TensorFunction, cotangents: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    def wrap(tensor: Tensor) -> Tensor:
        return tensor.as_subclass(_Labelled)

    return _run(function, cotangents, wrap, lambda tensor: tensor.as_subclass(Tensor))


def _dispatch_mode(
    function: TensorFunction, cotangents: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    seen: list[str] = []
    with Watch(lambda overload, args, kwargs, found: seen.append(name_of_overload(overload))):
        return _run(function, cotangents, lambda tensor: tensor, lambda tensor: tensor, seen)


class _PassThrough(TorchFunctionMode):
    """A mode that calls what it is given."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


def _function_mode(
    function: TensorFunction, cotangents: Sequence[Tensor]
) -> tuple[Sequence[Tensor], Sequence[str] | None]:
    with _PassThrough():
        return _plain(function, cotangents)


WAYS: tuple[tuple[str, Way], ...] = (
    ("a TorchDispatchMode", _dispatch_mode),
    ("a TorchFunctionMode", _function_mode),
    ("a subclass with __torch_function__", _subclass),
    ("a wrapper with __torch_dispatch__", _wrapper),
)
