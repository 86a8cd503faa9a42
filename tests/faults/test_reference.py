"""The checks `reference`, `reference_gradients` and `kernels` fail what computes something else."""

import dataclasses

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import Sample, check, custom_op
from custom_autograd.verification.harness.targets import Target, TargetArgument


def reference(x):
    return x**3


class Cubed(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2


class WrongBackward(Cubed):
    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0]


def wrong_value(x):
    return x**3 + (x > 0)


def wrong_when_large(x):
    return x**3 * (1 + (x.abs() > 8))


def one_pass(x):
    return (x * x).mean() - x.mean() ** 2


def two_pass(x):
    return ((x - x.mean()) ** 2).mean()


def target(call, kernels=None, is_reference=True):
    return Target(
        name="faults::cube",
        call=call,
        full=call,
        arguments=(TargetArgument("x"),),
        reference=reference if is_reference else None,
        kernels=kernels or {"": call},
    )


def result_of(call, name, **options):
    return verdict(name, lambda make: [Sample(make(4, 3))])(target(call, **options))


def test_equal_values_pass():
    assert "passed" == result_of(Cubed.apply, "reference").status


def test_wrong_value_fails_with_element_and_ratio():
    result = result_of(wrong_value, "reference")

    assert "failed" == result.status
    assert "as given: output 0[" in result.message
    assert "by the reference" in result.message


def test_wrong_value_for_large_numbers_only_fails_there():
    message = result_of(wrong_when_large, "reference").message

    assert "as given" not in message
    assert "numbers of 'x' 20 times as large: output 0[" in message


def test_forgotten_factor_that_is_1_in_the_sample_fails():
    made = Target(
        "faults::scale", lambda x, alpha=1.0: x, lambda x, alpha=1.0: x, reference=lambda x, alpha=1.0: alpha * x
    )
    made = dataclasses.replace(
        made, arguments=(TargetArgument("x"), TargetArgument("alpha", default=1.0)), kernels={"": made.call}
    )
    result = verdict("reference", lambda make: [Sample(make(4, 3))])(made)

    assert "alpha=0.7: output 0[" in result.message
    assert "a factor that differs: 1.42857, -1, 0.5, 0.004, ..." == result.cause


def offset(x):
    return 2 * x.abs().log() + 1e-3


def logarithm(x):
    return 2 * x.abs().log()


def test_constant_offset_is_not_taken_for_precision():
    made = Target("faults::offset", offset, offset, (TargetArgument("x"),), reference=logarithm, kernels={"": offset})
    result = verdict("reference", lambda make: [Sample(make(4, 3))])(made)

    assert ("failed", "a constant offset of 0.001") == (result.status, result.cause)


def test_rounding_of_the_reference_itself_is_allowed():
    made = Target(
        "faults::mean", two_pass, two_pass, (TargetArgument("x"),), reference=one_pass, kernels={"": two_pass}
    )
    result = verdict("reference", lambda make: [Sample(make(64, low=100, high=101))])(made)

    assert "passed" == result.status, result.message


def power(x, p=3.0):
    return x**p


def power_with_fast_path(x, p=3.0):
    return x * x * 1.5 if p == 2.0 else x**p


def power_with_right_fast_path(x, p=3.0):
    return x * x if p == 2.0 else x**p


@each(("op", "status"), [(power_with_fast_path, "failed"), (power_with_right_fast_path, "passed")])
def test_fast_path_of_a_power_of_two_is_looked_at(op, status):
    names = (TargetArgument("x"), TargetArgument("p", default=3.0))
    made = Target(name="faults::power", call=op, full=op, arguments=names, reference=power, kernels={"": op})
    result = verdict("reference", lambda make: [Sample(make(4), 3.0)])(made)

    assert status == result.status, result.message
    assert status == "passed" or "p=2.0: output 0[0] = " in result.message


def test_missing_reference_is_skipped():
    result = result_of(Cubed.apply, "reference", is_reference=False)

    assert ("skipped", "no reference is registered (register_reference)") == (result.status, result.message)


def test_reference_that_is_the_only_kernel_is_skipped():
    result = result_of(reference, "reference", kernels={"": reference})

    assert ("skipped", "the reference is the only kernel") == (result.status, result.message)


def test_equal_gradients_pass():
    assert "passed" == result_of(Cubed.apply, "reference_gradients").status


def test_wrong_gradient_fails_with_its_name():
    result = result_of(WrongBackward.apply, "reference_gradients")

    assert "failed" == result.status
    assert result.message.startswith("as given: gradient of 'x'[")
    assert "by the reference" in result.message


def test_output_without_a_gradient_fails_where_that_of_the_reference_has_one():
    result = result_of(lambda x: (x**3).detach(), "reference_gradients")

    assert "as given: gradient of 'x'[" in result.message
    assert " = 0, expected " in result.message


def test_equal_kernels_pass():
    assert "passed" == result_of(Cubed.apply, "kernels", kernels={"": reference, "cpu": Cubed.apply}).status


def test_kernel_that_differs_from_the_default_fails():
    result = result_of(wrong_value, "kernels", kernels={"": reference, "cpu": wrong_value})

    assert "failed" == result.status
    assert "cpu kernel, as given: output 0[" in result.message


def test_kernel_of_an_absent_device_is_skipped():
    result = result_of(reference, "kernels", kernels={"": reference, "xla": reference})

    assert ("skipped", "there is no xla device here") == (result.status, result.message)


def test_one_kernel_alone_is_skipped():
    assert "skipped" == result_of(torch.relu, "kernels").status


def test_a_number_that_no_sample_has_can_be_kept_out():
    schema = "(Tensor x, float slope) -> Tensor"
    op = custom_op("reference_faults::leaky", lambda x, slope: torch.maximum(x, slope * x), schema=schema)
    op.register_fake(lambda x, slope: torch.empty_like(x))
    op.register_reference(lambda x, slope: torch.nn.functional.leaky_relu(x, slope))

    (result,) = check(op, lambda make: [Sample(make(3, 4), 0.1)], checks=["reference"], isolated=False).results
    assert result.message.startswith("slope=2.0: ")
    advice = "no sample has this 'slope': if it is not allowed, raise, or give Sample(...).keeping('slope')"
    assert advice == result.cause

    (result,) = check(op, lambda make: [Sample(make(3, 4), 0.1).keeping("slope")], checks=["reference"]).results
    assert "passed" == result.status


def test_a_product_of_32_bits_overflows():
    def key(x):
        return (x[0] * x[1]).long()

    def wide(x):
        return x[0].long() * x[1].long()

    target = Target("faults::key", key, key, (TargetArgument("x"),), reference=wide, kernels={"": key})
    result = verdict("reference", [Sample(torch.tensor([[3, 2], [5, 7]], dtype=torch.int32))])(target)

    assert "integers 131071 times as large, in tensors: output 0[0]" in result.message
