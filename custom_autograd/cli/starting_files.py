"""The text of the files that `custom-autograd new` writes: an op that is complete, to be changed into another one.

$qualified, $name, $stem, $module and $error stand for "ns::name", the name, the name of the file without its suffix,
the name by which a test imports it, and the exception for arguments that do not fit.
"""

from collections.abc import Mapping
from string import Template

KERNELS = ("none", "numpy", "cpp", "triton")
"""What --kernel takes; "none" leaves the work to the reference."""


def files_for(qualified: str, name: str, module: str, kernel: str) -> Mapping[str, str]:
    """Return file name -> text.

    Args:
        qualified: the op's qualified name.
        name: its name.
        module: the name by which the op's file is imported; its last part is the name of the file.
        kernel: one of `KERNELS`.
    """
    stem = module.rpartition(".")[2]
    parts = (HEAD, IMPORTS[kernel], OP, KERNEL[kernel], RULES)
    files = {f"{stem}.py": "".join(parts), f"test_{stem}.py": TEST}
    if kernel == "cpp":
        files[f"{stem}.cpp"] = CPP
    error = "RuntimeError" if kernel == "cpp" else "ValueError"  # that of STD_TORCH_CHECK
    names = {"qualified": qualified, "name": name, "stem": stem, "module": module, "error": error}
    return {Template(file).substitute(names): Template(text).substitute(names) for file, text in files.items()}


HEAD = '''"""$name: replace this line by what the op computes, and the next one by its formula.

    out = weight · x²

Shapes: x: (..., features); weight: (features,); out like x, contiguous.
Dtypes: float64, float32, bfloat16, float16, the same for all.
"""

from __future__ import annotations

'''

IMPORTS = {
    "none": """from custom_autograd import Sample, custom_op
from torch import Tensor
""",
    "numpy": """import numpy as np
import torch
from custom_autograd import Sample, custom_op
from torch import Tensor
""",
    "cpp": """from pathlib import Path

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel
from torch import Tensor
""",
    "triton": """import torch
from custom_autograd import Sample, custom_op
from custom_autograd.kernels import tl, triton_kernel
from torch import Tensor
""",
}

OP = '''

def require_shapes(x: Tensor, weight: Tensor) -> None:
    """The same sentence wherever a call is wrong: in the kernel, and in the fake when it is compiled."""
    if x.dim() == 0 or weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise $error(f"'weight' must have one element per feature: {tuple(weight.shape)}, {tuple(x.shape)}")


# The reference, in differentiable PyTorch operations. It serves every device that has no kernel of its own.
@custom_op("$qualified", reference=True)
def $name(x: Tensor, weight: Tensor) -> Tensor:
    """What the op computes."""
    require_shapes(x, weight)
    return weight * x.contiguous().square()
'''

KERNEL = {
    "none": "",
    "numpy": '''

@$name.register_kernel("cpu")
def _(x: Tensor, weight: Tensor) -> Tensor:
    """NumPy. It knows no bfloat16, which the reference computes."""
    require_shapes(x, weight)
    if x.dtype == torch.bfloat16:
        return weight * x.contiguous().square()
    return torch.from_numpy(np.ascontiguousarray(weight.numpy() * np.square(x.numpy())))
''',
    "cpp": """

# C++: rows in parallel. No Python function around it: a native call runs it directly. It is built at its first call;
# without a compiler, the reference runs instead, with a warning.
$name.register_kernel("cpu", layouts="contiguous")(cpp_kernel(Path(__file__).with_suffix(".cpp"), "$name"))
""",
    "triton": '''

@triton_kernel
def ${name}_row(x, weight, out, features, block: tl.constexpr) -> None:
    """One row, which fits in one block."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    inside = place < features
    values = tl.load(x + row * features + place, mask=inside, other=0).to(tl.float32)
    weights = tl.load(weight + place, mask=inside, other=0).to(tl.float32)
    tl.store(out + row * features + place, (weights * values * values).to(out.dtype.element_ty), mask=inside)


@$name.register_kernel("cuda")
def _(x: Tensor, weight: Tensor) -> Tensor:
    """Triton: one program per row; float64 goes to the reference."""
    require_shapes(x, weight)
    if x.dtype == torch.float64:
        return weight * x.contiguous().square()
    out, features = x.new_empty(x.shape), x.shape[-1]
    if out.numel():  # a grid of size 0 is an error
        block = 1 << max(0, features - 1).bit_length()
        ${name}_row[(out.numel() // features,)](x.contiguous(), weight.contiguous(), out, features, block=block)
    return out
''',
}

RULES = '''

@$name.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    """Shape and dtype of the result without its numbers: what torch.compile asks for."""
    require_shapes(x, weight)
    return x.new_empty(x.shape)


# d out / d x = 2 · weight · x;  d out / d weight = x², summed over all rows.
# The parameters say what is saved; a gradient in a lambda is computed only where it is wanted.
@$name.register_backward
def _(grad, x, weight):
    return {
        "x": lambda: 2 * grad * weight * x,
        "weight": lambda: (grad * x.square()).sum_to_size(weight.shape),
    }


@$name.register_samples
def _(make):
    yield Sample(make(4, 8), make(8))
    yield Sample(make(2, 3, 19), make(19)).named("odd sizes")
    yield Sample(make(5), make(5)).named("one row")
    yield Sample(make(0, 8), make(8)).named("no rows")
    yield Sample(make(4, 8), make(7)).named("wrong weight").raises($error, match="'weight' must have one element")


if __name__ == "__main__":
    print($name.check(raise_on_failure=False))
'''

TEST = '''"""Every check of $name, each as a test of its own."""

from custom_autograd.testing import parametrize_checks

from $module import $name


@parametrize_checks($name)
def test_$name(case):
    case()
'''

CPP = """// $name on the CPU: see $stem.py.
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

// x: (..., features); weight: (features,), of the same dtype. Returns weight * x * x.
Tensor $name(const Tensor& x, const Tensor& weight) {
  check_contiguous(x, "x");
  check_contiguous(weight, "weight");
  bool fits = x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1);
  STD_TORCH_CHECK(fits, "'weight' must have one element per feature");
  STD_TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "'weight' must have the dtype of 'x'");
  int64_t features = x.size(-1);
  Tensor out = allocate_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const T *in = read<T>(x), *w = read<T>(weight);
    T* result = write<T>(out);
    for_rows(row_count(x), features, [=](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
#pragma omp simd
        for (int64_t i = 0; i < features; ++i) {
          auto value = widen(in[row * features + i]);
          result[row * features + i] = narrow<T>(widen(w[i]) * value * value);
        }
      }
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("$name(Tensor x, Tensor weight) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) {
  m.impl("$name", TORCH_BOX(&$name));
}
"""
