"""The nodes of an op show their op, where it was declared, and what they saved, as built-in nodes do."""

import re

import pytest
import torch
from graph.recorded_ops import KINDS, Doubled, cube, join, leaf, norm, parked, recorded
from tables import each

from custom_autograd.graph import op_of
from custom_autograd.native.loading import library

kinds = pytest.mark.parametrize(
    "kind",
    [
        KINDS[0],
        pytest.param(KINDS[1], marks=pytest.mark.skipif(library.module is None, reason=library.reason)),
    ],
)


@kinds
@each(("op", "args"), [(cube, (leaf(3),)), (norm, (leaf(2, 3),)), (join, ([leaf(2)], 2.0))])
def test_a_node_knows_its_op(kind, op, args):
    y = recorded(kind, op, *args)

    assert y.grad_fn.op is op
    assert op_of(y.grad_fn) is op


def test_a_node_of_something_else_has_no_op():
    assert op_of(leaf(2).exp().grad_fn) is None
    assert op_of(Doubled.apply(leaf(2)).grad_fn) is None


@kinds
def test_the_text_of_a_node_has_the_qualified_name_and_the_declaration(kind):
    text = repr(recorded(kind, cube, leaf(3)).grad_fn)

    assert re.fullmatch(r"<inspected::cubeBackward object at 0x[0-9a-f]+, declared at recorded_ops.py:\d+>", text)


@kinds
def test_a_node_has_an_attribute_for_each_value_that_was_saved_by_name(kind):
    x, weight = leaf(2, 3), leaf(3)
    y = recorded(kind, norm, x, weight, 1e-5)
    node = y.grad_fn

    assert ["_saved_eps", "_saved_rstd", "_saved_weight", "_saved_x"] == sorted(
        name for name in dir(node) if name.startswith("_saved_")
    )
    assert node._saved_x is x
    assert node._saved_weight is weight
    assert torch.allclose(node._saved_rstd, torch.ones(2, 1))
    assert 1e-5 == node._saved_eps


@kinds
def test_a_saved_list_of_tensors_is_a_tuple_as_of_built_in_nodes(kind):
    x, y = leaf(2), leaf(3)
    z = recorded(kind, join, [x, y], 2.0)
    node = z.grad_fn

    assert isinstance(node._saved_tensors, tuple)
    assert [True, True] == [one is other for one, other in zip(node._saved_tensors, (x, y), strict=True)]
    assert 2.0 == node._saved_factor


@kinds
def test_what_was_not_saved_is_none(kind):
    assert recorded(kind, norm, leaf(2, 3)).grad_fn._saved_weight is None


@kinds
def test_saved_tensors_that_were_freed_raise_as_those_of_built_in_nodes(kind):
    y = recorded(kind, norm, leaf(2, 3))
    y.sum().backward()

    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        _ = y.grad_fn._saved_x
    assert 1e-6 == y.grad_fn._saved_eps


@kinds
def test_an_unknown_saved_name_is_an_attribute_error(kind):
    y = recorded(kind, norm, leaf(2, 3))
    node = y.grad_fn

    with pytest.raises(AttributeError, match="_saved_unknown"):
        _ = node._saved_unknown


def test_a_setup_context_may_set_an_attribute_of_the_same_name_as_one_of_ours():
    y = recorded("python", parked, leaf(2), leaf(2))
    node = y.grad_fn
    node.op = "product"

    assert "product" == node.op
    assert op_of(node) is parked
