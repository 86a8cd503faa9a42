"""Tangents stay right when what an op was given, or returned, is written to afterwards."""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import hessian, jacfwd, jvp, linearize, vmap
from torch.testing import assert_close
from torch.testing._internal.two_tensor import TwoTensor

from custom_autograd import custom_op


@custom_op("tangent_memory::referenced", reference=True)
def referenced(x: Tensor, b: Tensor) -> Tensor:
    return x + b


def plus(name):
    """An addition of its own: each test op gets rules of another kind."""

    def add(x: Tensor, b: Tensor) -> Tensor:
        return x + b

    op = custom_op(f"tangent_memory::{name}", add)
    op.register_fake(lambda x, b: torch.empty_like(x))
    return op


by_name = plus("by_name")
by_name.register_backward(lambda grad: {"x": grad, "b": grad})

each_input = plus("each_input")
each_input.register_grad("x")(lambda grad: grad)
each_input.register_grad("b")(lambda grad: grad)

drop_in = plus("drop_in")
drop_in.register_autograd(lambda ctx, grad: (grad, grad))

with_jvp = plus("with_jvp")
with_jvp.register_backward(lambda grad: {"x": grad, "b": grad})
with_jvp.register_jvp(lambda tangent_x, tangent_b: tangent_x)


@custom_op("tangent_memory::copies")
def copies(xs: list[Tensor]) -> list[Tensor]:
    return [x.clone() for x in xs]


copies.register_fake(lambda xs: [torch.empty_like(x) for x in xs])
copies.register_backward(lambda grad: list(grad))


@custom_op("tangent_memory::twice")
def twice(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), x.clone()


twice.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
twice.register_autograd(lambda ctx, one, other: one + other)
twice.register_jvp(lambda tangent_x: (shared := tangent_x * 1, shared))


@custom_op("tangent_memory::parts")
def parts(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:1].clone(), x[1:].clone()


parts.register_fake(lambda x: (torch.empty_like(x[:1]), torch.empty_like(x[1:])))
parts.register_backward(lambda grad_output_0, grad_output_1: torch.cat([grad_output_0, grad_output_1]))


@custom_op("tangent_memory::transposed")
def transposed(x: Tensor) -> Tensor:
    return x.t().clone()


transposed.register_fake(lambda x: torch.empty_like(x.t()))
transposed.register_backward(lambda grad: grad.t())


@custom_op("tangent_memory::total")
def total(x: Tensor) -> Tensor:
    return x.sum().expand(x.shape).clone()


total.register_fake(lambda x: torch.empty_like(x))
total.register_backward(lambda grad: grad.sum().expand(grad.shape))


@custom_op("tangent_memory::fetch_", mutates_args=("a",), outputs=("old",))
def fetch_(a: Tensor) -> Tensor:
    old = a.clone()
    a.mul_(3)
    return old


fetch_.register_fake(lambda a: torch.empty_like(a))
fetch_.register_backward(lambda grad_old, grad_a: {"a": grad_old + 3 * grad_a})


def added(op, x):
    return op(x, torch.ones_like(x))


def write_to_output(op):
    def f(x):
        h = x.sin()
        o = added(op, h)
        o.mul_(2)
        return h * x + o

    return f


def write_to_input(op):
    def f(x):
        h = x.sin() * 1
        o = added(op, h)
        h.mul_(2)
        return h * x + o

    return f


def write_to_elements(x):
    h = x.sin()
    one, other = copies([h, x])
    one.mul_(2)
    other.mul_(3)
    return h * x + one + other


def write_to_one_output(x):
    h = x.sin()
    one, other = twice(h)
    one.mul_(2)
    return h * x + one * other


def write_to_a_part(x):
    h = x.sin()
    one, other = parts(h)
    one.mul_(2)
    other.mul_(3)
    return h * x + torch.cat([one, other])


def write_to_a_transpose(x):
    h = x.sin().expand(3, 3) * 1
    o = transposed(h)
    o.mul_(2)
    return (h * x + o).sum(0)


def write_to_a_total(x):
    h = x.sin()
    o = total(h)
    o.mul_(x)
    return h * x + o


def fetch(x):
    return fetch_(x * 1)


def fetch_and_write(x):
    a = x.sin()
    old = fetch_(a)
    a.mul_(x)
    return a + old * x


