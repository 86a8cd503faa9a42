"""Loading: what a target names, and that importing it twice is importing it once."""

import pytest

from custom_autograd.core.errors import CheckError
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.packages import load_all

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


def test_folder_may_have_colons_in_its_name(folder):
    (folder / "a:b::c").mkdir()
    (folder / "a:b::c" / "loading_colons.py").write_text(OP.format(name="loading::colons", function="colons"))
    texts = ["a:b::c/", "a:b::c/loading_colons.py", "a:b::c/loading_colons.py:colons"]

    assert [["loading::colons"]] * 3 == [[found.value.name for found in load_all(text).found] for text in texts]


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


TWICE = """
from torch import Tensor
from custom_autograd import custom_op


@custom_op("loading::{name}", reference=True)
def op(x: Tensor) -> Tensor:
    return x * 2


def register():
    op.register_backward(lambda wrong: wrong)


register()
"""


@pytest.mark.parametrize("target", ["{name}.py", "{name}"], ids=["file", "module"])
def test_error_of_a_registration_ends_with_the_lines_of_the_target(folder, target, request):
    name = f"loading_wrong_{request.node.callspec.id}"
    (folder / f"{name}.py").write_text(TWICE.format(name=name))
    with pytest.raises(CheckError) as caught:
        load(target.format(name=name))

    assert [
        f"  {name}.py:15 <module>: register()",
        f"  {name}.py:12 register: op.register_backward(lambda wrong: wrong)",
    ] == str(caught.value).splitlines()[-2:]


def test_error_of_syntax_shows_where_it_is_and_no_lines_of_what_imports(folder):
    (folder / "loading_syntax.py").write_text("x = 1\nx = = 2\n")
    with pytest.raises(CheckError) as caught:
        load("loading_syntax.py")

    text = "loading_syntax.py: importing it raises SyntaxError: invalid syntax (loading_syntax.py, line 2)"
    assert text == str(caught.value)


@pytest.mark.parametrize("name", ["README.md", "notes", "sub/kernel.cpp"])
def test_file_that_is_not_python_is_refused_as_such(folder, name):
    (folder / "sub").mkdir()
    (folder / name).write_text("text")
    with pytest.raises(CheckError, match=f"^{name}: this is not a Python file"):
        load(name)


def test_file_that_is_not_python_has_no_attributes(folder):
    (folder / "README.md").write_text("text")
    with pytest.raises(CheckError, match=r"^README\.md: this is not a Python file"):
        load("README.md:op")


def test_each_of_several_ops_has_a_target_that_names_it_alone(folder):
    both = OP.format(name="loading::four", function="four") + OP.format(name="loading::five", function="five")
    (folder / "loading_several.py").write_text(both)

    assert ["loading_several.py:four", "loading_several.py:five"] == [row.alone for row in load("loading_several.py")]
    assert ["loading_several:four", "loading_several:five"] == [row.alone for row in load("loading_several")]
    assert ["loading_several.py:four", "loading_several.py:five"] == [row.alone for row in load(".")]
    assert ["loading::four"] == names("loading_several.py:four")


def test_the_only_op_of_a_file_is_named_by_the_file(folder):
    (folder / "loading_only.py").write_text(OP.format(name="loading::only", function="only"))

    assert ["loading_only.py"] == [row.alone for row in load("loading_only.py")]


def test_an_op_among_several_that_is_kept_nowhere_is_named_by_the_file(folder):
    both = OP.format(name="loading::six", function="six") + OP.format(name="loading::seven", function="seven")
    (folder / "loading_lost.py").write_text(f"{both}\ndel six\n")

    assert {"loading_lost.py:seven", "loading_lost.py"} == {row.alone for row in load("loading_lost.py")}


def write_package(folder, name, init, imports):
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(init)
    (folder / name / "helper.py").write_text("FACTOR = 2")
    (folder / name / "ops.py").write_text(imports + OP.format(name=f"loading::{name}", function="op"))


IMPORTS = {"relative": "from .helper import FACTOR", "absolute": "from loading_absolute.helper import FACTOR"}


@pytest.mark.parametrize("kind", IMPORTS)
def test_a_file_of_a_package_is_imported_as_its_module(folder, kind):
    name = f"loading_{kind}"
    write_package(folder, name, f"from {name}.ops import op", IMPORTS[kind])

    assert [f"loading::{name}"] == names(f"{name}/ops.py") == names(f"{name}/__init__.py") == names(name)
    assert f"{name}.ops" == load(f"{name}/ops.py:op")[0].value.__module__


def test_a_file_of_a_package_that_imports_no_ops_is_imported_as_its_module(folder):
    write_package(folder, "loading_apart", "", "from .helper import FACTOR")

    assert ["loading::loading_apart"] == names("loading_apart/ops.py")


def test_a_file_of_a_package_that_cannot_be_imported_is_imported_alone(folder):
    write_package(folder, "loading_broken", "raise ValueError", "")

    assert ["loading::loading_broken"] == names("loading_broken/ops.py")
