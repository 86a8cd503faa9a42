"""C++ sources are built once, at the first call, by any number of processes; what cannot be built is replaced."""

import ctypes
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from custom_autograd import KernelError, custom_op
from custom_autograd.kernels import CppKernel, KernelUnavailable, KernelWarning, cpp_kernel
from custom_autograd.kernels.lazy_kernel import LazyKernel
from custom_autograd.kernels.shared_library import find_or_build

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="kernels are built on Linux and macOS only")

SOURCE = """
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor times(const Tensor& x) {
  check_contiguous(x, "x");
  Tensor out = torch::stable::empty_like(x);
  for_element_type(x, "x", [&](auto element) {
    using T = decltype(element);
    const T* in = read<T>(x);
    T* result = write<T>(out);
    for_rows(x.numel(), 1, [=](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) result[i] = narrow<T>(widen(in[i]) * FACTOR);
    });
  });
  return out;
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("times(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("times", TORCH_BOX(&times)); }
"""

SCRIPT = """
import sys
import torch
from custom_autograd.kernels import cpp_kernel

kernel = cpp_kernel(sys.argv[1], "times")
"""


def unchanged(x: Tensor) -> Tensor:
    """A fallback that tells itself from the kernel."""
    return x


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(folder))
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source that triples."""
    return write_source(tmp_path, 3)


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests have in common: a source that triples, and the cache that it is built into."""
    return tmp_path_factory.mktemp("once")


@pytest.fixture
def built(once: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source that triples, which is built for the first test that calls its kernel."""
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(once / "cache"))
    return write_source(once, 3)


@pytest.fixture
def light(tmp_path: Path) -> Path:
    """A source that compiles at once, because it includes nothing."""
    return write_light(tmp_path, 3)


@pytest.fixture
def builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the compiler has made a library so far."""
    log = tmp_path / "builds"
    compiler = tmp_path / "counting-c++"
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *" -o "*) echo built >> "{log}";; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    return lambda: len(log.read_text().splitlines()) if log.exists() else 0


def write_source(folder: Path, factor: int) -> Path:
    path = folder / "times.cpp"
    path.write_text(SOURCE.replace("FACTOR", str(factor)))
    return path


