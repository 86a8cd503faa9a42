"""Faults where arguments meet: equal numbers, large integers, two switches, keys, items, and what is left out."""

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.calls.case import Case
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness.targets import target_of


def with_kernel(name, reference, kernel):
    """An op that is right in its reference, and wrong in its kernel of the CPU if that is another function."""
    op = custom_op(f"exact_changes::{name}", reference, reference=True)
    op.register_kernel("cpu", kernel, name="other")
    return op


def below(x: Tensor, edges: Tensor) -> Tensor:
    return torch.searchsorted(edges, x)


def at_or_below(x: Tensor, edges: Tensor) -> Tensor:
    return torch.searchsorted(edges, x, right=True)


def rounded(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale).round() * scale


def rounded_up(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale + 0.5).floor() * scale


def rounded_by_reciprocal(x: Tensor, scale: Tensor) -> Tensor:
    return (x * (1 / scale)).round() * scale


def key(index: Tensor, rows: int, columns: int) -> Tensor:
    del rows
    return index[:, 0] * columns + index[:, 1]


def short_key(index: Tensor, rows: int, columns: int) -> Tensor:
    return key(index.int(), rows, columns).long()


def hashed(index: Tensor, table: Tensor) -> Tensor:
    return table[(index[:, 0] * 73856093 + index[:, 1] * 19349663) % table.shape[0]]


def hashed_in_32_bits(index: Tensor, table: Tensor) -> Tensor:
    low = index.int()
    return table[((low[:, 0] * 73856093 + low[:, 1] * 19349663) % table.shape[0]).long()]


def picked(index: Tensor, table: Tensor) -> Tensor:
    return table[index]


def product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x.long() * weight.long()).sum(-1) * scale


def product_in_16_bits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return (x.short() * weight.short()).sum(-1, dtype=torch.int16) * scale


def soft_maximum(x: Tensor) -> Tensor:
    return x.logsumexp(-1)


def soft_maximum_from_zero(x: Tensor) -> Tensor:
    most = x.amax(-1, keepdim=True).clamp(min=0) if x.shape[-1] else x.new_zeros(*x.shape[:-1], 1)
    return (x - most).exp().sum(-1).log() + most.squeeze(-1)


