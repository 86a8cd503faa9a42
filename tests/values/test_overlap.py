"""Two views overlap exactly if an index set of one meets that of the other."""

import pytest
import torch
from expecttest import assert_expected_inline
from hypothesis import given, settings
from hypothesis import strategies as st
from messages.shown import message
from tables import each
from torch import Tensor
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

from custom_autograd import GradientError, custom_op
from custom_autograd.values.tensors import do_overlap

BASE = torch.arange(100)


@st.composite
def views(draw):
    dims = draw(st.integers(0, 3))
    shape = [draw(st.integers(0, 4)) for _ in range(dims)]
    strides = [draw(st.integers(0, 9)) for _ in range(dims)]
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size)
    return BASE.as_strided(shape, strides, draw(st.integers(0, 99 - reach)))


@given(views(), views())
@settings(deadline=None, max_examples=400)
def test_overlap_is_that_of_the_elements(one, other):
    expected = not set(one.flatten().tolist()).isdisjoint(other.flatten().tolist())

    assert expected == do_overlap(one, other)


def test_interleaved_views_of_large_tensors_take_few_steps():
    fused = torch.empty(1).expand(1).new_empty(64, 3 * 128, 96)

    assert not do_overlap(fused[:, :128], fused[:, 128:256])
    assert not do_overlap(fused[::2], fused[1::2])
    assert not do_overlap(fused[..., ::2].transpose(0, 2), fused[..., 1::2])
    assert do_overlap(fused[:, :129], fused[:, 128:256])


def test_tensors_of_other_storages_do_not_overlap():
    assert not do_overlap(torch.ones(3), torch.ones(3))


@pytest.mark.parametrize("transform", [torch.func.vmap, torch.func.grad])
def test_wrappers_of_transforms_overlap_as_what_they_wrap(transform):
    found = []

    def look(x):
        found.append((do_overlap(x, x.view(-1)), do_overlap(x[:1], x[1:])))
        return x.sum()

    transform(look)(torch.ones(3, 2) if transform is torch.func.vmap else torch.ones(2))

    assert [(True, False)] == found


# ------------------------------------------------------------------------------------------------- calls with overlap


@custom_op("overlap::add_both_", mutates_args=("a", "b"))
def add_both_(a: Tensor, b: Tensor, x: Tensor) -> None:
    a.add_(x)
    b.add_(x)


@add_both_.register_backward
def _(grad_a, grad_b):
    return {"a": grad_a, "b": grad_b, "x": grad_a + grad_b}


@custom_op("overlap::add_all_", mutates_args=("ts",))
def add_all_(ts: list[Tensor], x: Tensor) -> None:
    for t in ts:
        t.add_(x)


@add_all_.register_backward
def _(grad_ts):
    return {"ts": list(grad_ts), "x": sum(grad_ts)}


@custom_op("overlap::double_and_add_", mutates_args=("a",))
def double_and_add_(a: Tensor, b: Tensor) -> None:
    a.mul_(2)
    a.add_(b)


@double_and_add_.register_backward
def _(grad_a):
    return {"a": 2 * grad_a, "b": grad_a}


OVERLAPPING = {
    "one tensor for two arguments": lambda t, x: add_both_(t, t, x),
    "one tensor twice in a list": lambda t, x: add_all_([t, t], x),
    "a tensor and its view": lambda t, x: add_all_([t, t.view(-1)], x),
    "overlapping views": lambda t, x: add_all_([t[:2], t[1:]], x[:2]),
    "a mutated and a read argument": lambda t, x: double_and_add_(t, t),
}
RECORDED = {
    "backward": lambda f: f(torch.ones(3, requires_grad=True)),
    "jvp": lambda f: jvp(f, (torch.ones(3),), (torch.ones(3),)),
    "func.grad": lambda f: grad(lambda x: f(x).sum())(torch.ones(3)),
}


CALLED = {"alone": lambda f: f, "in a batch": lambda f: lambda x: vmap(f)(torch.stack([x, x]))}


@each("mode", RECORDED)
@each("kind", OVERLAPPING)
@each("how", CALLED)
def test_a_recorded_call_with_overlapping_mutated_arguments_raises(kind, mode, how):
    def call(x):
        t = x * 1
        OVERLAPPING[kind](t, x)
        return t

    with pytest.raises(GradientError, match="shares memory with"):
        RECORDED[mode](CALLED[how](call))


def test_a_batch_of_views_that_do_not_overlap_is_accepted():
    def call(x):
        t = (x * 1).repeat(2).view(3, 2)
        add_both_(t[:, 0], t[:, 1], x)
        return t

    assert_close(grad(lambda x: vmap(call)(torch.stack([x, x])).sum())(torch.ones(3)), torch.full((3,), 8.0))


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_a_call_without_derivatives_computes_what_the_kernel_does(kind):
    t, x = torch.ones(3), torch.ones(3)
    OVERLAPPING[kind](t, x)

    expected = {"overlapping views": [2.0, 3.0, 2.0], "a mutated and a read argument": [4.0] * 3}.get(kind, [3.0] * 3)
    assert expected == t.tolist()


@pytest.mark.parametrize("mode", RECORDED)
def test_views_that_do_not_overlap_are_accepted(mode):
    def call(x):
        t = (x * 1).repeat(2).view(3, 2)
        add_both_(t[:, 0], t[:, 1], x)
        return t

    if mode == "backward":
        x = torch.ones(3, requires_grad=True)
        assert torch.equal(torch.full((3,), 4.0), torch.autograd.grad(call(x).sum(), x)[0])
    elif mode == "jvp":
        assert torch.equal(torch.full((3, 2), 2.0), RECORDED[mode](call)[1])
    else:
        assert torch.equal(torch.full((3,), 4.0), RECORDED[mode](call))


def test_the_error_names_both_arguments():
    t = torch.ones(3, requires_grad=True) * 1

    assert_expected_inline(
        message(lambda: add_all_([t, t[1:]], torch.ones(2))).removeprefix("GradientError: "),
        """\
overlap::add_all_: 'ts[0]' is mutated and shares memory with 'ts[1]', and derivatives of the call would be wrong
  declared   FILE.py:LINE
  do         pass a copy of one of them, or call the op under torch.no_grad()""",
    )
