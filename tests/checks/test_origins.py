"""Who raised an exception is read from its traceback, never from its words."""

import pytest
import torch
from torch.autograd.function import once_differentiable
from verdicts import verdict

from custom_autograd import GradientError, Sample, check, custom_op
from custom_autograd.core.errors import GradientUnavailable
from custom_autograd.verification.harness.base import REFUSALS, find_refusal
from custom_autograd.verification.harness.origins import is_authors, location_of, origin_of

MISLEADING = "the gradient of 'x' is not differentiable: no rule, once-differentiable, cannot derive, no backward"


def caught(function, *args):
    with pytest.raises(Exception) as info:  # noqa: PT011 - every class is looked at
        function(*args)
    return info.value


def raise_it(error):
    raise error


def assert_it():
    assert torch.ones(()).requires_grad, "this is not differentiable"


def check_by_torch():
    torch._check(False, lambda: MISLEADING)


def shapes_that_do_not_fit():
    return torch.ones(3) + torch.ones(4)


def raise_after_torch():
    try:
        shapes_that_do_not_fit()
    except RuntimeError as error:
        raise ValueError("not now") from error


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad * x


def differentiate_twice():
    x = torch.ones(3, requires_grad=True)
    (grad,) = torch.autograd.grad(Once.apply(x), x, torch.ones(3, requires_grad=True), create_graph=True)
    grad.sum().backward()


BARE = custom_op("origins::doubled", lambda x: 2 * x, schema="(Tensor x) -> Tensor")


def ask_for_a_gradient_that_is_not_there():
    BARE(torch.ones(3, requires_grad=True)).sum().backward()


@pytest.mark.parametrize(
    ("function", "origin"),
    [
        (lambda: raise_it(RuntimeError(MISLEADING)), "author"),
        (assert_it, "author"),
        (check_by_torch, "author"),
        (raise_after_torch, "author"),
        (shapes_that_do_not_fit, "torch"),
        (differentiate_twice, "torch"),
        (ask_for_a_gradient_that_is_not_there, "package"),
    ],
)
def test_the_last_frame_says_who_raised(function, origin):
    assert origin == origin_of(caught(function))


def test_an_exception_that_was_never_raised_is_torchs():
    assert "torch" == origin_of(RuntimeError("from C++"))


def test_what_led_to_an_exception_counts():
    error = RuntimeError("the compiler wraps it")
    error.__cause__ = caught(raise_it, ValueError("no"))

    assert is_authors(error)
    assert location_of(error).startswith("test_origins.py:")


@pytest.mark.parametrize("words", [MISLEADING, *REFUSALS])
def test_no_words_of_an_author_are_a_refusal(words):
    assert find_refusal(caught(raise_it, RuntimeError(words))) is None


def test_torch_and_the_package_refuse():
    assert "once_differentiable" in find_refusal(caught(differentiate_twice))
    assert "no backward is registered" in find_refusal(caught(ask_for_a_gradient_that_is_not_there))


def test_an_author_refuses_by_class():
    assert "GradientUnavailable: no" == find_refusal(caught(raise_it, GradientUnavailable("no")))
    assert find_refusal(caught(raise_it, NotImplementedError("no"))) is None
    assert "NotImplementedError: no" == find_refusal(caught(raise_it, NotImplementedError("no")), is_optional=True)


def declare(name, error, slot="backward"):
    def op(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    def rule(*args, **kwargs):
        raise error

    found = custom_op(f"origins::{name}", op)
    found.register_fake(torch.empty_like)
    if slot == "jvp":
        found.register_backward(lambda grad: 2 * grad)
        found.register_jvp(lambda tangent_x: rule())
    else:
        found.register_backward(lambda grad: rule())
    return found


ERRORS = {
    "lacking": NotImplementedError("later"),
    "words": RuntimeError(MISLEADING),
    "ours": GradientError("no backward is registered"),
    "unavailable": GradientUnavailable("not for these"),
    "key": KeyError("x"),
    "internal": RuntimeError("INTERNAL ASSERT FAILED"),
}


@pytest.mark.parametrize("error", ERRORS)
def test_a_backward_that_always_raises_fails_whatever_it_says(error):
    op = declare(f"backward_{error}", ERRORS[error])

    report = check(op, [Sample(torch.randn(3, 2))], checks=["contract", "gradcheck", "determinism"])

    (contract,) = [row for row in report.results if row.check == "contract"]
    assert "failed" == contract.status
    assert f"forward and backward raise {type(ERRORS[error]).__name__}" in contract.message
    assert "(test_origins.py:" in contract.message
    (gradcheck,) = [row for row in report.results if row.check == "gradcheck"]
    assert gradcheck.is_finding


@pytest.mark.parametrize("error", ["lacking", "words", "key"])
def test_a_jvp_that_always_raises_fails(error):
    op = declare(f"jvp_{error}", ERRORS[error], "jvp")

    result = verdict("forward_mode", [Sample(torch.randn(3, 2))])(op)

    assert "failed" == result.status
    assert f"forward mode raises {type(ERRORS[error]).__name__}" in result.message


def test_an_op_without_a_backward_is_honest():
    result = verdict("contract", [Sample(torch.randn(3, 2))])(BARE)

    assert "skipped" == result.status
    assert "no backward is registered" in result.message
