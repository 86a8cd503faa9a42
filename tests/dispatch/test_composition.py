"""Ops that return views: made of the views of PyTorch they are right in every mode, else refused where they are not."""

# ruff: noqa: E501 - a message is as long as it is

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch.autograd import gradcheck, gradgradcheck
from ways import all_of, every_eager_way, every_graph

from custom_autograd import GradientError, KernelError, custom_op

ROW = "(Tensor(a) x, int n) -> Tensor(a)"


@custom_op("views::row", schema=ROW, reference=True)
def row(x, n):
    return x[n]


@custom_op("views::both", schema="(Tensor(a) x) -> (Tensor(a), Tensor)", reference=True)
def both(x):
    """One view and one new tensor."""
    return x[0], x[1] * 2


@custom_op("views::ruled", schema=ROW)
def ruled(x, n):
    return x[n]


@ruled.register_fake
def _(x, n):
    return x[n]


@ruled.register_backward
def _(grad, x, n):
    return {"x": torch.zeros_like(x).index_copy(0, torch.tensor([n]), grad[None])}


@ruled.register_jvp
def _(tangent_x, n):
    return tangent_x[n]


def rand(*shape, requires_grad=False):
    generator = torch.Generator().manual_seed(7)
    return torch.rand(shape or (2, 3), dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


def read(x):
    return row(x * 1, 1) ** 2


def write_to_view(x):
    """A write to the view changes the base."""
    base = x * 1
    row(base, 1).mul_(base[0].clone())
    return base * 2


def write_to_base(x):
    """A write to the base changes the view."""
    base = x * 1
    view = row(base, 1)
    base.mul_(base.detach() + 1)
    return view**2


def write_to_one_of_two(x):
    base = x * 1
    view, fresh = both(base)
    view.mul_(3)
    fresh.mul_(5)
    return base * fresh


PLAIN = {
    read: lambda x: x[1] ** 2,
    write_to_view: lambda x: torch.stack([x[0], x[1] * x[0]]) * 2,
    write_to_base: lambda x: (x[1] * (x[1].detach() + 1)) ** 2,
    write_to_one_of_two: lambda x: torch.stack([x[0] * 3, x[1]]) * x[1] * 10,
}
every = each("f", PLAIN, ids=[f.__name__ for f in PLAIN])


def test_it_is_a_view_of_its_argument():
    x = torch.zeros(2, 3)
    view = row(x, 1)
    view.add_(1)

    assert view._base is x
    assert 1 == x._version
    assert [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]] == x.tolist()


@every
@every_eager_way
def test_values_and_derivatives_are_right_in_every_way(f, way, plainly):
    torch.testing.assert_close(way(f, rand()), plainly(PLAIN[f], rand()))


@every_graph
def test_values_and_gradients_are_right_in_graphs(way, plainly):
    torch.testing.assert_close(way(all_of(PLAIN), rand()), plainly(all_of(PLAIN.values()), rand()))


@pytest.mark.parametrize("f", [read, write_to_view, write_to_one_of_two], ids=lambda f: f.__name__)
def test_gradients_of_all_orders_and_tangents_are_right(f):
    assert gradcheck(f, (rand(requires_grad=True),), check_forward_ad=True)
    assert gradgradcheck(f, (rand(requires_grad=True),))


@pytest.mark.slow
@every
def test_values_and_gradients_are_right_in_compiled_machine_code(f):
    compiled = torch.compile(f, backend="inductor", fullgraph=True)
    (expected,) = torch.autograd.grad(PLAIN[f](x := rand(requires_grad=True)).sum(), x)

    assert torch.allclose(PLAIN[f](rand()), compiled(rand()))
    assert torch.allclose(expected, torch.autograd.grad(compiled(x).sum(), x)[0])


def test_a_compiled_write_to_a_view_of_an_argument_is_seen_by_the_caller(fresh_compiler):
    x = torch.zeros(2, 3)
    torch.compile(lambda x: row(x, 1).add_(1) * 2, backend="aot_eager", fullgraph=True)(x)

    assert [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]] == x.tolist()


def test_a_value_that_autograd_saved_is_missed_when_it_is_written_to_through_the_view():
    x = rand(requires_grad=True) * 1
    y = x * x
    row(x, 0).mul_(2)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_coverage_says_that_the_reference_answers():
    found = row.capabilities()

    assert ["derived from the reference"] * 3 == [found["backward"], found["jvp"], found["vmap"]]


# ------------------------------------------------------------------------------------- views with rules of their own


def test_a_rule_gives_the_gradient_of_a_view():
    assert gradcheck(lambda x: ruled(x, 1), (rand(requires_grad=True),))


@pytest.mark.parametrize("written", ["view", "base"])
def test_a_write_that_a_rule_knows_nothing_of_is_refused(written):
    base = rand(requires_grad=True) * 1
    view = ruled(base, 1)

    def write():
        (view if written == "view" else base).mul_(2)
        return view.grad_fn

    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        write()


def test_forward_mode_through_a_rule_is_refused():
    def f():
        with torch.autograd.forward_ad.dual_level():
            ruled(torch.autograd.forward_ad.make_dual(rand(), rand()), 1)

    assert_expected_inline(
        message(f),
        """\
GradientUnavailable: views::ruled: the op returns a view and has gradient rules: PyTorch cannot derive forward mode through it
  expected   a view with a reference, and without gradient rules
  declared   FILE.py:LINE
  do         declare it with reference=True and no gradient rules, or use torch.func.jvp""",
    )