DECLARED = {
    "reference": referenced,
    "by name": by_name,
    "each input": each_input,
    "drop-in": drop_in,
    "jvp rule": with_jvp,
}
PROGRAMS = {
    **{
        f"output, {name}": (write_to_output(op), lambda x: x.sin() * x + 2 * x.sin() + 2)
        for name, op in DECLARED.items()
    },
    **{
        f"input, {name}": (write_to_input(op), lambda x: 2 * x.sin() * x + x.sin() + 1)
        for name, op in DECLARED.items()
        if op is not referenced  # it saves its input, whose version autograd checks
    },
    "list": (write_to_elements, lambda x: x.sin() * x + 2 * x.sin() + 3 * x),
    "two outputs": (write_to_one_output, lambda x: x.sin() * x + 2 * x.sin() ** 2),
    "two parts": (write_to_a_part, lambda x: x.sin() * x + x.sin() * torch.tensor([2, 3, 3])),
    "transposed": (write_to_a_transpose, lambda x: x.sin() * x * 3 + 2 * x.sin().sum()),
    "expanded": (write_to_a_total, lambda x: x.sin() * x + x.sin().sum() * x),
    "old value": (fetch, lambda x: x * 1),
    "old value, then a write": (fetch_and_write, lambda x: 3 * x.sin() * x + x.sin() * x),
}


def dual(f, x, v):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, v))).tangent


def batched(f, x, v):
    return vmap(lambda x, v: jvp(f, (x,), (v,))[1])(torch.stack([x, x + 1]), torch.stack([v, v]))


def batched_tangents(f, x, v):
    return vmap(lambda v: jvp(f, (x,), (v,))[1])(v.expand(2, 3))


MODES = {
    "jvp": lambda f, x, v: jvp(f, (x,), (v,))[1],
    "jvp of jvp": lambda f, x, v: jvp(lambda x: jvp(f, (x,), (v,))[1], (x,), (v,))[1],
    "dual numbers": dual,
    "jacfwd": lambda f, x, v: jacfwd(f)(x),
    "hessian": lambda f, x, v: hessian(lambda x: f(x).square().sum())(x),
    "linearize": lambda f, x, v: linearize(f, x)[1](v),
    "vmap of jvp": batched,
    "vmap of tangents": batched_tangents,
}


def point():
    return torch.tensor([0.5, -0.3, 0.9], dtype=torch.float64)


def direction():
    return torch.tensor([0.7, 0.2, -0.4], dtype=torch.float64)


@each("mode", MODES.values(), ids=MODES)
@each(("f", "plain"), PROGRAMS.values(), ids=PROGRAMS)
def test_tangents_are_right_after_a_write(f, plain, mode):
    assert_close(mode(f, point(), direction()), mode(plain, point(), direction()))


@each("name", ["output, by name", "output, jvp rule", "list", "two outputs", "transposed", "old value"])
def test_a_compiled_tangent_is_right_after_a_write(name, fresh_compiler):
    f, plain = PROGRAMS[name]
    compiled = torch.compile(lambda x, v: jvp(f, (x,), (v,))[1], backend="aot_eager")

    assert_close(compiled(point(), direction()), jvp(plain, (point(),), (direction(),))[1])


@pytest.mark.parametrize("op", DECLARED.values(), ids=DECLARED)
def test_the_callers_tangent_is_not_written_to(op):
    v = direction()
    jvp(lambda x: added(op, x).mul_(7), (point(),), (v,))

    assert_close(v, direction())


def test_a_tangent_of_a_subclass_is_not_written_to():
    v = TwoTensor(direction(), direction())
    with forward_ad.dual_level():
        o = added(by_name, forward_ad.make_dual(TwoTensor(point(), point()), v))
        forward_ad.unpack_dual(o).tangent.mul_(7)

    assert_close(v.a, direction())
    assert_close(v.b, direction())


def test_a_tangent_with_memory_of_its_own_is_not_copied():
    made = []

    def rule(tangent_x, tangent_b):
        made.append(tangent_x * 1)
        return made[0]

    op = plus("fresh")
    op.register_jvp(rule)
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(added(op, forward_ad.make_dual(point(), direction()))).tangent

    assert found.data_ptr() == made[0].data_ptr()
