"""The cache of C++ kernels on machines as they are: damaged files, full disks, users without a home folder."""

import hashlib
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from custom_autograd.kernels import KernelUnavailable, KernelWarning, cpp_kernel
from custom_autograd.kernels.compilers import CppCompiler, in_english
from custom_autograd.kernels.shared_library import Build, find_or_build
from slow_cases import slow_but_every

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")

KERNEL = """
#include <custom_autograd/kernel.h>

using namespace custom_autograd;

Tensor unchanged(const Tensor& x) { return torch::stable::clone(x); }

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) { m.def("unchanged(Tensor x) -> Tensor"); }
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("unchanged", TORCH_BOX(&unchanged)); }
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the test's own."""
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source that compiles at once, because it includes nothing."""
    path = tmp_path / "nothing.cpp"
    path.write_text('extern "C" int nothing() { return 42; }\n')
    return path


def compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Have a script run as the compiler; `$CC` in it is the real one."""
    path = folder / "scripted-c++"
    path.write_text(f"#!/bin/sh\nCC={shutil.which('c++')}\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


def foreign(path: Path) -> None:
    path.write_bytes(b"not a library")


def without_digest(path: Path) -> None:
    path.with_suffix(".sha256").unlink()


def damaged_digest(path: Path) -> None:
    path.with_suffix(".sha256").write_bytes(b"\xff")


DAMAGES = [cut_short, emptied, flipped, foreign, without_digest, damaged_digest, Path.unlink]


@pytest.mark.parametrize("damage", slow_but_every(3, DAMAGES), ids=lambda damage: damage.__name__)
def test_a_damaged_library_is_built_again(damage: Callable[[Path], None], source: Path) -> None:
    _, path = find_or_build(source, ())
    built = path.read_bytes()
    damage(path)

    assert path == find_or_build(source, ())[1]
    assert built == path.read_bytes()


@pytest.mark.slow  # the tests above look at each kind of damage in this process
@pytest.mark.parametrize("damage", [cut_short, foreign], ids=lambda damage: damage.__name__)
def test_a_damaged_library_does_not_end_the_process_that_calls_its_kernel(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """A library that was cut short ended every later process with SIGBUS."""
    source = tmp_path / f"{damage.__name__}.cpp"  # what this process has loaded is not read again
    source.write_text(f"// {damage.__name__}\n{KERNEL}")
    damage(find_or_build(source, ())[1])

    assert [1.0, 2.0] == cpp_kernel(source, "unchanged")(torch.tensor([1.0, 2.0])).tolist()


def open_to(writers: int) -> Callable[[Path, pytest.MonkeyPatch], str]:
    def change(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        path.chmod(0o755 | writers)
        return f"its mode {0o755 | writers:04o} lets others write to it; chmod go-w"

    return change


def of_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    owner = path.stat().st_uid
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    monkeypatch.setattr(Path, "stat", lambda path, **kwargs: owned_by(os.stat(path, **kwargs), 54322))
    assert owner == os.stat(path).st_uid
    return "it belongs to the user with the id 54322, and this process runs as 54321"


def owned_by(status: os.stat_result, owner: int) -> os.stat_result:
    return os.stat_result((*status[:4], owner, *status[5:]))


INSECURE = {"group": open_to(0o020), "everyone": open_to(0o002), "owner": of_another_user}


@pytest.mark.parametrize("change", INSECURE.values(), ids=INSECURE)
def test_a_folder_in_which_others_can_put_libraries_is_refused(
    change: Callable[[Path, pytest.MonkeyPatch], str], source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_or_build(source, ())
    reason = f"libraries of this folder may be another user's: {change(cache, monkeypatch)}"

    assert NOT_WRITTEN.format(f"[Errno 1] {reason}: 'FOLDER/cache/kernels'") == warning_of(source)


def test_a_library_that_others_can_write_is_built_again(source: Path) -> None:
    _, path = find_or_build(source, ())
    path.chmod(0o775)
    path.write_bytes(b"not what was built")
    path.with_suffix(".sha256").write_text(hashlib.sha256(b"not what was built").hexdigest())

    assert path == find_or_build(source, ())[1]
    assert b"ELF" == path.read_bytes()[1:4]
    assert 0 == path.stat().st_mode & 0o022


RECORDS = {
    "number": '{"library": "x", "files": [1], "programs": [], "version": ""}',
    "null": '{"library": "x", "files": ["a\\u0000b"], "programs": [], "version": ""}',
    "other fields": '{"files": []}',
    "no text": "\udcff",
}


@pytest.mark.parametrize("record", RECORDS.values(), ids=RECORDS)
def test_a_damaged_record_is_written_again(record: str, source: Path, cache: Path) -> None:
    find_or_build(source, ())
    path = cache / f"{Build(source, (), CppCompiler(), cache).stem()}.d"
    written = path.read_bytes()
    programs = written[written.index(b'"programs"') : written.index(b', "version"')].decode()
    path.write_bytes(record.replace('"programs": []', programs).encode(errors="surrogateescape"))
    find_or_build(source, ())

    assert written == path.read_bytes()


# ---------------------------------------------------------------------------------------------- disks and home folders


def warning_of(source: Path) -> str:
    """The one warning of a kernel that cannot be built, whose fallback computes."""
    kernel = cpp_kernel(source, "nothing", fallback=Tensor.neg)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [kernel(torch.ones(1)).item() for _ in range(2)]

    assert [-1.0, -1.0] == found
    (warning,) = caught
    assert warning.category is KernelWarning
    return str(warning.message).replace(str(source.parent), "FOLDER")


def test_what_stops_a_compiler_is_the_reason_that_is_shown(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the linker says comes before the first line with the word error; a killed one is not the source's fault."""
    full = "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status"
    killed = "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated."
    limited = "c++: fatal error: File size limit exceeded signal terminated program cc1plus\ncompilation terminated."
    for says, expected in ((full, FULL_DISK), (killed, KILLED), (limited, LIMITED)):
        compiler(tmp_path, monkeypatch, f'case "$*" in *" -o "*) echo "{says}"; exit 1;; esac\n"$CC" "$@"')

        assert expected == warning_of(source)


@pytest.mark.parametrize("variable", ["LC_ALL", "LC_MESSAGES", "LANG"])
def test_what_stops_a_compiler_is_recognised_in_every_language(
    variable: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler and its linker translate their messages, for LC_ALL before LC_MESSAGES before LANG."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "de_DE.UTF-8")
    full = "/usr/bin/ld: final link failed: No space left on device\ncollect2: error: ld returned 1 exit status"
    says = f'[ "${{LC_ALL:-${{LC_MESSAGES:-$LANG}}}}" = C ] && echo "{full}" || echo "ld: Kein Speicherplatz"'
    compiler(tmp_path, monkeypatch, f'case "$*" in *" -o "*) {says}; exit 1;; esac\n"$CC" "$@"')

    assert FULL_DISK == warning_of(source)


def test_the_characters_of_a_locale_stay() -> None:
    assert {"LC_CTYPE": "de_DE.UTF-8", "LC_MESSAGES": "C"} == in_english({"LC_ALL": "de_DE.UTF-8", "LC_CTYPE": "C"})
    assert {"LC_CTYPE": "fr_FR", "LC_MESSAGES": "C"} == in_english({"LC_ALL": "", "LC_CTYPE": "fr_FR"})


@pytest.mark.parametrize(
    ("owner", "function", "error"),
    [
        (os, "fsync", OSError(28, "No space left on device", "library.so")),
        (Path, "mkdir", OSError(30, "Read-only file system", "kernels")),
    ],
    ids=["full disk", "read-only"],
)
def test_a_cache_that_cannot_be_written_is_the_reason_that_is_shown(
    owner: object, function: str, error: OSError, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(owner, function, fail)

    assert NOT_WRITTEN.format(str(error)) == warning_of(source)


def test_what_the_linker_does_not_find_is_shown(source: Path) -> None:
    with pytest.raises(KernelUnavailable, match=r"cannot find -lnosuchlibrary(.|\n)*collect2: error|library not found"):
        find_or_build(source, ["-lnosuchlibrary"])


def test_an_unknown_user_in_the_path_of_the_cache(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", "~nosuchuser/x")
    found = "CUSTOM_AUTOGRAD_CACHE=~nosuchuser/x, and the user nosuchuser has no home folder"

    assert NOT_WRITTEN.format(found) == warning_of(source)


@pytest.mark.parametrize("base", ["", "~/caches"], ids=["no variable", "XDG_CACHE_HOME"])
def test_a_user_without_a_home_folder(base: str, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that runs under any uid, which its password file does not have."""
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setenv("CUSTOM_AUTOGRAD_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "getuid", lambda: 54321)
    variable = f"XDG_CACHE_HOME={base}" if base else "neither CUSTOM_AUTOGRAD_CACHE nor HOME is set"

    assert NOT_WRITTEN.format(f"{variable}, and the user with the id 54321 has no home folder") == warning_of(source)


def test_a_source_that_was_not_installed(tmp_path: Path) -> None:
    """A wheel has no *.cpp unless it is told to."""
    found = "[Errno 2] No such file or directory: 'FOLDER/nothing.cpp'"

    assert UNREADABLE.format(found, NOT_INSTALLED) == warning_of(tmp_path / "nothing.cpp")


def test_a_folder_in_place_of_a_source_is_not_the_fault_of_the_cache(tmp_path: Path) -> None:
    (tmp_path / "nothing.cpp").mkdir()
    found = "[Errno 21] Is a directory: 'FOLDER/nothing.cpp'"

    assert UNREADABLE.format(found, NOT_INSTALLED) == warning_of(tmp_path / "nothing.cpp")


def test_a_source_in_an_archive(tmp_path: Path) -> None:
    """Python imports a package from a zip file, which a compiler does not read."""
    (tmp_path / "package.zip").write_bytes(b"PK")
    found = "[Errno 20] Not a directory: 'FOLDER/nothing.cpp'"

    assert UNREADABLE.format(found, IN_ARCHIVE) == warning_of(tmp_path / "package.zip" / "nothing.cpp")


NOT_WORKING = "the compiler does not work"
COMPILERS = {
    "not a program": ("\0", "the kernel cannot be built", "[Errno 8] Exec format error: 'FOLDER/scripted-c++'"),
    "without interpreter": (
        "#!/no/such/shell\n",
        "the kernel cannot be built",
        "[Errno 2] No such file or directory: 'FOLDER/scripted-c++'",
    ),
    "silent": ("#!/bin/sh\nexit 1\n", NOT_WORKING, "FOLDER/scripted-c++ ended with status 1, and printed nothing"),
    "killed": (
        "#!/bin/sh\nkill -SEGV $$\n",
        NOT_WORKING,
        "FOLDER/scripted-c++ was ended by SIGSEGV, a segmentation fault, and printed nothing",
    ),
    "idle": (
        "#!/bin/sh\nexit 0\n",
        NOT_WORKING,
        "FOLDER/scripted-c++ ended with status 0, and did not write the file that -MF names, and printed nothing",
    ),
    "other option": (
        "#!/bin/sh\necho 'error: no option -x'; exit 1\n",
        NOT_WORKING,
        "FOLDER/scripted-c++ ended with status 1:\n             error: no option -x",
    ),
}


def test_what_a_compiler_refuses_is_shown_where_no_status_of_a_child_is_known(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sigchld_ignored: None
) -> None:
    """The status of each child is 0 then."""
    compiler(
        tmp_path, monkeypatch, 'case "$*" in *" -o "*) echo "nothing.cpp:1:1: error: no"; exit 1;; esac\n"$CC" "$@"'
    )
    found = warning_of(source)

    end = "FOLDER/scripted-c++ ended with status 0, and did not write the file that -o names"
    assert f"{end}:\n             nothing.cpp:1:1: error: no\n  do         correct FOLDER/nothing.cpp, or" in found


@pytest.mark.parametrize("kind", COMPILERS)
def test_a_compiler_that_does_not_work_is_not_the_fault_of_the_source(
    kind: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, problem, found = COMPILERS[kind]
    path = tmp_path / "scripted-c++"
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))

    assert BROKEN_COMPILER.format(problem, found) == warning_of(source)


FULL_DISK = """\
nothing.cpp: the compiler does not finish: the disk is full
  found      FOLDER/scripted-c++ ended with status 1:
             /usr/bin/ld: final link failed: No space left on device
             collect2: error: ld returned 1 exit status
  do         free some space, or point CUSTOM_AUTOGRAD_CACHE (the library) and TMPDIR (the compiler's files) elsewhere
  meanwhile  'nothing' runs in its fallback, more slowly"""

KILLED = """\
nothing.cpp: the compiler does not finish: it was killed, as a process is that needs more memory than there is
  found      FOLDER/scripted-c++ ended with status 1:
             c++: fatal error: Killed signal terminated program cc1plus
             compilation terminated.
  do         free some memory, or build the kernel where there is more: kernel.build()
  meanwhile  'nothing' runs in its fallback, more slowly"""

LIMITED = """\
nothing.cpp: the compiler does not finish: the shell limits the size of files
  found      FOLDER/scripted-c++ ended with status 1:
             c++: fatal error: File size limit exceeded signal terminated program cc1plus
             compilation terminated.
  do         raise the limit, which `ulimit -f` shows
  meanwhile  'nothing' runs in its fallback, more slowly"""

NOT_WRITTEN = """\
nothing.cpp: the kernel cannot be built
  found      {}
  do         point CUSTOM_AUTOGRAD_CACHE at a folder that you can write, and no other user
  meanwhile  'nothing' runs in its fallback, more slowly"""

UNREADABLE = """\
nothing.cpp: the kernel cannot be built
  found      {}
  do         {}
  meanwhile  'nothing' runs in its fallback, more slowly"""
NOT_INSTALLED = "check the path; if it is part of an installed package, add the source to its package data"
IN_ARCHIVE = "a compiler reads no source in package.zip: install the package in a folder, or unpack the file"

BROKEN_COMPILER = """\
nothing.cpp: {}
  found      {}
  do         correct the flags, or set CXX to a compiler that supports C++20
  meanwhile  'nothing' runs in its fallback, more slowly"""
