"""The check `profiler` fails an op that a profile does not show under its own name."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private.dispatch import has_python_dispatch
from custom_autograd.verification.harness.targets import target_of

result_of = verdict("profiler", lambda make: [Sample(make(4, 3))])


@custom_op("faults_profiler::squared")
def squared(x: Tensor) -> Tensor:
    return x * x


@squared.register_backward
def _(grad, x):
    return 2 * grad * x


@torch.library.custom_op("faults_profiler::library", mutates_args=())
def library(x: Tensor) -> Tensor:
    return x * x


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _double(ctx, grad):
    return 2 * grad * ctx.saved_tensors[0]


library.register_autograd(_double, setup_context=_save)


class Nameless(Function):
    """The op inside a Function, as hand-written wrappers have it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return squared(x)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


def test_op_under_its_own_name_passes():
    assert "passed" == result_of(squared).status


def test_library_op_passes_unless_torch_hides_it():
    """From torch 2.15 on PyObject dispatch, on for ops of torch.library, keeps an op out of profiles."""
    is_hidden = has_python_dispatch(library._opoverload)

    assert ("skipped" if is_hidden else "passed") == result_of(library).status


def test_call_that_goes_round_the_dispatcher_fails():
    result = result_of(replace(target_of(squared), call=lambda x: x * x))

    assert "failed" == result.status
    assert (
        "a profile of a call does not show 'faults_profiler::squared', only 'aten::mul'"
        == result.message.splitlines()[0]
    )


def test_backward_under_a_name_that_tells_nothing_fails():
    result = result_of(replace(target_of(squared), call=Nameless.apply))

    assert "failed" == result.status
    assert (
        "a profile shows the backward of 'faults_profiler::squared' as 'NamelessBackward', "
        "which does not tell whose it is" == result.message
    )


def test_callable_is_skipped():
    assert "it is not an op of the dispatcher" == result_of(torch.sin).message
