"""Where PyTorch takes over what an op saves, the gradients stay: saved-tensor hooks, offloading, checkpointing."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import kept_random_state
from custom_autograd.verification.harness.base import PASSED, Check, Finding, failed, find_refusal, first_line
from custom_autograd.verification.harness.comparison import find_difference
from custom_autograd.verification.harness.differentiable import TensorFunction, TensorsFunction, function_of
from custom_autograd.verification.harness.passes import cotangents_of, forward, repeatable_gradients
from custom_autograd.verification.harness.randomness import move_on
from custom_autograd.verification.harness.targets import Target

Gradients = Callable[[TensorFunction, Sequence[Tensor]], Sequence[Tensor]]


class SavedHooks(Check):
    """Each way of keeping saved tensors elsewhere, or of computing them again, against keeping them."""

    name = "saved_hooks"
    code = "G15"
    group = "saving"
    needs = ("gradcheck", "reuse")
    most_samples = 2
    purpose = "gradients stay the same under saved-tensor hooks, offloading and checkpointing"

    def run(self, target: Target, sample: Sample) -> Iterable[Finding]:
        """Return one finding per way."""
        function = function_of(target, sample)
        cotangents = cotangents_of(function, function.inputs)
        expected = repeatable_gradients(function, function.inputs, cotangents)
        names = [f"the gradient of '{name}'" for name in function.names]
        for label, way in WAYS:
            try:
                found = way(function, cotangents)
            except Exception as error:
                if find_refusal(error) is not None:
                    raise
                yield failed(f"under {label}, the backward raises {first_line(error)}", cause=CAUSE)
                continue
            difference = find_difference(found, expected, names=names)
            yield PASSED if difference is None else failed(f"under {label}: {difference} without", cause=CAUSE)


def _under_hooks(function: TensorFunction, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    with saved_tensors_hooks(Tensor.clone, lambda tensor: tensor):
        called = forward(function, function.inputs)
    return called.backward(cotangents)


def _on_cpu(function: TensorFunction, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    with save_on_cpu():
        called = forward(function, function.inputs)
    return called.backward(cotangents)


def _checkpointed(function: TensorFunction, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    return _backward_of(_of_checkpoint(function, use_reentrant=False), function, cotangents)


def _checkpointed_reentrant(function: TensorFunction, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    return _backward_of(_of_checkpoint(function, use_reentrant=True), function, cotangents)


def _of_checkpoint(function: TensorFunction, *, use_reentrant: bool) -> TensorsFunction:
    """Return the checkpointed function without outputs that carry no gradient: the reentrant one gives all one."""
    with kept_random_state():
        carries = [output.requires_grad for output in function(*function.inputs)]

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = checkpoint(function, *tensors, use_reentrant=use_reentrant, preserve_rng_state=True)
        return tuple(output for output, is_kept in zip(found, carries, strict=True) if is_kept)

    return call


def _backward_of(call: TensorsFunction, function: TensorFunction, cotangents: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return the gradients that `backward` accumulates: reentrant checkpointing refuses torch.autograd.grad.

    The generator is moved on between forward and backward, so that what is computed again must be given its state.
    """
    with kept_random_state():
        called = forward(call, function.inputs)
        move_on({x.device for x in called.inputs})
        torch.autograd.backward(called.outputs, [u.clone() for u in cotangents])
    return [torch.zeros_like(x) if x.grad is None else x.grad for x in called.inputs]


WAYS: tuple[tuple[str, Gradients], ...] = (
    ("saved_tensors_hooks that copy", _under_hooks),
    ("save_on_cpu", _on_cpu),
    ("checkpoint(use_reentrant=False)", _checkpointed),
    ("checkpoint(use_reentrant=True)", _checkpointed_reentrant),
)

CAUSE = "tensors saved outside save_for_backward, or a forward that does not do the same again"
