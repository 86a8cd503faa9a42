"""An exception of torch below a C++ kernel reaches Python with its message, and leaves no stack on stderr."""

import os
import shutil

import pytest
import torch

from custom_autograd.kernels import cpp_kernel
from custom_autograd.native.loading import library

pytestmark = [
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler"),
    pytest.mark.skipif(os.name != "posix", reason="kernels are built on Linux and macOS only"),
]
since_2_13 = pytest.mark.skipif(torch.__version__ < (2, 13), reason="torch says something else before 2.13")

SOURCE = """
#include <custom_autograd/kernel.h>

static torch::stable::Tensor flattened(const torch::stable::Tensor& x) {
  return torch::stable::view(x, {x.size(0) * x.size(1)});
}

// Raises as torch's allocator does for a GPU, if x is false.
static torch::stable::Tensor allocated(const torch::stable::Tensor& x) {
  std::string text = "CUDA out of memory. Tried to allocate 80.00 GiB.";
  StableIValue stack[] = {torch::stable::detail::from(x), torch::stable::detail::from(text)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::_assert_async", "msg", stack, TORCH_ABI_VERSION));
  return x;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, library) {
  library.def("flattened(Tensor x) -> Tensor");
  library.def("allocated(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, library) {
  library.impl("flattened", TORCH_BOX(&flattened));
  library.impl("allocated", TORCH_BOX(&allocated));
}
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("exceptions") / "flattened.cpp"
    path.write_text(SOURCE)
    return path


@pytest.fixture(scope="module")
def flattened(source):
    return cpp_kernel(source, "flattened")


def test_kernel_of_the_test_works(flattened):
    assert [0.0, 1.0, 2.0, 3.0] == flattened(torch.arange(4.0).view(2, 2)).tolist()


@since_2_13
@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(2, 3).t(), "view size is not compatible with .*torch_call_dispatcher"),
        (torch.tensor(1.0), "Dimension specified as 0 but tensor has no dimensions"),
    ],
    ids=["of an op that the kernel calls", "of a size"],
)
def test_an_error_keeps_its_message_and_prints_nothing(flattened, capfd, x, message):
    with pytest.raises(RuntimeError, match=f"^{message}"):
        flattened(x)

    assert ("", "") == capfd.readouterr()


@since_2_13
def test_out_of_memory_below_a_kernel_keeps_its_class(source):
    """Training loops catch it to try a smaller batch. The first call is Python's; native code makes the next ones."""
    allocated = cpp_kernel(source, "allocated")
    assert library.module is None or (allocated(torch.tensor(True)).item() and allocated._native.address("CPU") != 0)

    for call in (allocated.load(), allocated, allocated):
        with pytest.raises(
            torch.OutOfMemoryError, match=r"^CUDA out of memory. Tried to allocate 80.00 GiB. \(raised by"
        ):
            call(torch.tensor(False))
