"""The check `explore` fails an op that is wrong where no sample is, and names the smallest change that shows it."""

import ctypes
import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

from custom_autograd import CheckError, Sample, check, custom_op
from custom_autograd.cli.main import main
from custom_autograd.kernels import numpy_kernel
from custom_autograd.verification.calls.drawing import switched
from custom_autograd.verification.calls.looking import Looker
from custom_autograd.verification.check import select_checks
from custom_autograd.verification.checks.explore import Explore
from custom_autograd.verification.harness.targets import target_of


def samples(make):
    yield Sample(make(4, 3, low=0.5, high=2.0))


def result_of(op, *, seconds=3.0, samples=samples):
    return check(op, samples, checks=[Explore(seconds)], isolated=False).results[0]


@custom_op("faults_explore::scaled", reference=True)
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@scaled.register_backward
def _(grad, factor):
    return {"x": grad * (factor or 1.0)}


@custom_op("faults_explore::summed", reference=True)
def summed(x: Tensor) -> Tensor:
    return x.sum(-1)


@summed.register_kernel("cpu", name="blocks")
def _(x):
    whole = x.shape[-1] // 8 * 8
    if whole == 0:
        return x.sum(-1)
    return x[..., :whole].reshape(*x.shape[:-1], -1, 8).sum((-1, -2))  # what is left over is forgotten


class Squared(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class WithWrongRowsOfLargeInputs(Squared):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * (x if x.shape[0] <= 8 or x.stride(-1) == 1 else x.flip(0))


@custom_op("faults_explore::in_place", reference=True)
def in_place(x: Tensor) -> Tensor:
    return x * 2


@in_place.register_kernel("cpu", name="large")
def _(x):
    return (x.mul_(2) if bool((x > 100).any()) else x * 2).clone()


def test_honest_op_passes_and_says_how_many_calls_were_drawn():
    result = result_of(Squared, seconds=1.0)

    assert "passed" == result.status
    assert result.measures["draws"] > 20
    assert result.measures["judged"] > 10


def test_scalar_that_no_sample_has_is_found():
    assert result_of(scaled).message.startswith("factor=0.0: gradient of 'x'[")


def test_size_that_no_sample_has_is_found():
    assert result_of(summed).message.startswith("size 3 -> 9: output 0[")


def test_two_changes_that_only_fail_together_are_found_and_no_third_is_named():
    message = result_of(WithWrongRowsOfLargeInputs, seconds=20.0).message

    case = message.partition(": ")[0]
    assert case.count(",") <= 2, message
    assert "size 4 -> " in case, message


def test_write_to_an_input_is_found_where_it_happens():
    result = result_of(in_place, samples=lambda make: [Sample(make(4, 3))])

    assert "the op writes to 'x', which it does not declare" in result.message


@custom_op("faults_explore::windows")
def windows(x: Tensor, step: int) -> Tensor:
    return x.unfold(0, 4, step).clone()


@windows.register_backward
def _(grad, meta, step):
    found = grad.new_zeros(meta.x.shape)
    for i in range(grad.shape[0]):
        found[i * step : i * step + 4] = grad[i]  # which overwrites what two windows share
    return found


def test_smaller_integer_that_no_sample_has_is_found_without_a_reference():
    result = result_of(windows, samples=[Sample(torch.arange(12.0, requires_grad=True), 4)])

    assert "failed" == result.status
    assert result.message.startswith(("step=3: the gradient of 'x'", "step=1: the gradient of 'x'"))
    assert "no sample has this 'step'" in result.cause


def test_op_that_is_given_a_generator_is_skipped():
    samples = [Sample(torch.rand(3), generator=torch.Generator())]

    result = check(torch.bernoulli, samples, checks=[Explore()]).results[0]

    assert ("skipped", "it draws random numbers") == (result.status, result.message)


def test_same_seed_finds_the_same_case():
    messages = {result_of(WithWrongRowsOfLargeInputs, seconds=20.0).message for _ in range(2)}

    assert 1 == len(messages)


def test_script_of_a_finding_shows_it_by_itself(tmp_path):
    result = result_of(scaled)
    assert "checks=[Explore(case=('factor=0.0',))]" in result.script
    program = tmp_path / "script.py"
    program.write_text(result.script, encoding="utf-8")

    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)

    assert "CheckError" in ended.stderr, ended.stderr
    assert "factor=0.0: gradient of 'x'" in ended.stderr


