"""Tensor subclasses and modes: an op goes through each as one op, and zeros that stand for gradients are of its kind."""

# ruff: noqa: E501 - a message is as long as it is

import re

import pytest
import torch
from expecttest import assert_expected_inline
from log_wrapper import Log
from messages.shown import message
from tables import each
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from custom_autograd import custom_op


class Two(Tensor):
    """A wrapper of two tensors that torch.compile can take apart; an op runs on each."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), storage_offset=a.storage_offset(), dtype=a.dtype, device=a.device
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __repr__(self):
        return f"Two({self.a}, {self.b})"

    def __tensor_flatten__(self):
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(parts, context, size, stride):
        return Two(parts["a"], parts["b"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first, second = (
            func(*tree_map_only(Two, pick, args), **tree_map_only(Two, pick, kwargs or {}))
            for pick in (lambda two: two.a, lambda two: two.b)
        )
        if isinstance(first, (tuple, list)):
            return type(first)(Two(*pair) for pair in zip(first, second, strict=True))
        return Two(first, second) if isinstance(first, Tensor) else first


class Labelled(Tensor):
    """A subclass without a __torch_dispatch__, which notes what passes its __torch_function__."""

    names: list = []  # noqa: RUF012 - shared on purpose

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Labelled.names.append(str(func))
        return super().__torch_function__(func, types, args, kwargs or {})


class Shy(Tensor):
    """A wrapper that takes no op of ours."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


@custom_op("kinds::blend", reference=True)
def blend(x: Tensor, y: Tensor, s: float = 2.0, *, bias: Tensor | None = None) -> Tensor:
    return x * y * s if bias is None else x * y * s + bias


@blend.register_backward
def _(grad, x, y, s):
    return {"x": grad * y * s, "y": grad * x * s, "bias": grad.clone()}


@custom_op("kinds::add_up", reference=True)
def add_up(tensors: list[Tensor]) -> Tensor:
    return sum(tensors) * 1.0


@custom_op("kinds::spread", reference=True)
def spread(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3]


KINDS = []


@custom_op("kinds::pair", outputs=("double", "square"), reference=True)
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * x


@pair.register_backward
def _(grad_double, grad_square, x):
    KINDS.append((type(grad_double), type(grad_square)))
    return 2 * grad_double + 2 * x * grad_square


@custom_op("kinds::drop_in", reference=True)
def drop_in(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * x


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad_double, grad_square):
    KINDS.append((type(grad_double), type(grad_square)))
    (x,) = ctx.saved_tensors
    return 2 * grad_double + 2 * x * grad_square


drop_in.register_autograd(_backward, setup_context=_setup)


def two(*shape):
    return Two(torch.rand(*shape, dtype=torch.float64), torch.rand(*shape, dtype=torch.float64)).requires_grad_()


@pytest.fixture(autouse=True)
def nothing_noted():
    KINDS.clear()
    Log.seen.clear()
    Labelled.names.clear()


# ----------------------------------------------------------------------------------------------------- values


def test_a_wrapper_sees_the_op_and_the_kernel_its_parts():
    x, y = two(3), two(3)
    found = blend(x, y)

    assert Two is type(found)
    assert [(x.a * y.a * 2).tolist(), (x.b * y.b * 2).tolist()] == [found.a.tolist(), found.b.tolist()]


def blended(x, y, bias):
    return blend(x, y, 3.0, bias=bias) + blend(y, x)


@pytest.mark.parametrize("is_wrapped", [(1, 1, 1), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)], ids=str)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_gradients_with_wrappers_and_plain_tensors_mixed(is_wrapped, backend, fresh_compiler):
    given = [two(3) if one else torch.rand(3, dtype=torch.float64, requires_grad=True) for one in is_wrapped]
    run = blended if backend is None else torch.compile(blended, backend=backend, fullgraph=True)
    found = torch.autograd.grad(run(*given).sum(), given)
    expected = torch.autograd.grad((given[0] * given[1] * 5.0 + given[2]).sum(), given)

    assert [type(one) for one in expected] == [type(one) for one in found]
    for one, its in zip(expected, found, strict=True):
        torch.testing.assert_close(*([t.a, t.b] if isinstance(t, Two) else [t] for t in (one, its)))


