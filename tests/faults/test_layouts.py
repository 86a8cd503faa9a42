"""The check `layouts` fails an op whose values or gradients depend on where numbers lie in memory."""

import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import check, custom_op
from custom_autograd.schema.samples import Sample


def result_of(op, *shape, dtype=None):
    return verdict("layouts", lambda make: [Sample(make(*shape, dtype=dtype))])(op)


def in_memory_order(x):
    """Reads memory as a kernel does that takes data_ptr() of what may not be contiguous."""
    return x.as_strided(x.shape, torch.empty(x.shape).stride(), 0)


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class ReadsInOrder(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if x.storage_offset() else in_memory_order(x) ** 2


class RowsTakenAsDense(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return in_memory_order(x) ** 2 if x.stride(-1) == 1 and not x.storage_offset() else x * x


class OffsetIgnored(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x if not x.is_contiguous() else in_memory_order(x) ** 2


class BackwardReadsInOrder(Doubled):
    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * (x if x.storage_offset() else in_memory_order(x))


class ChannelsIgnored(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        return in_memory_order(x) ** 2 if is_last else x * x


def conjugation_ignored(z):
    return torch.view_as_real(z.conj() if z.is_conj() else z)


def negation_ignored(x):
    return (-x if x.is_neg() else x) * 2


def test_op_that_reads_strides_passes():
    assert "passed" == result_of(Doubled, 4, 3).status


def test_rows_apart_ignored_fail():
    assert "'x' with rows apart: output 0[" in result_of(RowsTakenAsDense, 4, 3).message


def test_strides_ignored_fail():
    result = result_of(ReadsInOrder, 4, 3)

    assert "'x' transposed: output 0[" in result.message
    assert "strides, an offset or a view's lazy conjugation are ignored" == result.cause


def test_offset_ignored_fails():
    assert "'x' that begins inside its memory: output 0[" in result_of(OffsetIgnored, 4, 3).message


def test_strides_of_a_saved_tensor_ignored_fail():
    assert "'x' transposed: gradient of 'x'[" in result_of(BackwardReadsInOrder, 4, 3).message


def test_channels_last_ignored_fails():
    assert "'x' channels-last: output 0[" in result_of(ChannelsIgnored, 2, 3, 4, 5).message


def test_lazy_conjugation_ignored_fails():
    assert "'z' lazily conjugated: output 0[" in result_of(conjugation_ignored, 4, dtype=torch.complex64).message


def test_lazy_negation_ignored_fails():
    assert "'x' lazily negated: output 0[" in result_of(negation_ignored, 4).message


@custom_op("faults_layouts::wrong_gradient", reference=True)
def wrong_gradient(x: Tensor) -> Tensor:
    return x * x


wrong_gradient.register_backward(lambda grad, x: 3 * grad * x)


def test_a_gradient_that_is_wrong_as_given_is_not_called_one_of_strides():
    result = verdict("layouts", [Sample(torch.ones(3, 2, requires_grad=True))])(wrong_gradient)

    assert "failed" == result.status
    assert ["as given"] == [line.partition(":")[0] for line in result.message.splitlines()]
    assert "a factor 1.5" == result.cause


@custom_op("faults_layouts::noisy")
def noisy(x: Tensor, generator: torch.Generator) -> Tensor:
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return memory[: x.numel()].view(x.shape) + torch.rand(x.shape, generator=generator)


def test_an_op_with_a_generator_that_ignores_strides_fails():
    samples = [Sample(torch.rand(3, 4), torch.Generator().manual_seed(1))]
    (result,) = check(noisy, samples, checks=["layouts"], isolated=False).results

    assert "failed" == result.status
    assert "'x' with rows apart: output 0[" in result.message
