"""vmap over the whole table, by value: the rule, the reference or the loop, also nested and around derivatives."""

import itertools

import pytest
import torch
from tables import each
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.testing import assert_close

from custom_autograd import KernelError, custom_op
from ops import TABLE

ROWS = each("row", TABLE.values(), ids=TABLE)
TWICE = {name: row for name, row in TABLE.items() if row.has_second_order}
TWICE_ROWS = pytest.mark.parametrize("row", TWICE.values(), ids=TWICE)


def batches(row, *, copies=1):
    tensors = row.inputs()
    for size in range(2, 2 + copies):
        tensors = tuple(torch.stack([tensor + 0.1 * index for index in range(size)]) for tensor in tensors)
    return tensors


def argnums(row):
    return tuple(range(len(row.shapes)))


def grad_of_vmap(f, row):
    return grad(lambda *x: sum((output**2).sum() for output in vmap(f)(*x)), argnums(row))(*batches(row))


WAYS = {
    "vmap": lambda f, row: vmap(f)(*batches(row)),
    "the last dimension": lambda f, row: vmap(f, -1, -1)(*(tensor.movedim(0, -1) for tensor in batches(row))),
    "an empty batch": lambda f, row: vmap(f)(*(tensor[:0] for tensor in batches(row))),
    "vmap of vmap": lambda f, row: vmap(vmap(f))(*batches(row, copies=2)),
    "vmap of grad": lambda f, row: vmap(grad(row.loss(f), argnums(row)))(*batches(row)),
    "grad of vmap": grad_of_vmap,
}


@ROWS
@each("way", WAYS)
def test_batches(row, way):
    assert_close(WAYS[way](row.op, row), WAYS[way](row.reference, row))


@ROWS
def test_vmap_over_every_subset_of_inputs(row):
    for in_dims in itertools.product((0, None), repeat=len(row.shapes)):
        if set(in_dims) == {None} or (row.mutates and in_dims[0] is None):
            continue
        mixed = [b if dim == 0 else x for b, x, dim in zip(batches(row), row.inputs(), in_dims, strict=True)]

        assert_close(vmap(row.op, in_dims)(*mixed), vmap(row.reference, in_dims)(*mixed))


@each("row", [row for row in TWICE.values() if not row.mutates],
                         ids=[name for name, row in TWICE.items() if not row.mutates])  # fmt: skip
@each("order", [hessian, lambda f: jacfwd(jacfwd(f)), lambda f: jacrev(jacfwd(f)),
                                   lambda f: jacrev(jacrev(f))],
                         ids=["hessian", "jacfwd of jacfwd", "jacrev of jacfwd", "jacrev of jacrev"])  # fmt: skip
def test_vmap_of_second_derivatives(row, order):
    def second(f):
        return vmap(lambda x, *rest: order(lambda y: row.loss(f)(y, *rest))(x))(*batches(row))

    assert_close(second(row.op), second(row.reference))


def test_writing_one_tensor_once_per_sample_raises():
    from ops import scale_

    with pytest.raises(KernelError, match="'x' is not batched"):
        vmap(scale_, (None, 0))(torch.ones(3, dtype=torch.float64), torch.ones(2, 3, dtype=torch.float64))


def test_a_loop_over_a_batch_is_compiled_for_every_size(fresh_compiler):
    """The second size makes the compiler trace with a symbol for it."""
    op = custom_op("vmap::looped", lambda x: x.sin(), schema="(Tensor x) -> Tensor", replace=True)
    op.register_fake(torch.empty_like)
    compiled = torch.compile(torch.vmap(op), backend="aot_eager")

    for size in (3, 5, 7, 1):
        x = torch.rand(size, 2)
        torch.testing.assert_close(compiled(x), x.sin())


@each("way", ["rule", "reference", "loop"])
def test_a_batched_tensor_outside_of_its_vmap_raises_and_does_not_crash(way):
    kept = []
    vmap(lambda x: kept.append(x) or x)(torch.ones(2, 3))
    op = custom_op(
        "vmap::outside", lambda x: x * 2, schema="(Tensor x) -> Tensor", reference=way == "reference", replace=True
    )
    if way == "rule":
        op.register_vmap(lambda info, in_dims, x: (x * 2, in_dims[0]))

    with pytest.raises(KernelError, match=r"outside of its torch\.vmap"):
        op(kept[0])


def test_a_vmap_rule_that_calls_an_op_on_a_tensor_that_is_still_batched_raises_and_does_not_crash():
    inner = custom_op("vmap::inner", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    inner.register_vmap(lambda info, in_dims, x: (x * 2, in_dims[0]))
    outer = custom_op("vmap::outer", lambda x: x * 2, schema="(Tensor x) -> Tensor", replace=True)
    kept = []
    outer.register_vmap(lambda info, in_dims, x: (inner(kept[0]), in_dims[0]))

    with pytest.raises(KernelError, match=r"outside of its torch\.vmap"):
        vmap(lambda x: kept.append(x) or outer(x))(torch.ones(2, 3))
