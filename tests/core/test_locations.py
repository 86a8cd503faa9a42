"""Where a callable was written."""

import functools

import torch
from tables import each

from custom_autograd.core.locations import format_location, location_of, modules_of, unwrap


def plain(x):
    return x


@functools.wraps(plain)
def wrapper(x):
    return plain(x)


class Callable:
    """With an attribute that has the name of one of functools.partial."""

    func = print

    def __call__(self, x):
        return x

    def method(self, x):
        return x

    @classmethod
    def of_class(cls, x):
        return x

    @staticmethod
    def static(x):
        return x


UNWRAPPED = {
    "function": (plain, plain),
    "wrapper": (wrapper, plain),
    "partial": (functools.partial(plain), plain),
    "partial of a partial of a method": (
        functools.partial(functools.partial(Callable().method)), Callable.method),
    "object": (Callable(), Callable.__call__),
    "method": (Callable().method, Callable.method),
    "class method": (Callable.of_class, Callable.of_class.__func__),
    "static method": (Callable.__dict__["static"], Callable.static),
    "class": (Callable, Callable),
    "builtin": (torch.sin, torch.sin),
}  # fmt: skip


@each(("function", "expected"), UNWRAPPED.values(), ids=UNWRAPPED)
def test_what_is_behind_a_wrapper_is_found(function, expected):
    assert expected == unwrap(function)


def test_a_partial_is_where_its_function_is():
    assert location_of(plain) == location_of(functools.partial(plain))


def test_a_builtin_is_called_what_it_is():
    assert "builtin_function_or_method sin" == location_of(torch.sin)


def test_the_module_of_a_partial_is_that_of_its_function():
    assert __name__ == modules_of(functools.partial(plain))[0]


def test_a_file_that_every_package_has_is_named_with_its_folder():
    assert "package/__init__.py:13" == format_location("some/package/__init__.py", 13)
    assert "file.py:13" == format_location("some/package/file.py", 13)


def test_a_class_is_where_it_was_written():
    assert location_of(Callable).startswith("test_locations.py:")
