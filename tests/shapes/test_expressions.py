"""Expressions over the names of a line: integers, names, + - * // ** and parentheses; nothing else."""

import pytest
from tables import each

from custom_autograd.shapes.notation import ExpressionError, evaluate, names_in

SIZES = {"b": 2, "i": 3, "o": 5}
VALUES = {"2*b*i*o": 60, "b + i - o": 0, "(b + i) * o": 25, "i**b": 9, "o // b": 2, "7": 7, " b ": 2}


@each("text", VALUES)
def test_value(text):
    assert VALUES[text] == evaluate(text, SIZES)


def test_each_name_comes_once():
    assert {"o", "b"} == set(names_in("o*b + 2*o"))
    assert 2 == len(names_in("o*b + 2*o"))


@each("text", ["2*", "b.x", "f(b)", "b / i", "1.5 * b", "b < i", "'b'", "b, i", "", "True", "lambda: b"])
def test_anything_else_is_refused(text):
    with pytest.raises(ExpressionError):
        names_in(text)


def test_name_without_a_size():
    with pytest.raises(KeyError):
        evaluate("b * c", SIZES)
