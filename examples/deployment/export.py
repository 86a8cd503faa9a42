"""Export a model with an op of ours, for a C++ program without Python: run.cpp.

python export.py FOLDER     writes model.pt2, libswish.so, input.bin and expected.bin
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.export import Dim

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel


@custom_op("deployment::swish", reference=True)
def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return x * sigmoid(beta * x)."""
    x = x.contiguous()
    return x * torch.sigmoid(beta * x)


# The C++ function is the kernel, without a Python function around it: it can run where there is no Python.
swish.register_kernel("cpu", layouts="contiguous")(cpp_kernel(Path(__file__).with_name("swish.cpp"), "swish"))


@swish.register_samples
def _(make):
    yield Sample(make(3, 5))
    yield Sample(make(4), 0.5)


class Model(nn.Module):
    """Two layers with swish between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return four numbers for each row of eight."""
        return self.last(swish(self.first(x), 1.5))


def main(folder: Path) -> None:
    """Write the program, the library of the op, an input and what the model returns for it."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    model, x = Model().eval(), torch.randn(5, 8)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=({0: Dim("rows")},))
        torch._inductor.aoti_compile_and_package(program, package_path=str(folder / "model.pt2"))  # noqa: SLF001  # its documented name
        expected = model(x)
    swish.build_library(folder / "libswish.so")
    # Raw numbers: the program that reads them needs nothing but C++.
    (folder / "input.bin").write_bytes(x.numpy().tobytes())
    (folder / "expected.bin").write_bytes(expected.numpy().tobytes())


if __name__ == "__main__":
    swish.check(checks=["kernels", "reference", "gradcheck"])
    main(Path(sys.argv[1]))
