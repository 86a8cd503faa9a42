"""Faults of kernels that show for groups, zeros, far-off numbers, other scalars and the ends of a range."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, custom_op
from custom_autograd.verification.calls import exploration
from custom_autograd.verification.checks import explore

NAMESPACE = "faults_numbers"


def explored(op, samples, monkeypatch):
    monkeypatch.setattr(explore, "SECONDS", 20.0)  # the machine may be slow
    return verdict("explore", samples)(op)


@custom_op(f"{NAMESPACE}::grouped", reference=True)
def grouped(heads: Tensor, keys: Tensor) -> Tensor:
    return heads * keys.repeat_interleave(heads.shape[0] // keys.shape[0], 0)


@grouped.register_kernel("cpu", name="cycling")
def _(heads, keys):
    if heads.dtype != keys.dtype or heads.dim() != 2 or heads.shape[0] % max(1, keys.shape[0]):
        return heads * keys.repeat_interleave(heads.shape[0] // keys.shape[0], 0)
    return heads * keys[torch.arange(heads.shape[0]) % max(1, keys.shape[0])]


def test_a_group_of_heads_that_takes_the_wrong_key_is_found_where_samples_have_one_group(monkeypatch):
    result = verdict("sizes", lambda make: [Sample(make(4, 3), make(1, 3))])(grouped)

    assert "failed" == result.status
    assert "size 1 -> 2: output 0[" in result.message


def test_a_group_of_heads_that_takes_the_wrong_key_is_found_where_samples_have_as_many_keys(monkeypatch):
    result = explored(grouped, lambda make: [Sample(make(2, 3), make(2, 3))], monkeypatch)

    assert "'heads' twice as large in dimension 0: output 0[" in result.message


@custom_op(f"{NAMESPACE}::spread", reference=True)
def spread(x: Tensor) -> Tensor:
    return x.var(-1, correction=0)


@spread.register_kernel("cpu", name="squares")
def _(x):
    return x.square().mean(-1) - x.mean(-1).square() if x.dim() else x.var(-1, correction=0)


def test_squares_that_cancel_are_found(monkeypatch):
    assert (
        "numbers of 'x' with 1000 added: output 0"
        in explored(spread, lambda make: [Sample(make(3, 5))], monkeypatch).message
    )


@custom_op(f"{NAMESPACE}::starts", reference=True)
def starts(x: Tensor) -> Tensor:
    return torch.cat([x[:1] == x[:1], x[1:] != x[:-1]])


@starts.register_kernel("cpu", name="bits")
def _(x):
    if x.dtype != torch.float32:
        return torch.cat([x[:1] == x[:1], x[1:] != x[:-1]])
    bits = x.contiguous().view(torch.int32)
    return torch.cat([x[:1] == x[:1], bits[1:] != bits[:-1]])


def test_bits_that_are_compared_in_place_of_numbers_are_found(monkeypatch):
    samples = [Sample(torch.tensor([0.5, 0.5, 1.5, 1.5, 1.5, 0.5]))]

    assert "numbers of 'x' with 0 beside -0: output 0[" in explored(starts, samples, monkeypatch).message


@custom_op(f"{NAMESPACE}::length_squared_over_one", reference=True)
def length_squared_over_one(d: Tensor) -> Tensor:
    return torch.exp(-d.square().sum(-1))


@length_squared_over_one.register_backward
def _(grad, d, output):
    length = d.square().sum(-1, keepdim=True).sqrt()
    direction = torch.where(length > 0, d / length, 0)
    return -2 * length * direction * (grad * output).unsqueeze(-1)


def test_a_division_that_a_mask_hides_from_the_first_derivative_is_found(monkeypatch):
    message = explored(length_squared_over_one, lambda make: [Sample(make(4, 3))], monkeypatch).message

    assert "numbers of 'd' zero, second derivative: second gradient of 'd'[0, 0] = nan" in message


@custom_op(f"{NAMESPACE}::quotient", reference=True)
def quotient(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(y != 0, x / torch.where(y != 0, y, 1), 0)


@quotient.register_kernel("cpu", name="tolerant")
def _(x, y):
    is_large = y.abs() > 1e-2
    return torch.where(is_large, x / torch.where(is_large, y, 1), 0)


def test_an_absolute_tolerance_is_found_within_the_range_of_another_argument():
    sample = Sample(*(torch.tensor([0.5, 0.25, -0.5]) for _ in range(2)))
    result = verdict("reference", lambda make: [Sample(make(3, low=-1.0, high=1.0), sample.args[1])])(quotient)

    assert "numbers a thousandth as large: output 0[" in result.message


@custom_op(f"{NAMESPACE}::bin_of", reference=True)
def bin_of(p: Tensor) -> Tensor:
    return (p.double() * 4).floor().clamp(max=3).long()


@bin_of.register_kernel("cpu", name="rounds")
def _(p):
    return (p * 4 + 2**-22).floor().long() if p.dtype == torch.float32 else (p.double() * 4).floor().clamp(max=3).long()


def test_the_ends_of_a_range_are_among_the_numbers(monkeypatch):
    result = explored(bin_of, lambda make: [Sample(make(8, low=0.0, high=1.0))], monkeypatch)

    assert "numbers of 'p' with both ends of its range: output 0[4] = 4, expected 3" in result.message


@custom_op(f"{NAMESPACE}::shifted", reference=True)
def shifted(x: Tensor, step: float) -> Tensor:
    moved = x.roll(1, -1) if step >= 0 else x.roll(-1, -1)
    return x + step * moved


@shifted.inplace.register_kernel("cpu")
def _(x, step):
    if step >= 0 or not x.dim():
        x.copy_(shifted(x, step))
        return
    rows = x.movedim(-1, 0)
    for i in range(len(rows) - 1, -1, -1):  # reads what was written before
        rows[i] += step * rows[(i + 1) % len(rows)]


def test_a_variant_that_is_wrong_for_another_scalar_is_found():
    result = verdict("parity", lambda make: [Sample(make(2, 5), 0.5)])(shifted)

    assert "step=-0.5, op.inplace, as given: output 0[" in result.message


@custom_op(f"{NAMESPACE}::noisy", tags=torch.Tag.nondeterministic_seeded)
def noisy(x: Tensor) -> Tensor:
    return x + torch.randn(x.shape, generator=torch.Generator().manual_seed(torch.initial_seed()), dtype=x.dtype)


def test_a_generator_that_is_made_of_the_initial_seed_is_found():
    result = verdict("determinism", lambda make: [Sample(make(4))])(noisy)

    assert "failed" == result.status
    assert "its results depend on torch's seed, but it draws nothing: each call gives them again" in result.message


@custom_op(f"{NAMESPACE}::running", reference=True)
def running(x: Tensor, dim: int = -1) -> Tensor:
    return x.cumsum(dim)


@running.register_vmap
def _(info, in_dims, x, dim):
    return running(x.movedim(in_dims[0], 0), dim), 0  # right for negative dimensions alone


def test_a_batching_rule_that_does_not_shift_a_dimension_is_found_where_samples_count_from_the_end():
    result = verdict("vmap", lambda make: [Sample(make(3, 4))])(running)

    assert "dim=0, batched over 'x' at dimension 0: output 0[" in result.message


@custom_op(f"{NAMESPACE}::turned", reference=True)
def turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    angle = torch.arange(x.shape[0], dtype=x.dtype)[:, None]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()], -1)


def test_positions_in_low_precision_are_found_for_pairs_whose_number_stays_even():
    result = verdict("low_precision", lambda make: [Sample(make(6, 8))])(turned)

    assert "bfloat16, size 6 -> 4100: output 0 has a relative error" in result.message


@custom_op(f"{NAMESPACE}::runs", reference=True)
def runs(x: Tensor) -> Tensor:
    return x[torch.cat([x[:1] == x[:1], x[1:] != x[:-1]])]


@runs.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@runs.register_backward
def _(grad, x):
    starts = torch.cat([x[:1] == x[:1], x[1:] != x[:-1]])
    return torch.zeros_like(x).masked_scatter(starts, grad)


def test_a_result_of_another_size_next_to_the_sample_is_no_finding():
    result = verdict("gradcheck", [Sample(torch.tensor([0.5, 0.5, 1.5], requires_grad=True))])(runs)

    assert "skipped" == result.status
    assert "next to the sample, a result has another size" in result.message


@custom_op(f"{NAMESPACE}::twice_wrong", reference=True)
def twice_wrong(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@twice_wrong.register_kernel("cpu", name="steps")
def _(x, factor):
    return x * (factor if factor > 0 else 0) + (x.numel() > 200)


def test_what_is_wrong_first_does_not_hide_another_kind(monkeypatch):
    monkeypatch.setattr(exploration, "LONGER", 20.0)
    message = explored(twice_wrong, lambda make: [Sample(make(4))], monkeypatch).message

    assert ": output 0" in message
    assert any(line.startswith("factor=") for line in message.splitlines())
    assert any(line.startswith("size 4 -> 256") for line in message.splitlines())