def write_light(folder: Path, factor: object, before: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "times.cpp"
    seen = '__attribute__((visibility("default")))'  # a kernel's functions are hidden, and registered instead
    path.write_text(f'{before}\nextern "C" {seen} int factor() {{ return {factor}; }}\n')
    return path


def factor_in(source: Path, *flags: str) -> int:
    """What a light source returns, from the library that a kernel of it would load."""
    found: int = ctypes.CDLL(str(find_or_build(source, flags)[1])).factor()
    return found


def start(script: str, source: Path) -> subprocess.Popen[str]:
    """A new Python process that runs a script after making a kernel of the source."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT + script, str(source)]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_kernel_computes(built: Path, dtype: torch.dtype) -> None:
    """The same C++ serves every floating dtype."""
    x = torch.tensor([1.5, -2.0, 0.0], dtype=dtype)

    assert [4.5, -6.0, 0.0] == cpp_kernel(built, "times")(x).tolist()


@needs_compiler
@pytest.mark.parametrize(("wide", "narrow"), [(torch.float32, torch.bfloat16), (torch.float32, torch.float16)], ids=str)
def test_rounding_is_that_of_pytorch(built: Path, wide: torch.dtype, narrow: torch.dtype) -> None:
    """Every 16-bit value, tripled in float32, rounds to the same 16 bits; NaN stays NaN."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(narrow)

    found = cpp_kernel(built, "times")(every)

    torch.testing.assert_close(found, (every.to(wide) * 3).to(narrow), rtol=0, atol=0, equal_nan=True)


@needs_compiler
def test_errors_of_the_source_are_errors_of_python(built: Path) -> None:
    """A check in C++ raises in Python, with its text."""
    with pytest.raises(RuntimeError, match="'x' must be float64, float32, bfloat16 or float16"):
        cpp_kernel(built, "times")(torch.ones(2, dtype=torch.int32))


def test_nothing_is_built_before_the_first_call(source: Path, cache: Path) -> None:
    """Making a kernel touches neither the compiler nor the cache."""
    cpp_kernel(source, "times")

    assert not cache.exists()


@needs_compiler
def test_second_kernel_comes_from_the_cache(light: Path, builds: Callable[[], int]) -> None:
    """One build serves every kernel of a source."""
    for _ in range(2):
        find_or_build(light, ())

    assert 1 == builds()


@needs_compiler
def test_cached_library_needs_no_compiler(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library in the cache is loaded where there is no compiler."""
    cpp_kernel(built, "times")(torch.ones(1))
    monkeypatch.setenv("PATH", "")

    assert [3.0] == cpp_kernel(built, "times", fallback=unchanged)(torch.ones(1)).tolist()


@needs_compiler
def test_changed_source_is_built_again(tmp_path: Path) -> None:
    """The cache knows sources by content, also within one process."""
    assert [3, 5] == [factor_in(write_light(tmp_path, factor)) for factor in (3, 5)]


@needs_compiler
def test_cache_holds_nothing_but_finished_libraries(light: Path, cache: Path) -> None:
    """What was unfinished is gone after a build; beside a library lie its hash, its lock and the list of its files."""
    find_or_build(light, ())

    assert {".so", ".sha256", ".lock", ".d"} == {path.suffix for path in (cache / "kernels").iterdir()}


@pytest.mark.parametrize(
    ("chosen", "base", "expected"),
    [("/chosen", "/base", "/chosen/kernels"), ("", "/base", "/base/custom_autograd/kernels")],
    ids=["CUSTOM_AUTOGRAD_CACHE", "XDG_CACHE_HOME"],
)
def test_cache_folder(chosen: str, base: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package's own variable comes before the desktop's."""
    from custom_autograd.kernels.cache_files import cache_folder

    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", chosen)
    monkeypatch.setenv("XDG_CACHE_HOME", base)

    assert Path(expected) == cache_folder()


def test_no_compiler_warns_once_and_falls_back(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning names source, function, compiler and remedy."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel = cpp_kernel(source, "times", fallback=unchanged)
    with pytest.warns(KernelWarning) as caught:
        first = kernel(torch.ones(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = kernel(torch.ones(1))

    assert [1.0, 1.0] == [first.item(), second.item()]
    assert [NO_COMPILER] == [str(warning.message) for warning in caught]


def test_no_compiler_and_no_fallback_raises(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a fallback every call says why."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel = cpp_kernel(source, "times")

    for _ in range(2):
        with pytest.raises(KernelUnavailable, match="no C\\+\\+ compiler for the kernel"):
            kernel(torch.ones(1))


@needs_compiler
def test_broken_source_shows_what_the_compiler_says_once(tmp_path: Path, builds: Callable[[], int]) -> None:
    """The first error is in the warning; a source that was refused is not tried again."""
    kernel = cpp_kernel(write_light(tmp_path, "no_such_tensor"), "times", fallback=unchanged)
    with pytest.warns(KernelWarning, match=r"the compiler refuses(.|\n)*no_such_tensor") as caught:
        found = [kernel(torch.ones(1)).item(), kernel(torch.ones(1)).item()]

    assert [1.0, 1.0] == found
    assert len(caught) == 1
    assert len(str(caught[0].message).splitlines()) <= 20
    assert 1 == builds()


@needs_compiler
def test_function_that_the_source_lacks(built: Path) -> None:
    """A wrong name is said, not called; and what it may have been."""
    with pytest.raises(KernelUnavailable, match=r"registers no function 'tims'(.|\n)*did you mean 'times'\?"):
        cpp_kernel(built, "tims")(torch.ones(1))


@pytest.mark.parametrize(("broken", "advice"), [("source", "package data"), ("cache", "CUSTOM_AUTOGRAD_CACHE")])
def test_files_that_cannot_be_used(broken: str, advice: str, source: Path, cache: Path) -> None:
    """A missing source or a cache that is not a folder is a reason to fall back, not a crash."""
    if broken == "source":
        source.unlink()
    else:
        cache.write_text("a file, not a folder")

    with pytest.warns(KernelWarning, match=advice):
        assert 1.0 == cpp_kernel(source, "times", fallback=unchanged)(torch.ones(1)).item()


@needs_compiler
def test_library_that_cannot_be_loaded(light: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system from which nothing may be executed."""

    def refuse(path: Path) -> None:
        raise OSError(f"Could not load this library: {path}") from OSError("failed to map segment from shared object")

    monkeypatch.setattr(torch.ops, "load_library", refuse)

    with pytest.raises(KernelUnavailable, match=r"(?s)cannot be loaded.*failed to map.*CUSTOM_AUTOGRAD_CACHE"):
        cpp_kernel(light, "times")(torch.ones(1))


@needs_compiler
def test_kernel_travels_by_pickle(built: Path) -> None:
    """A spawned process gets the kernel by its source, and loads it itself."""
    kernel = cpp_kernel(built, "times", fallback=unchanged)
    kernel(torch.ones(1))
    copy = pickle.loads(pickle.dumps(kernel))

    assert isinstance(copy, CppKernel)
    assert [3.0] == copy(torch.ones(1)).tolist()


@needs_compiler
def test_threads_build_once(light: Path, builds: Callable[[], int]) -> None:
    """Threads that meet in the first call wait for one build."""

    class Light(LazyKernel):
        def load(self) -> Callable[..., Tensor]:
            factor = factor_in(light)
            return lambda x: x * factor

    kernel, together, found = Light("light", None), threading.Barrier(4), []

    def first_call() -> None:
        together.wait()
        found.append(kernel(torch.ones(1)).item())

    threads = [threading.Thread(target=first_call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [3.0] * 4 == found
    assert 1 == builds()


@pytest.mark.slow
@needs_compiler
def test_processes_build_once(light: Path, builds: Callable[[], int]) -> None:
    """Processes that start together share one build; the others wait for it."""
    script = """
import ctypes
from custom_autograd.kernels.shared_library import find_or_build
print("ready", flush=True)
input()
print(ctypes.CDLL(find_or_build(kernel.source, ())[1]).factor())
"""
    processes = [start(script, light) for _ in range(2)]
    for process in processes:
        assert process.stdout is not None
        assert "ready\n" == process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    assert ["3\n"] * 2 == [process.communicate()[0] for process in processes]
    assert 1 == builds()


@needs_compiler
def test_killed_builder_leaves_no_lock(light: Path, cache: Path) -> None:
    """The lock of a process that is killed is free at once."""
    script = """
import pathlib
from custom_autograd.kernels import shared_library as library
folder = pathlib.Path(sys.argv[1]).parent / "cache" / "kernels"
folder.mkdir(parents=True)
held = folder / (library.Build(kernel.source, (), library.CppCompiler(), folder).stem() + ".lock")
with library.lock(held):
    print("held", flush=True)
    input()
"""
    process = start(script, light)
    assert process.stdout is not None
    held = process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.communicate()

    assert "held\n" == held
    assert len(list((cache / "kernels").glob("*.lock"))) == 1
    assert 3 == factor_in(light)


@needs_compiler
def test_child_forked_during_a_build_can_load(built: Path) -> None:
    """A child does not wait for a lock whose holder, a thread, it does not have."""
    cpp_kernel(built, "times").build()
    script = """
import os
kernel._lock.__enter__()
child = os.fork()
if not child:
    os._exit(int(kernel(torch.ones(1)).item()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert "3\n" == start(script, built).communicate()[0]


# ------------------------------------------------------------------------------------------ what a library depends on


def write_including(folder: Path, header: str) -> Path:
    """A light source that returns what a header defines."""
    return write_light(folder, "FACTOR", f'#include "{header}"')


def write_factor(path: Path, factor: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#define FACTOR {factor}\n")


@needs_compiler
@pytest.mark.parametrize("header", ["factor.hpp", "sub/factor.h"])
def test_changed_header_is_seen(header: str, tmp_path: Path) -> None:
    """Whatever it is called, and wherever it is."""
    source, found = write_including(tmp_path, header), []
    for factor in (3, 5, 3):
        write_factor(tmp_path / header, factor)
        found.append(factor_in(source))

    assert [3, 5, 3] == found


@needs_compiler
@pytest.mark.parametrize("folder", ["with spaces, cost $1 #2: 100%", "back\\slash, tab\tulator and two\nlines"])
def test_folder_of_any_name_is_seen_to_change(folder: str, tmp_path: Path) -> None:
    """The preprocessor escapes some of these characters, and splits no name where a line ends."""
    source, found = write_including(tmp_path / folder, "factor.h"), []
    for factor, sign in ((3, ""), (5, ""), (5, "-")):
        write_factor(tmp_path / folder / "factor.h", factor)
        write_light(tmp_path / folder, f"{sign}FACTOR", '#include "factor.h"')
        found.append(factor_in(source))

    assert [3, 5, -5] == found


@pytest.mark.slow
@needs_compiler
def test_folder_is_seen_to_change_where_names_of_files_are_not_in_utf_8(tmp_path: Path) -> None:
    """As in the locale C without Python's mode for UTF-8, and in those of ISO 8859."""
    source, found = write_light(tmp_path / "größe", 3), []
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONUTF8": "0"}
    environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    for factor in (3, 5):
        write_light(tmp_path / "größe", factor)
        command = [sys.executable, "-c", IN_ANOTHER_LOCALE, os.fsencode(source)]
        found.append(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert ["3", "5"] == found


IN_ANOTHER_LOCALE = """
import ctypes, pathlib, sys
from custom_autograd.kernels.shared_library import find_or_build

print(ctypes.CDLL(str(find_or_build(pathlib.Path(sys.argv[1]), ())[1])).factor(), end="")
"""


@needs_compiler
@pytest.mark.parametrize("through", ["flags", "CPATH"])
def test_changed_header_of_another_folder_is_seen(
    through: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where flags or the environment say where it is, and also through another header."""
    source, found = write_including(tmp_path / "source", "outer.h"), []
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "outer.h").write_text('#include "inner.h"\n')
    if through != "flags":
        monkeypatch.setenv(through, str(tmp_path / "headers"))
    for factor in (3, 5):
        write_factor(tmp_path / "headers" / "inner.h", factor)
        flags = [f"-I{tmp_path / 'headers'}"] if through == "flags" else []
        found.append(factor_in(source, *flags))

    assert [3, 5] == found


@needs_compiler
@pytest.mark.parametrize(
    ("flag", "text", "factor"),
    [
        ("@{}", "-DFACTOR={}", "FACTOR"),
        ("-Wl,@{}", "--defsym=linked={}", "(int)(long)&linked"),
        ("-Wl,--just-symbols={}", "linked = {};", "(int)(long)&linked"),
    ],
)
def test_changed_file_that_a_flag_names_is_seen(flag: str, text: str, factor: str, tmp_path: Path) -> None:
    """Such as a file of further flags."""
    source, file, found = write_light(tmp_path, factor, 'extern "C" char linked;'), tmp_path / "file", []
    for number in (3, 5):
        file.write_text(f"{text.format(number)}\n")
        found.append(factor_in(source, flag.format(file)))

    assert [3, 5] == found


@needs_compiler
@pytest.mark.parametrize("launcher", ["", "env "])
def test_changed_wrapper_of_the_compiler_is_seen(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the version of the compiler that it starts."""
    source, wrapper, found = write_light(tmp_path, "FACTOR"), tmp_path / "wrapper", []
    monkeypatch.setenv("CXX", f"{launcher}{wrapper}")
    for factor in (3, 15):
        wrapper.write_text(f'#!/bin/sh\nexec c++ -DFACTOR={factor} "$@"\n')
        wrapper.chmod(0o755)
        found.append(factor_in(source))

    assert [3, 15] == found


@needs_compiler
def test_same_source_in_two_folders_has_the_headers_of_each(tmp_path: Path) -> None:
    """A text is not enough to name a library."""
    found = []
    for folder, factor in (("a", 3), ("b", 5)):
        write_factor(tmp_path / folder / "factor.h", factor)
        found.append(factor_in(write_including(tmp_path / folder, "factor.h")))

    assert [3, 5] == found


@needs_compiler
def test_new_header_beside_the_source_is_seen(tmp_path: Path) -> None:
    """It is included in place of one that was found elsewhere."""
    source, flags, found = write_including(tmp_path / "source", "factor.h"), [f"-I{tmp_path / 'headers'}"], []
    for folder, factor in (("headers", 3), ("source", 5)):
        write_factor(tmp_path / folder / "factor.h", factor)
        found.append(factor_in(source, *flags))

    assert [3, 5] == found


@needs_compiler
def test_header_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """A library is not served once its source no longer compiles."""
    source = write_including(tmp_path, "factor.h")
    write_factor(tmp_path / "factor.h", 3)
    find_or_build(source, ())
    (tmp_path / "factor.h").unlink()

    with pytest.raises(KernelUnavailable, match=r"the compiler refuses the kernel\n(.|\n)*factor\.h"):
        find_or_build(source, ())


@needs_compiler
def test_header_that_changes_meanwhile_is_not_mistaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled before the change is not kept under the name of what is there after it."""
    source = write_including(tmp_path, "factor.h")
    write_factor(tmp_path / "factor.h", 3)
    compiler = tmp_path / "c++"
    change = f'case "$*" in *" -o "*) echo "#define FACTOR 5" > "{tmp_path / "factor.h"}";; esac'
    compiler.write_text(f'#!/bin/sh\n{shutil.which("c++")} "$@" || exit 1\n{change}\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))

    assert 5 == factor_in(source)


@needs_compiler
def test_another_version_of_the_compiler_builds_again(light: Path, builds: Callable[[], int], tmp_path: Path) -> None:
    """Though the command is the same."""
    first, _ = find_or_build(light, ())
    compiler = tmp_path / "counting-c++"
    says = 'if [ "$*" = --version ]; then echo another version; exit; fi'
    compiler.write_text(compiler.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{says}\n"))
    second, _ = find_or_build(light, ())

    assert first != second
    assert 2 == builds()


@needs_compiler
def test_cached_library_does_not_start_the_compiler(light: Path, tmp_path: Path, builds: Callable[[], int]) -> None:
    """What the compiler is says its file, until that changes."""
    find_or_build(light, ())
    compiler = tmp_path / "counting-c++"
    status = compiler.stat()
    compiler.write_text("exit 1".ljust(status.st_size))
    os.utime(compiler, ns=(status.st_atime_ns, status.st_mtime_ns))

    assert 3 == factor_in(light)
    assert 1 == builds()


@needs_compiler
def test_damaged_record_is_made_again(light: Path, cache: Path, builds: Callable[[], int]) -> None:
    """The library is found by its content."""
    find_or_build(light, ())
    for path in (cache / "kernels").glob("*.d"):
        path.write_text("{")

    assert 3 == factor_in(light)
    assert 1 == builds()


@needs_compiler
def test_library_names_no_folder_of_who_built_it(tmp_path: Path) -> None:
    """It may serve the same source in another folder."""
    source = write_light(tmp_path, "file()[0]", "const char* file() { return __FILE__; }")
    library = find_or_build(source, ())[1].read_bytes()

    assert b"times.cpp" in library
    assert str(tmp_path).encode() not in library


# --------------------------------------------------------------------------------------------- what can go wrong


@needs_compiler
@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(SOURCE.replace("times(Tensor x)", "times(Tnsor x)", 1), "Tnsor", marks=pytest.mark.slow),
        (SOURCE.replace('-> Tensor"); }', '-> Tensor"); m.def("times(Tensor x) -> Tensor"); }', 1), "times"),
        ('#include <stdexcept>\nstatic int z = []() -> int { throw std::runtime_error("boo"); }();', "boo"),
        ("#include <cstdlib>\nstatic int z = [] { std::_Exit(3); return 1; }();", "it printed nothing"),
    ],
    ids=["type", "twice", "throws", "exits"],
)
def test_library_that_would_end_the_process_is_not_loaded(text: str, says: str, source: Path, cache: Path) -> None:
    """It ends another one instead, whose last words are shown."""
    source.write_text(text.replace("FACTOR", "3"))

    with pytest.raises(KernelUnavailable, match=rf"loading the library of the kernel fails(.|\n)*{says}"):
        cpp_kernel(source, "times")(torch.ones(1))
    assert [] == list((cache / "kernels").glob("*.so"))


@needs_compiler
@pytest.mark.parametrize("kind", [".a", ".so"])
def test_library_in_the_flags_is_linked(kind: str, tmp_path: Path) -> None:
    """Linkers ignore a library that is named before what needs it."""
    code, library = tmp_path / "three.cpp", tmp_path / f"libthree{kind}"
    code.write_text('extern "C" int three() { return 3; }\n')
    if kind == ".so":
        subprocess.run(["c++", "-shared", "-fPIC", code, "-o", library], check=True)
    else:
        subprocess.run(["c++", "-c", "-fPIC", code, "-o", tmp_path / "three.o"], check=True)
        subprocess.run(["ar", "rcs", library, tmp_path / "three.o"], check=True)
    source = write_light(tmp_path, "three()", 'extern "C" int three();')

    assert 3 == factor_in(source, f"-L{tmp_path}", "-lthree", f"-Wl,-rpath,{tmp_path}")


@needs_compiler
def test_undefined_symbol_is_named(tmp_path: Path) -> None:
    """With what to do about it."""
    source = write_light(tmp_path, "zork()", "int zork();")

    with pytest.raises(KernelUnavailable, match=r"undefined symbol: \S*zork(.|\n)*define the symbol in the source"):
        cpp_kernel(source, "times")(torch.ones(1))


def test_variable_that_is_no_command_is_said(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ '")

    with pytest.raises(KernelUnavailable, match=r"CXX is not a command\n  found      'c\+\+ '': No closing quotation"):
        cpp_kernel(source, "times")(torch.ones(1))


@pytest.mark.parametrize("flags", ["-O2", [Path("a.o")]], ids=["text", "path"])
def test_flags_that_are_no_words_are_refused(flags: object, source: Path) -> None:
    with pytest.raises(KernelError, match=r"^times: 'flags' is not a list of words\n"):
        cpp_kernel(source, "times", flags=flags)  # type: ignore[arg-type]


@needs_compiler
def test_relative_source_is_that_of_where_the_kernel_was_made(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(built.parent)
    kernel = cpp_kernel(built.name, "times")
    monkeypatch.chdir("/")

    assert [3.0] == kernel(torch.ones(1)).tolist()


@needs_compiler
def test_what_killed_builds_left_is_removed(light: Path, cache: Path) -> None:
    """Once no compiler can be at work there any more."""
    for name, age in (("build-old", 3600), ("build-new", 0)):
        (cache / "kernels" / name / "inner").mkdir(parents=True)
        os.utime(cache / "kernels" / name, (time.time() - age, time.time() - age))
    find_or_build(light, ())

    assert ["build-new"] == [path.name for path in (cache / "kernels").glob("build-*")]


def test_warning_is_shown_unlocked(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shows it may wait for a thread that calls the kernel."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    kernel, found = cpp_kernel(source, "times", fallback=unchanged), []

    def show(*args: object, **kwargs: object) -> None:
        thread = threading.Thread(target=lambda: found.append(kernel(torch.ones(1)).item()), daemon=True)
        thread.start()
        thread.join()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        kernel(torch.ones(1))

    assert [1.0] == found


def test_a_kernel_does_not_wait_for_another() -> None:
    """A long build holds up the calls of its own kernel only."""
    begun, done = threading.Event(), threading.Event()

    class Slow(LazyKernel):
        def load(self) -> Callable[..., Tensor]:
            begun.set()
            done.wait()
            return unchanged

    class Quick(LazyKernel):
        def load(self) -> Callable[..., Tensor]:
            return torch.neg

    slow = threading.Thread(target=Slow("slow", None), args=(torch.ones(1),))
    slow.start()
    begun.wait()
    found, was_busy = Quick("quick", None)(torch.ones(1)).item(), slow.is_alive()
    done.set()
    slow.join()

    assert (-1.0, True) == (found, was_busy)


def test_a_kernel_may_be_called_while_it_is_made() -> None:
    """By a finalizer, say, which runs at any moment."""
    found: list[float] = []

    class Nested(LazyKernel):
        def load(self) -> Callable[..., Tensor]:
            if not found:
                found.append(0.0)
                found.append(self(torch.ones(1)).item())
            return torch.neg

    Nested("nested", None)(torch.ones(1))

    assert [0.0, -1.0] == found


def test_warning_names_the_line_of_the_caller(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also through an op, whose calls go through torch."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    op = custom_op("test_cpp::unchanged", schema="(Tensor x) -> Tensor")(torch.clone)
    op.register_kernel("cpu", cpp_kernel(source, "times", fallback=torch.clone))
    with pytest.warns(KernelWarning) as caught:
        op(torch.ones(1))

    assert [__file__] == [warning.filename for warning in caught]


NO_COMPILER = """\
times.cpp: no C++ compiler for the kernel
  expected   g++ or clang++, on Linux or macOS
  found      'no-such-compiler' (from CXX), which is not on PATH
  do         install g++ or clang++, or set CXX
  meanwhile  'times' runs in its fallback, more slowly"""


@needs_compiler
def test_arguments_that_a_kernel_alone_does_not_take(built: Path) -> None:
    kernel = cpp_kernel(built, "times")

    with pytest.raises(KernelError, match=r"'times' does not take these arguments\n  expected   times\(Tensor x"):
        kernel(torch.ones(2), 1, 2, 3)
    with pytest.raises(KernelError, match="argument 'x' has the wrong type"):
        kernel(1.5)


@needs_compiler
def test_a_schema_that_the_function_does_not_have(tmp_path: Path) -> None:
    source = tmp_path / "misfit.cpp"
    source.write_text(MISFIT, encoding="utf-8")

    with pytest.raises(KernelUnavailable, match="'twice' does not take what its schema declares\n  expected   2 args"):
        cpp_kernel(source, "twice")(torch.ones(2), 1.0)


MISFIT = """
#include <custom_autograd/kernel.h>
using torch::stable::Tensor;
Tensor twice(Tensor x) { return torch::stable::empty_like(x); }
STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("twice(Tensor x, float a) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
"""
