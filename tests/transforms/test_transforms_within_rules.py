"""Rules and kernels that call `torch.func` themselves, under every transform."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from custom_autograd import custom_op


def wave(x: Tensor) -> Tensor:
    return torch.sin(x) * x.exp()


@custom_op("within::by_vjp")
def by_vjp(x: Tensor) -> Tensor:
    """An op whose backward pulls back through `torch.func.vjp`, and that has no other rule."""
    return wave(x)


@by_vjp.register_backward
def _(grad: Tensor, x: Tensor) -> Tensor:
    return vjp(wave, x)[1](grad)[0]


@custom_op("within::by_rules")
def by_rules(x: Tensor) -> Tensor:
    """An op whose jvp and vmap rules call transforms, too, and whose kernel does."""
    return vjp(wave, x)[0]


@by_rules.register_backward
def _(grad: Tensor, x: Tensor) -> Tensor:
    return vjp(wave, x)[1](grad)[0]


@by_rules.register_jvp
def _(x: Tensor, tangent_x: Tensor) -> Tensor:
    return jvp(wave, (x,), (tangent_x,))[1]


@by_rules.register_vmap
def _(info, in_dims, x):
    return vmap(wave, in_dims=in_dims[0])(x), 0


for op in (by_vjp, by_rules):
    op.register_fake(torch.empty_like)

X = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)
WAYS = {
    "jvp": lambda f: jvp(f, (X,), (X + 1,))[1],
    "jacfwd": lambda f: jacfwd(f)(X),
    "jacrev": lambda f: jacrev(f)(X),
    "hessian": lambda f: hessian(lambda x: f(x).sum())(X),
    "vmap": lambda f: vmap(f)(X),
    "vmap(vmap)": lambda f: vmap(vmap(f))(X),
    "vmap(grad)": lambda f: vmap(grad(lambda x: f(x).sum()))(X),
    "vmap(jvp)": lambda f: vmap(lambda x: jvp(f, (x,), (x + 1,))[1])(X),
    "jvp(vmap)": lambda f: jvp(vmap(f), (X,), (X + 1,))[1],
    "jvp(jvp)": lambda f: jvp(lambda x: jvp(f, (x,), (X + 1,))[1], (X,), (X * X,))[1],
    "jvp(grad)": lambda f: jvp(grad(lambda x: f(x).sum()), (X,), (X + 1,))[1],
    "grad(jvp)": lambda f: grad(lambda x: jvp(f, (x,), (X + 1,))[1].sum())(X),
    "vmap(hessian)": lambda f: vmap(hessian(lambda x: f(x).sum()))(X),
    "vmap(jvp(grad))": lambda f: vmap(lambda x: jvp(grad(lambda x: f(x).sum()), (x,), (x + 1,))[1])(X),
}


def through_autograd(f):
    x = X.clone().requires_grad_()
    tangent = jvp(f, (x,), (X + 1,))[1]
    return torch.autograd.grad(tangent.sum(), x)[0]


WAYS["autograd of jvp"] = through_autograd


@pytest.mark.parametrize("op", [by_vjp, by_rules], ids=["vjp in the backward", "transforms in all rules"])
@pytest.mark.parametrize("way", WAYS)
def test_rules_may_call_transforms(way, op):
    torch.testing.assert_close(WAYS[way](op), WAYS[way](wave))
