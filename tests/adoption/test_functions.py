"""from_function: an op computes what the Function computes, in every mode, and what it cannot do raises."""

import functools

import torch
from adoption.functions import CALLS, Bias, Contiguous, DependsOnData, Intermediate, Once, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import each
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import tree_leaves
from ways import side_by_side

from custom_autograd import GradientUnavailable, Sample, check, from_function


@functools.cache
def op_of(name):
    function, arguments = CALLS[name]
    return from_function(function, f"adopted::{name}", samples=[arguments])


def with_grad(arguments):
    return [one.clone().requires_grad_() if isinstance(one, Tensor) else one for one in arguments]


def outputs_and_grads(call, arguments):
    """Return the outputs of a call, and the gradients of the sum of the differentiable ones."""
    arguments = with_grad(arguments)
    found = call(*arguments)
    outputs = found if isinstance(found, tuple) else (found,)
    loss = sum((index + 1) * (one * one).sum() for index, one in enumerate(outputs) if one.requires_grad)
    grads = torch.autograd.grad(loss, [one for one in arguments if isinstance(one, Tensor)])
    return [one.detach() for one in outputs], grads


@each("name", CALLS)
def test_values_and_gradients_are_those_of_the_function(name):
    function, arguments = CALLS[name]

    torch.testing.assert_close(outputs_and_grads(op_of(name), arguments), outputs_and_grads(function.apply, arguments))


COMPILED = sorted(CALLS.keys() - {"data"})  # its forward reads data: an op without a fake


def tensors_of(name):
    return [one for one in CALLS[name][1] if isinstance(one, Tensor)]


def of_tensors(name, call):
    """A call as a function of its tensors."""

    def function(*given):
        rest = iter(given)
        return call(*[next(rest) if isinstance(one, Tensor) else one for one in CALLS[name][1]])

    return function


def all_compiled(call_of):
    """One function of the tensors of every call that is compiled, for one graph."""
    calls = side_by_side([of_tensors(name, call_of(name)) for name in COMPILED], map(len, map(tensors_of, COMPILED)))
    return lambda *given: tuple(tree_leaves(calls(*given)))


@each("dynamic", [False, True])
def test_a_graph_without_breaks_holds_the_ops(dynamic):
    tensors = [one for name in COMPILED for one in tensors_of(name)]
    compiled = torch.compile(all_compiled(op_of), fullgraph=True, backend="aot_eager", dynamic=dynamic)
    expected = outputs_and_grads(all_compiled(lambda name: CALLS[name][0].apply), tensors)

    torch.testing.assert_close(outputs_and_grads(compiled, tensors), expected)


def first_tensor(name):
    return next(one for one in CALLS[name][1] if isinstance(one, Tensor))


def loss(call, name, x):
    """Return a number that depends on the first output, with `x` as the first tensor of the call."""
    found = call(*[x if one is first_tensor(name) else one for one in CALLS[name][1]])
    return (found[0] if isinstance(found, tuple) else found).square().sum()


@each("name", sorted(CALLS.keys() - {"data", "function"}))  # its backward calls `requires_grad_()`
def test_vmap_of_grad_agrees(name):
    batch = torch.stack([first_tensor(name), 2 * first_tensor(name)]).requires_grad_()
    expected = torch.autograd.grad(sum(loss(CALLS[name][0].apply, name, x) for x in batch), batch)[0]

    found = torch.vmap(torch.func.grad(lambda x: loss(op_of(name), name, x)))(batch.detach())

    torch.testing.assert_close(found, expected)


def test_func_grad_of_a_forward_that_reads_data_agrees():
    x = first_tensor("data").clone().requires_grad_()
    expected = torch.autograd.grad(loss(DependsOnData.apply, "data", x), x)[0]

    torch.testing.assert_close(torch.func.grad(lambda x: loss(op_of("data"), "data", x))(x.detach()), expected)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=3), st.integers(0, 3), st.floats(-2, 2))
def test_other_shapes_and_numbers_than_the_recorded_ones_agree(shape, seed, beta):
    for name, rest in (("intermediate", (beta,)), ("inherited", (len(shape) - 1,)), ("inherited", (-1,))):
        arguments = (tensor(*shape, seed=seed), *rest)

        expected = outputs_and_grads(CALLS[name][0].apply, arguments)

        torch.testing.assert_close(outputs_and_grads(op_of(name), arguments), expected)


@each("name", ["intermediate", "setup_context", "base", "args", "once", "attributes"])
def test_every_quick_check_passes(name):
    report = check(op_of(name), [Sample(*CALLS[name][1])], checks="quick")

    assert report.ok, str(report)


def test_what_forward_copies_is_a_hidden_output():
    op = from_function(Contiguous, "adopted::copied", samples=[(tensor(3, 4), tensor(3, 4))])
    x, y = tensor(4, 3).T.requires_grad_(), tensor(3, 4, seed=1)

    assert [output.name for output in op.schema.outputs if output.is_hidden] == ["saved_0", "saved_1"]
    torch.testing.assert_close(torch.autograd.grad(op(x, y).sum(), x)[0], y)


