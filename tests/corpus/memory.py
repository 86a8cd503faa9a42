"""Mutants whose schema or fake kernel lies: undeclared writes, aliasing, wrong shapes, strides and dtypes."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from corpus.bases import (
    ADD_SQUARE,
    CUBE,
    LINEAR,
    NUMPY_CUBE,
    PICK,
    RMS,
    SCALED_SQUARE,
    like_fake,
)
from corpus.more_bases import PACK, PEAK, POSITIVES, PRODUCT, SQUARE
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

WORKSPACES: dict[str, Tensor] = {}


def _halved_after(x: Tensor) -> Tensor:
    out = (x * x).contiguous()
    x.detach().mul_(0.5)
    return out


def _by_numpy(x: Tensor) -> Tensor:
    out = (x**3).contiguous()
    x.detach().numpy()[...] *= 0.5
    return out


def _workspace(x: Tensor) -> Tensor:
    """The same memory for all results of a shape."""
    out = WORKSPACES.setdefault(
        f"{tuple(x.shape)} {x.dtype}", torch.empty_like(x, memory_format=torch.contiguous_format)
    )
    return out.copy_(x * x)


def _two_of_one(x: Tensor) -> tuple[Tensor, Tensor]:
    memory = torch.stack([x * x, 2 * x])
    return memory[0], memory[:1][0]


def _aliasing(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """An op of the dispatcher that is not looked after: whatever its kernel returns comes out."""
    return SQUARE.but(
        schema=schema,
        kernels={"CPU": kernel},
        fake=fake,
        backward=None,
        setup=None,
        samples=lambda make: [Sample(make(4, 3, requires_grad=False))],
    )


MEMORY: tuple[Mutant, ...] = (
    plant(
        "write_input",
        "in-place write to input",
        "schema",
        "The input is halved, which the schema does not declare.",
        SQUARE.but(kernels={"CPU": _halved_after}),
    ),
    plant(
        "write_input_by_numpy",
        "in-place write to input",
        "schema",
        "The input is halved by NumPy, which no version counter sees.",
        CUBE.but(kernel=_by_numpy),
    ),
    plant(
        "write_input_idempotent",
        "in-place write to input",
        "schema",
        "The input is clamped in place, which positive numbers do not show.",
        SQUARE.but(
            kernels={"CPU": lambda x: (x.detach().clamp_(min=0) ** 2).contiguous()},
            backward=lambda ctx, grad: 2 * grad * ctx.saved_tensors[0].clamp(min=0),
            samples=lambda make: [Sample(make(4, 3, low=0.5, high=2.0))],
        ),
    ),
    plant(
        "write_declared_in_vain",
        "declared write",
        "schema",
        "An argument is declared as written to, and is not.",
        ADD_SQUARE.but(
            default=lambda x, y, alpha=1.0: None, backward=lambda grad, y, alpha: {"x": grad, "y": torch.zeros_like(y)}
        ),
    ),
    plant(
        "alias_input",
        "aliasing",
        "schema",
        "The op returns its input.",
        _aliasing("(Tensor x) -> Tensor", lambda x: x, torch.empty_like),
    ),
    plant(
        "alias_view",
        "aliasing",
        "schema",
        "The op returns a view of its input.",
        _aliasing("(Tensor x) -> Tensor", lambda x: x[1:], lambda x: x.new_empty((x.shape[0] - 1, *x.shape[1:]))),
    ),
    plant(
        "alias_contiguous",
        "aliasing",
        "schema",
        "A contiguous input is returned as it is, of others a copy.",
        _aliasing("(Tensor x) -> Tensor", lambda x: x.contiguous(), like_fake).but(
            samples=lambda make: [Sample(make(3, 4, requires_grad=False).mT)]
        ),
    ),
    plant(
        "alias_numpy",
        "aliasing",
        "schema",
        "The output is a NumPy array over the memory of the input.",
        _aliasing("(Tensor x) -> Tensor", lambda x: torch.from_numpy(x.numpy()), torch.empty_like),
    ),
    plant(
        "alias_two_outputs",
        "aliasing",
        "schema",
        "Both outputs are the same memory.",
        _aliasing("(Tensor x) -> (Tensor square, Tensor double)", _two_of_one, lambda x: (like_fake(x), like_fake(x))),
    ),
    plant(
        "alias_workspace",
        "aliasing",
        "schema",
        "Every call returns the same memory.",
        _aliasing("(Tensor x) -> Tensor", _workspace, like_fake),
    ),
    plant(
        "fake_shape",
        "shape of a fake",
        "fake",
        "The fake kernel keeps the dimension that the real one reduces.",
        PEAK.but(fake=lambda x: x.new_empty((*x.shape[:-1], 1))),
    ),
    plant(
        "fake_shape_of_hidden",
        "shape of a fake",
        "fake",
        "The fake statistic lacks its dimension of size 1.",
        RMS.but(fake=lambda x, weight, eps: (like_fake(x), x.new_empty(x.shape[:-1]))),
    ),
    plant(
        "fake_shape_of_batch",
        "shape of a fake",
        "fake",
        "The fake kernel leaves out all dimensions but two.",
        LINEAR.but(fake=lambda x, weight, bias: x.new_empty((x.shape[0], weight.shape[0]))),
    ),
    plant(
        "fake_dtype",
        "dtype of a fake",
        "fake",
        "The fake kernel says float64.",
        CUBE.but(fake=lambda x: x.new_empty(x.shape, dtype=torch.float64)),
    ),
    plant(
        "fake_dtype_of_index",
        "dtype of a fake",
        "fake",
        "The fake kernel says int32 of what is int64.",
        PRODUCT.but(
            schema="(Tensor x) -> Tensor",
            kernel=lambda x: x.argsort(-1).contiguous(),
            fake=lambda x: x.new_empty(x.shape, dtype=torch.int32),
            backward=None,
            setup=None,
            samples=lambda make: [Sample(make(3, 4))],
        ),
    ),
    plant(
        "fake_stride",
        "stride of a fake",
        "fake",
        "The fake kernel says that the output is transposed.",
        CUBE.but(fake=lambda x: x.new_empty(x.shape[::-1]).permute(*reversed(range(x.dim())))),
    ),
    plant(
        "fake_stride_of_transposed",
        "stride of a fake",
        "fake",
        "The fake kernel says contiguous; the real one keeps the strides of x.",
        NUMPY_CUBE.but(fake=like_fake),
    ),
    plant(
        "fake_stride_kept",
        "stride of a fake",
        "fake",
        "The fake kernel keeps the strides of x; the real one is contiguous.",
        PACK.but(fake=torch.empty_like),
    ),
    plant(
        "fake_device",
        "device of a fake",
        "fake",
        "The fake kernel says the device meta.",
        PRODUCT.but(fake=lambda x, y: torch.empty(x.shape, dtype=x.dtype, device="meta")),
    ),
    plant(
        "fake_outputs",
        "number of outputs of a fake",
        "fake",
        "The fake kernel returns one tensor of two.",
        SQUARE.but(
            schema="(Tensor x) -> Tensor[]",
            kernels={"CPU": lambda x: [x * x, 2 * x]},
            fake=lambda x: [torch.empty_like(x)],
            backward=None,
            setup=None,
        ),
    ),
    plant(
        "fake_data",
        "fake reads data",
        "fake",
        "The fake kernel reads an element.",
        PICK.but(fake=lambda x, index: x.new_empty((int(index.max()) + 3, *x.shape[1:]))),
    ),
    plant(
        "fake_constant",
        "shape of a fake",
        "fake",
        "The fake kernel says 4 rows, which only the sample has.",
        CUBE.but(samples=lambda make: [Sample(make(4, 3))], fake=lambda x: x.new_empty((4, *x.shape[1:]))),
    ),
    plant(
        "fake_dynamic",
        "shape of a fake",
        "fake",
        "The fake kernel says how many elements there can be at most.",
        POSITIVES.but(fake=lambda x: (x.new_empty(x.numel()), x.new_empty(x.numel(), dtype=torch.int64))),
    ),
    plant(
        "fake_empty",
        "shape of a fake",
        "fake",
        "The fake kernel says one row where there is none.",
        CUBE.but(
            fake=lambda x: x.new_empty((max(1, x.shape[0]), *x.shape[1:])), samples=lambda make: [Sample(make(0, 3))]
        ),
    ),
    plant(
        "symbolic_int",
        "symbolic specialisation",
        "symbolic",
        "The fake kernel makes an int of the number of rows.",
        CUBE.but(fake=lambda x: x.new_empty((int(x.shape[0]), *x.shape[1:]))),
    ),
    plant(
        "symbolic_branch",
        "symbolic specialisation",
        "symbolic",
        "The fake kernel asks whether there are as many rows as in the sample.",
        CUBE.but(fake=lambda x: like_fake(x) if x.shape[0] == 4 else x.new_empty(x.shape)),
    ),
    plant(
        "symbolic_range",
        "symbolic specialisation",
        "symbolic",
        "The fake kernel counts the columns in a Python loop.",
        SCALED_SQUARE.but(fake=lambda x, w, alpha: x.new_empty((*x.shape[:-1], len(range(x.shape[-1]))))),
    ),
    plant(
        "symbolic_loop",
        "symbolic specialisation",
        "symbolic",
        "The fake kernel loops over the rows.",
        PRODUCT.but(fake=lambda x, y: torch.stack([x[row].new_empty(x.shape[1:]) for row in range(x.shape[0])])),
    ),
)
