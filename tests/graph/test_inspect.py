"""What `inspect` finds in a graph: nodes in order, saved values by name and by bytes, each storage once."""

import gc
import sys
import weakref

import pytest
import torch
from graph.recorded_ops import Doubled, cube, join, leaf, norm, parked, recorded, saved_of
from graph.test_nodes import kinds
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from custom_autograd import inspect
from custom_autograd.graph import InspectedValue


def only(found, title):
    """The one row of a name."""
    (row,) = [node for node in found.nodes if node.title == title]
    return row


def states(found):
    """Name and state of each saved tensor that does not belong to a leaf."""
    return [(one.name, one.state) for node in found.nodes for one in node.tensors if one.role != "leaf"]


# ------------------------------------------------------------------------------------------------- what nodes saved


@kinds
def test_inputs_and_hidden_outputs_are_shown_by_name_and_bytes(kind):
    x, weight = leaf(2, 3).double(), leaf(3).double().detach()
    node = inspect(recorded(kind, norm, x, weight, 1e-5)).nodes[0]

    assert ("inspected::norm", "inspected::normBackward") == (node.op, node.name)
    assert node.declared.startswith("recorded_ops.py:")
    assert [
        ("x", "input", (2, 3), 48, 48),
        ("weight", "input", (3,), 24, 24),
        ("rstd", "output", (2, 1), 16, 16),
    ] == saved_of(node)
    assert [(torch.float64, torch.device("cpu"))] * 3 == [(one.dtype, one.device) for one in node.tensors]
    assert (InspectedValue("eps", "1e-05"),) == node.values
    assert 88 == node.held_bytes


@kinds
def test_an_input_that_was_not_given_is_not_shown(kind):
    assert ["x", "rstd"] == [one.name for one in inspect(recorded(kind, norm, leaf(2, 3))).nodes[0].tensors]


@kinds
def test_the_tensors_of_a_list_are_numbered(kind):
    node = inspect(recorded(kind, join, [torch.ones(2), leaf(3)], 2.0)).nodes[0]

    assert [("tensors[0]", "input", (2,), 8, 8), ("tensors[1]", "input", (3,), 12, 0)] == saved_of(node)
    assert (InspectedValue("factor", "2.0"),) == node.values


@kinds
def test_rules_with_a_ctx_show_their_saved_tensors_by_position(kind):
    node = inspect(recorded(kind, cube, leaf(3) * 1)).nodes[0]

    assert [("saved_tensors[0]", "saved", (3,), 12, 12)] == saved_of(node)
    assert (InspectedValue("power", "3"),) == node.values


@kinds
def test_tensors_that_were_attributes_of_ctx_are_shown_as_such(kind):
    node = inspect(recorded(kind, parked, leaf(3) * 1, leaf(3) * 1)).nodes[0]

    assert [
        ("factors[0]", "attribute", (3,), 12, 12),
        ("factors[1]", "attribute", (3,), 12, 12),
    ] == saved_of(node)
    assert (InspectedValue("mode", "'product'"),) == node.values


def test_a_function_of_other_people_shows_saved_tensors_and_attributes():
    node = inspect(Doubled.apply(leaf(3) * 1)).nodes[0]

    assert ("DoubledBackward", None, None) == (node.title, node.op, node.declared)
    assert [("saved_tensors[0]", "saved", (3,), 12, 12), ("kept", "attribute", (1,), 4, 4)] == saved_of(node)
    assert (InspectedValue("factor", "2"),) == node.values


def test_built_in_nodes_show_their_saved_attributes():
    x = leaf(3)
    found = inspect((x.exp() * x).sum())

    assert [("result", "saved", (3,), 12, 0)] == saved_of(only(found, "ExpBackward0"))
    assert [("other", "saved", (3,), 12, 0), ("self", "saved", (3,), 12, 12)] == sorted(
        saved_of(only(found, "MulBackward0"))
    )
    assert (InspectedValue("self_sym_sizes", "(3,)"),) == only(found, "SumBackward0").values


def test_a_long_value_is_cut():
    text = inspect(leaf(*[1] * 60).sum()).nodes[0].values[0].text

    assert 80 == len(text)
    assert text.endswith("...")


