"""A script that shows a failure makes the same call again, whatever its arguments are."""

import importlib
import zipfile

import torch
from arguments.functions import Cubes, square
from arguments.leaf_ops import Access, Padding, Side

from custom_autograd import Sample
from custom_autograd.verification.checks.gradcheck import Gradcheck
from custom_autograd.verification.harness.scripts import script_of
from custom_autograd.verification.harness.targets import target_of


def arguments_of(*values):
    """The values that a script passes."""
    text = script_of(target_of(torch.sin), Sample(*values), Gradcheck(), 0)
    names = {}
    exec(text[: text.index("\ncheck(")], names)
    return names["sample"].args


def test_members_of_enums_and_flags():
    values = (Side.RIGHT, Padding.SAME, Access.READ | Access.WRITE, [Side.LEFT])

    assert values == arguments_of(*values)


def test_functions_and_classes():
    assert (square, Cubes.Inner) == arguments_of(square, Cubes.Inner)


def test_generators():
    (found,) = arguments_of(torch.Generator().manual_seed(5))

    assert torch.equal(torch.Generator().manual_seed(5).get_state(), found.get_state())


def test_an_object_whose_repr_is_no_python_is_left_to_be_filled_in():
    text = script_of(target_of(torch.sin), Sample(torch.nn.Linear(2, 3)), Gradcheck(), 0)

    assert "\n    __import__('torch.nn.modules.linear', fromlist=['']).Linear(...),\n" in text
    compile(text, "script", "exec")


def test_an_op_of_a_module_in_an_archive_is_imported(tmp_path, monkeypatch):
    text = "import torch\ndef doubled(x: torch.Tensor) -> torch.Tensor:\n    return x * 2\n"
    with zipfile.ZipFile(tmp_path / "ops.zip", "w") as archive:
        archive.writestr("ops_in_a_zip.py", text)
    monkeypatch.syspath_prepend(tmp_path / "ops.zip")
    module = importlib.import_module("ops_in_a_zip")

    text = script_of(target_of(module.doubled), Sample(torch.ones(1)), Gradcheck(), 0)
    assert "\nfrom ops_in_a_zip import doubled\nop = doubled\n" in text
