"""A kernel may use torch.func, wherever the op is called: below modes and in compiled code too."""

import torch
from tables import each
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd import custom_op


def inner_grad(x: Tensor, n: Tensor) -> Tensor:
    return torch.func.grad(lambda y: (y * int(n)).square().sum())(x).clone()


def inner_vjp(x: Tensor, n: Tensor) -> Tensor:
    value, pull = torch.func.vjp(lambda y: y.sin() * n, x)
    return pull(torch.ones_like(value))[0].clone()


def inner_jvp(x: Tensor, n: Tensor) -> Tensor:
    return torch.func.jvp(lambda y: y * y * n, (x,), (x,))[1].clone()


def inner_hessian(x: Tensor, n: Tensor) -> Tensor:
    def energy(y):
        z = y * 2
        z[0].mul_(y[1])
        return (z**3 * n).sum()

    return torch.func.hessian(energy)(x).sum(0).clone()


def inner_vmap(x: Tensor, n: Tensor) -> Tensor:
    return torch.vmap(lambda y: y * n + x.sum())(x).clone()


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def below_a_mode(op, x, n):
    with Passing():
        return op.overload(x, n)


def compiled(op, x, n):
    torch._dynamo.reset()
    return torch.compile(lambda x, n: op(x, n) * 1, fullgraph=True, backend="aot_eager")(x, n)


def batched_below_a_mode(op, x, n):
    with Passing():
        return torch.vmap(op, in_dims=(0, None))(torch.stack([x, x]), n)[1]


def differentiated_below_a_mode(op, x, n):
    with Passing():
        return torch.func.vjp(lambda x: op(x, n), x)[0]


WAYS = [below_a_mode, compiled, batched_below_a_mode, differentiated_below_a_mode]


@each("way", WAYS, ids=[way.__name__ for way in WAYS])
@each("kernel", [inner_grad, inner_vjp, inner_jvp, inner_hessian, inner_vmap])
def test_torch_func_works_in_a_kernel(kernel, way):
    op = custom_op(f"transforms_in_kernels::{kernel.__name__}", kernel, replace=True)
    op.register_fake(lambda x, n: torch.empty_like(x))
    op.register_backward(lambda grad: {"x": grad, "n": None})
    x, n = torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0)

    torch.testing.assert_close(way(op, x, n), kernel(x, n))
