"""The check `vmap` fails a batching rule that differs from a loop, and skips an op without one."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import VmapUnavailable, custom_op
from custom_autograd.schema.samples import Sample


def result_of(op, samples=lambda make: [Sample(make(4), make(4))]):
    return verdict("vmap", samples)(op)


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


def raising(error, name):
    """An op with a batching rule that raises in every call."""
    op = custom_op(f"vmap_faults::{name}", lambda x, w: x * w, schema="(Tensor x, Tensor w) -> Tensor", replace=True)

    @op.register_vmap
    def _(info, in_dims, x, w):
        raise error

    return op


class NotYet(Product):
    @staticmethod
    def vmap(info, in_dims, x, w):
        raise NotImplementedError("later")


def test_registered_rule_that_always_raises_fails():
    for target in (NotYet, raising(NotImplementedError("later"), "not_yet")):
        result = result_of(target)

        assert "failed" == result.status
        assert "batched over 'x', 'w' at dimension 0: vmap raises NotImplementedError: later (" in result.message
        assert "test_vmap.py:" in result.message


def test_registered_rule_that_says_that_no_batch_is_possible_is_skipped():
    result = result_of(raising(VmapUnavailable("vmap_faults::cannot", "no batch is possible"), "cannot"))

    assert "skipped" == result.status
    assert "no batch is possible" in result.message


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
    assert "(ratio 2), by a loop" in result.message


def test_random_results_are_skipped():
    result = result_of(lambda x, w: torch.nn.functional.dropout(x * w))

    assert "skipped" == result.status
    assert "the op gives other results from one call to the next" in result.message


def first_of(tensors, in_dims, size):
    return [t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]


class Middle(Product):
    """Wrong where both are batched along 1."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        factor = 2 if in_dims == (1, 1) and x.dim() > 2 else 1
        return Product.apply(*first_of((x, w), in_dims, info.batch_size)) * factor, 0


class MiddleWithFirst(Product):
    """Wrong where x is batched along 1 and w along 0."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        factor = 2 if in_dims == (1, 0) and x.dim() > 2 else 1
        return Product.apply(*first_of((x, w), in_dims, info.batch_size)) * factor, 0


class MiddleAlone(Product):
    """Wrong where x is batched along 1, and w is not batched."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        factor = 2 if in_dims == (1, None) and x.dim() > 2 else 1
        return Product.apply(*first_of((x, w), in_dims, info.batch_size)) * factor, 0


class FourAtMost(Product):
    """The fifth of a batch is forgotten."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        out = Product.apply(*first_of((x, w), in_dims, info.batch_size))
        return torch.cat([out[:4], torch.zeros_like(out[4:])]), 0


@each(
    ("op", "text"),
    [
        (Middle, "batched over 'x', 'w' at dimension 1: "),
        (MiddleWithFirst, "batched over 'x' at dimension 1, 'w' at dimension 0: "),
        (MiddleAlone, "batched over 'x' at dimension 1: "),
        (FourAtMost, "batched over 'x', 'w' at dimension 0, 5 of them: output 0[4, "),
    ],
)
def test_middle_dimensions_and_larger_batches_are_looked_at(op, text):
    result = result_of(op, lambda make: [Sample(make(4, 2), make(4, 2))])

    assert "failed" == result.status
    assert text in result.message


class Squared(Function):
    """y = x² with a batching rule."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def vmap(info, in_dims, x):
        return Squared.apply(x), in_dims[0]


class FirstOrLast(Squared):
    """Takes a batch that is not first to be last."""

    @staticmethod
    def vmap(info, in_dims, x):
        dim = 0 if in_dims[0] == 0 else -1
        return Squared.apply(x.movedim(in_dims[0], dim)), dim if x.shape[-1] == info.batch_size else 0


@each(("op", "status"), [(Squared, "passed"), (FirstOrLast, "failed")])
def test_the_middle_dimension_of_one_input_is_looked_at(op, status):
    result = result_of(op, lambda make: [Sample(make(3, 2))])

    assert status == result.status, result.message
    assert status == "passed" or "batched over 'x' at dimension 1: " in result.message


def test_right_rule_passes_for_matrices():
    result = result_of(Product, lambda make: [Sample(make(4, 2), make(4, 2)), Sample(make(3, 4, 2), make(2))][:1])

    assert ("passed", "") == (result.status, result.message)


@custom_op("faults_vmap::forgets_scale")
def forgets_scale(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


@forgets_scale.register_vmap
def _(info, in_dims, x, scale):
    return forgets_scale(x), in_dims[0]


@custom_op("faults_vmap::scaled")
def scaled(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * scale


@scaled.register_vmap
def _(info, in_dims, x, scale):
    return scaled(x, scale), in_dims[0]


@each("given", [(), (1.0,)])
def test_a_scalar_that_a_rule_forgets_is_noticed(given):
    found = [result_of(op, lambda make: [Sample(make(4), *given)]) for op in (forgets_scale, scaled)]

    assert ["failed", "passed"] == [result.status for result in found]
    assert "scale=0.7, batched over 'x' at dimension 0: " in found[0].message


def refuses_small(x, scale=1.0):
    if scale < 1:
        raise ValueError("scale must be >= 1")
    return x * scale


def test_a_scalar_that_the_op_refuses_is_left_out():
    assert "passed" == result_of(refuses_small, lambda make: [Sample(make(4), 1.0)]).status


@custom_op("faults_vmap::of_one_layout")
def of_one_layout(x: torch.Tensor) -> torch.Tensor:
    if not x.is_contiguous():
        raise ValueError("'x' must be contiguous")
    return x * 2


def test_an_op_that_refuses_the_slices_of_a_batch_passes_where_it_takes_them():
    result = result_of(of_one_layout, [Sample(torch.randn(3, 4))])

    assert ("passed", "") == (result.status, result.cause)
    assert "the op refuses a slice (ValueError: 'x' must be contiguous)" in result.message


@custom_op("faults_vmap::writes_to_one_layout", mutates_args=("x",))
def writes_to_one_layout(x: torch.Tensor) -> None:
    x.view(-1).mul_(2)


def test_an_op_that_refuses_to_write_to_the_slices_of_a_batch_passes_where_it_takes_them():
    result = result_of(writes_to_one_layout, [Sample(torch.randn(3, 4))])

    assert ("passed", "") == (result.status, result.cause)
    assert "the op refuses a slice (RuntimeError: view size is not compatible" in result.message


def test_number_that_depends_on_data_is_skipped():
    op = custom_op(
        "faults_vmap::count", lambda x: (x * 1, int((x > 1.9).sum())), schema="(Tensor x) -> (Tensor, SymInt)"
    )
    op.register_fake(lambda x: (torch.empty_like(x), torch.library.get_ctx().new_dynamic_size()))
    result = result_of(op, [Sample(torch.tensor([2.0, 1.95]))])

    assert "skipped" == result.status
    assert "the output 'output_1' is not a tensor and differs between the samples of a vmap" in result.message
