"""Kernels in Python conjugate and negate lazily under a TorchDispatchMode too, which leaves those dispatch keys out."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from custom_autograd import custom_op


@custom_op("lazy_views::conjugated")
def conjugated(x: Tensor, y: Tensor) -> Tensor:
    return x * y.conj() + y.conj().imag  # the imaginary part of a conjugate is lazily negated


@conjugated.register_backward
def _(grad, x, y):
    return {"x": conjugated(grad, y) - y.conj().imag.clone(), "y": None}


def expected(x, y):
    return x * torch.complex(y.real, -y.imag) + torch.neg(y.imag)


class Passes(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture
def tensors():
    return torch.randn(3, dtype=torch.complex128), torch.randn(3, dtype=torch.complex128)


def test_under_a_mode(tensors):
    with Passes():
        found = conjugated(*tensors)

    assert_close(found, expected(*tensors))


def test_a_lazily_conjugated_input_under_a_mode(tensors):
    x, y = tensors
    with Passes():
        found = conjugated(x, y.conj())

    assert_close(found, expected(x, y.conj().resolve_conj()))


def test_under_selective_checkpointing(tensors):
    x, y = tensors[0].requires_grad_(), tensors[1]

    def recompute(ctx, op, *args, **kwargs):
        return CheckpointPolicy.PREFER_RECOMPUTE

    contexts = lambda: create_selective_checkpoint_contexts(recompute)  # noqa: E731
    out = checkpoint(lambda x: conjugated(x, y) * 2, x, use_reentrant=False, context_fn=contexts)

    assert_close(out, 2 * expected(x, y))
