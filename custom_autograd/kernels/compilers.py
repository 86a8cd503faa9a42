"""The compilers of kernel sources: which command compiles a file, what its library depends on, and running it."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from custom_autograd.core.errors import KernelUnavailable

LONGEST_BUILD = 600  # seconds


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command with stdout and stderr as one text; raise OSError if it does not start or does not end."""
    started = _commands.start(command)
    watcher = _commands.running[started]
    try:
        text, _ = started.communicate(timeout=LONGEST_BUILD)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{command[0]} did not end within {LONGEST_BUILD} s") from error
    finally:
        if started.returncode is None:  # also after Ctrl-C
            _end(started)
        code = started.wait()
        _commands.running.pop(started, None)
        _dismiss(watcher)
    return subprocess.CompletedProcess(command, code, text)


def end_of(code: int | None) -> str:
    """Return how a process ended, in words."""
    if code is None or code >= 0:
        return f"ended by itself, with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    name = names.get(-code, f"signal {-code}")
    return f"was ended by {name}" + (f", {MEANINGS[name]}" if name in MEANINGS else "")


class _Commands:
    """The commands that this process runs, each the leader of a process group, with what watches it."""

    running: dict[subprocess.Popen[str], subprocess.Popen[bytes] | None]
    _lock: threading.Lock

    def __init__(self) -> None:
        self.forget()

    def start(self, command: Sequence[str]) -> subprocess.Popen[str]:
        with self._lock:  # what has started is known, before the end looks
            if self._is_over:
                raise OSError(f"{command[0]} is not started: this process ends")
            started = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # a compiler starts others: its group has all of them
            )
            self.running[started] = _watch(started)
        return started

    def end_all(self) -> None:
        """End the commands of background threads: their results would not be used."""
        with self._lock:
            self._is_over = True
        for started in list(self.running):
            _end(started)

    def forget(self) -> None:
        """Begin with none: in a forked child, the commands of the parent are left to it."""
        for watcher in getattr(self, "running", {}).values():
            if watcher is not None and watcher.stdin is not None:
                watcher.stdin.close()
        self.running = {}
        self._is_over = False
        self._lock = threading.Lock()


def _watch(started: subprocess.Popen[str]) -> subprocess.Popen[bytes] | None:
    """Start a shell that ends a command when this process is gone; return None if there is no shell.

    It waits for a line, which `_dismiss` sends. If its input ends without one, this process was killed, or was a child
    of a fork, which runs nothing at exit.
    """
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _ || kill -TERM "-$1"', "sh", str(started.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what is sent to the group of this process does not reach it
        )
    return None


def _dismiss(watcher: subprocess.Popen[bytes] | None) -> None:
    """End a watcher whose command has ended."""
    if watcher is not None:
        with contextlib.suppress(BrokenPipeError):
            watcher.communicate(b"\n")


def _end(started: subprocess.Popen[str]) -> None:
    """Ask a compiler and what it has started to end: so they remove their own temporary files."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(started.pid, signal.SIGTERM)


MEANINGS = {
    "SIGABRT": "which a failed assertion in native code raises",
    "SIGBUS": "which an access to memory that has no file behind it raises",
    "SIGFPE": "which a division by zero in native code raises",
    "SIGILL": "which an instruction that this processor does not know raises",
    "SIGKILL": "which the system sends where memory runs out",
    "SIGSEGV": "a segmentation fault",
}
_commands = _Commands()
atexit.register(_commands.end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_commands.forget)


class Compiler(ABC):
    """One language's compiler."""

    standard: str
    """What sets it, and what it has to know; for messages."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what a library depends on besides its source: flags, environment, devices. Needs no compiler."""

    @abstractmethod
    def find(self, source: Path) -> list[str]:
        """Return the command that runs it, as words."""

    @abstractmethod
    def programs(self, source: Path) -> list[str]:
        """Return the executables whose change may change a library."""

    @abstractmethod
    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return what the command is given for every source."""

    @abstractmethod
    def libraries(self) -> list[str]:
        """Return what is linked."""

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
        """Return the files whose change makes a library stale."""
        return list(files)


class CppCompiler(Compiler):
    """The C++ compiler: CXX, else c++."""

    standard = "set CXX to a compiler that knows C++20"

    def fingerprint(self) -> str:
        """Return the flags and the environment."""
        return repr((CPP_FLAGS, [os.environ.get(name) for name in ("CXX", *SEARCHED)]))

    def find(self, source: Path) -> list[str]:
        """Return CXX, which may have arguments, else c++."""
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
        """Return the compiler."""
        return self.find(source)[:1]

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return flags for optimised code, for all of this processor if the compiler has a flag for that."""
        # A library may serve the same source in another folder: what it says of itself names no folder.
        wanted = [*CPP_FLAGS, *(f"-ffile-prefix-map={folder}/=" for folder in (source.parent, HEADERS))]
        for flag in ("-march=native", "-mcpu=native"):
            if run([*command, flag, "-E", "-x", "c++", os.devnull]).returncode == 0:
                return [*wanted, flag]
        return wanted

    def libraries(self) -> list[str]:
        """Return what the stable ABI needs."""
        return ["-ltorch", "-ltorch_cpu", "-lc10"]


