"""Ops on the second device in every system of PyTorch: the values of plain PyTorch on the CPU."""

import pytest
import torch
from containers import ROWS
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from custom_autograd import KernelError, custom_op, validation
from ops import TABLE
from second_device.host_kernels import serve_by_host_kernels

DEVICE = torch.device("second", 0)

for row in TABLE.values():  # their kernels are NumPy's, which read the memory of the host
    serve_by_host_kernels(row.custom_op._record, device_type=None)


def loss(f):
    return lambda *tensors: sum((output**3).sum() for output in f(*tensors))


def gradients(f, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(loss(f)(*leaves), leaves, allow_unused=True, materialize_grads=True)


def checkpointed(f, *tensors):
    return gradients(lambda *leaves: checkpoint(f, *leaves, use_reentrant=False), *tensors)


def saved_on_the_cpu(f, *tensors):
    with torch.autograd.graph.save_on_cpu():
        return gradients(f, *tensors)


def tangents(f, *tensors):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(tensor, torch.sin(tensor)) for tensor in tensors]
        return tuple(forward_ad.unpack_dual(output).tangent for output in f(*duals))


def by_torch_func(f, *tensors):
    return torch.func.grad(loss(f), argnums=tuple(range(len(tensors))))(*tensors)


def by_jacrev(f, *tensors):
    return torch.func.jacrev(lambda x: f(x, *tensors[1:])[0])(tensors[0])


def by_vmap(f, *tensors):
    return torch.func.vmap(f)(*(torch.stack([tensor, 2 * tensor]) for tensor in tensors))


def by_vmap_of_grad(f, *tensors):
    batch = [torch.stack([tensor, 2 * tensor]) for tensor in tensors]
    return torch.func.vmap(torch.func.grad(loss(f)))(*batch)


def compiled(f, *tensors):
    torch.compiler.reset()
    return gradients(torch.compile(f, backend="aot_eager", fullgraph=True), *tensors)


FIRST_ORDER = (gradients, checkpointed, saved_on_the_cpu, by_torch_func, by_jacrev, by_vmap, by_vmap_of_grad, compiled)


def second_order(f, *tensors):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    first = torch.autograd.grad(loss(f)(*leaves), leaves, create_graph=True)
    return torch.autograd.grad(sum(grad.square().sum() for grad in first), leaves)


FORWARD = ("by name", "reference", "jvp", "in-place", "list out")
CELLS = [(name, way) for way in FIRST_ORDER for name in TABLE]
CELLS += [(name, second_order) for name, row in TABLE.items() if row.has_second_order]
CELLS += [(name, tangents) for name in FORWARD]


@pytest.mark.parametrize(("name", "way"), CELLS, ids=lambda one: getattr(one, "__name__", one))
def test_every_way_gives_the_values_of_the_reference(name, way):
    row = TABLE[name]
    expected = way(row.reference, *row.inputs())
    found = way(row.op, *(tensor.to(DEVICE) for tensor in row.inputs()))

    assert_close(found, expected, check_device=False)
    assert {DEVICE} == {tensor.device for tensor in found}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_containers(row):
    expected = gradients(row.plain, *row.tensors())
    found = gradients(row.call, *(x.detach().to(DEVICE) for x in row.tensors()))

    assert_close(found, expected, check_device=False)


@custom_op("second_device::halved", reference=True)
def halved(x: Tensor, weight: Tensor) -> Tensor:
    """Return x @ weight / 2."""
    return x @ weight / 2


halved.register_autocast("second", torch.bfloat16)


@halved.register_backward
def _(grad, x, weight):
    return grad @ weight.mT / 2, x.mT @ grad / 2


def test_autocast_casts_by_the_policy_of_the_device():
    x, weight = torch.randn(3, 4, requires_grad=True), torch.randn(4, 2)
    with torch.autocast("second", torch.bfloat16):
        out = halved(x.to(DEVICE), weight.to(DEVICE))
        on_cpu = halved(x, weight)
    out.sum().backward()

    assert out.dtype == torch.bfloat16
    assert on_cpu.dtype == torch.float32
    assert_close(out.cpu(), (x.bfloat16() @ weight.bfloat16()) / 2)
    assert x.grad.dtype == torch.float32
    assert_close(x.grad, (torch.ones(3, 2).bfloat16() @ weight.bfloat16().mT / 2).float())


@custom_op("second_device::square_grad", reference=True)
def square_grad(grad: Tensor, x: Tensor) -> Tensor:
    return grad * x * 2


@custom_op("second_device::square", reference=True)
def square(x: Tensor) -> Tensor:
    return x * x


@square.register_backward
def _(grad, x):
    return square_grad(grad, x)


@pytest.mark.parametrize("nest", [torch.func.jacfwd, torch.func.hessian, lambda f: torch.vmap(torch.func.jacfwd(f))])
def test_forward_mode_is_derived_in_the_thread_of_the_device(nest):
    """It runs a backward, whose gradient is in turn derived from a reference."""
    x = torch.tensor([1.0, -2.0, 3.0])

    assert_close(nest(square)(x.to(DEVICE)).cpu(), nest(torch.square)(x))


@custom_op("second_device::counted", reference=False)
def counted(x: Tensor) -> Tensor:
    return x.clone()


@counted.register_kernel("second")
def _(x):
    return x.add_(1).clone() if is_faulty else x.clone()


counted.register_fake(torch.empty_like)
counted.register_backward(lambda grad: counted(grad.contiguous()))
is_faulty = False


def test_validation_holds_in_the_thread_of_the_device(monkeypatch):
    """`counted` writes to its input, which only full validation sees in later calls."""
    x = torch.ones(2, device=DEVICE).requires_grad_()
    counted(x).sum().backward()
    out = counted(x).sum()
    monkeypatch.setitem(globals(), "is_faulty", True)
    with validation("full"), pytest.raises(KernelError, match="'x'"):
        out.backward()