def test_lists_of_wrappers_and_plain_tensors():
    x, y = two(3), torch.rand(3, dtype=torch.float64, requires_grad=True)
    found = add_up([x, y, x])
    gradients = torch.autograd.grad(found.sum(), (x, y))

    torch.testing.assert_close([2 * x.a + y, 2 * x.b + y], [found.a, found.b])
    assert [2.0] * 3 == gradients[0].b.tolist()
    assert [Two, Two] == [type(one) for one in spread(x)]


def test_second_derivatives_of_a_wrapper():
    x = two(3)
    (first,) = torch.autograd.grad(blend(x, x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * first).sum(), x)

    torch.testing.assert_close([32 * x.a, 32 * x.b], [second.a, second.b])


def test_a_subclass_with_torch_function_only():
    x = torch.rand(3, dtype=torch.float64).as_subclass(Labelled).requires_grad_()
    y = blend(x, torch.ones(3, dtype=torch.float64))
    y.sum().backward()

    assert Labelled is type(y)
    assert "kinds.blend.default" in Labelled.names
    assert [2.0] * 3 == x.grad.tolist()


def test_a_wrapper_that_cannot_be_taken_apart():
    x = Log(torch.rand(3, dtype=torch.float64)).requires_grad_()
    y = blend(x, x)
    (gradient,) = torch.autograd.grad(y.sum(), x)

    assert 1 == list(map(str, Log.seen)).count("kinds.blend.default")
    assert torch.equal(4 * x.inner, gradient.inner)


def test_torch_func_of_a_wrapper():
    x = two(3).detach()
    gradient = torch.func.grad(lambda x: blend(x, x).sum())(x)
    primal, tangent = torch.func.jvp(lambda x: blend(x, x), (x,), (x,))
    _, pull = torch.func.vjp(lambda x: blend(x, x), x)

    torch.testing.assert_close([4 * x.a, 4 * x.b], [gradient.a, gradient.b])
    torch.testing.assert_close([4 * x.a**2, 4 * x.b**2], [tangent.a, tangent.b])
    assert Two is type(primal)
    torch.testing.assert_close(4 * x.b**2, pull(x)[0].b)


def test_vmap_of_a_wrapper():
    x = two(4, 3).detach()
    found = torch.vmap(lambda x: blend(x, x))(x)

    torch.testing.assert_close([2 * x.a**2, 2 * x.b**2], [found.a, found.b])


