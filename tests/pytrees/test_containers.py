"""Ops with containers have the values and derivatives of plain functions with the same containers, in every mode."""

import pytest
import torch
from containers import ROWS
from tables import each
from torch.autograd import gradcheck, gradgradcheck
from ways import every_eager_way, every_graph, side_by_side

from custom_autograd.verification.check import check
from slow_cases import slow_but_every

rows = each("row", ROWS.values(), ids=ROWS)


def inputs_of(row):
    return [x.detach() for x in row.tensors()]


@rows
@every_eager_way
def test_values_and_derivatives_in_every_way(row, way, plainly):
    torch.testing.assert_close(way(row.call, *inputs_of(row)), plainly(row.plain, *inputs_of(row)))


@every_graph
def test_values_and_gradients_in_graphs(way, plainly):
    inputs = [x for row in ROWS.values() for x in inputs_of(row)]
    counts = [len(row.tensors()) for row in ROWS.values()]
    calls = side_by_side([row.call for row in ROWS.values()], counts)
    plain = side_by_side([row.plain for row in ROWS.values()], counts)

    torch.testing.assert_close(way(calls, *inputs), plainly(plain, *inputs))


@rows
def test_numerical_gradients(row):
    assert gradcheck(row.call, row.tensors(), check_forward_ad=True)
    assert gradgradcheck(row.call, row.tensors())


@rows
def test_vmap_over_some(row):
    tensors = inputs_of(row)
    tensors[0] = torch.stack([tensors[0], tensors[0] * 2], dim=1)
    dims = (1, *[None] * (len(tensors) - 1))

    torch.testing.assert_close(torch.vmap(row.call, dims)(*tensors), torch.vmap(row.plain, dims)(*tensors))


@pytest.mark.parametrize("name", slow_but_every(5, ROWS))
def test_every_quick_check_passes(name):
    report = check(ROWS[name].op, lambda make: [ROWS[name].sample(make)], checks="quick")

    assert report.ok, str(report)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("dataclass", "anything")])
def test_every_check_passes(name):
    row = ROWS[name]

    report = check(row.op, lambda make: [row.sample(make)])

    assert report.ok, str(report)