def test_compiled_code_shows_its_saved_tensors_by_position(fresh_compiler):
    y = torch.compile(lambda x: x.sin().exp(), backend="aot_eager")(leaf(4) * 1)
    node = inspect(y).nodes[0]

    assert "CompiledFunctionBackward" == node.name
    assert {"saved"} == {one.role for one in node.tensors}
    assert 0 < node.held_bytes == sum(one.bytes for one in node.tensors)


# ------------------------------------------------------------------------------------------------------ order and roots


def test_nodes_are_in_the_order_of_a_backward():
    x = leaf(3)
    a = x.exp()
    b = x.sin()
    y = (norm(a.reshape(1, 3)).reshape(3) * b).sum()
    ran = []
    for node in _all_nodes(y.grad_fn):
        node.register_prehook(lambda grads, node=node: ran.append(node.name()))
    expected = [node.name for node in inspect(y).nodes]
    y.backward()

    assert expected == ran
    assert 8 == len(ran)


def _all_nodes(root):
    found, left = {}, [root]
    while left:
        node = left.pop()
        if node is not None and node not in found:
            found[node] = None
            left += [one for one, _ in node.next_functions]
    return list(found)


def test_edges_lead_to_the_indices_of_nodes():
    x = leaf(3)
    found = inspect(x.exp() * x)

    assert [("MulBackward0", (1, 2)), ("ExpBackward0", (2,)), ("AccumulateGrad", ())] == [
        (node.title, node.next) for node in found.nodes
    ]


def test_several_tensors_share_what_their_graphs_share():
    x = leaf(3).exp()
    found = inspect([x.sin(), x.cos()])

    assert ["CosBackward0", "SinBackward0", "ExpBackward0", "AccumulateGrad"] == [node.title for node in found.nodes]
    assert 12 == found.held_bytes


def test_an_edge_or_a_node_will_do():
    y = leaf(3).exp()
    expected = inspect(y)

    assert expected == inspect(torch.autograd.graph.get_gradient_edge(y)) == inspect(y.grad_fn)


def test_a_leaf_is_shown_as_the_node_that_accumulates_its_gradient():
    found = inspect(torch.autograd.graph.get_gradient_edge(leaf(3)))

    assert [("variable", "leaf", (3,), 12, 0)] == saved_of(found.nodes[0])


def test_inside_a_transform_the_graph_of_the_level_is_shown():
    found = []

    def f(x):
        y = cube(x.exp())
        found.append(inspect(y))
        return y.sum()

    torch.func.grad(f)(torch.ones(3))
    torch.func.vmap(f)(leaf(2, 3))

    assert "inspected::cube" in [node.title for node in found[0].nodes]
    assert "ExpBackward0" in [node.title for node in found[1].nodes]


# ---------------------------------------------------------------------------------------------------- memory is counted


def test_a_storage_counts_once_and_later_rows_name_the_first():
    x = leaf(3).exp()
    found = inspect(cube(x) + x.sin())
    first, second = only(found, "SinBackward0").tensors[0], only(found, "inspected::cube").tensors[0]

    assert {12, 0} == {first.held_bytes, second.held_bytes}
    assert 12 == found.held_bytes
    later = min(first, second, key=lambda one: one.held_bytes)
    assert found.nodes[later.same_as[0]].tensors[0].name == later.same_as[1]


def test_a_saved_view_holds_its_whole_storage():
    base = leaf(100).exp()
    node = inspect(cube(base[:2])).nodes[0]

    assert [("saved_tensors[0]", "saved", (2,), 8, 400)] == saved_of(node)


def test_leaves_and_their_views_cost_nothing():
    weight = leaf(3, 4)
    x = torch.ones(2, 3)
    y = x @ weight @ weight.t()
    found = inspect(y)
    of_weight = [one for node in found.nodes for one in node.tensors if one.is_leaf]

    assert {0} == {one.held_bytes for one in of_weight}
    assert ["mat2", "variable"] == [one.name for one in of_weight]
    assert 24 + 32 == found.held_bytes  # x, and x @ weight


def test_a_leaf_that_requires_no_gradient_counts():
    assert 12 == inspect(parked(leaf(3), torch.ones(3))).held_bytes


