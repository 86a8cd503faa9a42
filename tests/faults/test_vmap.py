"""The check `vmap` fails a batching rule that differs from a loop, and skips an op without one."""

import torch
from torch.autograd import Function

from custom_autograd.checking import check
from custom_autograd.core.samples import Sample


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
        x, w = (t if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims, strict=True))
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
