"""The check `gradients` fails a backward that is wrong, and passes one that is right."""

import torch
from tables import each
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import check
from custom_autograd.schema.samples import Sample


def samples(make):
    yield Sample(make(4, 3), make(3))


def result_of(op, samples=samples, **options):
    return verdict("gradcheck", samples)(op, **options)


class Scaled(Function):
    """y = x * x * w, differentiated right; the faults below change one line of it."""

    @staticmethod
    def forward(x, w):
        return x * x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 2 * grad * x * w, (grad * x * x).sum(0)


class SignFlipped(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return -2 * grad * x * w, (grad * x * x).sum(0)


class MeanForSum(Scaled):
    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return 2 * grad * x * w, (grad * x * x).mean(0)


class FirstElementOfList(Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx, grad):
        _, y = ctx.saved_tensors
        return grad * y, grad * y


class NotBatchable(Scaled):
    """Right, but it looks at the data of its gradient."""

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        largest = grad.abs().max().item() or 1
        return 2 * (grad / largest) * largest * x * w, (grad * x * x).sum(0)


@torch.library.custom_op("faults_gradients::unregistered", mutates_args=())
def unregistered(x: torch.Tensor) -> torch.Tensor:
    return x * x


def product_of_list(tensors):
    return FirstElementOfList.apply(*tensors)


def in_half(x):
    return (x.half().square() + 1).rsqrt().to(x.dtype) * x


def says_float32(x):
    return (x.float().square() + 1).rsqrt() * x.float()


def in_float32(x):
    return (x.float().square() + 1).rsqrt().to(x.dtype) * x


def test_right_backward_passes():
    assert "passed" == result_of(Scaled).status


def test_flipped_sign_fails_and_names_the_entry():
    result = result_of(SignFlipped)

    assert "failed" == result.status
    assert "/ d x[" in result.message
    assert "(ratio -1)" in result.message


def test_numbers_of_a_large_input_are_those_of_a_direction():
    result = result_of(SignFlipped, lambda make: [Sample(make(400, 3), make(3))])

    assert "differences: the derivative of the outputs by x along a direction = " in result.message
    assert "(ratio -1)" in result.message


def test_mean_instead_of_sum_fails_with_its_ratio():
    result = result_of(MeanForSum)

    assert "failed" == result.status
    assert "/ d w[" in result.message
    assert "(ratio 0.25)" in result.message


def test_wrong_gradient_of_a_tensor_in_a_list_fails():
    result = result_of(product_of_list, lambda make: [Sample([make(3), make(3)])])

    assert "failed" == result.status
    assert "tensors[1]" in result.message


def test_backward_that_cannot_be_batched_passes_and_says_so():
    result = result_of(NotBatchable)

    assert "passed" == result.status
    assert result.message.startswith("not checked: its backward cannot be batched: RuntimeError")


def test_op_that_raises_for_want_of_a_backward_is_skipped():
    result = result_of(unregistered, lambda make: [Sample(make(3))])

    assert "skipped" == result.status
    assert "no autograd formula was registered" in result.message


@each("narrow", [in_float32, in_half])
def test_a_narrower_dtype_inside_a_float64_op_fails(narrow):
    result = result_of(narrow, lambda make: [Sample(make(5))])

    assert "failed" == result.status
    is_coarse = "its results are float64 and only good to " in result.message
    assert is_coarse == (narrow is in_float32)  # steps of half precision are too wide to be noise


def test_an_op_that_says_float32_is_no_fault():
    assert "passed" == result_of(says_float32, lambda make: [Sample(make(5))]).status


def test_only_tensors_that_require_grad_count_where_some_do():
    sample = Sample(torch.rand(3, requires_grad=True), torch.rand(3))

    assert "passed" == result_of(lambda x, y: x * y.detach(), [sample]).status


def test_integer_arguments_alone_are_skipped_with_the_reason():
    result = result_of(lambda x: x + 1, lambda make: [Sample(make(3, dtype=torch.int64))])

    assert ("skipped", "no tensor of the sample can have a gradient") == (result.status, result.message)


def test_integer_results_are_skipped_with_the_reason():
    result = result_of(torch.argsort, lambda make: [Sample(make(3))])

    assert ("skipped", "no result of the op can have a gradient") == (result.status, result.message)


def test_complex_backward_without_conjugate_fails():
    class NoConjugate(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0]

    result = result_of(NoConjugate, lambda make: [Sample(make(3, dtype=torch.complex64))])

    assert "failed" == result.status
    assert "passed" == result_of(torch.square, lambda make: [Sample(make(3, dtype=torch.complex64))]).status


class WritesToGradient(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return grad.mul_(2)


def test_backward_that_writes_to_its_gradient_is_not_batched():
    result = result_of(WritesToGradient, lambda make: [Sample(make(3))])

    assert "its backward cannot be batched: it writes to its incoming gradient" in result.message


class NeedsBoth(Function):
    """Returns a sum and a product; its backward multiplies both gradients, though only one may arrive."""

    @staticmethod
    def forward(x, w):
        return x + w, x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, of_sum, of_product):
        x, w = ctx.saved_tensors
        return of_sum + of_product * w, (of_sum + of_product * x).sum(0)


def test_a_backward_that_raises_fails():
    result = result_of(NeedsBoth)

    assert "failed" == result.status
    assert result.message.startswith("the backward raises TypeError: unsupported operand type(s) for ")


def test_a_narrower_dtype_does_not_keep_other_checks_from_running():
    class Silent(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return (x.float() * x.float()).to(x.dtype)

        @staticmethod
        def backward(ctx, grad):
            return 2 * ctx.saved_tensors[0] * grad.detach()

    samples = [Sample(torch.linspace(0.1, 1, 5, dtype=torch.float64).requires_grad_())]
    gradcheck, second_order = check(Silent, samples, checks=["gradcheck", "second_order"]).results
    assert "only good to" in gradcheck.message
    assert second_order.status == "failed"
    assert "d incoming grad" in second_order.message


class Distance(Function):
    """|x - y|, in float32, which has a kink where both are equal."""

    slope = 1.0

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return (x.float() - y.float()).abs().to(x.dtype)

    @classmethod
    def backward(cls, ctx, grad):
        x, y = ctx.saved_tensors
        return cls.slope * torch.sign(x - y) * grad, None


class SteepDistance(Distance):
    slope = 1.1


def test_a_kink_within_the_step_of_a_coarse_function_is_no_fault():
    x = torch.linspace(0.1, 1, 5)
    samples = [Sample(x.clone().requires_grad_(), x - torch.tensor([3e-3, 1, 1, 1, 1]))]
    assert "finite differences" not in verdict("gradcheck", samples)(Distance).message
    assert "(ratio 1.1" in verdict("gradcheck", samples)(SteepDistance).message
