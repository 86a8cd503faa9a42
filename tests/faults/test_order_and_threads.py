"""Faults that show in another order of calls, or where torch shares a call among its threads."""

import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, check, custom_op

NAMESPACE = "faults_order"

kept_by_size: dict[object, Tensor] = {}
kept_by_width: dict[object, Tensor] = {}
kept_by_all: dict[object, Tensor] = {}


def window(size: int, beta: float, dtype: torch.dtype) -> Tensor:
    return torch.kaiser_window(size, periodic=True, beta=beta, dtype=dtype)


@custom_op(f"{NAMESPACE}::without_the_scalar")
def without_the_scalar(x: Tensor, beta: float = 12.0) -> Tensor:
    key = x.shape[-1], x.dtype
    if key not in kept_by_size:
        kept_by_size[key] = window(x.shape[-1], beta, x.dtype)
    return x * kept_by_size[key]


@custom_op(f"{NAMESPACE}::without_the_dtype")
def without_the_dtype(x: Tensor, beta: float = 12.0) -> Tensor:
    key = x.shape[-1], beta
    if key not in kept_by_width:
        kept_by_width[key] = window(x.shape[-1], beta, x.dtype)
    return x * kept_by_width[key].to(x.dtype)


@custom_op(f"{NAMESPACE}::with_all")
def with_all(x: Tensor, beta: float = 12.0) -> Tensor:
    key = x.shape[-1], beta, x.dtype
    if key not in kept_by_all:
        kept_by_all[key] = window(x.shape[-1], beta, x.dtype)
    return x * kept_by_all[key]


for one in (without_the_scalar, without_the_dtype, with_all):
    one.register_fake(lambda x, beta: torch.empty_like(x))


def samples(make):
    return [Sample(make(3, 9)), Sample(make(2, 7), 3.0)]


def called_first(op):
    """The result of the first sample."""
    return check(op, samples, checks=["call_order"]).results[0]


def test_a_key_without_a_scalar_is_found():
    result = called_first(without_the_scalar)

    assert "failed" == result.status
    assert "as given: output 0[" in result.message
    assert "key that lacks what it depends on" in result.cause


def test_a_key_without_the_dtype_is_found():
    result = called_first(without_the_dtype)

    assert "by the same call in a process that makes these calls in another order" in result.message


def test_a_whole_key_passes():
    assert "passed" == called_first(with_all).status


drawn = torch.Generator()


@custom_op(f"{NAMESPACE}::seeded")
def seeded(x: Tensor, dim: int = 1) -> Tensor:
    if dim:
        drawn.manual_seed(dim)
    return x + torch.rand(x.shape, generator=drawn)


seeded.register_fake(lambda x, dim: torch.empty_like(x))


def test_a_number_with_which_calls_are_not_repeatable_is_found():
    result = check(seeded, [Sample(torch.ones(3))], checks=["call_order"]).results[0]

    assert "dim=0: output 0[" in result.message
    assert " by the same call again" in result.message
    assert "it is not deterministic with this number, or it remembers a call" == result.cause


def test_without_another_process_there_is_nothing_to_compare_with():
    results = check(with_all, samples, checks=["call_order"], isolated=False).results

    assert {"skipped"} == {result.status for result in results}
    assert "it compares with calls in another process" in results[0].message


def shared_among_threads(x: Tensor, *, loses_one: bool) -> Tensor:
    """A sum of as many parts as torch has threads, where there are enough elements."""
    parts = x.reshape(-1).chunk(torch.get_num_threads() if x.numel() > 2**16 else 1)
    return torch.stack([part.sum() for part in parts[: -1 if loses_one and len(parts) > 1 else None]]).sum()


@custom_op(f"{NAMESPACE}::losing")
def losing(x: Tensor) -> Tensor:
    return shared_among_threads(x, loses_one=True)


@custom_op(f"{NAMESPACE}::adding")
def adding(x: Tensor) -> Tensor:
    return shared_among_threads(x, loses_one=False)


for one in (losing, adding):
    one.register_fake(lambda x: x.new_empty(()))


@losing.register_backward
@adding.register_backward
def _(grad, x):
    return {"x": grad.expand(x.shape)}


def test_a_part_that_threads_lose_is_found():
    result = verdict("intra_op", lambda make: [Sample(make(3, 5))])(losing)

    assert "failed" == result.status
    assert "size 3 -> 52429: with 4 of torch's threads, output 0 = " in result.message
    assert "size 5 -> 87381: with 4 of torch's threads, output 0 = " in result.message


def test_parts_that_threads_add_pass():
    assert "passed" == verdict("intra_op", lambda make: [Sample(make(3, 5))])(adding).status


@custom_op(f"{NAMESPACE}::gathering")
def gathering(x: Tensor, source: Tensor, count: int = 1) -> Tensor:
    return shared_among_threads(x[source], loses_one=True)


gathering.register_fake(lambda x, source, count: x.new_empty(()))


@gathering.register_backward
def _(grad, x, source):
    return {"x": torch.zeros_like(x).index_add_(0, source, grad.expand(source.shape[0], *x.shape[1:]))}


@pytest.mark.parametrize(
    ("source", "count", "size"),
    [
        pytest.param([2, 0, 1, 2, 1], 1, 5, id="positions"),
        pytest.param([0, 1, 1, 2, 3], 1, 0, id="offsets"),
        pytest.param([2, 1], 1, 0, id="lengths"),
        pytest.param([2, 0, 1, 2, 1], 5, 0, id="a number"),
    ],
)
def test_positions_are_repeated_but_offsets_and_lengths_are_not(source, count, size):
    sample = Sample(torch.ones(3, 4), torch.tensor(source), count)

    result = verdict("intra_op", [sample])(gathering)

    assert (f"size {size} -> 262144: with 4 of torch's threads" in result.message) == bool(size)


@pytest.mark.parametrize("given", [(), (3,)], ids=str)
def test_the_number_of_threads_stays(given):
    before = torch.get_num_threads()

    check(adding, lambda make: [Sample(make(*given))], checks=["intra_op"], isolated=False)

    assert before == torch.get_num_threads()


def test_what_cannot_be_made_large_is_said():
    result = verdict("intra_op", lambda make: [Sample(make())])(adding)

    assert ("skipped", "no size can be made large enough, or a call would take long") == (result.status, result.message)
