"""The check `compiled_transforms` fails an op whose derivative under torch.func is another one when compiled."""

import pytest
import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.compiler import COMPILES_RULES_OF_FUNCTIONS

result_of = verdict("compiled_transforms", lambda make: [Sample(make(4))])


def differs_everywhere(x):
    return x * 3 if torch.compiler.is_compiling() else x * 2


class TwiceTheGradient(torch.autograd.Function):
    """A rule that torch.compile leaves out under torch.func: the limit that the check names."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 4 * grad * ctx.saved_tensors[0]


def depends_on_data(x):
    return x * 2 if x.sum() > 0 else x * 3


@custom_op("faults_compiled_transforms::square")
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_fake
def _(x):
    return torch.empty_like(x)


@square.register_backward
def _(grad, x):
    return 2 * grad * x


def test_right_op_passes():
    result = result_of(square)

    assert ("passed", "") == (result.status, result.message)


def test_other_value_when_compiled_fails_under_each_transform():
    result = result_of(differs_everywhere)

    assert "failed" == result.status
    assert ["compiled grad", "compiled vmap", "compiled jvp"] == [
        line.partition(":")[0] for line in result.message.splitlines()
    ]
    assert "(ratio 1.5), by jvp in eager" in result.message


def test_transform_that_does_not_run_in_eager_is_skipped_by_name():
    result = result_of(lambda x: x * float(x.detach().sum()))

    assert "passed" == result.status
    assert "not checked: compiled vmap: it does not run in eager: RuntimeError" in result.message


def test_what_torch_refuses_of_a_plain_function_is_skipped_by_name():
    result = result_of(depends_on_data)

    assert "skipped" == result.status
    assert "compiled grad: compiling raises Unsupported: Data-dependent branching" in result.message


def test_random_numbers_are_the_same_compiled():
    assert "failed" != result_of(torch.nn.functional.dropout).status


def test_the_vmap_of_a_number_that_depends_on_data_is_skipped_by_name():
    schema = "(Tensor x) -> (Tensor, SymInt)"
    op = custom_op("faults_compiled_transforms::counted", lambda x: (x * 1, int((x > 0).sum())), schema=schema)
    op.register_fake(lambda x: (torch.empty_like(x), torch.library.get_ctx().new_dynamic_size()))
    op.register_backward(lambda grad_output_0: grad_output_0)
    result = result_of(op)

    assert "passed" == result.status
    assert "not checked: compiled vmap: a number among its results depends on the data" in result.message


def test_integers_are_skipped_with_the_reason():
    result = verdict("compiled_transforms", [Sample(torch.arange(3))])(torch.bitwise_not)

    assert ("skipped", "no tensor of the sample can have a gradient") == (result.status, result.message)


@pytest.mark.skipif(COMPILES_RULES_OF_FUNCTIONS, reason="torch compiles the rules of Functions from 2.15 on")
def test_limit_of_torch_for_functions_is_named():
    result = result_of(TwiceTheGradient)

    assert "skipped" == result.status
    assert "torch.compile leaves out the rules of a torch.autograd.Function in torch.func" == result.message


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch instantiates the Function where it traces it
def test_torch_has_that_limit_up_to_214():
    x = torch.ones(3)
    gradient = torch.func.grad(lambda x: TwiceTheGradient.apply(x).sum())

    compiled = 4.0 if COMPILES_RULES_OF_FUNCTIONS else 2.0

    assert ([4.0] * 3, [compiled] * 3) == (gradient(x).tolist(), torch.compile(gradient, backend="eager")(x).tolist())
