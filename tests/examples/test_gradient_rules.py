"""The identities with a declared derivative: x's own memory forwards, the declared factor in every derivative."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from tables import each
from torch import Tensor

from gallery_values import load, random, saved_shapes

rules = load("gradient_rules")

RULES: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "scale_grad": (lambda x: rules.scale_grad(x, 0.25), 0.25),
    "scale_grad_zero": (lambda x: rules.scale_grad(x, 0.0), 0.0),
    "reverse_grad": (lambda x: rules.reverse_grad(x, 3.0), -3.0),
    "reverse_grad_default": (lambda x: rules.reverse_grad(x), -1.0),
}
every_rule = each(("rule", "factor"), RULES.values())


def cubes(rule: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A scalar behind the rule; its derivative with respect to what the rule returns is 3 x²."""
    return rule(x).pow(3).sum()


@every_rule
def test_value_is_the_memory_of_the_argument(rule, factor) -> None:
    x = random(3, 4, dtype=torch.float32)

    assert x.data_ptr() == rule(x).data_ptr()


@every_rule
def test_infinite_values_pass_unchanged_in_a_batch(rule, factor) -> None:
    """The reference, in which they would be NaN, is not what a batch is computed from."""
    x = torch.tensor([[torch.inf, 1.0], [-torch.inf, 0.0]])

    assert torch.equal(x, torch.vmap(rule)(x))


@every_rule
@each("backend", [None, "aot_eager"])
def test_gradient_is_the_declared_one(rule, factor, backend) -> None:
    x = random(3, 4, dtype=torch.float64).requires_grad_()
    total = partial(cubes, rule)
    run = total if backend is None else torch.compile(total, fullgraph=True, backend=backend)
    (found,) = torch.autograd.grad(run(x), x)

    torch.testing.assert_close(found, factor * 3 * x.detach() ** 2)


@every_rule
def test_second_derivative_has_the_factor_twice(rule, factor) -> None:
    """The gradient is factor times g(out), and out depends on x through the rule once more."""
    x = random(5, dtype=torch.float64)

    found = torch.func.hessian(lambda x: cubes(rule, x))(x)

    torch.testing.assert_close(found, torch.diag(factor**2 * 6 * x))


@every_rule
def test_tangent_has_the_factor_of_the_gradient(rule, factor) -> None:
    x, tangent = random(3, 4, dtype=torch.float64), random(3, 4, dtype=torch.float64, seed=1)

    _, found = torch.func.jvp(rule, (x,), (tangent,))

    torch.testing.assert_close(found, factor * tangent)


@every_rule
def test_nothing_is_saved(rule, factor) -> None:
    x = random(3, 4, dtype=torch.float64).requires_grad_()

    assert [] == saved_shapes(lambda: rule(x))


def test_complex_gradient() -> None:
    x = torch.complex(*(random(2, 3, dtype=torch.float64, seed=seed) for seed in (0, 1))).requires_grad_()
    along = torch.complex(*(random(2, 3, dtype=torch.float64, seed=seed) for seed in (2, 3)))
    (found,) = torch.autograd.grad(rules.reverse_grad(x, 0.5), x, along)

    torch.testing.assert_close(found, -0.5 * along)


def test_writing_to_the_result_is_refused_where_its_gradient_would_be_lost() -> None:
    x = random(3, dtype=torch.float64).requires_grad_()
    with pytest.raises(RuntimeError, match=r"in-?place"):
        rules.scale_grad(x, 0.5).mul_(2)


def test_adversary_learns_against_the_features() -> None:
    """Ganin and Lempitsky's equations: the head descends its loss, the features before the reversal ascend it."""
    features, head = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0], requires_grad=True)
    loss = (head * rules.reverse_grad(features, 0.1)).square().sum()
    loss.backward()

    assert pytest.approx(-0.1 * 2 * 6 * 3) == features.grad.item()
    assert pytest.approx(2 * 6 * 2) == head.grad.item()
