"""The programs that a build runs: the C++ compiler of kernels and of the native library, and the trial of a library."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.kernels import trial
from custom_autograd.kernels.trial import ARRIVED, BEGUN, LOADED

LONGEST_BUILD = 600  # seconds


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with stdout and stderr as one text; raise OSError if it does not start or does not end."""
    started = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=in_english(os.environ),
        start_new_session=True,  # a compiler starts others: its group has all of them
    )
    with _ended_with_this_process(started):
        try:
            text, _ = started.communicate(timeout=LONGEST_BUILD)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{command[0]} did not end within {LONGEST_BUILD} s") from error
        finally:
            if started.returncode is None:  # also after Ctrl-C: compilers then remove their own temporary files
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(started.pid, signal.SIGTERM)
            code = started.wait()
    return subprocess.CompletedProcess(command, code, text)


def in_english(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which programs do not translate their messages, in which causes are recognised."""
    # LC_ALL would go first, and C for it would replace what is not ASCII in names and lines of the source.
    others = {name: value for name, value in environment.items() if name != "LC_ALL"}
    characters = {"LC_CTYPE": environment["LC_ALL"]} if environment.get("LC_ALL") else {}
    return {**others, **characters, "LC_MESSAGES": "C"}


@contextlib.contextmanager
def _ended_with_this_process(started: subprocess.Popen[str]) -> Iterator[None]:
    """Have a shell end a command when this process is gone, however it ended."""
    # The shell waits for a line, which it is sent when the command has ended. Its input ends without one if this
    # process is gone.
    try:
        watcher = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -TERM "-$1"', "sh", str(started.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the group of this process does not reach it
        )
    except OSError:  # there is no shell
        yield
        return
    _watchers.add(watcher)
    try:
        yield
    finally:
        _watchers.discard(watcher)
        with contextlib.suppress(BrokenPipeError):
            watcher.communicate(b"\n")


def _leave_to_parent() -> None:
    """Close the input of the watchers in a forked child, which would keep them waiting when the parent is gone."""
    for watcher in _watchers:
        if watcher.stdin is not None:
            watcher.stdin.close()
    _watchers.clear()


def end_of(code: int | None) -> str:
    """Return how a process ended, in words; its code is None if it is not known."""
    if code is None:
        return "ended early; how is not known, since this program ignores SIGCHLD or waits for every child elsewhere"
    if code >= 0:
        return f"ended by itself, with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"was ended by {name}" + (f", {MEANINGS[name]}" if name in MEANINGS else "")


MEANINGS = {
    "SIGABRT": "which a failed assertion in native code raises",
    "SIGBUS": "which an access to memory that has no file behind it raises",
    "SIGFPE": "which a division by zero in native code raises",
    "SIGILL": "which an instruction that this processor does not know raises",
    "SIGKILL": "which the system sends where memory runs out",
    "SIGSEGV": "a segmentation fault",
}
_watchers: set[subprocess.Popen[bytes]] = set()  # a forked child has to find them
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def indented(lines: Sequence[str]) -> str:
    """Return the first lines, indented as in a message."""
    return "\n".join(f"             {line[:160]}" for line in lines[:12])


class CppCompiler:
    """The C++ compiler: CXX, else c++."""

    standard = "set CXX to a compiler that supports C++20"
    """What sets it, and what it has to know; for messages."""

    def targets(self) -> list[str]:
        """Return what a library that comes with a source may be built for, the preferred one first."""
        return [PLATFORM]

    def fingerprint(self) -> str:
        """Return what a library depends on besides its source: flags, environment. Needs no compiler."""
        return repr((CPP_FLAGS, [os.environ.get(name) for name in ("CXX", *SEARCHED)]))

    def find(self, source: Path) -> list[str]:
        """Return the command that runs it, as words: CXX, which may have arguments, else c++."""
        wanted = os.environ.get("CXX") or "c++"
        words = words_of(wanted, "CXX", source)
        if os.name == "posix" and words and shutil.which(words[0]):
            return words
        raise KernelUnavailable(
            source.name,
            "no C++ compiler for the kernel",
            expected="g++ or clang++, on Linux or macOS",
            found=f"'{wanted}' ({'from CXX' if os.environ.get('CXX') else 'CXX is not set'}), which is not on PATH",
            do="install g++ or clang++, or set CXX",
        )

    def programs(self, source: Path) -> list[str]:
        """Return the executables whose change may change a library: a launcher, such as ccache, and the compiler."""
        return leading_programs(self.find(source))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return flags for optimised code."""
        # A library may serve the same source in another folder: what it says of itself names no folder.
        maps = (f"-ffile-prefix-map={folder}/=" for folder in (source.parent, HEADERS))
        return [*CPP_FLAGS, *maps, *self.instructions(command)]

    def instructions(self, command: Sequence[str]) -> list[str]:
        """Return the flag for all instructions of this processor, if the compiler has one."""
        for flag in ("-march=native", "-mcpu=native"):
            if run([*command, flag, "-E", "-x", "c++", os.devnull]).returncode == 0:
                return [flag]
        return []

    def libraries(self) -> list[str]:
        """Return what the stable ABI needs."""
        return ["-ltorch", "-ltorch_cpu", "-lc10"]

    # NOTE [which C++ runtime a library is linked with]
    # Some compilers link libstdc++ into each library (-static-libstdc++ in their specs or in a wrapper: the toolchains
    # of CUDA and HPC images). A stream of that copy uses the facets of torch's copy, at other indices, so that a kernel
    # that refuses its input ends the process while it formats the message. The runtime that torch uses is given before
    # the compiler's own, which then has nothing left to define. tests/kernels/test_trial.py fails without this.
    def runtimes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the ways to link the C++ runtime, the preferred one first: in words, and as flags."""
        shared = loaded_runtime()
        if shared:
            yield f"with {' and '.join(shared)}, which torch has loaded", [self.as_input(path) for path in shared]
        yield "with the C++ runtime that the compiler links", []

    def as_input(self, library: str) -> str:
        """Return a shared library as a word of the command."""
        return library

    def dependencies(self, files: Sequence[str]) -> list[str]:
        """Return the files whose change makes a library stale, of those that the preprocessor read."""
        return list(files)


class ExtensionCompiler(CppCompiler):
    """The compiler of the native library: C++ that uses Python's objects and the nodes of torch's graph.

    They are not in the stable ABI, and need the headers of Python and of torch's own extensions.
    """

    def targets(self) -> list[str]:
        """Return the platform, torch and Python: neither torch's graph nor Python's objects have a stable ABI here."""
        version = ".".join(torch.__version__.split(".")[:2])
        return [f"{PLATFORM}-torch{version}-{sys.implementation.cache_tag}"]

    def fingerprint(self) -> str:
        """Return the same as for a kernel, and which Python this is."""
        return repr((SMALL, super().fingerprint(), sys.version, sysconfig.get_config_var("SOABI")))

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return those for a kernel, and where the further headers are."""
        include = TORCH / "include"
        folders = (include / "torch" / "csrc" / "api" / "include", Path(sysconfig.get_paths()["include"]))
        return [*super().flags(command, source), *SMALL, "-w", *(f"-isystem{folder}" for folder in (include, *folders))]

    def libraries(self) -> list[str]:
        """Return those for a kernel, and torch's Python part."""
        return [*super().libraries(), "-ltorch_python"]

    # NOTE [what the native library depends on]
    # It is found by a thread in the background. Each `os.stat` gives up the GIL, and waits up to 5 ms for it if other
    # threads run Python: for the 3,500 headers of torch, Python and the system that took 5 s. What is loaded has to fit
    # torch's binaries, so their size and time stand for the headers; `fingerprint` has the version of Python.
    def dependencies(self, files: Sequence[str]) -> list[str]:
        """Return the sources of this package, and torch's binaries in place of what others have installed."""
        binaries = (str(TORCH / "lib" / f"{name}{suffix}") for name in BINARIES for suffix in (".so", ".dylib"))
        return [*(file for file in files if file.startswith(OWN)), *filter(os.path.isfile, binaries)]


def words_of(text: str, variable: str, source: Path) -> list[str]:
    """Return the words of a variable of the environment that holds a command."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"{variable} is not a command"
        do = f"correct {variable}: its words are parted as a shell parts them"
        raise KernelUnavailable(source.name, problem, found=f"'{text}': {error}", do=do) from error


def leading_programs(command: Sequence[str]) -> list[str]:
    """Return the programs with which a command begins: env and c++ in `env LANG=C c++ -m64`."""
    return [word for word in takewhile(lambda word: not word.startswith("-"), command) if shutil.which(word)]


def loaded_runtime() -> list[str]:
    """Return the paths of the C++ runtime that this process has loaded; empty where the system does not list them."""
    try:
        lines = os.fsdecode(Path("/proc/self/maps").read_bytes()).splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if RUNTIME.search(line))
    return [path for path in paths if os.path.isfile(path)]


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with a library.

    Attributes:
        step: when it did.
        words: the output of the process, and how it ended.
    """

    step: Literal["loading", "raising"]
    words: str


def failure_of(library: Path, native: Path | None = None) -> Failure | None:
    """Return what goes wrong when a library is loaded, or when its kernels raise, as trial.py finds; else None."""
    # A library that cannot be loaded ends no process: the reason is given where it is loaded for use. Torch 2.11 goes
    # on without what it cannot register, and only prints that: such a library fails the trial too.
    if not sys.executable:  # Python within another program: nothing to try it with
        return None
    command = [sys.executable, "-I", "-S", trial.__file__, str(TORCH / "lib"), str(library)]
    try:
        ended = run([*command, *([str(native)] if native else [])])
    except (FileNotFoundError, PermissionError):  # the Python of this process is not there any more
        return None
    loading, is_loaded, raising = ended.stdout.partition(BEGUN)[2].partition(LOADED)
    if BEGUN not in ended.stdout:
        return None
    if not is_loaded or SWALLOWED in loading:
        return Failure("loading", loading.strip() or "(it printed nothing)")
    if ARRIVED not in raising:
        return Failure("raising", f"{raising.strip()}\nthe process {end_of(ended.returncode)}".strip())
    return None


PLATFORM = f"{sys.platform}_{platform.machine()}"
"""The platform in the names of files, such as "linux_x86_64"."""
SWALLOWED = "Exception in aoti_torch"
TORCH = Path(torch.__file__).parent
HEADERS = Path(__file__).parent / "include"
RUNTIME = re.compile(r"/(libstdc\+\+|libgcc_s)\.so[^/]*$")
SEARCHED = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")  # where compilers look besides their flags
# The last two are torch's own: values stay the same, and without AVX-512 loops with a choice in them vectorise.
CPP_FLAGS = (
    "-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp-simd", "-fvisibility=hidden",
    "-fno-math-errno", "-fno-trapping-math",
)  # fmt: skip
# A call runs little of much code, and fetching that costs the processor more than running it. So functions are inlined
# less than with -O3, and those of other libraries are called without a jump table: a forward and backward takes 0.97.
SMALL = ("-O2", "-fno-plt")
OWN = f"{Path(__file__).parents[1]}{os.sep}"
BINARIES = ("libtorch_python", "libtorch_cpu", "libc10")