def banded(x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    kept = torch.ones(x.shape[-2:], dtype=torch.bool).tril(0 if is_causal else x.shape[-1])
    return x.masked_fill(~(kept if mask is None else kept & mask), 0)


def masked_or_banded(x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    return banded(x, mask, is_causal and mask is None)


def mixed(xs: dict[str, Tensor], gains: dict[str, float]) -> Tensor:
    return xs["left"] * gains["left"] + xs["right"] * gains["right"]


def mixed_in_order(xs: dict[str, Tensor], gains: dict[str, float]) -> Tensor:
    left, right = gains.values()
    return xs["left"] * left + xs["right"] * right


def weighted(xs: list[Tensor], weights: list[float]) -> Tensor:
    return torch.stack([x * weight for x, weight in zip(xs, weights, strict=True)]).sum(0)


def weighted_but_for_ones(xs: list[Tensor], weights: list[float]) -> Tensor:
    return torch.stack([x if weight == 1 else x * weight for x, weight in zip(xs, weights, strict=True)]).mean(0) * (
        1 if 1.0 in weights else len(xs)
    )


BINS = [Sample(torch.tensor([0.3, -0.2, 0.7, 0.1]), torch.tensor([-1.0, 0.0, 0.5]))]
SCALED = [Sample(torch.tensor([0.31, -0.2, 0.7]), torch.tensor(0.1))]
KEYS = [Sample(torch.tensor([[0, 1], [2, 3]]), 4, 5)]
CELLS = [Sample(torch.tensor([[0, 1], [2, 3], [5, 1]]), torch.arange(7.0) ** 2)]
BYTES = [Sample(*torch.tensor([[3, -17, 20], [20, 4, -5]], dtype=torch.int8), torch.tensor(0.5))]
CODES = [Sample(*torch.tensor([[3, 15, 2], [4, 1, 9]], dtype=torch.uint8), torch.tensor(0.5))]
LOGITS = [Sample(torch.tensor([[-0.5, 0.25, 0.75], [-1.0, -0.5, 0.5]]))]
MASKED = [Sample(torch.arange(1.0, 10.0).view(3, 3), torch.tensor([[True, False, False]] * 3))]
MIXED = [Sample({"left": torch.ones(3), "right": torch.arange(3.0)}, {"left": 0.5, "right": 2.0})]
WEIGHTED = [Sample([torch.ones(2), torch.arange(2.0)], [0.5, 2.0])]

ROWS = [
    ("edge", below, at_or_below, BINS, "'x' with numbers of 'edges'"),
    ("half", rounded, rounded_up, SCALED, "'x' with halves of 'scale', a power of 2"),
    ("key", key, short_key, KEYS, "integers 131071 times as large"),
    ("hash", hashed, hashed_in_32_bits, CELLS, "integers 131071 times as large"),
    ("bytes", product, product_in_16_bits, BYTES, "each integer the largest of its 8 or 16 bits"),
    ("negative", soft_maximum, soft_maximum_from_zero, LOGITS, "numbers of 'x' 1000 times as large, and all negative"),
    ("switches", banded, masked_or_banded, MASKED, "is_causal=True, 'mask' "),
    ("keys", mixed, mixed_in_order, MIXED, "the keys of 'gains' in another order"),
    ("items", weighted, weighted_but_for_ones, WEIGHTED, "weights["),
]


@pytest.mark.parametrize(("name", "reference", "kernel", "samples", "message"), ROWS, ids=[row[0] for row in ROWS])
def test_a_fault_is_named_by_what_shows_it(name, reference, kernel, samples, message):
    (result,) = check(with_kernel(name, reference, kernel), samples, checks=[Explore(3.0)], isolated=False).results

    assert result.message.startswith(message)


@pytest.mark.parametrize(
    ("name", "reference", "kernel", "samples"),
    [
        ("honest_edge", below, lambda x, edges: torch.bucketize(x, edges), BINS),
        ("honest_half", rounded, rounded_by_reciprocal, SCALED),
        ("honest_hash", hashed, lambda index, table: hashed(index.clone(), table), CELLS),
        ("honest_bytes", product, lambda x, weight, scale: product(x.int(), weight.int(), scale), BYTES),
        ("honest_key", key, lambda index, rows, columns: index @ torch.tensor([columns, 1]), KEYS),
    ],
)
def test_another_formula_passes(name, reference, kernel, samples):
    looker = Looker(target_of(with_kernel(name, reference, kernel)), samples[0])

    verdicts = [looker.look(Case((change,))) for change in looker.changes() if change.key in EXACT]

    assert any(not verdict.reason for verdict in verdicts)
    assert not any(verdict.fault for verdict in verdicts)


EXACT = ("coincidence", "integers")


def test_flags_and_codes_of_four_bits_stay():
    looker = Looker(target_of(with_kernel("codes", product, product_in_16_bits)), CODES[0])

    assert not [change.text for change in looker.changes() if change.key == "integers"]


def test_an_index_that_its_reference_does_not_bring_within_bounds_stays():
    op = with_kernel("looked_at", picked, picked)
    looker = Looker(target_of(op), Sample(torch.tensor([2, 0]), torch.arange(4.0)))

    reasons = [looker.look(Case((change,))).reason for change in looker.changes() if change.key == "integers"]

    assert reasons
    assert all(reasons)


@custom_op("exact_changes::filtered", reference=True)
def filtered(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.conv1d(x, weight, bias)


@filtered.register_backward
def _(grad, x, weight):
    return {
        "x": torch.nn.grad.conv1d_input(x.shape, weight, grad),
        "weight": torch.nn.grad.conv1d_weight(x, weight.shape, grad),
        "bias": None,
    }


def test_an_optional_tensor_that_no_sample_gives_is_given():
    def samples(make):
        yield Sample(make(2, 3, 8), make(4, 3, 5))

    (result,) = check(filtered, samples, checks=[Explore(3.0)], isolated=False).results

    assert result.message.startswith("with 'bias' (4,), as given: gradient of 'bias'")


@custom_op("exact_changes::looked_up", reference=True)
def looked_up(index: Tensor, table: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.nn.functional.linear(table[index], weight, bias)


@looked_up.register_backward
def _(grad, index, table, weight):
    of_table = torch.zeros_like(table).index_add(0, index, grad @ weight)
    return {"table": of_table, "weight": grad.mT @ table[index], "bias": None}


def test_it_is_made_like_a_tensor_of_numbers():
    def samples(make):
        yield Sample(torch.tensor([2, 0, 1]), make(6, 5), make(4, 5))

    (result,) = check(looked_up, samples, checks=[Explore(3.0)], isolated=False).results

    assert result.message.startswith("with 'bias' (4,), as given: gradient of 'bias'"), result.message


def test_minus_infinity_of_a_masked_row_is_not_nan():
    def log_sum(x: Tensor) -> Tensor:
        return x.logsumexp(-1)

    def unguarded(x: Tensor) -> Tensor:
        return (x - x.amax(-1, keepdim=True)).exp().sum(-1).log() + x.amax(-1)

    op = with_kernel("log_sum", log_sum, unguarded)
    results = check(op, [Sample(torch.randn(2, 3))], checks=["special_values"], isolated=False).results

    assert "numbers of 'x' with a row of -inf: output 0[1] = nan, expected -inf" in results[0].message


def test_a_size_that_only_broadcasts_is_not_tried():
    @custom_op("exact_changes::halves", reference=True)
    def halves(x: Tensor, both: Tensor) -> Tensor:
        left, right = both.chunk(2, -1)
        return x * left + right

    @halves.register_backward
    def _(grad, x, both):
        left, _ = both.chunk(2, -1)
        return {"x": grad * left, "both": torch.cat((grad * x, grad), -1)}

    def samples(make):
        yield Sample(make(3, 4), make(3, 8))

    report = check(halves, samples, checks=["sizes"], isolated=False)

    assert report.ok, str(report)
