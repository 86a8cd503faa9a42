"""The check `compile` fails what breaks under torch.compile(fullgraph=True), or changes its value there."""

import re

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, custom_op

result_of = verdict("compile", lambda make: [Sample(make(4))])


@torch.library.custom_op("faults_compile::honest", mutates_args=())
def honest(x: Tensor) -> Tensor:
    return x * 2


honest.register_fake(torch.empty_like)
honest.register_autograd(lambda ctx, grad: 2 * grad)


@torch.library.custom_op("faults_compile::branching", mutates_args=())
def branching(x: Tensor) -> Tensor:
    return x * 2


branching.register_fake(torch.empty_like)
branching.register_autograd(lambda ctx, grad: 2 * grad if grad.sum() > 0 else grad + grad)


def test_honest_op_passes():
    assert "passed" == result_of(honest).status


def test_backward_that_branches_on_data_fails():
    assert "static shapes: compiling raises" in result_of(branching).message


def test_random_numbers_are_the_same_compiled():
    assert "passed" == result_of(torch.nn.functional.dropout).status


def test_what_a_fake_raised_is_said_and_not_that_the_compiler_raises_it_again():
    op = custom_op("compile_faults::last", lambda x, at: x[at].clone(), schema="(Tensor x, int at) -> Tensor")

    @op.register_fake
    def _(x, at):
        return x.new_empty([{size: size for size in x.shape}[x.shape[1]]])  # a symbolic size has no hash

    result = verdict("compile", lambda make: [Sample(make(3, 4), 1)])(op)
    assert "failed" == result.status
    assert re.search("raises TypeError: .*unhashable type: ", result.message)


class Halved(torch.autograd.Function):
    """A correct Function with code that Dynamo does not trace."""

    @staticmethod
    def forward(ctx, x):
        return x * torch.full((), 0.5, requires_grad=bool(x.sum() > 1e9))

    @staticmethod
    def backward(ctx, grad):
        return grad * 0.5


def test_a_function_that_breaks_the_graph_is_compared_in_parts_and_not_failed():
    result = result_of(Halved)

    assert "skipped" == result.status
    assert "static shapes: its graph breaks, and gives the same in parts: compiling raises " in result.message


class Doubled(torch.autograd.Function):
    """It breaks the graph, and gives something else in compiled code."""

    @staticmethod
    def forward(ctx, x):
        torch._dynamo.graph_break()
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_a_function_that_breaks_the_graph_and_gives_something_else_fails():
    def doubled(x):
        factor = 1.5 if torch.compiler.is_compiling() else 1.0
        return Doubled.apply(x) * factor

    assert "failed" == result_of(doubled).status
