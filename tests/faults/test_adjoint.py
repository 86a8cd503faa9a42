"""The check `adjoint` fails a jvp and a backward that are not each other's transpose."""

from torch.autograd import Function
from verdicts import verdict

from custom_autograd.schema.samples import Sample

result_of = verdict("adjoint", lambda make: [Sample(make(4))])


class Squared(Function):
    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]

    @staticmethod
    def jvp(ctx, tangent):
        return 2 * tangent * ctx.saved_tensors[0]


class WrongTangent(Squared):
    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0]


class WithoutTangent(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


def test_adjoint_rules_pass():
    assert "passed" == result_of(Squared).status


def test_rules_that_disagree_fail():
    result = result_of(WrongTangent)

    assert "the jvp and the backward disagree along 'x': <u, J v> = " in result.message
    assert "one of the two rules is wrong; gradcheck and forward_mode tell which" == result.cause


def test_missing_mode_is_skipped():
    assert "must implement the jvp function" in result_of(WithoutTangent).message
