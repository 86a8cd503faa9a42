"""Libraries that come with a source: found by its contents without a compiler, and refused where they do not fit."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from expecttest import assert_expected_inline

from custom_autograd.kernels import KernelUnavailable, cpp_kernel, prebuilt
from custom_autograd.kernels.compilers import PLATFORM
from custom_autograd.kernels.portable import Source, build_portable, levels
from custom_autograd.kernels.prebuilt import Manifest

ROOT = Path(__file__).parents[2]
SOURCE = """
#include <custom_autograd/kernel.h>
#include "factor.h"
using namespace custom_autograd;

Tensor times(const Tensor& x) {
  check_contiguous(x, "x");
  Tensor out = allocate_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) write<float>(out)[i] = FACTOR * read<float>(x)[i];
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("times(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("times", TORCH_BOX(&times)); }
"""
NEWER_FUNCTIONS = """
#include <cmath>
#include <memory>
#include <sstream>
#include <vector>

inline float sum_of_functions() {
  volatile double two = 2;
  std::vector<double> values(static_cast<size_t>(two));
  std::unique_ptr<double[]> more(new double[static_cast<size_t>(two)]());
  std::shared_ptr<double> kept = std::make_shared<double>(std::exp(std::log(two)) + std::pow(two, two));
  std::shared_ptr<double> held = kept;
  std::ostringstream text;
  text << std::exp2(std::log2(two)) + values[1] + more[1] + *held;
  return std::stof(text.str());
}
#define FACTOR sum_of_functions()
"""
pytestmark = [
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A package with a source, a header, and their libraries."""
    folder = tmp_path_factory.mktemp("built") / "ops"
    folder.mkdir()
    (folder / "times.cpp").write_text(SOURCE)
    (folder / "factor.h").write_text("#define FACTOR 3\n")
    build_portable(Source(folder / "times.cpp", folder))
    return folder


@pytest.fixture
def package(built, tmp_path, monkeypatch):
    """A copy of it elsewhere, on a machine without a compiler and with a cache that cannot be written."""
    shutil.copytree(built, tmp_path / "site" / "ops")
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", "/proc/nowhere")
    return tmp_path / "site" / "ops"


def manifest_in(package: Path) -> Path:
    (path,) = (package / "_prebuilt").glob("*.json")
    return path


def change(package: Path, **entries: object) -> None:
    path = manifest_in(package)
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def error_of(package: Path) -> str:
    with pytest.raises(KernelUnavailable) as raised:
        cpp_kernel(package / "times.cpp", "times")(torch.ones(2))
    text = str(raised.value).replace(str(package), "SITE").replace(PLATFORM, "PLATFORM")
    return re.sub(r"times_[0-9a-f]{20}", "times_HASH", text)


def test_a_package_that_was_moved_needs_no_compiler_and_no_cache(package):
    assert [3.0, 3.0] == cpp_kernel(package / "times.cpp", "times")(torch.ones(2)).tolist()


def test_a_package_without_its_sources_has_its_libraries(package):
    (package / "times.cpp").unlink()
    (package / "factor.h").unlink()

    assert [3.0, 3.0] == cpp_kernel(package / "times.cpp", "times")(torch.ones(2)).tolist()


def test_the_library_is_that_of_the_best_level_of_this_processor(package):
    name, path = prebuilt.find(package / "times.cpp", (), [PLATFORM])

    assert Manifest.read(manifest_in(package)).libraries[levels()[0]] == name == path.stem


def test_a_processor_without_a_level_takes_the_next(package, monkeypatch):
    last = levels()[-1]
    monkeypatch.setattr(prebuilt, "is_served", lambda level: level == last)
    name, _ = prebuilt.find(package / "times.cpp", (), [PLATFORM])

    assert Manifest.read(manifest_in(package)).libraries[last] == name


@pytest.mark.parametrize("changed", ["times.cpp", "factor.h"])
def test_a_changed_file_is_built_and_not_answered_by_the_old_library(package, changed, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))
    path = package / changed
    path.write_text(path.read_text().replace("FACTOR 3", "FACTOR 5").replace("FACTOR *", "1 + FACTOR *"))

    assert {"times.cpp": [4.0], "factor.h": [5.0]}[changed] == cpp_kernel(package / "times.cpp", "times")(
        torch.ones(1)
    ).tolist()


def test_other_flags_are_another_library(package):
    assert prebuilt.find(package / "times.cpp", ["-DOTHER"], [PLATFORM]) is None


def test_a_header_above_the_package_belongs_to_the_build(tmp_path, one_level):
    project = tmp_path / "project"
    (project / "ops").mkdir(parents=True)
    (project / "factor.h").write_text("#define FACTOR 4\n")
    (project / "ops" / "times.cpp").write_text(SOURCE.replace("factor.h", "../factor.h"))
    build_portable(Source(project / "ops" / "times.cpp", project))
    assert prebuilt.find(project / "ops" / "times.cpp", (), [PLATFORM]) is not None
    (project / "factor.h").write_text("#define FACTOR 5\n")

    assert prebuilt.find(project / "ops" / "times.cpp", (), [PLATFORM]) is None


def test_a_flag_with_a_path_in_the_package_finds_its_library_where_the_package_is_moved(
    built, one_level, tmp_path, monkeypatch
):
    project = tmp_path / "project"
    shutil.copytree(built, project / "ops", ignore=shutil.ignore_patterns("_prebuilt", "factor.h"))
    (project / "ops" / "include").mkdir()
    (project / "ops" / "include" / "factor.h").write_text("#define FACTOR 4\n")
    flags = (f"-I{project / 'ops' / 'include'}",)
    build_portable(Source(project / "ops" / "times.cpp", project, flags))
    monkeypatch.setenv("CXX", "no-compiler")
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", "/proc/nowhere")
    moved = (project / "ops").rename(tmp_path / "ops")

    kernel = cpp_kernel(moved / "times.cpp", "times", flags=[f"-I{moved / 'include'}"])
    assert [4.0] == kernel(torch.ones(1)).tolist()
    assert prebuilt.find(moved / "times.cpp", [f"-I{moved / 'other'}"], [PLATFORM]) is None


