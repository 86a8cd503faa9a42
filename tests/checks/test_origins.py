"""Which rule an exception left is read from its mark, never from its words."""

import pytest
import torch
from tables import each
from torch.autograd.function import once_differentiable
from verdicts import verdict

from custom_autograd import GradientError, Sample, check, custom_op
from custom_autograd.core.errors import GradientUnavailable
from custom_autograd.verification.harness.base import REFUSALS, find_refusal, root_cause, rule_behind

MISLEADING = "the gradient of 'x' is not differentiable: no rule, once-differentiable, cannot derive, no backward"


def caught(function, *args):
    with pytest.raises(Exception) as info:  # noqa: PT011 - every class is looked at
        function(*args)
    return info.value


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


def with_backward(name, rule):
    op = custom_op(f"origins::{name}", doubled)
    op.register_backward(rule)
    return lambda: op(torch.ones(3, requires_grad=True)).sum().backward()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def raise_it(error):
    raise error


def shapes_that_do_not_fit(grad):
    return grad + torch.ones(4)


def raise_after_torch(grad):
    try:
        shapes_that_do_not_fit(grad)
    except RuntimeError as error:
        raise ValueError("not now") from error


class Refused(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return shapes_that_do_not_fit(grad)


@torch.library.custom_op("origins::library", mutates_args=())
def library(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


library.register_autograd(lambda ctx, grad: shapes_that_do_not_fit(grad))


@each(
    "function",
    [
        with_backward("raising", lambda grad: raise_it(RuntimeError(MISLEADING))),
        with_backward("checking", lambda grad: torch._check(False, lambda: MISLEADING)),
        with_backward("refused", shapes_that_do_not_fit),
        with_backward("chained", raise_after_torch),
        lambda: Refused.apply(torch.ones(3, requires_grad=True)).sum().backward(),
        lambda: library(torch.ones(3, requires_grad=True)).sum().backward(),
    ],
)
def test_what_leaves_a_rule_is_the_rules_whoever_raised(function):
    assert rule_behind(caught(function)).startswith("test_origins.py:")


@each("function", [differentiate_twice, ask_for_a_gradient_that_is_not_there, lambda: torch.ones(3) + torch.ones(4)])
def test_what_is_raised_outside_of_rules_is_no_rules(function):
    assert rule_behind(caught(function)) is None


def test_what_led_to_an_exception_counts():
    error = RuntimeError("the compiler wraps it")
    error.__cause__ = caught(with_backward("wrapped", lambda grad: raise_it(ValueError("no"))))

    assert rule_behind(error).startswith("test_origins.py:")


SPEAKING = custom_op("origins::speaking", doubled)
SPEAKING.register_backward(lambda grad: raise_it(RuntimeError(SAID[0])))
SAID = [""]


@each("words", [MISLEADING, *REFUSALS])
def test_no_words_of_a_rule_are_a_refusal(words):
    SAID[0] = words

    assert find_refusal(caught(SPEAKING(torch.ones(3, requires_grad=True)).sum().backward)) is None


def test_torch_and_the_package_refuse():
    assert "once_differentiable" in find_refusal(caught(differentiate_twice))
    assert "no backward is registered" in find_refusal(caught(ask_for_a_gradient_that_is_not_there))


def test_a_rule_refuses_by_class():
    unavailable = caught(with_backward("unavailable", lambda grad: raise_it(GradientUnavailable("no"))))
    lacking = caught(with_backward("lacking", lambda grad: raise_it(NotImplementedError("no"))))

    assert "GradientUnavailable: no" == find_refusal(unavailable)
    assert find_refusal(lacking) is None
    assert "NotImplementedError: no" == find_refusal(lacking, is_optional=True)


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


@each("error", ERRORS)
def test_a_backward_that_always_raises_fails_whatever_it_says(error):
    op = declare(f"backward_{error}", ERRORS[error])

    report = check(op, [Sample(torch.randn(3, 2))], checks=["contract", "gradcheck", "determinism"])

    (contract,) = [row for row in report.results if row.check == "contract"]
    assert "failed" == contract.status
    assert f"forward and backward raise {type(ERRORS[error]).__name__}" in contract.message
    assert "(test_origins.py:" in contract.message
    (gradcheck,) = [row for row in report.results if row.check == "gradcheck"]
    assert gradcheck.is_finding


@each("error", ["lacking", "words", "key"])
def test_a_jvp_that_always_raises_fails(error):
    op = declare(f"jvp_{error}", ERRORS[error], "jvp")

    result = verdict("forward_mode", [Sample(torch.randn(3, 2))])(op)

    assert "failed" == result.status
    assert f"forward mode raises {type(ERRORS[error]).__name__}" in result.message


def test_an_op_without_a_backward_is_honest():
    result = verdict("contract", [Sample(torch.randn(3, 2))])(BARE)

    assert "skipped" == result.status
    assert "no backward is registered" in result.message


torch.library.define("origins::only_cuda", "(Tensor x) -> Tensor")
torch.library.impl("origins::only_cuda", "CUDA", lambda x: x)


def by_torch(*args, **kwargs):
    """Raise what torch raises for an op without a kernel for the CPU: a NotImplementedError from C++."""
    return torch.ops.origins.only_cuda(torch.ones(3))


RULES = {
    "backward": lambda op: op.register_backward(lambda grad: by_torch(), replace=True),
    "jvp": lambda op: op.register_jvp(lambda tangent_x: by_torch()),
    "fake": lambda op: op.register_fake(lambda x: by_torch(), replace=True),
    "reference": lambda op: op.register_reference(by_torch),
}


@each(
    ("rule", "check_name"),
    [("backward", "contract"), ("jvp", "forward_mode"), ("fake", "fake"), ("reference", "reference")],
)
def test_a_rule_that_torch_refuses_at_every_call_fails(rule, check_name):
    op = custom_op(f"origins::refused_{rule}", doubled)
    op.register_fake(torch.empty_like)
    op.register_backward(lambda grad: 2 * grad)
    RULES[rule](op)

    result = verdict(check_name, [Sample(torch.randn(3))])(op)

    assert "failed" == result.status
    assert "only_cuda" in result.message


@each("raised", [NotImplementedError("TODO"), RuntimeError(MISLEADING)])
def test_a_kernel_that_always_raises_fails_once(raised):
    op = custom_op(
        f"origins::kernel_{type(raised).__name__}", lambda x: raise_it(raised), schema="(Tensor x) -> Tensor"
    )

    results = check(op, [Sample(torch.ones(3))], checks=["schema", "gradcheck", "compile"]).results

    assert ["all checks"] == [result.check for result in results if result.is_finding]


def test_an_exception_that_was_raised_from_itself_is_its_own_cause():
    error = ValueError("no")
    error.__cause__ = error

    assert rule_behind(error) is None
    assert root_cause(error) is error
