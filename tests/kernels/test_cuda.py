"""CUDA C++ sources are built with the nvcc that is there, for the devices that are there; else something else runs."""

import os
import pickle
import re
import shutil
import stat
import sysconfig
from pathlib import Path

import pytest
import torch
from tables import each

from custom_autograd.kernels import CudaKernel, KernelUnavailable, KernelWarning, cuda_kernel

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
IN_PACKAGES = sorted(Path(sysconfig.get_path("purelib"), "nvidia").glob("*/bin/nvcc"))  # nvidia-cuda-nvcc of PyPI
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available() or torch.version.cuda is None, reason="no NVIDIA GPU")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="kernels are built on Linux only")

SOURCE = """
#include <custom_autograd/cuda.h>

using namespace custom_autograd;

template <typename T>
__global__ void times_element(const T* x, T* out, int64_t size) {
  int64_t place = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (place < size) out[place] = static_cast<T>(static_cast<Statistic<T>>(x[place]) * 3);
}

Tensor times(const Tensor& x, int64_t threads) {
  check_cuda(x, "x");
  Tensor out = torch::stable::empty_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    unsigned blocks = grid((x.numel() + threads - 1) / threads);
    if (blocks == 0) return;
    times_element<T><<<blocks, threads, 0, current_stream(x)>>>(read<T>(x), write<T>(out), x.numel());
    check_launch("times");
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("times(Tensor x, int threads) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CUDA, m) { m.impl("times", TORCH_BOX(&times)); }
"""


@pytest.fixture(autouse=True)
def surroundings(tmp_path, monkeypatch):
    """An empty cache of the test's own, and nothing of the machine's settings."""
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))
    for name in ("NVCC", "CUDA_HOME", "CUDA_PATH", "CXX", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "times.cu"
    path.write_text(SOURCE)
    return path


def write_nvcc(folder: Path, script: str) -> Path:
    """A compiler that does what a script says."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


RECORDS = """\
case " $* " in
  *" -M "*) while [ "$1" != -MF ]; do shift; done; echo "times.o : " > "$2"; exit;;
  *" -o "*) echo "$@" > "$(dirname "$0")/arguments";;
  *) exit;;
esac
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


def arguments_of(compiler: Path) -> list[str]:
    return (compiler.parent / "arguments").read_text().split()


@pytest.mark.skipif(
    not IN_PACKAGES and not shutil.which("nvcc"), reason="no nvcc: neither nvidia-cuda-nvcc nor on PATH"
)
@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(GALLERY.rglob("*.cu")), ids=lambda path: path.name)
def test_nvcc_compiles_the_gallery(path, monkeypatch):
    """With code for two GPUs; and, where torch has its CUDA part, with nothing left undefined."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;9.0")
    if IN_PACKAGES:
        monkeypatch.setenv("CUDA_HOME", str(IN_PACKAGES[-1].parents[1]))
    name, library = cuda_kernel(path, path.stem).build()

    assert {b"sm_80", b"sm_90"} <= set(re.findall(rb"sm_\d+", library.read_bytes()))
    assert b"aoti_torch_get_current_cuda_stream" in library.read_bytes()
    if torch.version.cuda is not None:
        torch.ops.load_library(library)
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"{name}::{path.stem}", "CUDA")


@needs_nvcc
def test_what_nvcc_says_is_shown(source):
    source.write_text("#error this source is refused\n" + SOURCE)

    with pytest.raises(KernelUnavailable, match=r"the compiler refuses the kernel\n(.|\n)*this source is refused"):
        cuda_kernel(source, "times").build()


@pytest.mark.parametrize(
    ("listed", "flags"),
    [
        ("9.0", ["-gencode=arch=compute_90,code=sm_90"]),
        (
            "8.0;9.0a+PTX",
            [
                "-gencode=arch=compute_80,code=sm_80",
                "-gencode=arch=compute_90a,code=sm_90a",
                "-gencode=arch=compute_90a,code=compute_90a",
            ],
        ),
        ("8.6 12.0", ["-gencode=arch=compute_86,code=sm_86", "-gencode=arch=compute_120,code=sm_120"]),
    ],
)
def test_architectures_are_those_that_are_listed(listed, flags, source, tmp_path, monkeypatch):
    compiler = write_nvcc(tmp_path / "bin", RECORDS)
    monkeypatch.setenv("NVCC", str(compiler))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", listed)
    cuda_kernel(source, "times").build()

    assert flags == [word for word in arguments_of(compiler) if word.startswith("-gencode")]


def test_architectures_are_else_those_of_the_devices(source, tmp_path, monkeypatch):
    compiler = write_nvcc(tmp_path / "bin", RECORDS)
    monkeypatch.setenv("NVCC", str(compiler))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: [(9, 0), (8, 6), (9, 0)][device])
    cuda_kernel(source, "times").build()

    expected = ["-gencode=arch=compute_86,code=sm_86", "-gencode=arch=compute_90,code=sm_90"]
    assert expected == [word for word in arguments_of(compiler) if word.startswith("-gencode")]


def test_an_architecture_that_is_none_is_named(source, tmp_path, monkeypatch):
    monkeypatch.setenv("NVCC", str(write_nvcc(tmp_path / "bin", RECORDS)))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hopper")

    with pytest.raises(KernelUnavailable, match=r"TORCH_CUDA_ARCH_LIST names no architecture\n(.|\n)*'Hopper'"):
        cuda_kernel(source, "times").build()


def test_the_host_compiler_and_further_flags_are_passed_on(source, tmp_path, monkeypatch):
    compiler = write_nvcc(tmp_path / "bin", RECORDS)
    monkeypatch.setenv("NVCC", f"{compiler} --threads=2")
    monkeypatch.setenv("CXX", "g++-13 -m64")
    cuda_kernel(source, "times", flags=["--use_fast_math"]).build()

    assert "--threads=2" == arguments_of(compiler)[0]
    assert {"-ccbin=g++-13", "--use_fast_math", "-shared"} <= set(arguments_of(compiler))


@pytest.mark.parametrize("found_by", ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH"])
def test_nvcc_is_found(found_by, source, tmp_path, monkeypatch):
    """NVCC, else the toolkit's folder, else PATH."""
    compiler = write_nvcc(tmp_path / "toolkit" / "bin", RECORDS)
    decoy = write_nvcc(tmp_path / "other", RECORDS)
    monkeypatch.setenv("PATH", f"{decoy.parent}{os.pathsep}{os.environ['PATH']}")
    if found_by == "PATH":
        monkeypatch.setenv("PATH", f"{compiler.parent}{os.pathsep}{os.environ['PATH']}")
    else:
        monkeypatch.setenv(found_by, str(compiler if found_by == "NVCC" else tmp_path / "toolkit"))
    cuda_kernel(source, "times").build()

    assert (compiler.parent / "arguments").exists()


