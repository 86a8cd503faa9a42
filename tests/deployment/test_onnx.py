"""Ops of the gallery in ONNX: by their decompositions, or as a node of their own, with the values of eager mode."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

from gallery_values import load

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
onnxscript = pytest.importorskip("onnxscript")

gated_units, rms_norm = load("gated_units"), load("rms_norm").rms_norm


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return rms_norm(x, self.weight)[0]


class Gated(nn.Module):
    def forward(self, x):
        return gated_units.swiglu(x, 2 * x)


def exported(model):
    return torch.export.export(model.eval(), (torch.randn(3, 8),), dynamic_shapes=({0: Dim("rows")},))


def run(program, x):
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


@pytest.mark.slow
def test_a_program_without_the_op_computes_the_same():
    torch.manual_seed(0)
    model, x = Normed(), torch.randn(5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = exported(model).run_decompositions(rms_norm.decompositions())
        found = run(torch.onnx.export(program, dynamo=True, verbose=False), x)

    assert not any("gallery" in str(node.target) for node in program.graph.nodes)
    np.testing.assert_allclose(model(x).detach().numpy(), found, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_the_op_stays_a_node_by_the_translation_table():
    value = onnx.defs.OpSchema.FormalParameter
    schema = onnx.defs.OpSchema(
        "SwiGLU",
        "gallery",
        1,
        inputs=[value("gate", "T"), value("up", "T")],
        outputs=[value("out", "T")],
        type_constraints=[("T", ["tensor(float)"], "")],
    )
    node = onnxscript.values.Op(onnxscript.values.Opset("gallery", 1), "SwiGLU", schema)
    table = {gated_units.swiglu.overload: lambda gate, up: node(gate, up)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(exported(Gated()), dynamo=True, verbose=False, custom_translation_table=table)

    assert ("gallery", "SwiGLU") in {(node.domain, node.op_type) for node in program.model_proto.graph.node}