def test_two_builds_have_the_same_bytes(built, one_level, tmp_path):
    again = tmp_path / "elsewhere"
    again.mkdir()
    for name in ("times.cpp", "factor.h"):
        shutil.copyfile(built / name, again / name)
    build_portable(Source(again / "times.cpp", again))

    first, second = (Manifest.read(manifest_in(one)) for one in (built, again))
    ((level, library),) = second.libraries.items()
    assert (first.files, first.libraries[level]) == (second.files, library)
    first_bytes, second_bytes = ((one / "_prebuilt" / f"{library}.so").read_bytes() for one in (built, again))
    assert first_bytes == second_bytes


def test_a_library_serves_systems_that_are_older_than_the_compiler(tmp_path, one_level, monkeypatch):
    abi = pytest.importorskip("kernel_abi_check")
    (tmp_path / "times.cpp").write_text(SOURCE)
    (tmp_path / "factor.h").write_text(NEWER_FUNCTIONS)
    build_portable(Source(tmp_path / "times.cpp", tmp_path))
    monkeypatch.setenv("CXX", "no-compiler")

    assert [8.0] == cpp_kernel(tmp_path / "times.cpp", "times")(torch.ones(1)).tolist()
    for library in (tmp_path / "_prebuilt").glob("*.so"):
        assert not abi.ObjectFile(library).check_manylinux("manylinux_2_28")


def test_a_library_for_another_platform(package):
    path = manifest_in(package)
    path.rename(path.with_name("times.cpp.plan9_mips.json"))

    assert_expected_inline(
        error_of(package),
        """\
times.cpp: the package brings no library of the kernel for this platform, and it cannot be built
  expected   a library for 'PLATFORM'
  found      libraries for 'plan9_mips'; the kernel cannot be built
  do         install the package's wheel for this platform, or a C++ compiler and the source distribution""",
    )


def test_a_library_for_a_newer_torch(package):
    change(package, torch="9.9")

    assert_expected_inline(
        error_of(package).replace(torch.__version__, "TORCH"),
        """\
times.cpp: the library that comes with the kernel is for a newer torch
  expected   torch 9.9 or newer
  found      TORCH
  do         install torch 9.9 or newer, or a C++ compiler and the package's source distribution""",
    )


def test_a_library_for_another_processor(package, monkeypatch):
    change(package, libraries={"x86-64-v9": "times_v9"})
    monkeypatch.setitem(prebuilt.LEVELS, "x86-64-v9", {"no_such_instruction"})

    assert_expected_inline(
        error_of(package),
        """\
times.cpp: the libraries that come with the kernel use instructions that this processor does not have
  found      'x86-64-v9'
  rule       SITE/_prebuilt/times.cpp.PLATFORM.json
  do         install a C++ compiler and the package's source distribution""",
    )


def test_what_does_not_fit_is_built_where_it_can_be(package, monkeypatch, tmp_path):
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))
    change(package, torch="9.9")

    assert [3.0] == cpp_kernel(package / "times.cpp", "times")(torch.ones(1)).tolist()


def test_a_library_that_is_not_there(package):
    for library in (package / "_prebuilt").glob("*.so"):
        library.unlink()

    assert_expected_inline(
        error_of(package),
        """\
times_HASH.so: a prebuilt file of the kernel is damaged
  found      there is no such file
  rule       SITE/_prebuilt/times_HASH.so
  do         install the package again""",
    )


def test_a_library_that_was_cut_short_is_refused_before_it_is_loaded(package):
    for library in (package / "_prebuilt").glob("*.so"):
        library.write_bytes(library.read_bytes()[:20000])

    assert "the library that comes with the kernel cannot be used" in error_of(package)


def test_a_damaged_manifest(package):
    manifest_in(package).write_text("{}")

    assert_expected_inline(
        error_of(package),
        """\
times.cpp.PLATFORM.json: a prebuilt file of the kernel is damaged
  found      it has other entries than a manifest
  rule       SITE/_prebuilt/times.cpp.PLATFORM.json
  do         install the package again""",
    )


def test_neither_sources_nor_libraries(package):
    shutil.rmtree(package / "_prebuilt")
    (package / "times.cpp").unlink()

    assert_expected_inline(
        error_of(package),
        """\
times.cpp: the kernel cannot be built
  found      [Errno 2] No such file or directory: 'SITE/times.cpp'
  do         check the path; if it is part of an installed package, add the source to its package data""",
    )


def test_a_trial_is_remembered_where_the_cache_can_be_written(package, tmp_path, monkeypatch):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))
    prebuilt.find(package / "times.cpp", (), [PLATFORM])

    monkeypatch.setattr(prebuilt, "failure_of", lambda *arguments: pytest.fail("tried again"))
    assert prebuilt.find(package / "times.cpp", (), [PLATFORM]) is not None


def test_processes_share_no_state(package):
    script = f"""
import sys, torch
sys.path.insert(0, {str(ROOT)!r})
from custom_autograd.kernels import cpp_kernel
print(cpp_kernel({str(package / "times.cpp")!r}, "times")(torch.ones(2)).tolist())
"""
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", script], capture_output=True, text=True)

    assert "[3.0, 3.0]\n" == done.stdout, done.stderr