def test_only_intermediates_are_hidden_outputs():
    hidden = {name: [one.name for one in op_of(name).schema.outputs if one.is_hidden] for name in CALLS}

    assert hidden["intermediate"] == ["saved_1"]
    assert hidden["setup_context"] == hidden["base"] == hidden["several_outputs"] == hidden["optional"] == []
    assert hidden["data"] == ["saved_1", "saved_2", "saved_3"]  # a number, and rows of numbers


def test_second_derivatives_are_right_or_raise():
    x = tensor(3).requires_grad_()
    second = {}
    for name in ("setup_context", "intermediate", "once"):
        arguments = [x, *CALLS[name][1][1:]]
        (grad,) = torch.autograd.grad(op_of(name)(*arguments).sum(), x, create_graph=True)
        try:
            second[name] = torch.autograd.grad(grad.sum(), x)[0]
        except GradientUnavailable:
            second[name] = None

    torch.testing.assert_close(second["setup_context"], x.detach().exp())
    assert second["intermediate"] is second["once"] is None


def test_optional_arguments_are_seen_in_the_recorded_calls():
    arguments = CALLS["optional"][1]
    op = from_function(Bias, "adopted::maybe", samples=[arguments, arguments[:2]])

    assert str(op.__signature__.parameters["bias"].default) == "None"
    for own in (arguments, arguments[:2]):
        torch.testing.assert_close(outputs_and_grads(op, own), outputs_and_grads(Bias.apply, own))


class UsesUpSizes(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.sizes, ctx.options = list(x.shape), {"left": [2.0]}
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        size = ctx.sizes.pop()
        return grad * ctx.options["left"].pop() + 0 * size


def test_a_backward_may_use_up_a_list_on_ctx_in_each_call():
    op = from_function(UsesUpSizes, "adopted::uses_up_sizes", samples=[(torch.ones(2),)])

    for shape in ((2,), (2,), (3,), (2,)):
        torch.testing.assert_close(
            outputs_and_grads(op, [torch.ones(shape)]), outputs_and_grads(UsesUpSizes.apply, [torch.ones(shape)])
        )


def test_samples_are_those_of_the_op():
    op = from_function(Once, "adopted::sampled", samples=lambda make: [Sample(make(3)).named("three")])

    assert "three" in str(check(op, checks=["directional"]).to_json())


def test_annotations_take_the_place_of_samples():
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x: Tensor, grad: float, times: int = 2) -> Tensor:
            ctx.factor = grad * times
            return x * ctx.factor

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.factor, None, None

    op = from_function(Scaled, "adopted::scaled")
    x = tensor(3).requires_grad_()

    torch.testing.assert_close(torch.autograd.grad(op(x, 3.0).sum(), x)[0], torch.full_like(x, 6.0))
    assert list(op.__signature__.parameters) == ["x", "grad_", "times"]  # `grad` is the gradient in rules


def test_a_forward_that_reads_data_has_no_fake_and_right_gradients():
    op = from_function(DependsOnData, "adopted::reads", samples=[(tensor(3), "scale"), (tensor(2), "copy")])

    assert op.capabilities()["fake"].startswith("missing")
    for mode in ("scale", "copy"):
        arguments = (tensor(3, seed=5), mode)
        torch.testing.assert_close(outputs_and_grads(op, arguments), outputs_and_grads(DependsOnData.apply, arguments))


def test_autocast_is_off_within_the_op():
    op = from_function(Bias, "adopted::autocast", samples=[CALLS["without_bias"][1]])
    with torch.autocast("cpu", torch.bfloat16):
        assert op(torch.ones(2, 3), torch.ones(3, 2)).dtype is torch.float32


def test_the_op_says_where_the_function_was_written():
    assert op_of("intermediate").kernels["default"].startswith("functions.py:")
    assert Intermediate.forward.__code__.co_firstlineno == int(op_of("intermediate").kernels["default"].split(":")[1])


class Positive(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = x > 0  # what ctx calls its own has longer names
        return x * ctx.kept

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.kept


def test_an_attribute_of_ctx_may_have_any_name():
    op = from_function(Positive, "functions::positive", samples=[(torch.ones(3, requires_grad=True),)])

    x = torch.tensor([1.0, -1.0], requires_grad=True)
    assert [1.0, 0.0] == torch.autograd.grad(op(x).sum(), x)[0].tolist()


def test_methods_that_are_set_later_are_those_of_the_op(monkeypatch):
    """As of `apply`, for which libraries set another forward or backward."""

    class Doubled(Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * 2

    op = from_function(Doubled, "adopted::doubled")
    outputs_and_grads(op, [torch.ones(2)])
    key = op.capabilities()["compile cache"]
    monkeypatch.setattr(Doubled, "forward", staticmethod(lambda ctx, x: x * 3))
    monkeypatch.setattr(Doubled, "backward", staticmethod(lambda ctx, grad: grad * 5))
    _, (grad,) = outputs_and_grads(op, [torch.ones(2)])

    assert [30.0, 30.0] == grad.tolist()  # 5 times 2 * 3, of the square
    torch.testing.assert_close([grad], outputs_and_grads(Doubled.apply, [torch.ones(2)])[1])
    assert key != op.capabilities()["compile cache"]
