"""Loading: what a target names, and that importing it twice is importing it once."""


import pytest

from custom_autograd.checks.loading import load
from custom_autograd.core.errors import CheckError

OP = """
import torch
from torch import Tensor
from custom_autograd import Sample, custom_op


@custom_op("{name}", reference=True)
def {function}(x: Tensor) -> Tensor:
    return x * 2


@{function}.register_samples
def _(make):
    yield Sample(make(3))
"""


@pytest.fixture
def folder(imports_of):
    return imports_of


def names(text):
    return [loaded.value.name for loaded in load(text)]


def test_file_folder_module_and_attribute_name_the_same_op(folder):
    (folder / "loading_one.py").write_text(OP.format(name="loading::one", function="one"))

    assert ["loading::one"] == names("loading_one.py") == names(".") == names("loading_one") == names("loading_one:one")


def test_op_that_is_kept_nowhere_is_found_through_the_registry(folder):
    (folder / "loading_two.py").write_text(OP.format(name="loading::two", function="two") + "\ndel two\n")

    assert ["loading::two"] == names("loading_two.py")


def test_imported_ops_are_not_listed_twice(folder):
    (folder / "loading_three.py").write_text(OP.format(name="loading::three", function="three") + "\nalias = three\n")

    assert ["loading::three"] == names("loading_three.py")


def test_file_that_exits_when_imported_is_refused(folder):
    (folder / "loading_exit.py").write_text("raise SystemExit(3)")
    with pytest.raises(CheckError, match=r"loading_exit\.py: importing it raises SystemExit: 3"):
        load("loading_exit.py")
