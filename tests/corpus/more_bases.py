"""More honest ops: with every rule registered, of other shapes, and in the forms that PyTorch itself has."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from corpus.bases import (
    broadcast_fake,
    fit,
    like_fake,
    one_samples,
    pair_samples,
    wide,
)
from corpus.forms import Declared, Defined, Library, Plain, Written
from custom_autograd.schema.samples import Sample, TensorFactory


def growth_jvp(tangent_x: Tensor | None, tangent_y: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """The tangent of exp(x) y."""
    total = torch.zeros_like(y) if tangent_x is None else tangent_x * x.exp() * y
    return total if tangent_y is None else total + tangent_y * x.exp()


def first(tensor: Tensor, dim: int | None) -> Tensor:
    """A tensor with its batch first; of size 1 where it has none."""
    return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)


def growth_vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """A batch of exp(x) y."""
    del info
    return first(x, in_dims[0]).exp() * first(y, in_dims[1]), 0


GROWTH = Declared(
    schema="(Tensor x, Tensor y) -> Tensor",
    samples=pair_samples,
    default=lambda x, y: x.exp() * y,
    kernel=lambda x, y: (x.exp() * y).contiguous(),
    fake=broadcast_fake,
    backward=lambda grad, output, x: {"x": lambda: grad * output, "y": lambda: grad * x.exp()},
    jvp=growth_jvp,
    vmap=growth_vmap,
    autocast=torch.float32,
)
PACK = Declared(
    schema="(Tensor x) -> Tensor",
    samples=one_samples,
    default=lambda x: x.clone(memory_format=torch.contiguous_format),
    kernel=lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device).copy_(x),
    fake=like_fake,
    backward=lambda grad: grad.clone(),
)


def positive_squares(x: Tensor) -> tuple[Tensor, Tensor]:
    """The squares of the positive elements, and their places."""
    where = (x.reshape(-1) > 0).nonzero().reshape(-1)
    return x.reshape(-1)[where] ** 2, where


def positive_fake(x: Tensor) -> tuple[Tensor, Tensor]:
    """As many as there are: a symbol."""
    size = torch.library.get_ctx().new_dynamic_size()
    return x.new_empty(size), x.new_empty(size, dtype=torch.int64)


POSITIVES = Declared(
    schema="(Tensor x) -> (Tensor values, Tensor where)",
    samples=one_samples,
    hidden=("where",),
    default=positive_squares,
    fake=positive_fake,
    backward=lambda grad, x, where: 2 * x * grad.new_zeros(x.numel()).index_add(0, where, grad).reshape(x.shape),
)


def peak_samples(make: TensorFactory) -> Iterator[Sample]:
    """Without ties, then with a tie."""
    yield Sample(make(3, 4))
    yield Sample(torch.tensor([[1.0, 2.0, 2.0], [0.5, 0.5, 0.0]], dtype=make.dtype, requires_grad=True)).named("ties")


def peak_backward(grad: Tensor, output: Tensor, x: Tensor) -> Tensor:
    """The gradient goes to the greatest element; where there are several, in equal shares."""
    tied = x == output.unsqueeze(-1)
    return grad.unsqueeze(-1) * tied / tied.sum(-1, keepdim=True)


PEAK = Declared(
    schema="(Tensor x) -> Tensor",
    samples=peak_samples,
    default=lambda x: x.amax(-1),
    kernel=lambda x: x.amax(-1).contiguous(),
    fake=lambda x: x.new_empty(x.shape[:-1]),
    backward=peak_backward,
)


def image_samples(make: TensorFactory) -> Iterator[Sample]:
    """A batch of images."""
    yield Sample(make(2, 3, 2, 2), make(3))


CHANNELS = Declared(
    schema="(Tensor x, Tensor w) -> Tensor",
    samples=image_samples,
    default=lambda x, w: x * w[:, None, None],
    kernel=lambda x, w: (x * w[:, None, None]).contiguous(),
    fake=lambda x, w: x.new_empty(x.shape, dtype=torch.result_type(x, w)),
    backward=lambda grad, x, w: {
        "x": lambda: (grad * w[:, None, None]).to(x.dtype),
        "w": lambda: (grad * x).sum((0, 2, 3)).to(w.dtype),
    },
)
RUNNING = Declared(
    schema="(Tensor x) -> Tensor",
    samples=one_samples,
    default=lambda x: x.cumsum(-1),
    kernel=lambda x: wide(x).cumsum(-1).to(x.dtype).contiguous(),
    fake=like_fake,
    backward=lambda grad: grad.flip(-1).cumsum(-1).flip(-1),
)


def save_inputs(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
    """What a product needs: its tensors."""
    del output
    ctx.save_for_backward(*inputs)


def product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Only what is needed."""
    x, y = ctx.saved_tensors
    needs_x, needs_y = ctx.needs_input_grad
    return fit(grad * y.conj(), x) if needs_x else None, fit(grad * x.conj(), y) if needs_y else None