def test_no_nvcc_is_said(source, monkeypatch):
    monkeypatch.setenv("NVCC", "no-such-nvcc")
    with pytest.raises(KernelUnavailable) as caught:
        cuda_kernel(source, "times").build()

    assert NO_NVCC == str(caught.value)


@pytest.mark.parametrize("name", ["TORCH_CUDA_ARCH_LIST", "NVCC", "CUDA_HOME", "CXX", "NVCC_APPEND_FLAGS"])
def test_what_changes_the_library_changes_its_name(name, source, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{write_nvcc(tmp_path / 'bin', RECORDS).parent}{os.pathsep}{os.environ['PATH']}")
    before, _ = cuda_kernel(source, "times").build()
    value = "9.0" if name == "TORCH_CUDA_ARCH_LIST" else str(write_nvcc(tmp_path / "bin" / "bin", RECORDS))
    monkeypatch.setenv(name, value.removesuffix("/bin/nvcc") if name == "CUDA_HOME" else value)

    assert before != cuda_kernel(source, "times").build()[0]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_built_and_the_fallback_runs(source, tmp_path):
    kernel = cuda_kernel(source, "times", fallback=lambda x, threads: x * 3)
    with pytest.warns(KernelWarning, match=r"times.cu: the kernel needs an NVIDIA GPU\n") as caught:
        found = [kernel(torch.ones(1), 32).item() for _ in range(2)]

    assert [3.0, 3.0] == found
    assert 1 == len(caught)
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_and_fallback_every_call_raises(source):
    kernel = cuda_kernel(source, "times")

    for _ in range(2):
        with pytest.raises(KernelUnavailable, match="register another kernel for this device"):
            kernel(torch.ones(1), 32)


def test_kernel_travels_by_pickle(source):
    copy = pickle.loads(pickle.dumps(cuda_kernel(source, "times", flags=["-G"])))

    assert (CudaKernel, source, "times", ("-G",)) == (type(copy), copy.source, copy.function, copy.flags)


@needs_nvcc
@needs_gpu
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_kernel_computes(dtype, source):
    x = torch.randn(1000, device="cuda").to(dtype)

    assert torch.equal((x.double() * 3).to(dtype), cuda_kernel(source, "times")(x, 128))


@needs_nvcc
@needs_gpu
@pytest.mark.cuda
def test_kernel_runs_on_the_current_stream(source):
    """What another stream has not finished is not read before."""
    kernel, stream = cuda_kernel(source, "times"), torch.cuda.Stream()
    kernel(torch.ones(1, device="cuda"), 32)
    x = torch.zeros(2**20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)
        x.fill_(2)
        found = kernel(x, 256)
    stream.synchronize()

    assert torch.equal(torch.full_like(x, 6), found)


@needs_nvcc
@needs_gpu
@pytest.mark.cuda
def test_a_launch_that_fails_raises(source):
    with pytest.raises(RuntimeError, match=r"times was not launched: invalid (configuration )?argument"):
        cuda_kernel(source, "times")(torch.ones(4096, device="cuda"), 2048)


@needs_nvcc
@needs_gpu
@pytest.mark.cuda
@each("features", [1, 8, 19, 4096, 16384])
@each("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_gallery_computes(dtype, features):
    x, weight = torch.randn(7, features).to("cuda", dtype), torch.randn(features).to("cuda", dtype)
    wide = torch.promote_types(dtype, torch.float32)
    out, rstd = cuda_kernel(GALLERY / "rms_norm.cu", "rms_norm")(x, weight.to(wide), 1e-6)

    exact = torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(rstd.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(out.double(), x.double() * exact * weight.double(), rtol=2**-7, atol=1e-3)


NO_NVCC = """\
times.cu: no CUDA compiler for the kernel
  expected   nvcc of CUDA 12 or later, on Linux
  found      'no-such-nvcc', which is not there
  do         install the CUDA toolkit, or set NVCC or CUDA_HOME, or register another kernel for the device"""
