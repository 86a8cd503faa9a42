"""Mutants that only a system around the op shows: compiler, export, autocast, profiler, subclasses, bad inputs."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import CUBE, SCALED_SQUARE, broadcast_fake, like_fake
from corpus.forms import Rule, Written
from corpus.more_bases import (
    CHECKED,
    COMPOSITE,
    GROWTH,
    PLAIN_SINE,
    PRODUCT,
    SQUARE,
    first,
    growth_vmap,
    save_inputs,
)
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

FACTORS = {power: 1.5**power for power in range(-64, 1024)}


def _by_numpy(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return grad * torch.from_numpy(2 * x.detach().numpy())


def _by_list(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    return 2 * grad * torch.tensor(x.tolist(), dtype=x.dtype)


def _branching(ctx: Any, grad: Tensor) -> Tensor:
    """Skips the product where the gradient is all zeros."""
    (x,) = ctx.saved_tensors
    return 2 * grad * x if bool((grad != 0).any()) else torch.zeros_like(x)


def _row_by_row(ctx: Any, grad: Tensor) -> Tensor:
    """A loop over as many rows as there are."""
    (x,) = ctx.saved_tensors
    return torch.stack([2 * grad[row] * x[row] for row in range(x.shape[0])])


square_below_autograd: Rule = (
    Written(
        samples=SQUARE.samples,
        forward=lambda x: x * x,
        setup=save_inputs,
        backward=lambda ctx, grad: 2 * grad * ctx.saved_tensors[0],
    )
    .declare("square_below_autograd")
    .apply
)


def _data_in_vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor) -> tuple[Tensor, int]:
    """Looks at the numbers of the batch."""
    scale = 1.0 if float(x.detach().abs().max()) < 1e6 else 0.0
    out, dim = growth_vmap(info, in_dims, x, y)
    return scale * out, dim


def _short_weight_repeated(x: Tensor, w: Tensor) -> Tensor:
    """A weight that is too short is repeated."""
    places = torch.arange(x.shape[-1], device=w.device) % w.shape[0]
    return (x * w.index_select(0, places)).contiguous()


def _raises(error: type[Exception], message: str) -> Any:
    def kernel(x: Tensor, w: Tensor) -> Tensor:
        if w.shape[0] != x.shape[-1]:
            raise error(message)
        return (x * w).contiguous()

    return kernel


WRONG_MESSAGE = _raises(ValueError, "'x' has the wrong size")
WRONG_CLASS = _raises(IndexError, "'w' has 2 elements, and a row of 'x' more")

SYSTEMS: tuple[Mutant, ...] = (
    plant(
        "compile_branch",
        "data-dependent branch in the backward",
        "compile",
        "The backward branches on the incoming gradient.",
        SQUARE.but(backward=_branching),
    ),
    plant(
        "compile_numpy",
        "backward leaves the graph",
        "compile",
        "The backward computes by NumPy.",
        SQUARE.but(backward=_by_numpy),
    ),
    plant(
        "compile_differs",
        "mode-dependent result",
        "compile",
        "Compiled, the result is 1 % larger.",
        PLAIN_SINE.but(function=lambda x, y: torch.sin(x) * y * (1.01 if torch.compiler.is_compiling() else 1.0)),
    ),
    plant(
        "compile_fake_stride",
        "stride of a fake",
        "opcheck",
        "The fake kernel gives the strides of the transpose.",
        PRODUCT.but(fake=lambda x, y: broadcast_fake(x.mT, y.mT).mT),
    ),
    plant(
        "recompile_int",
        "recompiles on every int",
        "recompilation",
        "The fake kernel looks an int up in a Python dict.",
        CUBE.but(
            schema="(Tensor x, int power) -> Tensor",
            samples=lambda make: [Sample(make(3, 4), 2)],
            default=lambda x, power: x * power,
            kernel=lambda x, power: x * power,
            fake=lambda x, power: like_fake(x) if FACTORS[power] else x,
            backward=lambda grad, power: grad * power,
        ),
    ),
    plant(
        "recompile_size",
        "recompiles on every size",
        "recompilation",
        "The backward runs over the rows in a Python loop.",
        SQUARE.but(backward=_row_by_row),
    ),
    plant(
        "export_branch",
        "data-dependent branch",
        "export",
        "An op made of PyTorch operations branches on data.",
        COMPOSITE.but(kernels={"CompositeImplicitAutograd": lambda x: x * x if bool(x.sum() > -1e9) else x * 0}),
    ),
    plant(
        "compiled_backward_list",
        "backward leaves the graph",
        "compile",
        "The backward makes a list of numbers.",
        SQUARE.but(backward=_by_list),
    ),
    plant(
        "compiled_vmap_data",
        "data-dependent branch",
        "compiled_transforms",
        "The batching rule looks at the numbers of the batch.",
        GROWTH.but(vmap=_data_in_vmap),
    ),
    plant(
        "autocast_mode",
        "wrong autocast",
        "autocast",
        "Under autocast the result is twice too large.",
        CUBE.but(kernel=lambda x: ((2 if torch.is_autocast_enabled("cpu") else 1) * x**3).contiguous()),
    ),
    plant(
        "autocast_kernel",
        "wrong autocast",
        "autocast",
        "The kernel for autocast leaves out the factor.",
        SQUARE.but(kernels={"CPU": lambda x: (x * x).contiguous(), "AutocastCPU": lambda x: x.bfloat16().float()}),
    ),
    plant(
        "autocast_fake",
        "wrong autocast",
        "autocast",
        "The fake kernel says float32 of what autocast makes bfloat16.",
        GROWTH.but(
            autocast=torch.bfloat16,
            fake=lambda x, y: x.new_empty(
                x.shape, dtype=torch.float32 if x.dtype == torch.bfloat16 else torch.result_type(x, y)
            ),
        ),
    ),
    plant(
        "subclass_zeroed",
        "subclass unwrapping",
        "subclasses",
        "For a subclass of Tensor the result is zero.",
        PLAIN_SINE.but(function=lambda x, y: torch.sin(x) * y * (1 if type(x) in (Tensor, torch.nn.Parameter) else 0)),
    ),
    plant(
        "errors_silent",
        "bad input",
        "errors",
        "A weight that is too short is repeated.",
        CHECKED.but(default=_short_weight_repeated, fake=broadcast_fake),
    ),
    plant(
        "errors_message",
        "bad input",
        "errors",
        "The message blames the other input.",
        CHECKED.but(default=WRONG_MESSAGE, fake=WRONG_MESSAGE),
    ),
    plant(
        "errors_class",
        "bad input",
        "errors",
        "The error has another class than the op declares.",
        CHECKED.but(default=WRONG_CLASS, fake=WRONG_CLASS),
    ),
    plant(
        "registered_in_kernel",
        "registration",
        "opcheck",
        "The gradient is registered inside the kernel, below autograd.",
        SQUARE.but(kernels={"CPU": square_below_autograd}, backward=None, setup=None),
    ),
    plant(
        "registered_not",
        "registration",
        "gradcheck",
        "No gradient is registered, and the kernel's operations are not recorded.",
        SQUARE.but(kernels={"CPU": lambda x: x * x, "Autograd": lambda x: x.detach() ** 2}, backward=None, setup=None),
    ),
    plant(
        "alpha_int",
        "ignores a scalar",
        "reference",
        "The scalar is rounded to an integer.",
        SCALED_SQUARE.but(kernel=lambda x, w, alpha: (int(alpha) * x * x * w).contiguous()),
    ),
    plant(
        "vmap_batch_size",
        "only under vmap",
        "vmap",
        "The result depends on the size of the batch.",
        GROWTH.but(
            vmap=lambda info, in_dims, x, y: (first(x, in_dims[0]).exp() * first(y, in_dims[1]) / info.batch_size, 0)
        ),
    ),
)