class Filtered(Function):
    """A convolution with a filter that is not trained."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return torch.nn.functional.conv1d(x, weight)

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        return torch.nn.functional.conv_transpose1d(grad, weight), None


def test_the_gradient_of_a_tensor_that_requires_none_is_not_asked_for():
    constant = torch.tensor([[[0.5, 2.0]]], dtype=torch.float64)
    x = torch.arange(6.0, dtype=torch.float64).view(1, 1, 6).requires_grad_()

    assert "passed" == result_of(Filtered, seconds=1.0, samples=[Sample(x, constant)]).status


def test_case_that_a_sample_does_not_have_is_skipped():
    (result,) = check(Squared, samples, checks=[Explore(case=("size 99 -> 3",))], isolated=False).results

    assert "the sample has no such case: size 99 -> 3" == result.message


@pytest.mark.parametrize(("text", "seconds"), [("explore=90", 90.0), ("explore=2m", 120.0), ("explore=0.5h", 1800.0)])
def test_budget_is_a_time(text, seconds):
    (found,) = select_checks([text])

    assert (Explore(seconds), f"explore={seconds:g}") == (found, found.asked)


def test_budget_replaces_the_check_of_a_group():
    chosen = [one for one in select_checks(["values", "explore=2m"]) if isinstance(one, Explore)]

    assert [Explore(120.0)] == chosen


@pytest.mark.parametrize("text", ["explore=", "explore=fast", "explore=-1s"])
def test_budget_that_is_not_a_time_is_refused(text):
    with pytest.raises(CheckError, match="the check explore is given no time"):
        select_checks([text])


def test_command_line_refuses_what_is_not_a_time(capsys):
    assert 2 == main(["check", "torch.sin", "--explore", "soon"])
    assert "the check explore is given no time" in capsys.readouterr().err


@custom_op("faults_explore::shifted")
def shifted(x: Tensor, bias: Tensor | None = None) -> Tensor:
    return x * 1.5 if bias is None else x + bias  # without a bias, another formula


@shifted.register_reference
def _(x, bias=None):
    return x + (0 if bias is None else bias)


def test_a_tensor_that_is_left_out_is_named():
    result = result_of(shifted, samples=lambda make: [Sample(make(4, 3), make(3))])

    assert result.message.startswith("without 'bias', as given: output 0[")


@custom_op("faults_explore::tripled")
def tripled(x: Tensor, scale: float) -> Tensor:
    return 3 * scale * x


tripled.register_fake(lambda x, scale: torch.empty_like(x))
tripled.register_backward(lambda grad, scale: 2 * scale * grad)


def test_what_is_wrong_of_the_sample_itself_is_no_matter_of_another_number():
    result = result_of(tripled, samples=lambda make: [Sample(make(4), 0.5)])

    assert result.message.startswith("as given: the gradient of 'x' along a direction is")
    assert "no sample has this" not in result.cause


@custom_op("faults_explore::evaluated")
def evaluated(x: Tensor, expression: str = "2 * (x + 1)") -> Tensor:
    return eval(expression, {"x": x})


@pytest.mark.slow
def test_none_is_not_tried_for_a_default_that_the_dispatcher_cannot_hold():
    result = result_of(evaluated, samples=lambda make: [Sample(make(4))])

    assert "passed" == result.status, result.message


def rows_of(make):
    yield Sample(make(4, 8), make(8))


@custom_op("faults_explore::weighted", reference=True)
def weighted(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


@weighted.register_kernel("cpu", name="raw")
def _(x, weight):
    dtype = {torch.float32: ctypes.c_float, torch.float64: ctypes.c_double}.get(x.dtype)
    if dtype is None or x.numel() == 0 or weight.shape != x.shape[-1:]:
        return x * weight
    numbers = weight.contiguous()
    begin = ctypes.cast(numbers.data_ptr(), ctypes.POINTER(dtype))
    read = [begin[i] for i in range(numbers.nbytes // x.element_size())]  # as if it had the dtype of x
    read += [0.0] * (weight.numel() - len(read))
    return x * x.new_tensor(read[: weight.numel()])


def test_a_kernel_that_reads_one_tensor_in_the_dtype_of_another_is_found():
    result = result_of(weighted, samples=rows_of)

    assert re.match(r"'(x|weight)' in (float64|bfloat16): output 0\[", result.message), result.message


@custom_op("faults_explore::refuses_a_mixture", reference=True)
def refuses_a_mixture(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype != weight.dtype:
        raise TypeError(f"weight must be {x.dtype}")
    return x * weight


@custom_op("faults_explore::promotes", reference=True)
def promotes(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight


promotes.register_fake(lambda x, weight: torch.empty_like(x))  # for mixtures, the check autocast has advice


def test_an_op_may_refuse_tensors_of_two_dtypes_or_have_another_dtype_than_its_fake():
    assert "passed" == result_of(refuses_a_mixture, seconds=1.5, samples=rows_of).status
    assert "passed" == result_of(promotes, seconds=1.5, samples=rows_of).status


@custom_op("faults_explore::sorted", outputs=("values", "order"), hidden=("order",))
def sorted_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sort(0)


@sorted_rows.register_backward
def _(grad_values, order):
    return torch.zeros_like(grad_values).scatter(0, order, grad_values)


def test_which_of_equal_numbers_comes_first_is_the_choice_of_an_op_without_a_reference():
    """Numbers of float64 were not moved at all, which shows that a gradient at a tie is arbitrary."""
    case = Explore(case=("'x' expanded along its first dimension", "size 3 -> 65"))

    (result,) = check(sorted_rows, lambda make: [Sample(make(3, 4))], checks=[case], isolated=False).results

    assert ("passed", "") == (result.status, result.message)


@custom_op("faults_explore::dropout", tags=torch.Tag.nondeterministic_seeded)
def dropout(x: Tensor, training: bool = True, scale: float = 2.0) -> Tensor:
    return scale * torch.nn.functional.dropout(x, 0.5, training)


dropout.register_fake(lambda x, training=True, scale=2.0: torch.empty_like(x))


def test_an_op_that_draws_random_numbers_for_another_flag_alone_passes():
    """Each call draws its own, so that no two compare; the others do."""
    result = result_of(dropout, seconds=1.0, samples=lambda make: [Sample(make(4, 3).detach(), training=False)])

    assert ("passed", "") == (result.status, result.message)
    assert result.measures["judged"] > 0


def count_within(x: Tensor, y: Tensor, radius: float) -> Tensor:
    return ((x[:, None] - y).square().sum(-1) < radius * radius).sum(-1)


@custom_op("faults_explore::counted", reference=True)
def counted(x: Tensor, y: Tensor, radius: float) -> Tensor:
    return count_within(x, y, radius)


@counted.register_kernel("cpu", name="rows")
def _(x, y, radius):
    return torch.stack(
        [((row - y).square().sum(-1) <= radius * radius).sum() for row in x] or [x.new_zeros((), dtype=torch.int64)]
    )[: len(x)]


@custom_op("faults_explore::hinged", reference=True)
def hinged(x: Tensor, y: Tensor, margin: float) -> Tensor:
    return torch.relu(margin - x * y)


@hinged.register_backward
def _(grad, x, y, margin):
    grad = grad * (margin - x * y >= 0)  # at the margin the derivative is one of two, and autograd has the other
    return {"x": -grad * y, "y": -grad * x}


def rows_and_a_number(make):
    yield Sample(make(6, 3), make(5, 3), 1.5)


def test_a_threshold_that_leaves_out_numbers_equal_to_it_is_found():
    message = result_of(counted, samples=rows_and_a_number).message

    assert message.startswith(("numbers zero, radius=0.0: ", "numbers rounded, with ties, radius=0.0: ")), message


def test_an_op_may_have_the_other_derivative_where_numbers_equal_a_threshold():
    looker = Looker(target_of(hinged), Sample(*(torch.randn(6, 3, requires_grad=True) for _ in "xy"), 1.5))

    verdicts = [looker.look(case) for case in switched(looker.changes())]

    assert verdicts
    assert [] == [verdict for verdict in verdicts if verdict.fault]


def test_a_kernel_in_numpy_need_not_take_what_numpy_lacks():
    @custom_op("faults_explore::in_numpy")
    @numpy_kernel
    def in_numpy(x: Tensor) -> Tensor:
        return x * 2

    in_numpy.register_reference(lambda x: x * 2)
    in_numpy.register_fake(torch.empty_like)

    (result,) = check(in_numpy, [Sample(torch.rand(3))], checks=["explore"], isolated=False).results

    assert "passed" == result.status
