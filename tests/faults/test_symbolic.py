"""The check `symbolic` fails a fake kernel that knows the sizes of the sample only."""

import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


def declare(name, fake):
    def kernel(x: Tensor) -> Tensor:
        return x.sum(0)

    op = torch.library.custom_op(f"faults_symbolic::{name}", kernel, mutates_args=())
    op.register_fake(fake)
    return op


@custom_op("faults_symbolic::ours")
def ours(x: Tensor, w: Tensor) -> Tensor:
    return torch.cat([x * w[:, 0], x])


@ours.register_fake
def _(x, w):
    return x.new_empty(int(x.shape[0]) * 2, x.shape[1])


@torch.library.custom_op("faults_symbolic::boxes", mutates_args=())
def boxes(x: Tensor) -> Tensor:
    return x.sum(1)


@boxes.register_fake
def _(x):
    if x.shape[1] != 4:
        raise ValueError("a box has 4 numbers")
    return x.new_empty(x.shape[0])


@custom_op("faults_symbolic::padded", reference=True)
def padded(x: Tensor, n: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, n))


@custom_op("faults_symbolic::padded_to_a_multiple", reference=True)
def padded_to_a_multiple(x: Tensor, n: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % n))


def result_of(op, sample=None):
    return verdict("symbolic", [sample or Sample(torch.ones(4, 3))])(op)


def fake_by_quarters(x):
    return x.new_empty(x.shape[1:]) if x.shape[0] % (x.shape[0] // 4) == 0 else x.new_empty(x.shape[-1])


HONEST = declare("honest", lambda x: x.new_empty(x.shape[1:]))
QUARTERS = declare("quarters", fake_by_quarters)

FAULTS = {
    "constant": (
        lambda x: x.new_empty(3),
        "output 0: where dimension 1 of 'x' is 9 instead of 3, dimension 0 of 'x' is 12 instead of 4, "
        "the fake kernel gives shape (3,), the real one gives (9,)",
    ),
    "integer": (
        lambda x: x.new_empty(int(x.shape[1])),
        "the fake kernel holds for size 3 (dimension 1 of 'x') alone, and the op runs with 9",
    ),
    "comparison": (
        lambda x: x.new_empty(x.shape[1] if x.shape[0] == 4 else x.shape[-1]),
        "the fake kernel holds for size 4 (dimension 0 of 'x') alone, and the op runs with 12",
    ),
    "wrong_dimension": (lambda x: x.new_empty(x.shape[0] - 1), "the fake kernel gives shape (11,), the real one gives"),
}
OPS = {name: declare(name, fake) for name, (fake, _) in FAULTS.items()}


def name_of(op):
    return getattr(op, "__name__", str(op))


@each("op", [HONEST, QUARTERS, torch.ops.aten.mm.default, torch.ops.aten.nonzero.default])
def test_fake_of_any_size_passes(op):
    sample = Sample(torch.ones(4, 3), torch.ones(3, 2)) if op is torch.ops.aten.mm.default else None

    assert "passed" == result_of(op, sample).status


@each("name", FAULTS)
def test_fake_that_fixes_a_size_fails(name):
    result = result_of(OPS[name])

    assert FAULTS[name][1] in result.message


def test_constant_shape_is_told_as_the_cause():
    assert "the fake kernel always gives the same shape" == result_of(OPS["constant"]).cause


def test_fixed_size_of_an_op_declared_here_fails():
    result = result_of(ours, Sample(torch.ones(4, 3), torch.ones(3, 5)))

    assert "the fake kernel holds for size 4 (dimension 0 of 'x') alone" in result.message


def test_size_that_the_op_asks_for_is_not_blamed():
    assert "passed" == result_of(boxes, Sample(torch.ones(6, 4))).status


def test_size_that_equals_a_number_among_the_arguments_stays():
    result = result_of(torch.ops.aten.view.default, Sample(torch.ones(4, 3), [4, 3]))

    assert "skipped" == result.status
    assert "no size can vary" in result.message


def test_plain_function_is_skipped_with_the_reason():
    result = result_of(torch.sin)

    assert "skipped" == result.status
    assert "only an op of the dispatcher" in result.message


@each("op", [padded, padded_to_a_multiple])
def test_reference_that_pads_passes(op):
    assert "passed" == result_of(op, Sample(torch.ones(3, 4), 5)).status


def test_reference_that_loops_over_a_size_is_told_to_register_a_fake():
    @custom_op("faults_symbolic::integrate", reference=True)
    def integrate(x: Tensor) -> Tensor:
        return torch.stack([x[:, : i + 1].sum(1) for i in range(x.shape[1])], 1)

    result = result_of(integrate, Sample(torch.ones(3, 5)))

    assert "failed" == result.status
    assert_expected_inline(
        result.cause,
        """\
the fake is derived from the reference, which loops over a size or makes a number of it by int(...) or ==: \
register_fake""",
    )


def test_fixed_size_of_a_registered_fake_is_not_blamed_on_the_reference():
    result = result_of(ours, Sample(torch.ones(4, 3), torch.ones(3, 5)))

    assert "int(...) or == makes a number of a size" == result.cause