class Blend(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(Two(torch.full((3,), 2.0), torch.full((3,), 3.0)))

    def forward(self, x):
        return blend(x, self.weight)


def test_export_of_a_module_with_a_wrapped_parameter():
    program = torch.export.export(Blend(), (torch.ones(3),))

    assert any("kinds.blend" in str(node.target) for node in program.graph.nodes)
    assert [4.0] * 3 == program.module()(torch.ones(3)).a.tolist()


# ----------------------------------------------------------------------------- gradients that nobody asked about


@each("op", [pair, drop_in], ids=["by name", "drop-in"])
@each("used", [0, 1])
@each("make", [two, lambda *shape: Log(torch.rand(*shape)).requires_grad_()], ids=["Two", "Log"])
def test_undefined_gradients_are_zeros_of_the_kind_of_the_output(make, used, op):
    KINDS.clear()
    x = make(3)
    op(x)[used].sum().backward()

    assert [(type(x), type(x))] == KINDS
    inner = [x.a, x.b] if isinstance(x, Two) else [x.inner]
    found = [x.grad.a, x.grad.b] if isinstance(x, Two) else [x.grad.inner]
    torch.testing.assert_close([2 * one if used else torch.full_like(one, 2.0) for one in inner], found)


@custom_op("kinds::mixed", outputs=("out", "scale"))
def mixed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x * y, y * 2


@mixed.register_fake
def _(x, y):
    return torch.empty_like(x), torch.empty_like(y)


@mixed.register_torch_dispatch(Two)
def _(cls, func, types, args, kwargs):
    x, y = args
    return Two(x.a * y, x.b * y), y * 2


@mixed.register_backward
def _(grad_out, grad_scale, x, y):
    KINDS.append((type(grad_out), type(grad_scale)))
    return grad_out * y, (grad_out * x).a + 2 * grad_scale


@pytest.mark.parametrize("used", [0, 1])
def test_each_output_has_zeros_of_its_own_kind(used):
    x, y = two(3), torch.rand(3, dtype=torch.float64, requires_grad=True)
    mixed(x, y)[used].sum().backward()

    assert [(Two, Tensor)] == KINDS
    torch.testing.assert_close([0 * y, torch.full_like(y, 2.0)] if used else [1 * y, x.a], [x.grad.a, y.grad])


def compiled_gradient(f, x):
    x.requires_grad_()
    return torch.autograd.grad(torch.compile(f, backend="aot_eager", fullgraph=True)(x).sum(), x)[0]


@pytest.mark.parametrize(
    "gradient", [lambda f, x: torch.func.grad(lambda x: f(x).sum())(x), compiled_gradient], ids=["func", "compiled"]
)
def test_undefined_gradients_within_a_transform_or_a_graph(gradient, fresh_compiler):
    x = two(3).detach()
    found = gradient(lambda x: pair(x)[1], x)

    torch.testing.assert_close([2 * x.a, 2 * x.b], [found.a, found.b])


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_undefined_gradients_of_sparse_outputs_are_sparse(layout):
    seen = []
    op = custom_op(
        "kinds::sparse_pair", lambda x: (x * 2, x * 3), schema="(Tensor x) -> (Tensor, Tensor)", replace=True
    )

    @op.register_backward
    def _(grad_output_0, grad_output_1):
        seen.append((grad_output_0.layout, grad_output_1.layout))
        return grad_output_0 * 2 + grad_output_1 * 3

    x = torch.eye(3).to_sparse(layout=layout).requires_grad_()
    first, _ = op(x)
    first.backward(first.detach())

    assert [(layout, layout)] == seen
    assert torch.equal(4 * torch.eye(3), x.grad.to_dense())


# ------------------------------------------------------------------------------------- register_torch_dispatch


def double(cls, func, types, args, kwargs):
    args = tree_map_only(Shy, lambda shy: torch.ones(3), args)
    return func(*args, **kwargs) * 10


class Counting(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def fresh(name):
    return custom_op(f"kinds::{name}", lambda x: x * 1, schema="(Tensor x) -> Tensor", replace=True)


def registered_by_call(op):
    op.register_torch_dispatch(Shy, double)


def registered_by_decorator(op):
    op.register_torch_dispatch(Shy)(double)


def registered_by_torch(op):
    torch.library.register_torch_dispatch(op.name, Shy, double)


def registered_by_torch_for_the_overload(op):
    torch.library.register_torch_dispatch(op.overload, Shy)(double)


@pytest.mark.parametrize(
    "register",
    [registered_by_call, registered_by_decorator, registered_by_torch, registered_by_torch_for_the_overload],
)
def test_every_way_to_register_a_rule_for_a_class(register):
    op = fresh(register.__name__)
    register(op)

    assert [10.0] * 3 == op(Shy(torch.ones(3))).tolist()
    assert [1.0] * 3 == op(torch.ones(3)).tolist()


def test_a_rule_for_a_mode():
    op = fresh("counted")

    @op.register_torch_dispatch(Counting)
    def _(mode, func, types, args, kwargs):
        mode.count += 1
        return func(*args, **kwargs) * 2

    with Counting() as mode:
        found = op(torch.ones(2))

    assert ([2.0, 2.0], 1) == (found.tolist(), mode.count)
    assert [1.0, 1.0] == op(torch.ones(2)).tolist()


def test_a_rule_that_is_replaced():
    op = fresh("replaced")
    op.register_torch_dispatch(Shy, double)
    op.register_torch_dispatch(Shy, lambda cls, func, types, args, kwargs: torch.zeros(3), replace=True)

    assert [0.0] * 3 == op(Shy(torch.ones(3))).tolist()


def test_a_class_that_is_defined_again_has_its_own_rule():
    op = fresh("defined_again")
    for _ in range(2):

        class Again(Shy):
            pass

        op.register_torch_dispatch(Again, double)

    assert [10.0] * 3 == op(Again(torch.ones(3))).tolist()


def test_a_rule_has_gradients_through_the_op():
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    y = two(3)
    out, _ = mixed(y, x)
    out.sum().backward()

    assert torch.equal(y.a.detach(), x.grad)


# ---------------------------------------------------------------------------------------------- what is refused


def notes(call, error):
    with pytest.raises(error) as caught:
        call()
    text = "".join(getattr(caught.value, "__notes__", [str(caught.value.__cause__)]))
    return str(caught.value).partition("\n\nFor more")[0] + "\n" + text


def unplaced(text):
    return re.sub(r"test_\w+\.py:\d+", "FILE.py:LINE", text).replace(__name__, "module")


def test_a_subclass_that_implements_nothing():
    assert_expected_inline(
        unplaced(notes(lambda: blend(Shy(torch.ones(3)), torch.ones(3)), TypeError)),
        """\
Multiple dispatch failed for 'torch._ops.kinds.blend.default'; all __torch_dispatch__ handlers returned NotImplemented:

  - tensor subclass <class 'module.Shy'>
kinds::blend, declared at FILE.py:LINE: register_torch_dispatch(cls, rule) says what the op does for a class""",
    )


@custom_op("kinds::inner_shy")
def inner_shy(x: Tensor) -> Tensor:
    return blend(Shy(x), x)


def test_a_refusal_within_a_kernel_is_noted_once():
    text = notes(lambda: inner_shy(torch.ones(3)), TypeError)

    assert 1 == text.count("register_torch_dispatch(cls, rule)")


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:blend is not implemented in __torch_dispatch__ for MaskedTensor")
def test_masked_tensors():
    x = torch.masked.masked_tensor(torch.rand(2), torch.tensor([True, False]))

    assert_expected_inline(
        message(lambda: blend(x, x)),
        """\
KernelError: kinds::blend: the op is called with a masked tensor, and has no rule for those
  expected   plain tensors
  found      torch.masked.MaskedTensor
  declared   FILE.py:LINE
  do         call it on x.get_data(), and mask the result with x.get_mask(); or register_torch_dispatch(torch.masked.MaskedTensor, rule)""",
    )


@custom_op("kinds::on_cpu", device_types="cpu")
def on_cpu(x: Tensor) -> Tensor:
    return x.clone()


def test_sparse_tensors_go_to_the_default_kernel():
    x = torch.eye(2).to_sparse()

    assert torch.equal(2 * torch.eye(2), blend(x, x).to_dense())


def test_sparse_tensors_without_a_default_kernel():
    assert_expected_inline(
        message(lambda: on_cpu(torch.eye(2).to_sparse())),
        """\
KernelError: kinds::on_cpu: there is no kernel for layout torch.sparse_coo: the kernel of a device type takes strided tensors
  expected   tensors of layout torch.strided
  found      torch.sparse_coo
  declared   FILE.py:LINE
  do         call .to_dense(), or register_kernel(None) a kernel that takes such tensors""",
    )
