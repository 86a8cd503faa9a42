"""The tensors of the differential grid: pairs of equal shape, made anew for each run of a cell."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

Pair = tuple[Tensor, Tensor]


class Tagged(Tensor):
    """A subclass without `__torch_dispatch__`."""


class Overriding(Tensor):
    """A subclass that sees every function."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapper(Tensor):
    """A subclass that holds its data in another tensor."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        made: Wrapper = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(Tensor, cls, func(*plain[0], **plain[1]))


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Pair:
    """Reproducible numbers away from zero."""
    generator = torch.Generator().manual_seed(7)
    make = [torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5 for _ in range(2)]
    return make[0].to(dtype), make[1].to(dtype)


def each(function: Callable[[Tensor], Tensor], *shape: int, dtype: torch.dtype = torch.float32) -> Pair:
    """A function of both numbers."""
    x, y = numbers(*(shape or (3, 2)), dtype=dtype)
    return function(x), function(y)


def leaked() -> Pair:
    """What a `torch.func.grad` left behind."""
    kept: list[Tensor] = []
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(numbers(3, 2)[0])
    return kept[0], numbers(3, 2)[1]


def leaked_batch() -> Pair:
    """What a `torch.vmap` left behind."""
    kept: list[Tensor] = []
    torch.vmap(lambda x: (kept.append(x), x)[1])(numbers(4, 3, 2)[0])
    return kept[0], numbers(3, 2)[1]


def inference() -> Pair:
    """Tensors made in inference mode."""
    with torch.inference_mode():
        return numbers(3, 2)


def jagged() -> Pair:
    """Nested tensors of the jagged layout, of one structure."""
    parts = [numbers(2, 2)[0], numbers(3, 2)[0]]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    return x, x * 2


def quiet(function: Callable[[], Pair]) -> Pair:
    """Without the warnings of layouts that are prototypes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function()


def nested(x: Tensor) -> Tensor:
    return torch.nested.nested_tensor([x, x + 1])


def non_leaf(x: Tensor) -> Tensor:
    return x.requires_grad_() * 1


KINDS: dict[str, Callable[[], Pair]] = {
    "plain": lambda: numbers(3, 2),
    "float64": lambda: numbers(3, 2, dtype=torch.float64),
    "bfloat16": lambda: numbers(3, 2, dtype=torch.bfloat16),
    "int64": lambda: numbers(3, 2, dtype=torch.int64),
    "mixed dtypes": lambda: (numbers(3, 2)[0], numbers(3, 2, dtype=torch.float64)[1]),
    "Parameter": lambda: each(torch.nn.Parameter),
    "one Parameter": lambda: (numbers(3, 2)[0], torch.nn.Parameter(numbers(3, 2)[1])),
    "tagged subclass": lambda: each(lambda t: t.as_subclass(Tagged)),
    "overriding subclass": lambda: each(lambda t: t.as_subclass(Overriding)),
    "wrapper subclass": lambda: each(Wrapper),
    "one wrapper subclass": lambda: (numbers(3, 2)[0], Wrapper(numbers(3, 2)[1])),
    "complex": lambda: numbers(3, 2, dtype=torch.complex64),
    "conj": lambda: each(lambda t: (t * (1 + 2j)).conj(), dtype=torch.complex64),
    "neg": lambda: each(lambda t: (t * (1 + 2j)).conj().imag, dtype=torch.complex64),
    "zero tensor": lambda: (torch._efficientzerotensor(3, 2), numbers(3, 2)[1]),
    "sparse": lambda: each(lambda t: t.to_sparse()),
    "sparse rows": lambda: quiet(lambda: each(lambda t: t.to_sparse_csr())),
    "nested strided": lambda: quiet(lambda: each(nested)),
    "nested jagged": lambda: quiet(jagged),
    "quantized": lambda: quiet(lambda: each(lambda t: torch.quantize_per_tensor(t, 0.1, 0, torch.qint8))),
    "meta": lambda: each(lambda t: t.to("meta")),
    "one meta": lambda: (numbers(3, 2)[0], numbers(3, 2)[1].to("meta")),
    "expanded": lambda: each(lambda t: t[:1].expand(3, 2)),
    "transposed": lambda: each(lambda t: t.t(), 2, 3),
    "empty": lambda: numbers(0, 2),
    "0-dim": lambda: each(lambda t: t[0, 0].clone()),
    "leaf that requires grad": lambda: each(lambda t: t.requires_grad_()),
    "second requires grad": lambda: (numbers(3, 2)[0], numbers(3, 2)[1].requires_grad_()),
    "non-leaf that requires grad": lambda: each(non_leaf),
    "view that requires grad": lambda: each(lambda t: non_leaf(t)[1:]),
    "inference tensor": inference,
    "one inference tensor": lambda: (numbers(3, 2)[0].requires_grad_(), inference()[1]),
    "dead wrapper": leaked,
    "dead batch": leaked_batch,
    "functional": lambda: each(torch._to_functional_tensor),
    "mkldnn": lambda: each(lambda t: t.to_mkldnn()),
    "the same twice": lambda: (numbers(3, 2)[0].requires_grad_(),) * 2,
    "no tensor": lambda: (numbers(3, 2)[0], 3.0),  # type: ignore[dict-item]  # what a mistaken caller gives
    "an array": lambda: (numbers(3, 2)[0].numpy(), numbers(3, 2)[1]),  # type: ignore[dict-item]
}
