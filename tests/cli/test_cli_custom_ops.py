"""list and show on ops declared with `custom_op`: every capability, and the generated source."""

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.cli import main


@custom_op("cli::square", reference=True)
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_samples
def _(make):
    yield Sample(make(2, 3)).named("small")


@pytest.fixture
def target():
    return f"{__file__}:square"


def test_list_has_a_column_per_capability(target, capsys):
    code = main(["list", target])

    head, _, row = capsys.readouterr().out.splitlines()
    assert 0 == code
    assert all(name in head for name in square.capabilities())
    assert row.startswith("cli::square")
    assert "derived" in row


def test_show_prints_schema_kernels_coverage_samples_and_source(target, capsys):
    code = main(["show", target])

    out = capsys.readouterr().out
    assert 0 == code
    assert "cli::square(Tensor x) -> Tensor" in out
    assert "default          test_cli_custom_ops.py:" in out
    assert "Sample(float32[2, 3]).named('small')" in out
    assert "  calls\n    call             " in out
    assert all(f"\n    {name}" in out for name in square.capabilities())
    assert square.source.splitlines()[0].strip() in out


@pytest.mark.slow
def test_check_of_an_op_with_everything_ends_with_0(target, capsys):
    assert torch.get_default_dtype() == torch.float32
    assert 0 == main(["check", target, "--dtype", "float64"])
    assert "cli::square  gradcheck" in capsys.readouterr().out
