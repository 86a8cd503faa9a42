"""The honest ops declared with this package: one per shape of an op, in pieces that mutants replace."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from corpus.forms import Declared
from custom_autograd.schema.samples import Sample, TensorFactory


def fit(grad: Tensor, tensor: Tensor) -> Tensor:
    """A gradient summed over what was broadcast, in the dtype of its tensor."""
    return grad.sum_to_size(tensor.shape).to(tensor.dtype)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least, in which sums are kept."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def broadcast_fake(x: Tensor, w: Tensor, *_: object) -> Tensor:
    """The fake kernel of what broadcasts two tensors."""
    return x.new_empty(torch.broadcast_shapes(x.shape, w.shape), dtype=torch.result_type(x, w))


def like_fake(x: Tensor, *_: object) -> Tensor:
    """The fake kernel of what keeps the shape, and is contiguous."""
    return x.new_empty(x.shape)


def square_samples(make: TensorFactory) -> Iterator[Sample]:
    """A weight that is broadcast over rows, and a batch."""
    yield Sample(make(4, 3), make(3), 1.7)
    yield Sample(make(2, 3, 4), make(4))


SCALED_SQUARE = Declared(
    schema="(Tensor x, Tensor w, float alpha=1.0) -> Tensor",
    samples=square_samples,
    default=lambda x, w, alpha=1.0: alpha * x * x * w,
    kernel=lambda x, w, alpha: (alpha * x * x * w).contiguous(),
    fake=broadcast_fake,
    backward=lambda grad, x, w, alpha: {
        "x": lambda: fit(2 * alpha * grad * x * w, x),
        "w": lambda: fit(alpha * grad * x * x, w),
    },
)


def rms(x: Tensor, weight: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Root-mean-square normalisation, and 1 / √(mean(x²) + eps)."""
    rstd = torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + eps)
    return (wide(x) * rstd * weight).to(x.dtype), rstd


