"""Each operator makes the mistake that its row says, and puts the right function back."""

import pytest
import torch
from mutating.mutated_ops import Inherited, Square, library, scale, sum_rows
from tables import each

from custom_autograd import KernelError
from custom_autograd.verification.mutation.operators import OPERATORS, mutants_of
from custom_autograd.verification.mutation.points import find_points, points_of


def point_of(op, rule):
    (point,) = [point for point in points_of(op) if point.rule == rule]
    return point


def mutant_of(op, rule, label):
    (mutant,) = [mutant for mutant in mutants_of(point_of(op, rule)) if mutant.label == label]
    return mutant


def gradients(op, *, cotangent, x=(1.0, 2.0, 3.0)):
    """The gradient of the sole input, as a list."""
    x = torch.tensor(x, requires_grad=True)
    return torch.autograd.grad(op(x), x, torch.tensor(cotangent))[0].tolist()


WRONG = {
    "sign": [-2.0, 8.0, -18.0],
    "factor": [4.0, -16.0, 36.0],
    "drop[x]": [0.0, 0.0, 0.0],
    "abs": [2.0, 8.0, 18.0],
    "mean": [2 / 3, -8 / 3, 6.0],
    "tail": [2.0, -8.0, 0.0],
}
RIGHT = [2.0, -8.0, 18.0]


@each(("label", "expected"), WRONG.items())
def test_operator_returns_the_wrong_numbers(label, expected):
    mutant = mutant_of(Square, "backward", label)
    with mutant.point.exchange(mutant.function()):
        found = gradients(Square.apply, cotangent=[1.0, -2.0, 3.0])

    assert pytest.approx(expected) == found


@each("label", WRONG)
def test_the_right_function_is_put_back(label):
    mutant = mutant_of(Square, "backward", label)
    with mutant.point.exchange(mutant.function()):
        pass

    assert gradients(Square.apply, cotangent=[1.0, -2.0, 3.0]) == RIGHT


def test_noise_and_cast_are_small():
    for label, bound in (("noise", 1e-3), ("cast", 2**-8)):
        mutant = mutant_of(Square, "backward", label)
        with mutant.point.exchange(mutant.function()):
            found = torch.tensor(gradients(Square.apply, cotangent=[1.1, -2.3, 3.7]))
        right = torch.tensor(gradients(Square.apply, cotangent=[1.1, -2.3, 3.7]))

        assert 0 < float(((found - right) / right).abs().max()) <= bound


def test_detach_loses_the_second_derivative_only():
    mutant = mutant_of(Square, "backward", "detach")
    x = torch.tensor([2.0], requires_grad=True)
    with mutant.point.exchange(mutant.function()):
        (found,) = torch.autograd.grad(Square.apply(x), x, torch.ones(1), create_graph=True)

    assert (4.0, False) == (found.item(), found.requires_grad)


def test_swap_exchanges_gradients_of_one_shape_though_one_of_them_is_a_callable():
    mutant = mutant_of(scale, "backward", "swap")
    x, weight = torch.tensor([[2.0]], requires_grad=True), torch.tensor([[5.0]], requires_grad=True)
    with mutant.point.exchange(mutant.function()):
        scale(x, weight).sum().backward()

    assert (4.0, 20.0) == (x.grad.item(), weight.grad.item())


def test_transpose_keeps_the_shape():
    mutant = mutant_of(scale, "backward", "transpose")
    x, weight = torch.ones(3, 2, requires_grad=True), torch.arange(6.0).reshape(3, 2)
    with mutant.point.exchange(mutant.function()):
        scale(x, weight).sum().backward()

    assert x.grad.tolist() == [[0.0, 4.0], [8.0, 2.0], [6.0, 10.0]]


def test_in_place_writes_to_the_incoming_gradient():
    mutant = mutant_of(Square, "backward", "in-place")
    x, cotangent = torch.ones(2, requires_grad=True), torch.ones(2)
    with mutant.point.exchange(mutant.function()):
        (found,) = torch.autograd.grad(Square.apply(x), x, cotangent)

    assert ([2.0, 2.0], [2.0, 2.0]) == (found.tolist(), cotangent.tolist())


