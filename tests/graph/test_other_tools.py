"""Tools of other people that look at graphs see our ops: torchviz the saved tensors by name, torchlens the calls."""

import re

import pytest
import torch
from graph.recorded_ops import join, leaf, norm, recorded
from graph.test_nodes import kinds


@kinds
@pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning")  # its own
def test_torchviz_shows_saved_tensors_by_name(kind):
    torchviz = pytest.importorskip("torchviz", reason="torchviz is not installed")
    weight = leaf(3)
    y = recorded(kind, norm, recorded(kind, join, [leaf(1, 3), leaf(1, 3)], 2.0), weight)
    source = torchviz.make_dot(y, show_saved=True, show_attrs=True).source

    shown = re.findall(r'label="([^"\n]+)\n \(([\d, ]*)\)" fillcolor=orange', source)
    assert {("x", "2, 3"), ("weight", "3"), ("rstd", "2, 1"), ("tensors[0]", "1, 3"), ("tensors[1]", "1, 3")} <= set(
        shown
    )
    assert re.search(r"^eps +: +1e-06$", source, re.MULTILINE)
    assert re.search(r"^factor *: +2.0$", source, re.MULTILINE)


class Model(torch.nn.Module):
    """A linear layer and an op."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        return norm(self.linear(x), self.weight).relu()


def test_torchlens_logs_a_forward_pass_with_an_op():
    torchlens = pytest.importorskip("torchlens", reason="torchlens is not installed")
    model, x = Model(), torch.randn(2, 3)
    expected = model(x)
    log = torchlens.trace(model, x)

    names = [re.sub(r"_.*", "", label) for label in log.layer_labels]
    assert ["input", "linear", *["square", "mean", "add", "rsqrt", "mul", "mul"], "relu", "output"] == names
    assert torch.equal(expected, log[log.layer_labels[-1]].out)
