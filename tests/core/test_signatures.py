"""The signature of whatever can be called."""

import functools

import torch

from custom_autograd.core.signatures import find_signature


def scale(factor, x, n=2, *, m=1):
    return x * factor * n * m


class Scale:
    """Callable, with methods."""

    def __call__(self, x, n):
        return x * n

    @classmethod
    def double(cls, x):
        return x * 2


def names(function):
    return list(find_signature(function).parameters)


def test_a_function_has_its_own():
    assert ["factor", "x", "n", "m"] == names(scale)


def test_what_a_partial_binds_by_position_is_no_parameter():
    assert ["x", "n", "m"] == names(functools.partial(scale, 2.0))


def test_what_a_partial_binds_by_keyword_is_no_parameter():
    assert ["x", "m"] == names(functools.partial(scale, 2.0, n=3))


def test_partials_of_partials_are_one():
    assert ["x"] == names(functools.partial(functools.partial(scale, 2.0, n=3), m=4))


def test_a_callable_object_has_that_of_its_call():
    assert ["x", "n"] == names(Scale())


def test_a_bound_method_has_no_self():
    assert ["x"] == names(Scale.double)


def test_a_builtin_has_none():
    assert find_signature(torch.sin) is None
