"""Nestings of transforms: ordered pairs of derivatives, batched and compiled, of the square of an op x^3.

Every nesting gives the second derivative of x^6, which is 30 x^4, at a tensor without dimensions.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

Function = Callable[[Tensor], Tensor]

X = torch.tensor([0.7, 1.3, -2.0], dtype=torch.float64)
EXPECTED = 30 * X**4


def by_jvp(f: Function) -> Function:
    return lambda x: jvp(f, (x,), (torch.ones_like(x),))[1]


def by_vjp(f: Function) -> Function:
    return lambda x: vjp(f, x)[1](torch.ones_like(x))[0]


DERIVATIVES = {
    "grad": grad,
    "vjp": by_vjp,
    "jacrev": jacrev,
    "jvp": by_jvp,
    "jacfwd": jacfwd,
}


def batched(f: Function) -> Tensor:
    return vmap(f)(X)


def compiled(f: Function) -> Tensor:
    torch.compiler.reset()
    run = torch.compile(f, backend="aot_eager", fullgraph=True)
    return torch.stack([run(x.clone()) for x in X])


RUNS = {"vmap": batched, "compile": compiled}
NESTINGS = [f"{run}({outer}({inner}))" for run in RUNS for outer in DERIVATIVES for inner in DERIVATIVES]


def second_derivative(nesting: str, op: Function) -> Tensor:
    """Return the second derivative of op(x)^2 at `X`, as a nesting gives it."""
    run, outer, inner = nesting.rstrip(")").split("(")

    def square(x: Tensor) -> Tensor:
        return op(x) ** 2

    return RUNS[run](DERIVATIVES[outer](DERIVATIVES[inner](square)))
