"""checkpointing: which ops run again in the backward, and what cannot be chosen."""

from __future__ import annotations

import functools

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from custom_autograd import checkpointing, custom_op
from custom_autograd.graph import cast

pytestmark = pytest.mark.usefixtures("fresh_compiler")

RAN: list[str] = []


def declare(name, **options):
    @custom_op(f"checkpointing::{name}", **options)
    def op(x: Tensor) -> Tensor:
        RAN.append(name)
        return x.sin()

    op.register_fake(torch.empty_like)
    op.register_backward(lambda grad, x: grad * x.cos())
    return op


inner, outer = declare("inner"), declare("outer")
saved, recomputed = declare("saved", checkpoint="save"), declare("recomputed", checkpoint="recompute")


@custom_op("checkpointing::scale_", mutates_args=("x",))
def scale_(x: Tensor) -> None:
    RAN.append("scale_")
    x.mul_(2)


scale_.register_backward(lambda grad: 2 * grad)


def body(x):
    return outer(inner(x)) * saved(x) * recomputed(x)


def expected(x):
    y = x.sin()
    return torch.autograd.grad((y.sin() * y * y).sum(), x)


def x():
    return torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()


POLICIES = {
    "nothing": (None, ["inner", "outer", "saved", "recomputed"]),
    "defaults": (checkpointing(), ["inner", "outer", "recomputed"]),
    "a handle": (checkpointing(save=inner), ["outer", "recomputed"]),
    "handles": (checkpointing(save=[inner, outer]), ["recomputed"]),
    "an overload": (checkpointing(save=[outer.overload]), ["inner", "recomputed"]),
    "a packet": (checkpointing(save=torch.ops.checkpointing.outer), ["inner", "recomputed"]),
    "a name": (checkpointing(save="checkpointing::outer"), ["inner", "recomputed"]),
    "a name with its overload": (checkpointing(save="checkpointing::outer.default"), ["inner", "recomputed"]),
    "a namespace": (checkpointing(save="checkpointing::*"), []),
    "a namespace but one": (checkpointing("checkpointing::*", [inner]), ["inner"]),
    "one of a namespace": (checkpointing(inner, "checkpointing::*"), ["outer", "saved", "recomputed"]),
    "against a default": (checkpointing(recomputed, saved), ["inner", "outer", "saved"]),
}


@each("policy", POLICIES)
def test_what_is_not_saved_runs_again(policy):
    context_fn, again = POLICIES[policy]
    options = {} if context_fn is None else {"context_fn": context_fn}
    leaf = x()
    y = checkpoint(body, leaf, use_reentrant=False, **options)
    RAN.clear()
    found = torch.autograd.grad(y.sum(), leaf)

    assert sorted(again) == sorted(RAN)
    torch.testing.assert_close(expected(leaf), found)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("policy", ["handles", "a namespace", "a namespace but one"])
def test_compiled(policy, backend):
    """What a graph needs again is less than what eager code runs again: never more, and what is saved is saved."""
    context_fn, again = POLICIES[policy]
    leaf = x()
    compiled = torch.compile(
        lambda x: checkpoint(body, x, use_reentrant=False, context_fn=context_fn), backend=backend, fullgraph=True
    )
    compiled(leaf)
    y = compiled(leaf)
    RAN.clear()
    found = torch.autograd.grad(y.sum(), leaf)

    assert sorted(again) == sorted(RAN)
    torch.testing.assert_close(expected(leaf), found)


def test_an_operation_of_pytorch():
    weight = torch.ones(6, 6, dtype=torch.float64)
    leaf = x().detach().reshape(1, 6).requires_grad_()
    y = checkpoint(lambda x: (x @ weight).sin(), leaf, use_reentrant=False, context_fn=checkpointing("aten::mm*"))
    with CountProducts() as products:
        y.sum().backward()

    assert 1 == products.number  # the gradient's, and none of the recomputation


class CountProducts(torch.utils._python_dispatch.TorchDispatchMode):
    number = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.number += function is torch.ops.aten.mm.default
        return function(*args, **(kwargs or {}))


def test_the_hooks_of_an_op_that_saves_by_a_policy_are_not_taken_for_the_users():
    """From torch 2.15 on, selective checkpointing warns where it saves what hooks of the user do not see."""

    @custom_op("checkpointing::rounded")
    def rounded(x: Tensor) -> Tensor:
        return x.square()

    rounded.register_backward(lambda grad, x: 2 * grad * x, saving={"x": cast(torch.bfloat16)})
    leaf = torch.full((2,), 1.25, dtype=torch.float64, requires_grad=True)  # exact in bfloat16
    y = checkpoint(lambda x: rounded(x.exp().log()), leaf, use_reentrant=False, context_fn=checkpointing(save=rounded))
    y.sum().backward()

    torch.testing.assert_close(torch.full_like(leaf, 2.5), leaf.grad, atol=0.02, rtol=0)


