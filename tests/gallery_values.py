"""What tests of the gallery's ops share: loading a file, tensors in every dtype and layout, and how near is near."""

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"

# What one rounding of the result allows: half a unit in the last place, and twice that for the sums inside.
BUDGETS = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
dtypes = pytest.mark.parametrize("dtype", BUDGETS, ids=str)


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


def interpreted(test: Callable[..., None]) -> Callable[..., None]:
    """A test of Triton kernels on CPU tensors: tests/conftest.py lets Triton's interpreter run them."""
    is_there = importlib.util.find_spec("triton") is not None and not torch.cuda.is_available()
    quiet = pytest.mark.filterwarnings("ignore::RuntimeWarning")(test)  # NumPy's, which computes what a mask hides
    return pytest.mark.skipif(not is_there, reason="Triton is not installed, or compiles for a GPU")(quiet)


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


layouts = pytest.mark.parametrize(
    "layout", [Tensor.contiguous, transposed, strided, expanded], ids=lambda f: f.__name__
)


def assert_near(found: Tensor, exact: Tensor, dtype: torch.dtype, budget: float | None = None) -> None:
    """Compares with the float64 result, as far as one rounding to dtype allows."""
    tolerance = BUDGETS[dtype] if budget is None else budget
    torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance, equal_nan=True)


def statistic(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