class CudaCompiler(Compiler):
    """NVIDIA's compiler: NVCC, else that of CUDA_HOME or CUDA_PATH, else nvcc."""

    standard = "use the nvcc of CUDA 12 or later, with a host compiler that it supports (CXX)"

    def fingerprint(self) -> str:
        """Return the flags, the environment and the devices that are there."""
        variables = ("NVCC", "CUDA_HOME", "CUDA_PATH", "CXX", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", *SEARCHED)
        devices = os.environ.get("TORCH_CUDA_ARCH_LIST") or capabilities()
        return repr((CUDA_FLAGS, [os.environ.get(name) for name in variables], devices, torch.version.cuda))

    def find(self, source: Path) -> list[str]:
        """Return the first nvcc that there is."""
        home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
        wanted = os.environ.get("NVCC") or (str(Path(home, "bin", "nvcc")) if home else "nvcc")
        words = words_of(wanted, "NVCC", source)
        if os.name == "posix" and words and shutil.which(words[0]):
            return words
        raise KernelUnavailable(
            source.name,
            "no CUDA compiler for the kernel",
            expected="nvcc of CUDA 12 or later, on Linux",
            found=f"'{wanted}', which is not there",
            do="install the CUDA toolkit, or set NVCC or CUDA_HOME, or register another kernel for the device",
        )

    def programs(self, source: Path) -> list[str]:
        """Return nvcc, and the compiler that it has for the host."""
        return [self.find(source)[0], *(self._host(source) or ["gcc"])]

    def _host(self, source: Path) -> list[str]:
        return words_of(os.environ.get("CXX", ""), "CXX", source)[:1]

    def flags(self, command: Sequence[str], source: Path) -> list[str]:
        """Return flags for the devices of TORCH_CUDA_ARCH_LIST, else for those that are there, else nvcc's default."""
        return [*CUDA_FLAGS, *(f"-ccbin={word}" for word in self._host(source)), *architectures(source)]

    def as_input(self, library: str) -> str:
        """Return a shared library as a word of the command: nvcc refuses a name that ends in a number.

        Without the quotes nvcc would take a path with a comma or a space apart.
        """
        return f'-Xlinker="{library}"'

    def libraries(self) -> list[str]:
        """Return what the stable ABI needs, and torch's CUDA part where torch has one."""
        has_cuda = (TORCH / "lib" / "libtorch_cuda.so").exists()
        return ["-ltorch", "-ltorch_cpu", "-lc10", *(["-ltorch_cuda"] if has_cuda else [])]


def words_of(text: str, variable: str, source: Path) -> list[str]:
    """Return the words of a variable of the environment that holds a command."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"{variable} is not a command"
        do = f"correct {variable}: its words are parted as a shell parts them"
        raise KernelUnavailable(source.name, problem, found=f"'{text}': {error}", do=do) from error


def loaded_runtime() -> list[str]:
    """Return the paths of the C++ runtime that this process has loaded; empty where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    paths = dict.fromkeys(line.split(maxsplit=5)[5] for line in lines if RUNTIME.search(line))
    return [path for path in paths if os.path.isfile(path)]


def capabilities() -> list[str]:
    """Return the compute capabilities of the devices that are there: "9.0"."""
    if not torch.cuda.is_available():
        return []
    found = {torch.cuda.get_device_capability(device) for device in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def architectures(source: Path) -> list[str]:
    """Return the flags for what TORCH_CUDA_ARCH_LIST names ("8.0;9.0a+PTX"), else for the devices that are there."""
    listed = os.environ.get("TORCH_CUDA_ARCH_LIST", "").replace(";", " ").split() or capabilities()
    flags: list[str] = []
    for wanted in listed:
        match = re.fullmatch(r"(\d+)\.(\d[af]?)(\+PTX)?", wanted)
        if match is None:
            problem = "TORCH_CUDA_ARCH_LIST names no architecture"
            expected = "compute capabilities, such as '8.0;9.0a+PTX'"
            raise KernelUnavailable(source.name, problem, expected=expected, found=f"'{wanted}'")
        number = match[1] + match[2]
        flags.append(f"-gencode=arch=compute_{number},code=sm_{number}")
        if match[3]:
            flags.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    return flags


TORCH = Path(torch.__file__).parent
HEADERS = Path(__file__).parent / "include"
RUNTIME = re.compile(r"/(libstdc\+\+|libgcc_s)\.so[^/]*$")
SEARCHED = ("CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")  # where compilers look besides their flags
CPP_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-shared", "-fopenmp-simd", "-fvisibility=hidden")
# USE_CUDA uncovers the current stream in torch's headers. The CUDA runtime is linked into the library: it need not be
# of torch's version, and shares the driver's context and streams with torch's.
CUDA_FLAGS = (
    "-std=c++20", "-O3", "-shared", "-Xcompiler=-fPIC,-fvisibility=hidden", "--expt-relaxed-constexpr", "-DUSE_CUDA",
)  # fmt: skip
