"""The check `nesting` fails what is right alone and wrong inside another transform of torch.func."""

import torch
from torch import Tensor
from torch.autograd import Function
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.schema.samples import Sample


def result_of(op, *samples):
    samples = samples or (Sample(torch.tensor([0.5, 1.5, 2.0], dtype=torch.float64)),)
    return verdict("nesting", samples)(op)


class Cube(Function):
    """y = x³ with every rule."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * tangent * ctx.saved_tensors[0] ** 2

    @staticmethod
    def vmap(info, in_dims, x):
        return Cube.apply(x), in_dims[0]


class ConstantTangent(Cube):
    """Its tangent is right, and does not know that it depends on x."""

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * tangent * ctx.saved_tensors[0].detach() ** 2

    @staticmethod
    def vmap(info, in_dims, x):
        return ConstantTangent.apply(x), in_dims[0]


class ForgetfulBatch(Cube):
    """Its batched value is right, and does not know that it depends on x."""

    @staticmethod
    def vmap(info, in_dims, x):
        return Cube.apply(x.detach()), in_dims[0]


@custom_op("faults_nesting::wrong_batch")
def wrong_batch(x: torch.Tensor) -> torch.Tensor:
    return x**3


@wrong_batch.register_fake
def _(x):
    return torch.empty_like(x)


@wrong_batch.register_backward
def _(grad, x):
    return 3 * grad * x**2


@wrong_batch.register_vmap
def _(info, in_dims, x):
    return wrong_batch(x.detach()), in_dims[0]


def refuses_vmap(x):
    if torch._C._functorch.is_batchedtensor(x):
        raise NotImplementedError("no batches here")
    return x**3


def test_right_rules_pass():
    assert "passed" == result_of(Cube).status


def test_limit_of_torch_is_not_blamed():
    message = "not checked: jacfwd(jacfwd): torch takes the jvp of a torch.autograd.Function for constant there"

    assert message == result_of(Cube).message


def test_tangent_that_is_constant_fails_under_a_second_derivative():
    result = result_of(ConstantTangent)

    assert "failed" == result.status
    assert "jacrev(jacfwd): d / d x[" in result.message


def test_batched_value_without_a_gradient_fails():
    result = result_of(ForgetfulBatch)

    assert "failed" == result.status
    assert "grad(vmap): d / d x[" in result.message


def test_rule_of_an_op_declared_here_is_looked_at():
    assert "grad(vmap): d / d x[" in result_of(wrong_batch).message


def test_refused_transforms_are_named():
    result = result_of(refuses_vmap)

    assert "passed" == result.status
    assert "not checked: grad(vmap): NotImplementedError: no batches here" in result.message


def test_several_inputs_are_told_apart():
    x, w = torch.ones(3, 4), torch.ones(4)

    assert "passed" == result_of(lambda x, w: (x * w).tanh(), Sample(x, w)).status


def test_large_samples_are_cut():
    x = torch.ones(64, 64)

    assert "passed" == result_of(torch.sin, Sample(x)).status


def test_random_results_are_compared_with_equal_random_numbers():
    result = result_of(torch.nn.functional.dropout)

    assert "passed" == result.status


def test_complex_numbers_are_skipped_with_the_reason():
    assert "skipped" == result_of(torch.sin, Sample(torch.ones(2, dtype=torch.complex64))).status


@custom_op("faults_nesting::wrong_inside", reference=True)
def wrong_inside(x: Tensor) -> Tensor:
    """The second derivative of layer_norm by torch.func is wrong in torch 2.13, which is not the op's fault."""
    return WrongTwice.apply(x)


class WrongTwice(torch.autograd.Function):
    """Right by torch.autograd; under torch.func, whose tensors are no plain ones, twice what it should be."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        factor = 1 if torch._C._functorch.maybe_current_level() is None else 2
        return factor * 3 * grad * x * x


def test_what_the_reference_has_wrong_by_itself_is_not_blamed_on_the_op():
    result = verdict("nesting", [Sample(torch.ones(3, dtype=torch.float64))])(wrong_inside)

    assert "failed" == result.status
    assert "the reference, called by itself, is wrong there too: an operation of PyTorch in it is, and not the op" == (
        result.cause
    )


@custom_op("faults_nesting::noisy")
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


noisy.register_fake(torch.empty_like)
noisy.register_backward(lambda grad: grad)


def test_a_batch_draws_other_numbers_than_a_loop():
    """The op lacks the tag of what draws random numbers, without which torch lets it draw below vmap."""
    assert "passed" == result_of(noisy).status
