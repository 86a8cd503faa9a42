"""A C++ kernel is compared with its op when it is registered, by the parameters in the text of its source."""

import inspect

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor

from custom_autograd import RegistrationError, custom_op
from custom_autograd.kernels import cpp_kernel

SOURCE = """
STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("swapped(Tensor y, Tensor x, float scale) -> Tensor");
  m.def("short(Tensor x, Tensor y) -> Tensor");
  m.def("renamed(Tensor left, Tensor right, float factor=1.0) -> Tensor");
  m.def("keyword(Tensor x, *, float scale) -> Tensor");
  m.def("broken(Tensor x, Tensr y) -> Tensor");
  m.def(NAME);
}
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "kernels.cpp"
    path.write_text(SOURCE)
    return path


def declare(name):
    def product(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return x * y * scale

    return custom_op(f"cpp_signatures::{name}", product, replace=True)


def text_of(error):
    return "\n".join(line for line in str(error).splitlines() if not line.startswith(("  declared", "  rule")))


def test_swapped_arguments_are_refused(source):
    with pytest.raises(RegistrationError) as raised:
        declare("swapped").register_kernel("cpu", cpp_kernel(source, "swapped"))

    assert_expected_inline(
        text_of(raised.value),
        """\
cpp_signatures::swapped: the cpu kernel takes the op's arguments in another order
  expected   (x, y, scale)
  found      (y, x, scale)
  do         put the parameters in the order of the schema""",
    )


def test_another_number_of_arguments_is_refused(source):
    with pytest.raises(RegistrationError) as raised:
        declare("short").register_kernel("cpu", cpp_kernel(source, "short"))

    assert_expected_inline(
        text_of(raised.value),
        """\
cpp_signatures::short: the cpu kernel does not fit the schema: it takes 2 of 3 positional arguments
  expected   (x, y, scale)
  found      (x, y)
  do         give it these parameters""",
    )


def test_other_names_are_bound_by_position(source):
    kernel = cpp_kernel(source, "renamed")
    declare("renamed").register_kernel("cpu", kernel)

    assert "(left, right, factor=1.0)" == str(inspect.signature(kernel))


def test_keyword_only_arguments_are_bound_by_name(source):
    def scale(x: Tensor, *, scale: float) -> Tensor:
        return x * scale

    op = custom_op("cpp_signatures::keyword", scale)
    op.register_kernel("cpu", cpp_kernel(source, "keyword"))
    other = custom_op(
        "cpp_signatures::other_keyword", lambda x, factor: x * factor, schema="(Tensor x, *, float factor) -> Tensor"
    )
    with pytest.raises(RegistrationError, match="it does not take the keyword argument 'factor'"):
        other.register_kernel("cpu", cpp_kernel(source, "keyword"))


@pytest.mark.parametrize("function", ["broken", "unknown"])
def test_what_the_text_does_not_show_is_left_to_the_build(source, function):
    declare(function).register_kernel("cpu", cpp_kernel(source, function))
    declare(function).register_kernel("cpu", cpp_kernel(source.parent / "missing.cpp", function, fallback=torch.mul))

    assert ["args", "kwargs"] == list(inspect.signature(cpp_kernel(source, function)).parameters)
