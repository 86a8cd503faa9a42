"""`op.reference` takes the place of an op in an exported program, as ONNX needs it."""

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch, decomposing


@custom_op("decompositions::gate", reference=True)
def gate(x: Tensor, k: float = 2.0) -> Tensor:
    return torch.sigmoid(x) * k


@custom_op("decompositions::pair", reference=True)
def pair(p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return p["a"] * p["b"], p["a"] + 1


class Model(torch.nn.Module):
    def forward(self, x):
        product, one_more = pair({"a": gate(x), "b": x})
        return product - one_more


def targets(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def test_a_program_without_the_ops():
    x = torch.tensor([1.0, -2.0])
    program = torch.export.export(Model(), (x,))
    found = program.run_decompositions({op.overload: op.reference for op in (gate, pair)})

    assert any(name.startswith("decompositions") for name in targets(program))
    assert not any(name.startswith("decompositions") for name in targets(found))
    assert torch.equal(Model()(x), found.module()(x))


def test_which_function_it_is():
    op = custom_op("decompositions::later", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    assert op.reference is None

    def doubled(x):
        return x + x

    op.register_reference(doubled)
    assert op.reference is doubled
    assert gate.reference(torch.zeros(1)).tolist() == [1.0]
