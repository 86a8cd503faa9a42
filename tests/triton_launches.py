"""The Triton kernels of a folder of ops: which there are, how the ops launch them, and whether a compiler takes them.

No GPU is needed. The launches are those of the ops' own samples, forward and backward, on CPU tensors: a kernel's
launcher runs, and the launch is recorded in place of being done. Triton then compiles for a GPU that is not here, with
the signature, the constants and the options that it derives from the recorded arguments.

As a program: `python triton_launches.py FOLDER BACKEND:ARCHITECTURE` compiles them, and prints a report in JSON.
"""

import ast
import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd.kernels.triton import TritonKernel
from custom_autograd.registration import registry
from custom_autograd.registration.kernel import Kernel
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Samples
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.harness.op_files import load
from custom_autograd.verification.harness.targets import target_of

DTYPES = (torch.float32, torch.bfloat16)
"""What every kernel is compiled for."""

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024, "gfx942": 64 * 1024}
"""How many bytes of shared memory a block may have: with more Triton compiles a kernel, and does not launch it."""

ASSEMBLY = {"cuda": ("ptx", "cubin"), "hip": ("amdgcn", "hsaco")}
"""What a backend makes: text, then what is loaded."""


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel: its arguments, and the call of an op that it comes from."""

    kernel: TritonKernel
    grid: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: str

    @property
    def name(self) -> str:
        return self.kernel.function.__name__


@dataclass
class Launches:
    """All launches of a folder's ops, and what the calls raised that were refused."""

    found: list[Launch] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def kernels_of(folder: Path) -> dict[str, frozenset[str]]:
    """The Triton kernels that the files of a folder define, and the names that each of them uses."""
    kernels: dict[str, frozenset[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and is_kernel(node):
                assert node.name not in kernels, f"{path.name}: another file has a Triton kernel named {node.name}"
                kernels[node.name] = frozenset(name.id for name in ast.walk(node) if isinstance(name, ast.Name))
    return kernels


def is_kernel(function: ast.FunctionDef) -> bool:
    return any("triton_kernel" in ast.unparse(d) or "jit" in ast.unparse(d) for d in function.decorator_list)


def used_by(launched: Iterable[str], kernels: Mapping[str, frozenset[str]]) -> set[str]:
    """The kernels that are launched, and those that they call, and so on."""
    used, further = set(), set(launched)
    while further:
        used |= further
        further = {name for kernel in further for name in kernels[kernel] & kernels.keys()} - used
    return used


class LaunchingTriton(TorchDispatchMode):
    """Ops run their Triton kernels, whatever the device; what they return is computed by the default kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.records = {record.overload: record for record in registry.all_records() if None in record.kernels}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        call = Sample(*args, **(kwargs or {}))
        if (record := self.records.get(func)) is None:
            return func(*call.args, **call.kwargs)
        call = target_of(record).complete(call)
        for kernel in triton_kernels(record):
            if kernel.when is None or kernel.when.refusal(call.args, call.kwargs) is None:
                kernel.function(*call.args, **call.kwargs)
        return record.kernels[None].function(*call.args, **call.kwargs)


def triton_kernels(record: OpRecord) -> list[Kernel]:
    """The kernels of an op for a GPU; those in CUDA C++ raise where there is none, before anything is launched."""
    return [kernel for kernel in record.kernels.all() if kernel.device_type == "cuda" and kernel.name != "cuda_cpp"]


@contextmanager
def recording(found: list[Launch], origin: str) -> Iterator[None]:
    """Launches are written down, and nothing runs."""

    def record(kernel: TritonKernel, grid: Any) -> Any:
        return lambda *args, **kwargs: found.append(Launch(kernel, grid, args, kwargs, origin))

    launches, TritonKernel.__getitem__ = TritonKernel.__getitem__, record
    try:
        with LaunchingTriton():
            yield
    finally:
        TritonKernel.__getitem__ = launches


def run(op: Any, sample: Sample) -> None:
    """Calls an op, and differentiates it where it can be."""
    sample = sample.map(torch.clone)  # an op may write into what it is given, which is not allowed for leaves
    outputs = Sample(op(*sample.args, **sample.kwargs)).tensors()
    roots = [output for output in outputs if output.requires_grad]
    leaves = [tensor for tensor in sample.tensors() if tensor.requires_grad]
    if roots and leaves:
        torch.autograd.grad(roots, leaves, [torch.ones_like(root) for root in roots], allow_unused=True)


def launches_of(folder: Path) -> Launches:
    """What the ops of a folder launch for their samples, in each dtype."""
    launches = Launches()
    for op in (loaded.value for loaded in load(str(folder))):
        record = registry.record_of(op)
        assert record is not None
        for dtype in DTYPES:
            for sample in samples_of(record, dtype):
                origin = f"{record.name}, {sample!r}"
                try:
                    with recording(launches.found, origin):
                        run(op, sample)
                except Exception as error:  # noqa: BLE001 - a dtype that an op refuses: its kernels are then missed
                    launches.refusals.append(f"{origin}: {type(error).__name__}: {error}")
    return launches


def samples_of(record: OpRecord, dtype: torch.dtype) -> list[Sample]:
    """The samples that are not declared to raise; of an op without Triton kernels none."""
    rule = record.registrations.get(Samples)
    if rule is None or not triton_kernels(record):
        return []
    return [sample for sample in rule.function(TensorFactory(dtype=dtype)) if sample.error is None]


def missed(folder: Path, launches: Launches) -> list[str]:
    """What to do about kernels that no sample launches: nothing is known of how they are to be compiled."""
    kernels = kernels_of(folder)
    found = {dtype: set[str]() for dtype in DTYPES}
    for launch in launches.found:
        for dtype in {arg.dtype for arg in launch.args if isinstance(arg, Tensor)} & found.keys():
            found[dtype].add(launch.name)
    return [
        f"{name} is not launched with {dtype}: register a sample for the op that launches it (op.register_samples), "
        f"which its kernel 'triton' for the device type 'cuda' takes. Refused were {launches.refusals}"
        for dtype, launched in found.items()
        for name in sorted(kernels.keys() - used_by(launched, kernels))
    ]


class AbsentGpu:
    """What Triton asks of the driver before it compiles: which GPU there is."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def target_of_name(name: str) -> Any:
    """Triton's value for "cuda:90" or "hip:gfx942"."""
    backend, architecture = name.split(":")
    target = importlib.import_module("triton.backends.compiler").GPUTarget
    return target(backend, int(architecture), 32) if backend == "cuda" else target(backend, architecture, 64)


def compile_launch(launch: Launch, target: Any) -> str:
    """Triton's hash of what it makes of a launch; raises where a GPU of that kind would not run it."""
    kernel = launch.kernel.compiled().run(*launch.args, grid=launch.grid, warmup=True, **launch.kwargs)
    text, binary = ASSEMBLY[target.backend]
    assert launch.name in kernel.asm[text], f"the {text} does not name the kernel"
    assert kernel.asm[binary], f"there is no {binary}"
    shared, most = kernel.metadata.shared, SHARED_MEMORY[target.arch]
    assert shared <= most, f"it needs {shared} bytes of shared memory, of {most}"
    return kernel.hash


def compile_launches(launches: Iterable[Launch], name: str) -> dict[str, Any]:
    """By kernel: how many different programs were made of it, and the first failure; or why there is no compiler."""
    triton, target = importlib.import_module("triton"), target_of_name(name)
    try:
        importlib.import_module("triton.compiler.compiler").make_backend(target)
    except RuntimeError as error:
        return {"unusable": f"Triton {triton.__version__} has no compiler for {name}: {error}"}
    triton.runtime.driver.set_active(AbsentGpu(target))
    compiled: dict[str, set[str]] = defaultdict(set)
    failures: dict[str, str] = {}
    for launch in launches:
        program, failure = attempt(launch, target)
        if failure:
            failures.setdefault(launch.name, failure)
        else:
            compiled[launch.name].add(program)
    return {"compiled": {name: len(programs) for name, programs in compiled.items()}, "failures": failures}


def attempt(launch: Launch, target: Any) -> tuple[str, str]:
    """The program that a launch is compiled to, and what it fails with; one of them is empty."""
    try:
        return compile_launch(launch, target), ""
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is reported
        return "", f"{launch.origin}: {type(error).__name__}: {error}"


def report(folder: Path, name: str) -> dict[str, Any]:
    """What is compiled of a folder for a target, what fails, and what is missed."""
    launches = launches_of(folder)
    return compile_launches(launches.found, name) | {"missed": missed(folder, launches)}


if __name__ == "__main__":
    print(json.dumps(report(Path(sys.argv[1]), sys.argv[2])))