def rms_kernel(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The same; both outputs are contiguous."""
    out, rstd = rms(x, weight, eps)
    return out.contiguous(), rstd.contiguous()


def rms_backward(
    grad_out: Tensor, grad_rstd: Tensor, x: Tensor, weight: Tensor, rstd: Tensor
) -> dict[str, Any]:  # Any: tensors, and callables that give them
    """The gradient of `rms`, whose statistic depends on x."""

    def of_x() -> Tensor:
        g = wide(grad_out) * weight
        total = (g * x).sum(-1, keepdim=True) + grad_rstd
        return (g * rstd - x * (rstd**3 * total / x.shape[-1])).to(x.dtype)

    return {"x": of_x, "weight": lambda: fit(grad_out * x * rstd, weight)}


def rms_samples(make: TensorFactory) -> Iterator[Sample]:
    """Two ranks; eps is large enough to be seen."""
    yield Sample(make(4, 5), make(5), 0.1)
    yield Sample(make(2, 3, 4), make(4))


RMS = Declared(
    schema="(Tensor x, Tensor weight, float eps=1e-6) -> (Tensor out, Tensor rstd)",
    samples=rms_samples,
    hidden=("rstd",),
    default=rms,
    kernel=rms_kernel,
    fake=lambda x, weight, eps: (
        x.new_empty(x.shape),
        x.new_empty((*x.shape[:-1], 1), dtype=torch.promote_types(x.dtype, torch.float32)),
    ),
    backward=rms_backward,
)


def softmax_samples(make: TensorFactory) -> Iterator[Sample]:
    """Over the last dimension, and over another one."""
    yield Sample(make(3, 4))
    yield Sample(make(3, 4), 0)


SOFTMAX = Declared(
    schema="(Tensor x, int dim=-1) -> Tensor",
    samples=softmax_samples,
    default=lambda x, dim=-1: torch.softmax(x, dim),
    kernel=lambda x, dim: torch.softmax(x, dim).contiguous(),
    fake=like_fake,
    backward=lambda grad, output, dim: output * (grad - (grad * output).sum(dim, keepdim=True)),
)


def linear_samples(make: TensorFactory) -> Iterator[Sample]:
    """With a bias and without, the last one square."""
    yield Sample(make(2, 3), make(4, 3), make(4))
    yield Sample(make(2, 2, 3), make(4, 3))
    yield Sample(make(3, 3), make(3, 3), make(3)).named("square")


LINEAR = Declared(
    schema="(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor",
    samples=linear_samples,
    default=lambda x, weight, bias=None: F.linear(x, weight, bias),
    kernel=lambda x, weight, bias: F.linear(x, weight, bias).contiguous(),
    fake=lambda x, weight, bias: x.new_empty((*x.shape[:-1], weight.shape[0])),
    backward=lambda grad, x, weight: {
        "x": lambda: grad @ weight,
        "weight": lambda: grad.flatten(0, -2).mT @ x.flatten(0, -2),
        "bias": lambda: grad.flatten(0, -2).sum(0),
    },
    autocast=torch.float32,  # the product inside the kernel would else be bfloat16, and the fake does not say so
)


def join_samples(make: TensorFactory) -> Iterator[Sample]:
    """Lists of two and three tensors."""
    yield Sample([make(2, 3), make(2, 3)])
    yield Sample([make(2, 3), make(2, 1), make(2, 2)], 1)


JOIN = Declared(
    schema="(Tensor[] xs, int dim=0) -> Tensor",
    samples=join_samples,
    default=lambda xs, dim=0: torch.cat(list(xs), dim),
    kernel=lambda xs, dim: torch.cat(list(xs), dim).contiguous(),
    fake=lambda xs, dim: torch.cat(list(xs), dim).contiguous(),
    backward=lambda grad, xs, dim: {"xs": list(grad.split([x.shape[dim] for x in xs], dim))},
)


def pair_samples(make: TensorFactory) -> Iterator[Sample]:
    """Two tensors of one shape."""
    yield Sample(make(3, 4), make(3, 4))


POLAR = Declared(
    schema="(Tensor r, Tensor angle) -> (Tensor across, Tensor up)",
    samples=pair_samples,
    default=lambda r, angle: (r * angle.cos(), r * angle.sin()),
    kernel=lambda r, angle: ((r * angle.cos()).contiguous(), (r * angle.sin()).contiguous()),
    fake=lambda r, angle: (broadcast_fake(r, angle), broadcast_fake(r, angle)),
    backward=lambda grad_across, grad_up, r, angle: {
        "r": lambda: fit(grad_across * angle.cos() + grad_up * angle.sin(), r),
        "angle": lambda: fit(r * (grad_up * angle.cos() - grad_across * angle.sin()), angle),
    },
)


def write_sum(x: Tensor, y: Tensor, alpha: float = 1.0) -> None:
    """Adds alpha y² to x."""
    x.add_(y * y, alpha=alpha)


def add_samples(make: TensorFactory) -> Iterator[Sample]:
    """A factor that is not 1."""
    yield Sample(make(3, 4), make(3, 4), 1.3)


ADD_SQUARE = Declared(
    schema="(Tensor(a!) x, Tensor y, float alpha=1.0) -> ()",
    samples=add_samples,
    mutates=("x",),
    default=write_sum,
    backward=lambda grad, y, alpha: {"x": grad, "y": lambda: 2 * alpha * grad * y},
    has_reference=False,
)


def complex_samples(make: TensorFactory) -> Iterator[Sample]:
    """Complex numbers, and a weight that is broadcast."""
    yield Sample(make(3, 2, dtype=torch.complex64), make(2, dtype=torch.complex64))


COMPLEX_PRODUCT = Declared(
    schema="(Tensor z, Tensor w) -> Tensor",
    samples=complex_samples,
    default=lambda z, w: z * w,
    kernel=lambda z, w: (z.resolve_conj() * w.resolve_conj()).contiguous(),
    fake=broadcast_fake,
    backward=lambda grad, z, w: {"z": lambda: fit(grad * w.conj(), z), "w": lambda: fit(grad * z.conj(), w)},
)


def pick_samples(make: TensorFactory) -> Iterator[Sample]:
    """More rows than there are, so that some are taken twice."""
    yield Sample(make(4, 3), torch.tensor([0, 3, 1, 3, 2, 0], device=make.device))


PICK = Declared(
    schema="(Tensor x, Tensor index) -> Tensor",
    samples=pick_samples,
    default=lambda x, index: x.index_select(0, index),
    kernel=lambda x, index: x.index_select(0, index).contiguous(),
    fake=lambda x, index: x.new_empty((index.shape[0], *x.shape[1:])),
    backward=lambda grad, index, meta: {"x": grad.new_zeros(meta.x.shape).index_add(0, index, grad)},
)


def drop(x: Tensor, p: float = 0.5) -> tuple[Tensor, Tensor]:
    """Dropout, and its mask."""
    mask = torch.rand(x.shape, device=x.device) >= p
    return (x * mask / (1 - p)).contiguous(), mask


def one_samples(make: TensorFactory) -> Iterator[Sample]:
    """One tensor."""
    yield Sample(make(4, 3))
    yield Sample(make(5))


DROPOUT = Declared(
    schema="(Tensor x, float p=0.5) -> (Tensor out, Tensor mask)",
    samples=one_samples,
    hidden=("mask",),
    tags=(torch.Tag.nondeterministic_seeded,),
    default=drop,
    has_reference=False,
    fake=lambda x, p: (x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)),
    backward=lambda grad, mask, p: grad * mask / (1 - p),
)


def numpy_cube(x: Tensor) -> Tensor:
    """x³ by NumPy."""
    return torch.from_numpy(np.array(x.numpy() ** 3))


CUBE = Declared(
    schema="(Tensor x) -> Tensor",
    samples=one_samples,
    default=lambda x: x**3,
    kernel=lambda x: (x**3).contiguous(),
    fake=like_fake,
    backward=lambda grad, x: 3 * grad * x * x,
)
NUMPY_CUBE = CUBE.but(kernel=numpy_cube, fake=torch.empty_like)
ONCE = NUMPY_CUBE.but(is_once_differentiable=True, backward=lambda grad, x: 3 * grad * x.detach() ** 2)
