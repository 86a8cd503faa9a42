"""Writes the files of a complete op as a start for another one, for `custom-autograd new`."""

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template

from custom_autograd.cli.options import write_document
from custom_autograd.core.errors import CheckError
from custom_autograd.core.locations import packages_of
from custom_autograd.schema.names import is_name, parse_name


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("name", metavar="NAME", help="namespace::name, or the name alone in the namespace mylib")
    parser.add_argument("--package", action="store_true", help="write a package of that name, in a folder of that name")
    parser.add_argument("--output", metavar="FILE", type=Path, help="the op's file (default: NAME.py)")
    parser.add_argument("--kernel", choices=KERNELS, default="none", help="the kernel beside the reference")


def run(arguments: argparse.Namespace) -> int:
    """Write an op, the source of its kernel and its test, or a package of ops, and print the next step; return 0.

    Raises:
        DeclarationError: the name cannot be that of an op.
        CheckError: a file is there already, or the name of the file or of the package cannot be imported.
    """
    if arguments.package:
        if arguments.output is not None or arguments.kernel != "none":
            raise CheckError(
                "--package writes a folder of its own, with every kind of kernel: no --output, no --kernel"
            )
        return write_package(arguments.name)
    name = parse_name(arguments.name if "::" in arguments.name else f"{NAMESPACE}::{arguments.name}")
    if name.overload:
        raise CheckError(f"{name}: the name contains a '.', which marks an overload; start with '{name.name}'")
    file: Path = arguments.output or Path(f"{name.name}.py")
    if file.suffix != ".py" or not is_name(file.stem):
        raise CheckError(f"{file}: a test cannot import a file of that name; it is to be <name>.py")
    module, tests = module_of(file), folder_of_tests(file)
    if is_taken(module):
        problem = f"{file}: another module has that name, and this one would be imported in its place"
        raise CheckError(f"{problem}; choose another with --output FILE")
    texts = files_for(str(name), name.name, module, arguments.kernel)
    test = f"test_{file.stem}.py"
    files = {(tests if own == test else file.parent) / own: text for own, text in texts.items()}
    write(files)
    if "::" not in arguments.name:
        print(f"the op is {name}, because no namespace is given; namespace::{name.name} chooses one")
    print(f"now: custom-autograd check {file}, and pytest {tests / test}")
    return 0


def write_package(name: str) -> int:
    """Write a package with C++, CUDA and Triton kernels, tests, CI and a README; return 0."""
    if not is_name(name):
        raise CheckError(f"{name}: a package of that name cannot be imported; name it as a Python variable")
    if is_taken(name) or name == "tests":
        raise CheckError(f"{name}: another package has that name, and would be imported in its place; choose another")
    root, package = Path(name), Path(name, "src", name)
    op = files_for(f"{name}::weighted_square", "weighted_square", f"{name}.weighted_square", "package")
    files = {package / file: text for file, text in op.items() if not file.startswith("test_")}
    for file in sorted(PACKAGE.iterdir()):
        text = Template(file.read_text(encoding="utf-8"))
        place = PLACES.get(file.name, f"src/{name}/{file.name.removesuffix('.txt')}")
        files[root / place] = text.substitute(package=name, project=name.replace("_", "-"))
    write(files)
    print(f"now: cd {name}, pip install -e '.[test]', and pytest")
    return 0


def is_taken(module: str) -> bool:
    """Return True if Python, or what the written files import, has a module of that name."""
    return module in sys.stdlib_module_names or module in DEPENDENCIES


def write(files: Mapping[Path, str]) -> None:
    """Write files, with their folders, unless one of them exists."""
    taken = [path for path in files if path.exists()]
    if taken:
        raise CheckError(f"{taken[0]}: the file is there already, and nothing was written")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_document(path, text)
        print(f"wrote {path}")


DEPENDENCIES = ("custom_autograd", "torch", "numpy", "triton", "pytest")
PACKAGE = Path(__file__).parent / "package_template"
PLACES = {
    "README.md": "README.md",
    "ci.yml": ".github/workflows/ci.yml",
    "gitignore": ".gitignore",
    "pyproject.toml": "pyproject.toml",
    "test_ops.py.txt": "tests/test_ops.py",
}
"""Paths of files of the template, relative to the folder of the project; other files go into the package."""


def module_of(file: Path) -> str:
    """Return the name under which a test imports a file, with the names of its packages."""
    return ".".join([*(folder.name for folder in reversed(packages_of(file))), file.stem])


def folder_of_tests(file: Path) -> Path:
    """Return the folder of a file's test: that of the file, or the one outside of its package."""
    packages = packages_of(file)
    if not packages:
        return file.parent
    root = packages[-1].parent
    root = root.parent if root.name == "src" else root
    return Path(os.path.relpath(root / "tests" if (root / "tests").is_dir() else root))


NAMESPACE = "mylib"


KERNELS = ("none", "numpy", "cpp", "triton")
"""Values of --kernel; with "none", the reference computes the result."""


def files_for(qualified: str, name: str, module: str, kernel: str) -> Mapping[str, str]:
    """Return file name -> text.

    Args:
        qualified: the op's qualified name.
        name: its name.
        module: the name by which the op's file is imported; its last part is the name of the file.
        kernel: one of `KERNELS`, or "package" for the op of a package, with a C++ and a CUDA kernel.
    """
    stem = module.rpartition(".")[2]
    parts = (HEAD, IMPORTS[kernel], OP, KERNEL[kernel], RULES)
    files = {f"{stem}.py": "".join(parts), f"test_{stem}.py": TEST}
    if kernel in ("cpp", "package"):
        files[f"{stem}.cpp"] = CPP
    error = "RuntimeError" if kernel in ("cpp", "package") else "ValueError"  # that of STD_TORCH_CHECK
    declared = f'f"{{NAMESPACE}}::{name}"' if kernel == "package" else f'"{qualified}"'
    names = {
        "declared": declared,
        "package": module.partition(".")[0],
        "name": name,
        "stem": stem,
        "module": module,
        "error": error,
    }
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
    "package": """from pathlib import Path

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel, cuda_kernel
from custom_autograd.packaging import namespace
from torch import Tensor

NAMESPACE = namespace("$package", __file__)
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
@custom_op($declared, reference=True)
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
    "package": """

# C++ and CUDA, compiled into the wheel, or at the first call in an editable install. Where they cannot be built, the
# reference runs instead, with a warning.
$name.register_kernel("cpu", layouts="contiguous")(cpp_kernel(Path(__file__).with_suffix(".cpp"), "$name"))
$name.register_kernel("cuda", layouts="contiguous")(cuda_kernel(Path(__file__).with_suffix(".cu"), "$name"))
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