def test_cached_memory_is_overwritten_by_the_next_call():
    mutant = mutant_of(Square, "backward", "cached")
    x = torch.ones(2, requires_grad=True)
    with mutant.point.exchange(mutant.function()):
        (first,) = torch.autograd.grad(Square.apply(x), x, torch.ones(2))
        torch.autograd.grad(Square.apply(x), x, torch.full((2,), 3.0))

    assert first.tolist() == [6.0, 6.0]


def test_stale_incoming_gradient_is_that_of_the_first_call():
    mutant = mutant_of(Square, "backward", "stale-grad")
    with mutant.point.exchange(mutant.function()):
        gradients(Square.apply, cotangent=[1.0, 1.0, 1.0])
        found = gradients(Square.apply, cotangent=[7.0, 7.0, 7.0])

    assert found == [2.0, 4.0, 6.0]


def test_stale_saved_values_are_those_of_the_first_call():
    mutant = mutant_of(scale, "backward", "stale-saved")
    weight = torch.ones(1)
    with mutant.point.exchange(mutant.function()):
        gradients(lambda x: scale(x, weight), x=[1.0], cotangent=[1.0])
        found = gradients(lambda x: scale(x, weight), x=[9.0], cotangent=[1.0])

    assert found == [2.0]


def test_mean_divides_by_what_was_summed():
    mutant = mutant_of(sum_rows, "grad x", "mean")
    with mutant.point.exchange(mutant.function()):
        found = gradients(sum_rows, cotangent=6.0)

    assert found == [2.0, 2.0, 2.0]


def test_kernel_that_writes_to_its_first_input_is_refused_by_validation():
    mutant = mutant_of(scale, "kernel cpu", "write-input")
    with mutant.point.exchange(mutant.function()), pytest.raises(KernelError, match="'x'"):
        scale(torch.ones(2), torch.ones(2))


def test_kernel_ignores_strides():
    mutant = mutant_of(scale, "kernel cpu", "strides")
    x = torch.arange(4.0).reshape(2, 2)
    with mutant.point.exchange(mutant.function()):
        found = scale(x.T, torch.ones(2, 2))

    assert found.tolist() == [[0.0, 1.0], [4.0, 9.0]]


def test_kernel_depends_on_how_often_it_was_called():
    mutant = mutant_of(scale, "kernel cpu", "counter")
    with mutant.point.exchange(mutant.function()):
        found = [scale(torch.ones(1), torch.ones(1)).item() for _ in range(2)]

    assert pytest.approx([1.0, 1.001]) == found


def test_backward_of_torch_library_is_changed_and_put_back():
    mutant = mutant_of(library, "backward", "sign")
    with mutant.point.exchange(mutant.function()):
        wrong = gradients(lambda x: library(x, 1.0), cotangent=[1.0, 1.0, 1.0])
    right = gradients(lambda x: library(x, 1.0), cotangent=[1.0, 1.0, 1.0])

    assert ([-2.0, -4.0, -6.0], [2.0, 4.0, 6.0]) == (wrong, right)


def test_kernel_of_torch_library_is_changed():
    mutant = mutant_of(library, "kernel default", "factor")
    with mutant.point.exchange(mutant.function()):
        found = library(torch.ones(1), 3.0)

    assert found.item() == 6.0


def test_inherited_backward_is_changed_in_the_class_that_was_named_only():
    mutant = mutant_of(Inherited, "backward", "sign")
    with mutant.point.exchange(mutant.function()):
        found = (gradients(Inherited.apply, cotangent=[1.0] * 3), gradients(Square.apply, cotangent=[1.0] * 3))

    assert found == ([-2.0, -4.0, -6.0], [2.0, 4.0, 6.0])
    assert "backward" not in vars(Inherited)


def test_plain_callable_has_no_sites():
    assert points_of(torch.sin) == ()


@each("name", ["mutated::scale", "mutated::library", "Square"])
def test_sites_are_found_by_the_name_of_the_op(name):
    assert {point.op for point in find_points(name)} == {name}


def test_sites_of_an_op_that_is_not_declared_are_none():
    assert find_points("mutated::nowhere") == ()


def test_every_operator_has_a_name_of_its_own():
    assert len(OPERATORS) == len({operator.name for operator in OPERATORS})


def test_path_names_op_rule_and_operator():
    assert mutant_of(scale, "backward", "drop[weight]").path == "mutated::scale/backward/drop[weight]"