def ruled_write_to_view(x):
    base = x * 1
    ruled(base, 1).mul_(x[0])
    return base * x


def ruled_write_to_base(x):
    base = x * 1
    view = ruled(base, 1)
    base.mul_(x)
    return view * x[0]


WRITES = {
    ruled_write_to_view: lambda x: torch.stack([x[0], x[1] * x[0]]) * x,
    ruled_write_to_base: lambda x: x[1] * x[1] * x[0],
}


@pytest.mark.parametrize("f", WRITES)
def test_a_write_to_a_view_or_its_base_reaches_the_tangents_of_both(f):
    found, expected = (torch.func.jvp(one, (rand(),), (rand(),))[1] for one in (f, WRITES[f]))

    assert torch.allclose(expected, found)


@custom_op("views::derived", schema=ROW)
def derived(x, n):
    return x[n]


@derived.register_backward
def _(grad, x, n):
    return {"x": torch.zeros_like(x).index_copy(0, torch.tensor([n]), grad[None])}


def test_a_derived_tangent_that_is_not_a_view_is_refused():
    def f():
        torch.func.jvp(lambda x: derived(x, 1), (rand(),), (rand(),))

    assert_expected_inline(
        message(f),
        """\
GradientError: views::derived: the output 'output' is a view of 'x', and its tangent is not a view of the tangent of 'x'
  expected   the same view, of the tangent of 'x'
  found      a tensor with memory of its own
  declared   FILE.py:LINE
  do         register_jvp a rule that returns that view of 'tangent_x', or have a reference and no gradient rules""",
    )


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.jacrev], ids=["grad", "jacrev"])
def test_a_gradient_transform_of_a_view_with_a_rule_is_refused(transform):
    def f():
        transform(lambda x: ruled(x, 1).sum())(rand())

    assert_expected_inline(
        message(f),
        """\
GradientUnavailable: views::ruled: the op returns a view and has gradient rules: gradients under a transform would miss writes to the view
  expected   a view with a reference, and without gradient rules
  declared   FILE.py:LINE
  do         declare it with reference=True and no gradient rules""",
    )


def test_a_graph_and_a_batch_of_views_without_a_reference_are_refused():
    assert_expected_inline(
        together(
            message(lambda: torch.func.functionalize(lambda x: ruled(x, 1))(rand())),
            message(lambda: torch.vmap(lambda x: ruled(x, 1))(rand(4, 2, 3))),
        ),
        """\
KernelError: views::ruled
  declared   FILE.py:LINE
the op returns a view, and a graph can only hold views that are made of PyTorch's own
  expected   a view with a reference, and without gradient rules
  found      (Tensor(a) x, int n) -> Tensor(a)
  do         declare it with reference=True and no gradient rules, or return new memory
vmap met an op that returns a view, and a loop over the batch would return a copy of it
  expected   a reference, or a vmap rule that returns a view
  do         declare the op with reference=True: PyTorch's own views know how to be batched""",
    )


def test_compilation_of_a_view_without_a_reference_is_refused(fresh_compiler):
    with pytest.raises(RuntimeError, match=r"a view|alias annotation"):
        torch.compile(lambda x: ruled(x, 1), backend="aot_eager", fullgraph=True)(rand())


def test_a_copy_is_no_view():
    op = custom_op("views::copy", lambda x, n: x[n].clone(), schema=ROW)
    assert "returns no view of 'x' as output 'output'" in message(lambda: op(rand(), 1)).splitlines()[0]


def test_memory_that_numpy_shares_is_no_view_that_autograd_knows():
    op = custom_op("views::numpy", lambda x, n: torch.from_numpy(x.numpy()[:]), schema=ROW)
    assert "found      the same memory, which autograd does not know of" in message(lambda: op(rand(), 1))


def test_the_argument_itself_is_a_view_of_it():
    x = rand()
    op = custom_op("views::itself", lambda x, n: x, schema=ROW, reference=True)

    assert op(x, 1).data_ptr() == x.data_ptr()


@custom_op("views::plain", schema=ROW)
def plain_view(x, n):
    return x[n]


def test_a_view_without_rules_has_no_gradient_and_says_so():
    with pytest.raises(GradientError, match=r"no backward|no rule"):
        plain_view(rand(requires_grad=True), 1).sum().backward()


@custom_op("views::many", schema=ROW, reference=True)
def many(x, n):
    return x[n], x[n]


@pytest.mark.parametrize("transform", [lambda f: f, torch.func.functionalize], ids=["eager", "functionalize"])
def test_a_reference_that_returns_too_many_is_refused(transform):
    with pytest.raises(KernelError, match="the reference returns the wrong number of outputs"):
        transform(lambda x: many(x, 1))(rand())


def test_a_reference_that_returns_a_copy_is_refused():
    op = custom_op("views::copied", lambda x, n: x[n] * 1, schema=ROW, reference=True)
    assert "the reference returns no view of 'x' as output 'output'" in message(lambda: op(rand(requires_grad=True), 1))