def test_a_namespace_leaves_out_what_writes():
    def writing(x):
        y = x * 1
        scale_(y)
        return y * inner(x)

    leaf = x()
    y = checkpoint(writing, leaf, use_reentrant=False, context_fn=checkpointing("checkpointing::*"))
    RAN.clear()
    found = torch.autograd.grad(y.sum(), leaf)

    assert ["scale_"] == RAN
    torch.testing.assert_close(torch.autograd.grad((2 * leaf * leaf.sin()).sum(), leaf), found)


@pytest.mark.parametrize(
    "is_saved", [lambda op: op in {inner}, lambda op: op in [outer, inner][1:], lambda op: op == inner]
)
def test_a_policy_written_by_hand_may_compare_with_handles(is_saved):
    def policy(context, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if is_saved(op) else CheckpointPolicy.PREFER_RECOMPUTE

    leaf = x()
    context_fn = functools.partial(create_selective_checkpoint_contexts, policy)
    y = checkpoint(body, leaf, use_reentrant=False, context_fn=context_fn)
    RAN.clear()
    y.sum().backward()

    assert sorted(["outer", "saved", "recomputed"]) == sorted(RAN)


def test_a_handle_is_equal_to_its_overload_and_to_no_other():
    assert inner == inner.overload
    assert inner.overload == inner
    assert inner != outer
    assert outer.overload != inner
    assert {inner: 1}[inner.overload] == 1


def test_a_handle_of_a_replaced_op_names_that_op():
    old = declare("replaced")
    context_fn = checkpointing(save=[old])
    new = declare("replaced", replace=True)

    def run(op):
        leaf = x()
        y = checkpoint(lambda x: op(x).sin(), leaf, use_reentrant=False, context_fn=context_fn)
        RAN.clear()
        y.sum().backward()
        return len(RAN)

    assert (0, 1) == (run(old), run(new))


def test_capabilities_say_what_is_declared():
    assert saved.capabilities()["checkpointing"].endswith("): save, unless a policy says otherwise")


def test_what_cannot_be_chosen():
    refused = {
        "no such name": lambda: checkpointing(save="checkpointing::iner"),
        "taken apart": lambda: checkpointing(save=["aten::linear"]),
        "no op": lambda: checkpointing(recompute=[3]),
        "writes": lambda: checkpointing(save=[scale_]),
        "twice": lambda: checkpointing([inner], [inner]),
    }

    assert_expected_inline(
        "\n".join(f"{label}: {message(call)}" for label, call in refused.items()),
        """\
no such name: CustomAutogradError: checkpointing: 'checkpointing::iner' matches no operation that exists in this process
  do         did you mean 'checkpointing::inner'?
taken apart: CustomAutogradError: checkpointing: PyTorch takes 'aten::linear' apart, and a policy sees the parts only
  do         name those, for example 'aten::mm' and 'aten::addmm' for 'aten::linear'
no op: CustomAutogradError: checkpointing: recompute= takes operations
  expected   an op, an overload, torch.ops.namespace.name, or a name such as 'mylib::*'
  found      3
writes: CustomAutogradError: checkpointing: 'checkpointing::scale_' writes to its arguments, and would not run again
  do         leave it out of save=, or save an op that returns new tensors
twice: CustomAutogradError: checkpointing: 'checkpointing::inner' is in save= and in recompute=
  do         leave it in one of the two""",
    )


def test_declarations_that_are_refused():
    def write(x: Tensor) -> None:
        x.mul_(2)

    refused = (
        lambda: declare("unknown", checkpoint="always"),
        lambda: custom_op("checkpointing::writes", write, mutates_args=("x",), checkpoint="save"),
    )
    assert_expected_inline(
        "\n".join(map(message, refused)),
        """\
DeclarationError: checkpointing::unknown: checkpoint= takes what selective activation checkpointing does with the op
  expected   'save', 'recompute', or None
  found      'always'
  declared   FILE.py:LINE
DeclarationError: checkpointing::writes: an op that writes to its arguments must run again, or its writes are lost
  expected   checkpoint='recompute', or None
  found      checkpoint='save'
  declared   FILE.py:LINE""",
    )