def test_a_sparse_tensor_holds_its_indices_and_values():
    matrix = torch.eye(3).to_sparse()
    found = inspect(torch.sparse.mm(matrix, leaf(3, 2)))
    rows = [one for one in found.nodes[0].tensors if not one.is_leaf]

    assert [(2 * 3 * 8 + 3 * 4,) * 2] == [(one.bytes, one.held_bytes) for one in rows]


def test_a_jagged_tensor_is_shown_with_the_name_of_its_symbolic_size():
    x = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged, requires_grad=True)
    (row,) = inspect((x * 1).sin()).nodes[0].tensors

    assert (2, 3) == (row.shape[0], row.shape[2])
    assert row.shape[1].startswith("j")
    assert 6 * 3 * 4 + 3 * 8 == row.bytes  # values and offsets
    assert 6 * 3 * 4 == row.held_bytes  # the offsets are those of the leaf


def test_a_saved_output_of_a_subclass_is_not_taken_for_one_with_hooks():
    with FakeTensorMode():
        (row,) = inspect(leaf(3).exp()).nodes[0].tensors

    assert ("held", (3,), 12, 12) == (row.state, row.shape, row.bytes, row.held_bytes)


def test_a_tensor_without_a_storage_holds_its_elements():
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    (row,) = inspect(leaf(3, 3).to_mkldnn().relu()).nodes[0].tensors

    assert (36, 36) == (row.bytes, row.held_bytes)


# -------------------------------------------------------------------------------------------------- nothing is touched


@kinds
def test_saved_tensors_that_a_backward_freed_are_shown_as_freed(kind):
    y = recorded(kind, norm, leaf(2, 3).exp())
    y.sum().backward()
    found = inspect(y)

    assert [("x", "freed"), ("weight", "freed"), ("rstd", "freed"), ("result", "freed")] == states(found)
    assert (0, 0) == (found.held_bytes, found.unread)


@kinds
@pytest.mark.parametrize("op", [norm, cube])
def test_hooks_do_not_run(kind, op):
    unpacked = []

    def unpack(value):
        unpacked.append(value)
        return value

    x = leaf(2, 3) * 1
    recorded(kind, op, x)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), unpack):
        y = op(x)
    found = inspect(y)

    assert {"packed by hooks"} == {state for _, state in states(found)[:-1]}
    assert not unpacked
    y.sum().backward()
    assert unpacked


def test_a_checkpointed_part_does_not_run_again():
    runs = []

    def part(x):
        runs.append(1)
        return cube(x.exp())

    y = checkpoint(part, leaf(3), use_reentrant=False)
    found = inspect(y)

    assert {"packed by hooks"} == {state for _, state in states(found)}
    assert 1 == len(runs)
    y.sum().backward()
    assert 2 == len(runs)


@kinds
def test_a_tensor_that_was_written_to_is_named_and_the_others_are_read(kind):
    x, weight = leaf(2, 3) * 1, torch.ones(3)
    y = recorded(kind, norm, x, weight)
    weight.mul_(2)
    found = {one.name: one.state for one in inspect(y).nodes[0].tensors}

    assert "modified in place" == found["weight"]
    if kind == "native":
        assert ("held", "held") == (found["x"], found["rstd"])


def test_a_profiler_of_the_caller_stays():
    seen = []

    def profile(frame, event, argument):
        seen.append(event)

    sys.setprofile(profile)
    try:
        inspect(cube(leaf(3)))
        assert sys.getprofile() is profile
    finally:
        sys.setprofile(None)
    assert seen


@kinds
def test_the_graph_is_as_before_and_nothing_is_kept_alive(kind):
    x = leaf(2, 3) * 1
    y = recorded(kind, norm, x)
    version, found = x._version, inspect(y)
    gone = weakref.ref(x)
    y.sum().backward()
    del x, y
    gc.collect()

    assert gone() is None
    assert 0 == version
    assert "held" == found.nodes[0].tensors[0].state


@pytest.mark.parametrize("is_on", [True, False])
def test_the_garbage_collector_is_as_before(is_on):
    y, was_on = cube(leaf(3)), gc.isenabled()
    (gc.enable if is_on else gc.disable)()
    try:
        inspect(y)
        assert is_on == gc.isenabled()
    finally:
        (gc.enable if was_on else gc.disable)()
