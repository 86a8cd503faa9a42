"""A script that shows a failure makes the same call again, whatever its arguments are."""

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
