"""The check `vmap` fails a batching rule that differs from a loop, and skips an op without one."""

import torch
from torch.autograd import Function

from custom_autograd.core.samples import Sample
from custom_autograd.verification.check import check


def result_of(op, samples=lambda make: [Sample(make(4), make(4))]):
    (result,) = check(op, samples, checks=["vmap"]).results
    return result


class Product(Function):
    """y = x * w with a batching rule."""

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info, in_dims, x, w):
        x, w = (
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip((x, w), in_dims, strict=True)
        )
        return Product.apply(x, w), 0


class IgnoresSecond(Product):
    """Uses the first slice of a batched w."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        x, w = (t if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims, strict=True))
        return Product.apply(x, w[0] if in_dims[1] is not None else w).expand(info.batch_size, -1), 0


class NoRule(Function):
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


def test_right_rule_passes():
    assert "passed" == result_of(Product).status


def test_rule_that_ignores_a_batch_fails():
    result = result_of(IgnoresSecond)

    assert "failed" == result.status
    assert "batched over 'x', 'w' at dimension 0: output 0[2, " in result.message


def test_missing_rule_is_skipped_with_its_reason():
    result = result_of(NoRule)

    assert "skipped" == result.status
    assert "does not have vmap support" in result.message


def test_tensors_in_lists_are_batched_too():
    assert "passed" == result_of(torch.cat, lambda make: [Sample([make(2), make(3)])]).status


def test_result_whose_size_depends_on_data_is_skipped():
    result = result_of(lambda x: x[x > 1.9], [Sample(torch.tensor([2.0, 1.95]))])

    assert "skipped" == result.status
    assert "depends on the data" in result.message


class LastDimension(Product):
    """Takes a batch along the last dimension for one along the first."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        x = x if in_dims[0] is None else x.movedim(abs(in_dims[0]), 0) if in_dims[0] == 0 else x.reshape(3, -1)
        w = w if in_dims[1] is None else w.movedim(in_dims[1], 0)
        return Product.apply(x, w), 0


class OuterLevel(Product):
    """Right for one level of vmap, and wrong for the level around it."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        x, w = (t if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims, strict=True))
        x, w = (t if t.dim() == max(x.dim(), w.dim()) else t.expand(info.batch_size, *t.shape) for t in (x, w))
        return OuterLevel.apply(x, w) * (2 if x.dim() == 3 else 1), 0


def test_batch_along_the_last_dimension_is_looked_at():
    assert "'x' at dimension -1" in result_of(LastDimension).message.replace("'x', 'w'", "'x'")


def test_each_combination_of_dimensions_is_looked_at():
    assert "batched over 'x' at dimension -1, 'w' at dimension 0: " in result_of(LastDimension).message


def test_nested_vmap_is_looked_at():
    result = result_of(OuterLevel)

    assert "batched over 'x', 'w' at dimension 0, and within over 'x', 'w' at dimension 0: " in result.message
    assert "(ratio 2) by a loop" in result.message


def test_random_results_are_skipped():
    result = result_of(lambda x, w: torch.nn.functional.dropout(x * w))

    assert "skipped" == result.status
    assert "the op gives other results from one call to the next" in result.message
