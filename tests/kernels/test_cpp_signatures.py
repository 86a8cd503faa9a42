"""A C++ kernel is compared with its op when it is registered, by the parameters in the text of its source."""

import inspect
import re
import shutil

import pytest
import torch
from torch import Tensor

from custom_autograd import RegistrationError, custom_op
from custom_autograd.kernels import KernelUnavailable, cpp_kernel

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


@pytest.mark.parametrize(
    ("function", "problem", "found"),
    [
        ("swapped", "takes the op's arguments in another order", "(y, x, scale)"),
        ("short", "does not fit the schema: it takes 2 of 3 positional arguments", "(x, y)"),
    ],
)
def test_what_does_not_fit_the_op_is_refused(source, function, problem, found):
    text = f"the cpu kernel {problem}\n  expected   (x, y, scale)\n  found      {found}\n"
    with pytest.raises(RegistrationError, match=re.escape(text)):
        declare(function).register_kernel("cpu", cpp_kernel(source, function))


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


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "#include <torch/extension.h>\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}\n",
            "include <custom_autograd/kernel.h> in place of <torch/extension.h>",
        ),
        (
            "#include <custom_autograd/kernel.h>\n"
            'STABLE_TORCH_LIBRARY(of_its_author, m) { m.def("kernel(Tensor x) -> Tensor"); }\n',
            "register it in the namespace of the build: STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m)",
        ),
    ],
    ids=["pybind11", "own namespace"],
)
def test_sources_with_the_habits_of_extensions(text, advice, tmp_path):
    (tmp_path / "habits.cpp").write_text(text)

    with pytest.raises(KernelUnavailable, match=f"do         {re.escape(advice)}"):
        cpp_kernel(tmp_path / "habits.cpp", "kernel").load()