NO_FORWARD_MODE = "torch.library has no forward mode, and gives zeros instead of saying so"

PRODUCT = Library(
    schema="(Tensor x, Tensor y) -> Tensor",
    samples=lambda make: [Sample(make(3, 4), make(3, 4)).xfail("forward_mode", reason=NO_FORWARD_MODE)],
    kernel=lambda x, y: (x * y).contiguous(),
    fake=broadcast_fake,
    setup=save_inputs,
    backward=product_backward,
)
BROADCAST_PRODUCT = PRODUCT.but(samples=lambda make: [Sample(make(4, 3), make(3))])
SQUARE = Defined(
    schema="(Tensor x) -> Tensor",
    samples=lambda make: [Sample(make(4, 3)).xfail("forward_mode", reason=NO_FORWARD_MODE)],
    kernels={"CPU": lambda x: (x * x).contiguous()},
    fake=like_fake,
    setup=save_inputs,
    backward=lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
)
COMPOSITE = Defined(
    schema="(Tensor x) -> Tensor",
    samples=one_samples,
    kernels={"CompositeImplicitAutograd": lambda x: x * x},
)
WRITTEN_PRODUCT = Written(
    samples=pair_samples,
    forward=lambda x, y: x * y,
    setup=save_inputs,
    backward=product_backward,
    attributes={"generate_vmap_rule": True},
)


def two_setup(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    """Undefined gradients stay undefined."""
    del output
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs)


def two_backward(ctx: Any, of_square: Tensor | None, of_double: Tensor | None) -> Tensor | None:
    """The sum over the gradients that there are."""
    (x,) = ctx.saved_tensors
    shares = [None if of_square is None else 2 * of_square * x, None if of_double is None else 2 * of_double]
    given = [share for share in shares if share is not None]
    return sum(given[1:], given[0]) if given else None


WRITTEN_TWO = Written(
    samples=one_samples,
    forward=lambda x: (x * x, 2 * x),
    setup=two_setup,
    backward=two_backward,
    attributes={"generate_vmap_rule": True},
)
PLAIN_SINE = Plain(samples=pair_samples, function=lambda x, y: torch.sin(x) * y)


def rows(x: Tensor, w: Tensor) -> Tensor:
    """X w, for a weight that is as long as a row."""
    if w.shape[0] != x.shape[-1]:
        raise ValueError(f"'w' has {w.shape[0]} elements, but a row of 'x' has {x.shape[-1]}")
    return (x * w).contiguous()


def rows_samples(make: TensorFactory) -> Iterator[Sample]:
    """A call, and one that raises."""
    yield Sample(make(4, 3), make(3))
    yield Sample(make(4, 3), make(2)).raises(ValueError, match="'w' has 2 elements").named("short weight")


CHECKED = Declared(
    schema="(Tensor x, Tensor w) -> Tensor",
    samples=rows_samples,
    default=rows,
    fake=rows,
    backward=lambda grad, x, w: {"x": lambda: fit(grad * w, x), "w": lambda: fit(grad * x, w)},
)
