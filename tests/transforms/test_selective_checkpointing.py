"""Selective activation checkpointing never loses what an op writes, and never writes it twice."""

# ruff: noqa: E501 - a message is as long as it is

from functools import partial

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import (
    CheckpointPolicy,
    _CachedTorchDispatchMode,
    _CachingTorchDispatchMode,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from custom_autograd import GradientError, custom_op

RECOMPUTE = CheckpointPolicy.PREFER_RECOMPUTE
KINDS = {"must": CheckpointPolicy.MUST_SAVE, "prefer": CheckpointPolicy.PREFER_SAVE, "true": True}


@custom_op("checkpointed::add_", mutates_args=("t",))
def add_(t: Tensor, x: Tensor) -> None:
    t.add_(x)


@add_.register_backward
def _(grad):
    return {"t": grad, "x": grad}


@custom_op("checkpointed::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.out.register_kernel("cpu")
def _(x, *, out):
    torch.pow(x, 3, out=out)


def accumulate(x):
    t = torch.zeros_like(x)
    add_(t, x * x)
    return t * x


def write_in_place(x):
    t = x * 1
    cube.inplace(t)
    return t * x


def write_out(x):
    t = torch.empty_like(x)
    cube.out(x.detach(), out=t)
    return t * x


def is_ours(op):
    return op.namespace == "checkpointed"


def contexts(policy):
    return partial(create_selective_checkpoint_contexts, lambda ctx, op, *args, **kwargs: policy(op))


def gradient(f, **options):
    x = torch.tensor([0.5, 2.0, -1.5], dtype=torch.float64, requires_grad=True)
    y = checkpoint(f, x, use_reentrant=False, **options) if options else f(x)
    return torch.autograd.grad(y.sum(), x)[0]


def attempt(f, policy):
    """The gradient, or None and the error."""
    try:
        return gradient(f, context_fn=policy), ""
    except RuntimeError as error:
        return None, str(error)


ALL = pytest.mark.parametrize("f", [accumulate, write_in_place, write_out])


@ALL
def test_checkpointing_without_a_policy_is_right(f):
    assert_close(gradient(f, preserve_rng_state=False), gradient(f))


@ALL
def test_a_policy_that_saves_nothing_is_right(f):
    assert_close(gradient(f, context_fn=contexts(lambda op: RECOMPUTE)), gradient(f))


@ALL
def test_an_op_that_a_policy_prefers_to_save_is_right(f):
    policy = contexts(lambda op: CheckpointPolicy.PREFER_SAVE if is_ours(op) else RECOMPUTE)

    assert_close(gradient(f, context_fn=policy), gradient(f))


@ALL
@each("kind", KINDS.values(), ids=KINDS)
@each("saves", [lambda op: True, is_ours], ids=["everything", "ours"])
def test_a_saved_op_is_right_or_raises(f, kind, saves):
    policy = contexts(lambda op: kind if saves(op) else RECOMPUTE)
    found, error = attempt(f, policy)
    if found is None:
        assert any(reason in error for reason in ("would be lost", "would write twice", "has been mutated"))
    else:
        assert_close(found, gradient(f))


def test_a_write_that_must_be_saved_raises():
    policy = contexts(lambda op: CheckpointPolicy.MUST_SAVE if is_ours(op) else RECOMPUTE)

    assert_expected_inline(
        message(lambda: gradient(accumulate, context_fn=policy)),
        """\
GradientError: checkpointed::add_: a policy of selective checkpointing saves the op, and what it writes to 't' would be lost
  expected   CheckpointPolicy.PREFER_SAVE, PREFER_RECOMPUTE or MUST_RECOMPUTE, which all run the op again
  found      CheckpointPolicy.MUST_SAVE
  declared   FILE.py:LINE
  do         leave the op out of the policy, or make it return new tensors""",
    )


def test_a_write_to_a_saved_tensor_raises():
    policy = partial(create_selective_checkpoint_contexts, [torch.ops.aten.zeros_like.default])

    assert_expected_inline(
        message(lambda: gradient(accumulate, context_fn=policy)),
        """\
GradientError: checkpointed::add_: the op writes to 't', which selective checkpointing has saved: run again, it would write twice
  declared   FILE.py:LINE
  do         leave the op that makes 't' out of the policy, or write to a copy of it""",
    )


class OwnCaching(_CachingTorchDispatchMode):
    """As other libraries derive theirs."""


class OwnCached(_CachedTorchDispatchMode):
    """As above."""


def own_contexts():
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if is_ours(op) else RECOMPUTE

    plain = create_selective_checkpoint_contexts(policy)
    return OwnCaching(policy, plain[0].storage), OwnCached(policy, plain[1].storage, False)


def test_subclasses_of_the_modes_are_known():
    with pytest.raises(GradientError, match="would be lost"):
        gradient(accumulate, context_fn=own_contexts)
