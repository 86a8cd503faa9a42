"""What is measured, by group: the same call in every way to declare it, with inputs and graphs of several sizes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from typing import Any

import peers
import torch
from declarations import DECLARE
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.benchmarking.interleaved import Work

Cases = dict[str, Work]
Call = Callable[..., Any]
MODES = ("no grad", "forward", "forward + backward")
NUMBERS = itertools.count()
CALLS_PER_GRAPH = 200


def modes_of(name: str, call: Callable[..., Any], make: Callable[[bool], tuple[Any, ...]], modes: Any = MODES) -> Cases:
    """The cases of one callable: `make` makes its arguments, with or without gradients."""
    plain, recorded = make(False), make(True)
    if set(modes) == {"no grad"}:
        return {f"{name} | no grad": lambda: call(*plain)}
    out = call(*recorded)
    grad = torch.ones_like(out if isinstance(out, Tensor) else out[0])

    def forward_backward() -> None:
        out = call(*recorded)
        torch.autograd.backward(out if isinstance(out, Tensor) else out[0], grad)

    works = (lambda: call(*plain), lambda: call(*recorded), forward_backward)
    return {f"{name} | {mode}": work for mode, work in zip(MODES, works, strict=True) if mode in modes}


def pair(device: str = "cpu") -> Callable[[bool], tuple[Any, ...]]:
    """Two tensors."""
    return lambda grad: tuple(torch.rand(8, device=device, requires_grad=grad) for _ in range(2))


def call_group(missing: dict[str, str], device: str = "cpu") -> Cases:
    """Every peer, in three modes."""
    make = pair(device)
    ours, theirs = peers.by_name(), peers.torch_library()
    found: dict[str, Any] = {
        "torch.mul": torch.mul,
        "by name": ours,
        "drop-in": peers.drop_in(),
        "torch.library": theirs,
        "overload": ours.overload,
        "torch.library overload": theirs._opoverload,
        "Function, forward(ctx)": peers.WithContext.apply,
        "Function, setup_context": peers.WithSetup.apply,
    }
    found["triton_op"], missing["triton_op"] = peers.triton_op()
    if device == "cpu":
        found["raw Library"] = peers.raw_library(LIBRARY)
        defined = peers.defined(LIBRARY)
        found["define and impl"], found["define and impl, Function outside"] = defined, peers.function_outside(defined)
    rule_in_python, rule_in_cpp = "by name, C++ kernel", "by name, C++ kernel and rule"
    if "C++" in missing:
        missing[rule_in_python] = missing[rule_in_cpp] = missing["C++"]
    elif device == "cpu" or device.startswith("cuda"):  # the only devices with kernels in C++
        found["C++"], missing["C++"] = peers.cpp()
        found[rule_in_python], found[rule_in_cpp], reason = peers.in_cpp() if device == "cpu" else peers.in_cuda()
        missing[rule_in_python] = missing[rule_in_cpp] = reason
    for name in [name for name, reason in missing.items() if not reason]:
        del missing[name]
    cases: Cases = {}
    for name, call in found.items():
        if call is not None:
            modes = ("no grad",) if name == "define and impl" else MODES  # it records nothing
            cases |= modes_of(name, call, make, modes)
    return cases


def shapes_group() -> Cases:
    """An op with a line of shapes, and the same without."""
    make = pair()
    return modes_of("line of shapes", peers.with_line(), make) | modes_of("no line of shapes", peers.by_name(), make)


def declare_group() -> Cases:
    """An op with fake, backward and samples; torch.library has no samples."""

    def declaring(declare: Callable[[str], Any]) -> Callable[[], None]:
        return lambda: KEPT.append(declare(f"bench::declared_{next(NUMBERS)}"))

    return {f"{prefix}declare | ": declaring(declare) for prefix, declare in DECLARE.items()}


def fourteen() -> tuple[Any, Any]:
    """Tensors, optional tensors, numbers, a flag, a string; some keyword-only, as far as torch.library has those."""

    def kernel(
        a: Tensor, b: Tensor, c: Tensor, f: Tensor, d: Tensor | None = None, e: Tensor | None = None,
        g: Tensor | None = None, m: int = 1, n: int = 2,
        *, p: float = 0.5, q: int = 3, r: float = 1.0, s: bool = True, t: str = "x",
    ) -> Tensor:  # fmt: skip
        return a * b

    def setup(ctx: Any, inputs: Any, keyword_only_inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return (grad * b, grad * a, *[None] * 7)

    ours = custom_op("bench::fourteen", kernel, replace=True)
    ours.register_backward(lambda grad, a, b: {"a": grad * b, "b": grad * a, **dict.fromkeys("cdefg")})
    theirs = torch.library.custom_op("bench::fourteen_library", kernel, mutates_args=())
    theirs.register_autograd(backward, setup_context=setup)
    return ours, theirs


def inputs_group() -> Cases:
    """1 to 16 tensors, and fourteen inputs of every kind."""
    cases: Cases = {}
    for count in (1, 2, 4, 8, 16):
        names = [f"x{index}" for index in range(count)]
        schema = f"({', '.join(f'Tensor {name}' for name in names)}) -> Tensor"
        ours = custom_op(f"bench::inputs_{count}", lambda *xs: xs[0] * 2, schema=schema, replace=True)
        ours.register_backward(lambda grad, names=names: {**dict.fromkeys(names), "x0": grad * 2})
        theirs = torch.library.custom_op(
            f"bench::inputs_{count}_library", lambda *xs: xs[0] * 2, mutates_args=(), schema=schema
        )
        theirs.register_autograd(lambda ctx, grad, count=count: (grad * 2, *[None] * (count - 1)))

        def make(grad: bool, count: int = count) -> tuple[Any, ...]:
            return tuple(torch.rand(8, requires_grad=grad) for _ in range(count))

        cases |= modes_of(f"{count} inputs", ours, make, ("no grad", "forward"))
        cases |= modes_of(f"torch.library {count} inputs", theirs, make, ("no grad", "forward"))
    for name, op in zip(("14 inputs", "torch.library 14 inputs"), fourteen(), strict=True):

        def call(a: Tensor, b: Tensor, c: Tensor, d: Tensor, f: Tensor, op: Any = op) -> Any:
            return op(a, b, c, f, d, m=5, q=7, t="abc")

        def tensors(grad: bool) -> tuple[Any, ...]:
            return tuple(torch.rand(8, requires_grad=grad and index < 2) for index in range(5))

        cases |= modes_of(name, call, tensors, ("no grad", "forward"))
    return cases


def lists_group() -> Cases:
    """Lists of tensors, in and out."""
    schema = "(Tensor[] xs) -> Tensor[]"
    ours = custom_op("bench::lists", lambda xs: [x * 2 for x in xs], schema=schema, replace=True)
    ours.register_backward(lambda grad: [one * 2 for one in grad])
    theirs = torch.library.custom_op(
        "bench::lists_library", lambda xs: [x * 2 for x in xs], mutates_args=(), schema=schema
    )
    theirs.register_autograd(lambda ctx, grads: [one * 2 for one in grads])
    cases: Cases = {}
    for count in (1, 4, 16, 64):

        def make(grad: bool, count: int = count) -> tuple[Any, ...]:
            return ([torch.rand(8, requires_grad=grad) for _ in range(count)],)

        cases |= modes_of(f"list of {count}", ours, make, ("no grad", "forward"))
        cases |= modes_of(f"torch.library list of {count}", theirs, make, ("no grad", "forward"))
    return cases


def validation_group() -> Cases:
    """One op at each level of validation."""
    cases: Cases = {}
    for level in ("full", "cheap", "off"):
        op = custom_op(f"bench::validated_{level}", peers.kernel, replace=True)
        op.register_backward(lambda grad, x, y: (grad * y, grad * x))
        op.validation = level
        cases |= modes_of(f"validation {level}", op, pair())
    return cases


def compiled_group(missing: dict[str, str]) -> Cases:
    """Many calls in one compiled graph."""
    backends = ["aot_eager", "inductor"]
    if shutil.which("c++") is None:
        backends.remove("inductor")
        missing["inductor"] = "no C++ compiler was found"

    def ones(grad: bool) -> tuple[Any, ...]:  # powers of other numbers would leave the range of float32
        return tuple(torch.ones(8, requires_grad=grad) for _ in range(2))

    torch._dynamo.config.recompile_limit = 64  # one code object is compiled for each op, backend and mode
    ops = {"compiled": peers.by_name(), "torch.library compiled": peers.torch_library()}
    if "C++" not in missing:
        in_cpp, reason = peers.cpp()
        ops |= {} if in_cpp is None else {"C++ compiled": in_cpp}
        missing |= {"C++ compiled": reason} if reason else {}
    cases: Cases = {}
    for backend, (name, op) in itertools.product(backends, ops.items()):

        def chain(x: Tensor, y: Tensor, op: Any = op) -> Tensor:
            for _ in range(CALLS_PER_GRAPH):
                x = op(x, y)
            return x

        compiled = torch.compile(chain, fullgraph=True, backend=backend)
        cases |= modes_of(f"{name}, {backend}", compiled, ones, ("no grad", "forward"))
    return cases


GROUPS: dict[str, Callable[[], Cases]] = {
    "shapes": shapes_group,
    "declare": declare_group,
    "inputs": inputs_group,
    "lists": lists_group,
    "validation": validation_group,
}
LIBRARY = torch.library.Library("bench", "FRAGMENT")
KEPT: list[Any] = []
