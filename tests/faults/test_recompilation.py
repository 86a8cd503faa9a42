"""The check `recompilation` fails an op that is compiled anew for each size, or for a call that was seen before."""

import re

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.checks import recompilation

state = {"calls": 0}


def result_of(op, sample=None):
    sample = sample or Sample(torch.ones(4, 3, requires_grad=True))
    return verdict("recompilation", [sample])(op)


def doubled(x: Tensor) -> Tensor:
    return x * 2


def declare(name, fake, backward):
    op = torch.library.custom_op(f"faults_recompilation::{name}", doubled, mutates_args=())
    op.register_fake(fake)
    op.register_autograd(backward)
    return op


HONEST = declare("honest", torch.empty_like, lambda ctx, grad: 2 * grad)
FIXES_SIZE = declare("size", lambda x: x.new_empty(int(x.shape[0]), x.shape[1]), lambda ctx, grad: 2 * grad)
FIXES_SIZE_BACKWARD = declare("backward", torch.empty_like, lambda ctx, grad: grad * (2 + 0 * int(grad.numel())))


@custom_op("faults_recompilation::branch")
def branch(x: Tensor) -> Tensor:
    return x * 2


@branch.register_fake
def _(x):
    return torch.empty_like(x) if x.shape[0] < 10 else x.new_empty(x.shape)


@custom_op("faults_recompilation::repeated", reference=True)
def repeated(x: Tensor, n: int) -> Tensor:
    return x * n


@repeated.register_fake
def _(x, n):
    return torch.empty_like(x)


@custom_op("faults_recompilation::fixes_number", reference=True)
def fixes_number(x: Tensor, n: int) -> Tensor:
    return x * n


@fixes_number.register_fake
def _(x, n):
    return x.new_empty(x.shape) if int(n) else x.new_empty(0)


@custom_op("faults_recompilation::factor")
def factor(x: Tensor, k: float) -> Tensor:
    return x * k


@factor.register_fake
def _(x, k):
    return torch.empty_like(x)


@factor.register_backward
def _(grad, k):
    return grad * k


def counts(x):
    state["calls"] += 1
    return x * 2 + 0 * state["calls"]


def loops(x):
    return sum(x[i] for i in range(x.shape[0]))


@custom_op("faults_recompilation::products", reference=True)
def products(x: Tensor) -> Tensor:
    return x.cumprod(-1)


class LogDeterminant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.linalg.slogdet(x)[1]

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * torch.linalg.inv(x).mT


def test_honest_op_passes():
    assert "passed" == result_of(HONEST).status


def test_fake_that_makes_a_number_of_a_size_fails():
    result = result_of(FIXES_SIZE)

    assert "failed" == result.status
    assert "5 sizes compile 5 graphs instead of one for all" in result.message
    assert "the guard that fails: tensor 'x' size mismatch at index 0. expected 20, actual 28" in result.message


def test_what_takes_long_to_compile_is_not_compiled_for_more_sizes(monkeypatch):
    monkeypatch.setattr(recompilation, "MOST_SECONDS", -1)
    result = result_of(FIXES_SIZE)

    assert "skipped" == result.status
    assert re.search(r"three sizes compile three graphs, in \d+ CPU-seconds: more are not tried", result.message)


def test_backward_that_makes_a_number_of_a_size_fails():
    assert "5 sizes compile 5 graphs instead of one for all" in result_of(FIXES_SIZE_BACKWARD).message


def test_operation_of_the_reference_that_makes_a_number_of_a_size_is_not_blamed():
    result = result_of(products, Sample(torch.full((3, 5), 1.5, requires_grad=True)))

    assert "skipped" == result.status
    assert result.message.endswith("an operation of PyTorch in the reference does, of which the gradients are derived")


def test_size_at_which_the_op_raises_in_eager_is_not_blamed():
    result = result_of(LogDeterminant, Sample((torch.eye(3) + 0.1).requires_grad_()))

    assert "skipped" == result.status
    assert result.message.startswith("another size or number raises in eager, too: _LinAlgError")


def test_branch_on_a_size_passes():
    assert "passed" == result_of(branch).status


def test_function_that_counts_its_calls_fails():
    result = result_of(counts)

    assert "failed" == result.status
    assert "was compiled before and would be compiled again; the guard that fails: " in result.message


def test_python_loop_over_a_size_is_skipped_with_the_guard():
    result = result_of(loops)

    assert "skipped" == result.status
    assert "a Python function may look at sizes" in result.message


def test_number_that_stays_a_symbol_passes():
    assert "passed" == result_of(repeated, Sample(torch.ones(5), 3)).status


def test_fake_that_makes_a_constant_of_an_integer_fails():
    result = result_of(fixes_number, Sample(torch.ones(5), 3))

    assert "3 values of 'n' compile 3 graphs, where the reference needs 2" == result.message
    assert "the fake kernel or a rule makes a constant of 'n'" == result.cause


@custom_op("faults_recompilation::of_int", schema="(Tensor x, int n) -> Tensor", reference=True)
def of_int(x, n):
    return x * n


def test_an_integer_that_the_schema_fixes_fails():
    result = verdict("recompilation", [Sample(torch.ones(3), 2)])(of_int)

    assert "3 values of 'n' compile 3 graphs, where the reference needs 2" in result.message
    assert "the schema says 'int n', which compiled code makes a constant of: write 'SymInt n'" == result.cause


def test_constant_that_torch_makes_of_a_float_is_not_blamed():
    assert "passed" == result_of(factor, Sample(torch.ones(5), k=1.5)).status


def test_dimension_is_not_blamed():
    assert "passed" == result_of(torch.ops.aten.cumsum.default, Sample(torch.ones(5, 2, 6, 7), 1)).status
