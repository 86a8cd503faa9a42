"""Ops with containers have the values and derivatives of plain functions with the same containers, in every mode."""

import pytest
import torch
from containers import ROWS
from tables import each
from torch.autograd import gradcheck, gradgradcheck

from custom_autograd.verification.check import check
from slow_cases import slow_but_every

rows = each("row", ROWS.values(), ids=ROWS)


def weights_of(outputs):
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(y.shape, generator=generator, dtype=torch.float64).to(y.dtype) for y in outputs]


def total(outputs):
    return sum((y * w).sum() for y, w in zip(outputs, weights_of(outputs), strict=True))


def gradients(function, tensors):
    return torch.autograd.grad(total(function(*tensors)), tensors)


@rows
def test_eager_values(row):
    tensors = row.tensors()

    torch.testing.assert_close(row.call(*tensors), row.plain(*tensors))


@rows
def test_eager_gradients(row):
    tensors = row.tensors()

    torch.testing.assert_close(gradients(row.call, tensors), gradients(row.plain, tensors))


@rows
def test_numerical_gradients(row):
    assert gradcheck(row.call, row.tensors(), check_forward_ad=True)
    assert gradgradcheck(row.call, row.tensors())


@rows
def test_func_grad(row):
    tensors = [x.detach() for x in row.tensors()]
    places = tuple(range(len(tensors)))

    expected = torch.func.grad(lambda *xs: total(row.plain(*xs)), places)(*tensors)
    torch.testing.assert_close(torch.func.grad(lambda *xs: total(row.call(*xs)), places)(*tensors), expected)


@rows
def test_func_jvp(row):
    tensors = tuple(x.detach() for x in row.tensors())

    expected = torch.func.jvp(row.plain, tensors, tensors)
    torch.testing.assert_close(torch.func.jvp(row.call, tensors, tensors), expected)


@rows
def test_vmap(row):
    tensors = [x.detach() for x in row.tensors(batch=(4,))]

    torch.testing.assert_close(torch.vmap(row.call)(*tensors), torch.vmap(row.plain)(*tensors))


@rows
def test_vmap_over_some(row):
    tensors = [x.detach() for x in row.tensors()]
    tensors[0] = torch.stack([tensors[0], tensors[0] * 2], dim=1)
    dims = (1, *[None] * (len(tensors) - 1))

    torch.testing.assert_close(torch.vmap(row.call, dims)(*tensors), torch.vmap(row.plain, dims)(*tensors))


@rows
def test_compile_values_and_gradients(row, fresh_compiler):
    tensors = row.tensors()
    compiled = torch.compile(row.call, fullgraph=True, backend="aot_eager")

    torch.testing.assert_close(compiled(*tensors), row.plain(*tensors))
    torch.testing.assert_close(gradients(compiled, tensors), gradients(row.plain, tensors))


@rows
def test_export(row):
    tensors = tuple(x.detach() for x in row.tensors())

    class Module(torch.nn.Module):
        def forward(self, *xs):
            return row.call(*xs)

    exported = torch.export.export(Module(), tensors)

    torch.testing.assert_close(exported.module()(*tensors), row.plain(*tensors))


@pytest.mark.parametrize("name", slow_but_every(5, ROWS))
def test_every_quick_check_passes(name):
    report = check(ROWS[name].op, lambda make: [ROWS[name].sample(make)], checks="quick")

    assert report.ok, str(report)


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("dataclass", "anything")])
def test_every_check_passes(name):
    row = ROWS[name]

    report = check(row.op, lambda make: [row.sample(make)])

    assert report.ok, str(report)
