"""Every way to run a function of tensors: what an op gives in each is compared with the same in plain PyTorch."""

import itertools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from tables import each
from torch import Tensor
from torch.utils import _pytree


class Calls(torch.nn.Module):
    """A function as a module, as torch.export wants it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def number_of(results: Any) -> Tensor:
    """Return a number on which each floating-point result has an influence of its own."""
    floats = [x for x in _pytree.tree_leaves(results) if x.is_floating_point()]
    return sum((weight * x.double() ** 2).sum() for weight, x in enumerate(floats, 1))


def loss(function: Callable[..., Any]) -> Callable[..., Tensor]:
    return lambda *inputs: number_of(function(*inputs))


def places(inputs: tuple[Tensor, ...]) -> tuple[int, ...]:
    return tuple(range(len(inputs)))


def batches(inputs: tuple[Tensor, ...], dim: int = 0) -> list[Tensor]:
    return [torch.stack([x, x + 1, 2 * x], dim) for x in inputs]


def gradients(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Return the results and the gradients of a number that is made of them."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    results = function(*leaves)
    return _pytree.tree_map(torch.detach, results), torch.autograd.grad(number_of(results), leaves)


def pulled_back(function: Callable[..., Any], *inputs: Tensor) -> Any:
    outputs, pull = torch.func.vjp(function, *inputs)
    return outputs, pull(_pytree.tree_map(torch.cos, outputs))


def all_of(functions: Iterable[Callable[..., Any]]) -> Callable[..., list[Any]]:
    """Return a function with the results of all: one graph of them is made far sooner than one graph of each."""
    found = list(functions)
    return lambda *inputs: [function(*inputs) for function in found]


def side_by_side(functions: Iterable[Callable[..., Any]], counts: Iterable[int]) -> Callable[..., list[Any]]:
    """Return a function of the tensors of all, of which each function takes so many: as above, for one graph."""
    ends = list(itertools.accumulate(counts))
    places = list(zip(functions, map(slice, [0, *ends], ends), strict=False))
    return lambda *inputs: [function(*inputs[place]) for function, place in places]


def compiled(function: Callable[..., Any], *inputs: Tensor) -> Any:
    return gradients(torch.compile(lambda *xs: function(*xs), backend="aot_eager", fullgraph=True), *inputs)


def exported(function: Callable[..., Any], *inputs: Tensor) -> Any:
    """Return the results of an exported program, and of one that is decomposed."""
    program = torch.export.export(Calls(function), inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch itself, in run_decompositions
        decomposed = program.run_decompositions()
    return program.module()(*inputs), decomposed.module()(*inputs)


DERIVATIVES: dict[str, Callable[..., Any]] = {
    "backward": gradients,
    "func.grad": lambda f, *x: torch.func.grad(loss(f), places(x))(*x),
    "func.jvp": lambda f, *x: torch.func.jvp(f, x, tuple(map(torch.cos, x))),
    "func.vjp": pulled_back,
    "func.hessian": lambda f, *x: torch.func.hessian(loss(f))(*x),
    "vmap": lambda f, *x: torch.vmap(f)(*batches(x)),
    "vmap over the last dimension": lambda f, *x: torch.vmap(f, -1, -1)(*batches(x, -1)),
    "vmap of func.grad": lambda f, *x: torch.vmap(torch.func.grad(loss(f), places(x)))(*batches(x)),
}
EAGER: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{name: (way, way) for name, way in DERIVATIVES.items()},
    "functionalize": (lambda f, *x: torch.func.functionalize(f)(*x), lambda f, *x: f(*x)),
}
GRAPHS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "compiled": (compiled, gradients),
    "exported": (exported, lambda f, *x: (f(*x), f(*x))),
}
WAYS = EAGER | GRAPHS
"""By name: how the op is run, and how to run the same in plain PyTorch to have the same results."""

every_way = each(("way", "plainly"), WAYS.values(), ids=WAYS)
every_eager_way = each(("way", "plainly"), EAGER.values(), ids=EAGER)
every_graph = each(("way", "plainly"), GRAPHS.values(), ids=GRAPHS)
