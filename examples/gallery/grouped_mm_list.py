"""Products of matrices pair by pair, in one call: for groups that differ in all their sizes, such as low-rank adapters.

    out[g] = a[g] @ b[g]

Shapes: a[g]: (rows_g, depth_g); b[g]: (depth_g, columns_g); out[g]: (rows_g, columns_g). Any size may be 0.
Dtypes: those of torch.mm, that of a[g] and b[g] alike.
Groups that share depth and columns have a kernel of their own: grouped_mm.py. Here a pair is one product of BLAS.
Source: the matrix product; with G[g] the gradient of out[g], grad a[g] = G[g] b[g]ᵀ and grad b[g] = a[g]ᵀ G[g].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from custom_autograd import Sample, custom_op


@custom_op("gallery::grouped_mm_list", reference=True, shapes="a: r d, b: d c -> output: r c")
def grouped_mm_list(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
    """Each matrix of a times the matrix of b in the same place."""
    check(a, b)
    return [left @ right for left, right in zip(a, b, strict=True)]


def check(a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
    """Raises where a pair has no product."""
    if len(a) != len(b):
        raise ValueError(f"gallery::grouped_mm_list: 'a' has {len(a)} matrices and 'b' has {len(b)}")
    for place, (left, right) in enumerate(zip(a, b, strict=True)):
        if left.dim() != 2 or right.dim() != 2 or left.shape[1] != right.shape[0] or left.dtype != right.dtype:
            found = f"{tuple(left.shape)} {left.dtype} and {tuple(right.shape)} {right.dtype}"
            raise ValueError(f"gallery::grouped_mm_list: 'a[{place}]' and 'b[{place}]' have no product: {found}")


@grouped_mm_list.register_fake
def _(a, b):
    check(a, b)
    return [left.new_empty(left.shape[0], right.shape[1]) for left, right in zip(a, b, strict=True)]


def wanted(needed: Sequence[bool], lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> list[Tensor | None]:
    """The products of the needed pairs; lists that are named in a rule have one flag per element in `needs`."""
    pairs = [(left, right) for need, left, right in zip(needed, lefts, rights, strict=True) if need]
    products = iter(grouped_mm_list([left for left, _ in pairs], [right for _, right in pairs]))
    return [next(products) if need else None for need in needed]


# The derivative of the op is the op, on other lists. A callable runs only if some element of its list is needed.
@grouped_mm_list.register_backward
def _(grad, a, b, needs):
    return {
        "a": lambda: wanted(needs.a, grad, [right.mT for right in b]),
        "b": lambda: wanted(needs.b, [left.mT for left in a], grad),
    }


for device_type in ("cpu", "cuda"):
    grouped_mm_list.register_autocast(device_type, "lower")  # as torch.mm


@grouped_mm_list.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    yield Sample([make(2, 3), make(0, 4), make(5, 1)], [make(3, 4), make(4, 2), make(1, 3)])  # a pair without rows
    yield Sample([make(2, 0)], [make(0, 3)])  # a sum over nothing is zero
    yield Sample([make(2, 3)], [make(4, 2)]).raises(ValueError, match="'b' must be .d c. with d = 3")
    yield Sample([make(2, 3)], [make(3, 2), make(3, 2)]).raises(ValueError, match="'a' has 1 matrices and 'b' has 2")


if __name__ == "__main__":
    grouped_mm_list.check()
