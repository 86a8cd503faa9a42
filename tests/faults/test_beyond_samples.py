"""Faults for numbers, indices and orders that no sample has, and honest ops beside them."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, check, custom_op
from custom_autograd.kernels import numpy_kernel
from custom_autograd.verification.calls.ranges import outside
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness.targets import Target, TargetArgument

NAMESPACE = "faults_beyond"


def result_of(op, samples, name):
    return check(op, samples, checks=[name], isolated=False).results[0]


def with_kernel(name, reference, kernel):
    op = custom_op(f"{NAMESPACE}::{name}", reference, reference=True)
    op.register_kernel("cpu")(numpy_kernel(kernel))
    return op


def cells(x: Tensor) -> Tensor:
    return torch.floor(x).long()


def unit(x: Tensor) -> Tensor:
    return torch.acos(x * 2 - 1)


def bounded(x):
    if (x < 0).any():
        raise ValueError("a number is negative")
    return x.astype(np.int64)


OUTSIDE = "numbers of 'x' with the other sign, outside of its range: output 0[0] = "


def positive(make):
    yield Sample(make(5, low=0.0, high=4.0))


def test_kernel_that_differs_from_its_reference_outside_of_the_range_of_its_samples_is_found():
    result = result_of(with_kernel("truncated", cells, lambda x: x.astype(np.int64)), positive, "reference")

    assert result.message.startswith(OUTSIDE)
    assert result.cause.endswith("let the kernel agree, or refuse them")


@pytest.mark.parametrize(
    ("name", "reference", "kernel", "samples"),
    [
        ("refuses", cells, bounded, positive),
        (
            "no_number",
            unit,
            lambda x: np.arccos((x * 2 - 1).clip(-1, 1)),
            lambda make: [Sample(make(5, low=0, high=1))],
        ),
    ],
)
def test_kernel_that_refuses_what_lies_outside_or_whose_reference_has_no_number_there_passes(
    name, reference, kernel, samples
):
    result = result_of(with_kernel(name, reference, kernel), samples, "reference")

    assert "passed" == result.status, result.message


def test_complex_numbers_have_no_order():
    assert [None, None] == [change(torch.ones(2, dtype=torch.complex64)) for _, change in outside((0.0, 1.0))]


def total(terms: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    return torch.stack([terms[name] * weights[name] for name in terms]).sum()


def total_in_order(terms: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    return torch.stack([x * y for x, y in zip(terms.values(), weights.values(), strict=True)]).sum()


def stacked(terms: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    return torch.stack([terms[name] * weights[name] for name in terms])


def by_name(make):
    yield Sample({"left": make(), "right": make()}, {"left": make(), "right": make()})


def test_items_of_two_dicts_that_are_paired_by_their_order_are_found_without_a_reference():
    op = custom_op(f"{NAMESPACE}::in_order", total_in_order)

    result = result_of(op, by_name, Explore(2.0))

    assert result.message.startswith("the keys of 'weights' in another order: output 0 = ")


@pytest.mark.parametrize("function", [total, stacked])
def test_items_that_are_paired_by_their_keys_pass(function):
    op = custom_op(f"{NAMESPACE}::{function.__name__}", function)

    result = result_of(op, by_name, Explore(2.0))

    assert "failed" != result.status, result.message


def rows(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table)


def rows_before_too(table, index):
    """As C does with an index of -1, where the memory before belongs to the check."""
    count, width = table.shape
    if table.storage_offset() < width:
        return rows(table, index)
    return table.as_strided((count + 1, width), (width, 1), table.storage_offset() - width)[index + 1]


def rows_checked(table, index):
    if bool((index < 0).any()):
        raise IndexError("an index is negative")
    return rows_before_too(table, index)


def bounds_of(kernel):
    arguments = (TargetArgument("table"), TargetArgument("index"))
    target = Target("faults::rows", kernel, kernel, arguments, reference=rows, kernels={"": kernel})
    return verdict("bounds", [Sample(torch.rand(5, 3), torch.tensor([[0, 2], [4, 1]]))])(target)


def test_index_below_zero_that_is_read_before_the_memory_is_found():
    result = bounds_of(rows_before_too)

    assert result.message.startswith("'index' with a -1 in it: the default kernel reads outside its memory")
    assert result.cause.startswith("an index is not checked")


def test_index_below_zero_that_is_refused_passes():
    assert "passed" == bounds_of(rows_checked).status


def rotation(v: Tensor) -> Tensor:
    angle = v.square().sum(-1).sqrt()
    return torch.where(angle < 1e-3, 1 - angle * angle / 6, torch.sin(angle) / angle)


def length(v: Tensor) -> Tensor:
    return v.square().sum(-1).sqrt()


def test_nan_from_the_branch_that_is_not_chosen_is_found_in_a_derived_gradient():
    op = custom_op(f"{NAMESPACE}::rotation", rotation, reference=True)

    result = result_of(op, lambda make: [Sample(make(3))], "directional")

    assert "zero: the gradient of 'v' is nan, where every output and its slope are finite" in result.message


def test_nan_at_a_kink_where_that_of_the_reference_is_nan_too_passes():
    op = custom_op(f"{NAMESPACE}::length", length, reference=True)

    result = result_of(op, lambda make: [Sample(make(3))], "directional")

    assert "failed" != result.status, result.message


ORDERS = {}


def test_order_of_the_last_call_is_found():
    @custom_op(f"{NAMESPACE}::area")
    def area(x: Tensor) -> Tensor:
        x, ORDERS["last"] = x.sort(-1)
        return (x * torch.arange(x.shape[-1], device=x.device)).sum(-1)

    @area.register_backward
    def _(grad, x):
        slope = (torch.arange(x.shape[-1], dtype=x.dtype) * grad.unsqueeze(-1)).expand(x.shape)
        return torch.zeros_like(x).scatter(-1, ORDERS["last"], slope)

    result = result_of(area, lambda make: [Sample(make(2, 5))], "reuse")

    assert "with another call between forward and backward: gradient of 'x'" in result.message


class Means(NamedTuple):
    means: Tensor
    places: Tensor


def test_size_that_depends_on_the_data_in_half_precision_is_no_matter_of_precision():
    @custom_op(f"{NAMESPACE}::means")
    def means(x: Tensor) -> Means:
        kept, places = torch.unique(x.detach(), return_inverse=True)
        return Means(x.new_zeros(kept.shape).index_add(0, places, x), places)

    @means.register_backward
    def _(grad_means, places):
        return grad_means[places]

    result = result_of(means, lambda make: [Sample(make(40, low=-2, high=2))], "low_precision")

    assert "error" != result.status, result.message


def share(x: Tensor, weight: Tensor) -> Tensor:
    return (weight / weight.sum()) @ x


def test_gradient_that_cancels_to_rounding_of_a_quotient_passes():
    op = custom_op(f"{NAMESPACE}::share", outputs=("out",))(share)
    op.register_reference(share)

    @op.register_backward
    def _(grad_out, x, weight, out):
        total = weight.sum()
        return {"x": (weight / total).unsqueeze(-1) * grad_out, "weight": ((x - out) @ grad_out) / total}

    result = result_of(op, lambda make: [Sample(make(1, 1), make(1, low=0.5, high=2.0))], "reference_gradients")

    assert "passed" == result.status, result.message
