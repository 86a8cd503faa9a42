"""What `check` finds in operators of PyTorch is true: each shown without `check` and without an op (torch 2.13)."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.torch_version import TorchVersion

from custom_autograd.torch_private.verification import GraphCounter


def randn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def slopes(function, at, step=1e-6):
    """The one-sided slopes of a function of one number, from the left and from the right."""
    return (function(at) - function(at - step)) / step, (function(at + step) - function(at)) / step


def gradient_at(function, at):
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad(function(x), x)
    return grad.item()


def hessian_by_rows(function, x):
    x = x.detach().requires_grad_()
    (grad,) = torch.autograd.grad(function(x), x, create_graph=True)
    return torch.stack([torch.autograd.grad(one, x, retain_graph=True)[0] for one in grad])


def test_the_gradient_of_scatter_reduce_is_halved_by_an_excluded_self():
    def smallest(source):
        own, index = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
        return own.scatter_reduce(0, index, source.reshape(1), "amin", include_self=False).sum()

    left, right = slopes(smallest, torch.zeros((), dtype=torch.float64))
    assert (1.0, 1.0) == (left.item(), right.item())
    assert 0.5 == gradient_at(smallest, 0.0)


def test_the_gradient_of_polar_is_zero_at_a_radius_of_zero():
    angle = torch.tensor(0.5, dtype=torch.float64)

    def real_part(radius):
        return torch.polar(radius, angle).real

    left, right = slopes(real_part, torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(torch.stack([left, right]), angle.cos().expand(2))
    assert 0.0 == gradient_at(real_part, 0.0)


@torch.library.custom_op("bugs_of_torch::product", mutates_args=())
def product(x: Tensor, y: Tensor) -> Tensor:
    return torch.mm(x, y)


@product.register_fake
def _(x, y):
    return torch.mm(x, y)


def test_fake_kernels_run_without_autocast_and_kernels_with_it():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16), FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        said = product(fake, fake).dtype
    with torch.autocast("cpu", torch.bfloat16):
        done = product(x, x).dtype

    assert (torch.float32, torch.bfloat16) == (said, done)


def test_the_second_derivative_of_layer_norm_by_torch_func_is_wrong_for_its_weight():
    c = randn(6)

    def number(x_and_weight):
        x, weight = x_and_weight[:6].reshape(2, 3), x_and_weight[6:]
        y = F.layer_norm(x, (3,), weight).flatten()
        return c @ y + y @ y / 2

    at = randn(9)
    by_rows = hessian_by_rows(number, at)
    steps = 1e-5 * torch.eye(9, dtype=torch.float64)
    by_differences = torch.stack([(gradient_of(number, at + v) - gradient_of(number, at - v)) / 2e-5 for v in steps])

    torch.testing.assert_close(by_rows, by_differences, rtol=1e-5, atol=1e-6)
    assert (torch.func.hessian(number)(at) - by_rows).abs().max() > 0.1


def gradient_of(function, x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(function(x), x)[0]


@pytest.mark.skipif(TorchVersion(torch.__version__) >= (2, 14), reason="PyTorch 2.14 mends it")
def test_vmap_of_the_gradient_of_group_norm_raises_for_its_weight():
    def number(x_and_weight):
        return F.group_norm(x_and_weight[:18].reshape(1, 6, 3), 2, x_and_weight[18:]).square().sum()

    rows = randn(2, 24)
    assert all(bool(gradient_of(number, row).isfinite().all()) for row in rows)
    with pytest.raises(RuntimeError, match=r"Expected X.is_contiguous\(memory_format\) to be true"):
        torch.vmap(torch.func.grad(number))(rows)


def test_jacrev_of_cdist_is_wrong():
    x, y = randn(2, 5, 2), randn(2, 5, 2)
    rows = torch.eye(50, dtype=torch.float64).reshape(50, 2, 5, 5)
    leaf = x.clone().requires_grad_()
    distances = torch.cdist(leaf, y)
    by_rows = torch.stack([torch.autograd.grad(distances, leaf, row, retain_graph=True)[0] for row in rows])

    found = torch.func.jacrev(lambda x: torch.cdist(x, y))(x).reshape(by_rows.shape)

    assert 0.1 < (found - by_rows).abs().max().item()


@pytest.mark.slow
def test_a_compiled_gradient_of_cumprod_fixes_every_size():
    def graphs_of(function):
        counter = GraphCounter()
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        for size in (5, 10, 15, 20, 25):
            compiled(randn(size, 3).requires_grad_()).sum().backward()
        return counter.graphs

    assert 2 == graphs_of(lambda x: x.cumsum(0))
    assert 5 == graphs_of(lambda x: x.cumprod(0))


def test_the_tangent_of_view_copy_raises_for_what_is_transposed():
    x, tangent = torch.ones(5, 4, 3).transpose(0, 2), torch.ones(5, 4, 3).transpose(0, 2)
    assert (12, 5) == torch.view_copy(x, (12, 5)).shape

    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="view size is not compatible"):
        torch.view_copy(forward_ad.make_dual(x, tangent), (12, 5))
