"""One layout for every message, values in one short line, and the nearest name as advice."""

import functools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from custom_autograd.core.locations import location_of
from custom_autograd.core.messages import LONGEST_VALUE, format_message, quote, show, suggest
from custom_autograd.core.metadata import metadata_of
from custom_autograd.schema.names import names_of, parse_name


def test_a_message_has_a_line_per_known_fact():
    text = format_message("lib::op", "it is wrong", expected="this", found=None, rule="r.py:1", declared="", do="that")

    assert "lib::op: it is wrong\n  expected   this\n  rule       r.py:1\n  do         that" == text


@given(st.text() | st.lists(st.integers()) | st.binary())
def test_a_shown_value_is_one_short_line(value):
    text = show(value)

    assert len(text) <= LONGEST_VALUE
    assert "\n" not in text


def test_a_shown_tensor_is_one_line():
    assert "\n" not in show(torch.ones(4, 4))


def test_names_are_quoted():
    assert "'a', 'b'" == quote(["a", "b"])
    assert "none" == quote([])


@pytest.mark.parametrize(
    ("name", "expected"), [("wieght", "did you mean 'weight'?"), ("zzz", None), ("weight", "did you mean 'weight'?")]
)
def test_the_nearest_name_is_suggested(name, expected):
    assert expected == suggest(name, ["x", "weight", "bias"])


class Callable:
    """A class whose instances can be called."""

    def __call__(self, x):
        return x

    def method(self, x):
        return x


def wrapper(function):
    @functools.wraps(function)
    def wrapped(*args):
        return function(*args)

    return wrapped


def plain(x):
    return x


LINE = plain.__code__.co_firstlineno


@each(
    ("function", "line"),
    [
        (plain, LINE),
        (wrapper(plain), LINE),
        (wrapper(wrapper(plain)), LINE),
        (functools.partial(plain, 1), LINE),
        (Callable(), Callable.__call__.__code__.co_firstlineno),
        (Callable().method, Callable.method.__code__.co_firstlineno),
    ],
    ids=["function", "wrapped", "wrapped twice", "partial", "object", "method"],
)
def test_a_location_is_that_of_the_innermost_function(function, line):
    assert f"test_messages.py:{line}" == location_of(function)


def test_a_builtin_has_a_name_instead_of_a_place():
    assert "builtin_function_or_method max" == location_of(max)


def test_a_name_is_read_and_written():
    assert "lib::op" == str(parse_name("lib::op"))
    assert ("lib", "op") == (parse_name("lib::op").namespace, parse_name("lib::op").name)


def test_one_name_or_several():
    assert ("ab",) == names_of("ab")
    assert ("a", "b") == names_of(["a", "b"])


@pytest.mark.parametrize("tensor", [torch.ones(2, 3).t(), torch.ones(2, device="meta"), torch.eye(2).to_sparse()])
def test_metadata_is_everything_but_the_data(tensor):
    known = metadata_of(tensor)

    assert (tensor.shape, tensor.dtype, tensor.device, tensor.layout) == (
        known.shape,
        known.dtype,
        known.device,
        known.layout,
    )
    assert (tensor.stride() if tensor.layout is torch.strided else ()) == known.stride()
