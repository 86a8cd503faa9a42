"""What tests of the gallery's ops share: loading a file, tensors in every dtype and layout, and how near is near."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd.values.tensors import tensors_in

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"

# What one rounding of the result allows: half a unit in the last place, and twice that for the sums inside.
BUDGETS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
dtypes = each("dtype", BUDGETS)


def load(name: str) -> ModuleType:
    """A file of the gallery, once for this process: ops are declared once. It may import the files beside it."""
    if str(GALLERY) not in sys.path:
        sys.path.append(str(GALLERY))
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, GALLERY / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


INTERPRETED = (
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or torch.cuda.is_available(),
        reason="Triton is not installed, or compiles for a GPU",
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # NumPy's, which computes what a mask hides
)


def interpreted(test: Callable[..., None]) -> Callable[..., None]:
    """A test of Triton kernels on CPU tensors: tests/conftest.py lets Triton's interpreter run them."""
    for mark in INTERPRETED:
        test = mark(test)
    return test


def saved_shapes(call: Callable[[], object]) -> list[tuple[int, ...]]:
    """The shapes of what a call saves for its backward."""
    shapes: list[tuple[int, ...]] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: shapes.append(tuple(t.shape)) or t, lambda t: t):
        call()
    return shapes


def transposed(tensor: Tensor) -> Tensor:
    """The same values, the strides in reverse order."""
    dims = tuple(reversed(range(tensor.dim())))
    return tensor.permute(dims).contiguous().permute(dims)


def strided(tensor: Tensor) -> Tensor:
    """The same values, every second element of a wider tensor, from its second on."""
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1] + 1, dtype=tensor.dtype)[..., 1::2]
    return wide.copy_(tensor)


def expanded(tensor: Tensor) -> Tensor:
    """The first of the leading dimension, everywhere."""
    return tensor[:1].expand(tensor.shape) if tensor.dim() > 1 else tensor


# Each dtype in one layout: the checks of an op (`layouts`, `kernels`) look at every layout.
dtypes_in_layouts = each(
    ("dtype", "layout"), zip(BUDGETS, [Tensor.contiguous, transposed, strided, expanded], strict=True)
)


def assert_derivatives(op: Callable[..., Any], reference: Callable[..., Any], *inputs: Tensor) -> None:
    """First and second derivatives and tangents are those of a reference, also in compiled code."""
    which = tuple(range(len(inputs)))
    found, expected = partial(squares, op), partial(squares, reference)
    for derivative in (torch.func.grad, torch.func.hessian):
        torch.testing.assert_close(
            derivative(found, argnums=which)(*inputs), derivative(expected, argnums=which)(*inputs)
        )
    tangents = tuple(tensor.cos() for tensor in inputs)
    torch.testing.assert_close(torch.func.jvp(found, inputs, tangents), torch.func.jvp(expected, inputs, tangents))

    torch.compiler.reset()
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    compiled = torch.compile(found, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(
        torch.autograd.grad(compiled(*leaves), leaves), torch.autograd.grad(expected(*leaves), leaves)
    )


def squares(function: Callable[..., Any], *inputs: Tensor) -> Tensor:
    """A scalar of all outputs with first and second derivatives."""
    return sum((n * out.square() + out.sin()).sum() for n, out in enumerate(tensors_in([function(*inputs)]), 1))


def assert_near(found: Tensor, exact: Tensor, dtype: torch.dtype, budget: float | None = None) -> None:
    """Compares with the float64 result, as far as one rounding to dtype allows."""
    tolerance = BUDGETS[dtype] if budget is None else budget
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance, equal_nan=True)


def statistic(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
