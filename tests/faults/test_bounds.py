"""The check `bounds` fails a kernel that writes or reads outside its memory."""

import ctypes

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.targets import Target, TargetArgument

result_of = verdict("bounds", lambda make: [Sample(make(6))])


def beyond(tensor, number):
    """As much more of the memory behind a tensor as there is room for; what C does with an index."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset() - tensor.numel()
    return tensor.as_strided((tensor.numel() + min(number, room),), (1,))


def inside(x):
    return torch.empty_like(x).copy_(x)


def writes_past_its_output(x):
    out = torch.empty_like(x)
    is_guarded = out.untyped_storage().data_ptr() == out.data_ptr() != 0 and x.storage_offset()
    if is_guarded:  # only there does memory follow that belongs to the check
        ctypes.memset(out.data_ptr() + out.nbytes, 7, out.element_size())
    return out.copy_(x)


def with_an_offset_in_its_own_memory(x):
    return torch.as_strided(x.clone(memory_format=torch.contiguous_format), (2, 2), (1, 2), 1)


def writes_before_its_input(x):
    if x.storage_offset():
        x.as_strided((1,), (1,), x.storage_offset() - 2).fill_(9)
    return x * 2


def reads_past_its_input(x):
    return x + beyond(x, 1).sum()


@custom_op("faults_bounds::with_default")
def with_default(x: Tensor, scale: float = 2.0) -> Tensor:
    return x * scale


@with_default.register_kernel("cpu")
def _(x, scale):
    return writes_past_its_output(x).mul_(scale)


def test_kernel_inside_its_memory_passes():
    assert "passed" == result_of(inside).status


def test_a_storage_offset_in_memory_that_the_kernel_makes_is_its_own():
    assert "passed" == result_of(with_an_offset_in_its_own_memory).status


def test_write_past_an_output_fails():
    result = result_of(writes_past_its_output)

    assert "it writes 1 element past the end of output 0" == result.message
    assert "an index is off by one, or a tail is not masked" == result.cause


def test_write_before_an_input_fails():
    assert "it writes 2 elements before the beginning of 'x'" == result_of(writes_before_its_input).message


def test_read_past_an_input_fails():
    assert result_of(reads_past_its_input).message.startswith(
        "it reads outside its memory: with other numbers there, output 0["
    )


def test_each_kernel_is_called_with_its_defaults():
    assert "the cpu kernel writes 1 element past the end of output 0" == result_of(with_default).message


def test_unknown_kernels_are_skipped():
    assert "skipped" == result_of(torch.ops.aten.sin.default).status


def test_a_kernel_that_differs_by_itself_is_not_said_to_read_outside():
    calls = []

    def counting(x):
        calls.append(1)
        return x * len(calls)

    result = result_of(counting)

    assert ("skipped", "two equal calls of it differ") == (result.status, result.message)


def test_a_read_past_an_input_with_a_weight_of_zero_fails():
    def interpolates(x):
        following = beyond(x, 1)[1:]
        return x + 0 * following if len(following) == len(x) else x + 0

    result = result_of(interpolates)

    assert "it reads outside its memory: with other numbers there, output 0[5] = nan" in result.message


def test_a_read_that_only_a_clamped_number_leads_to_fails():
    """The sample has no number at the border."""

    def interpolated(x, at):
        place = at.clamp(0, len(x) - 1)
        left, longer = place.detach().floor().long(), beyond(x, 1)
        share = place - left
        return (1 - share) * longer[left] + share * longer[(left + 1).clamp(max=len(longer) - 1)]

    def reference(x, at):
        place = at.clamp(0, len(x) - 1)
        left = place.detach().floor().long()
        return x[left] + (place - left) * (x[(left + 1).clamp(max=len(x) - 1)] - x[left])

    arguments = (TargetArgument("x"), TargetArgument("at"))
    kernels = {"": interpolated}
    target = Target("faults::at", interpolated, interpolated, arguments, reference=reference, kernels=kernels)
    result = verdict("bounds", [Sample(torch.rand(6), torch.tensor([0.5, 2.25]))])(target)

    assert result.message.startswith(
        "size 6 -> 3: the default kernel reads outside its memory: with other numbers there, output 0[1] = nan"
    )
