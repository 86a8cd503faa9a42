"""The modes of the differential grid: each runs one call, and may add what it saw of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

Call = Callable[[Any, Any], Any]
Seen = list[Any]


class FunctionLog(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class DispatchLog(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def within(*contexts: Callable[[], contextlib.AbstractContextManager[Any]]) -> Callable[..., Any]:
    """A mode that is a context."""

    def run(call: Call, x: Any, y: Any, seen: Seen) -> Any:
        with contextlib.ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context())
            return call(x, y)

    return run


def logged(kind: type[FunctionLog] | type[DispatchLog]) -> Callable[..., Any]:
    """A mode that lists what passes through it."""

    def run(call: Call, x: Any, y: Any, seen: Seen) -> Any:
        with kind() as log:
            result = call(x, y)
        seen.append([name for name in log.names if "grid" in name])
        return result

    return run


def profiled(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = call(x, y)
    seen.append(sorted((e.key, e.count) for e in profile.key_averages() if "grid" in e.key or "Backward" in e.key))
    return result


def total(call: Call) -> Callable[..., Tensor]:
    """The sum of all results, for transforms of scalar functions."""

    def f(x: Any, y: Any) -> Tensor:
        result = call(x * 1, y)  # a copy: in-place ops may not write to what a transform differentiates
        return sum((r.real.sum() for r in tensors_of(result)), torch.zeros(()))

    return f


def tensors_of(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    return [t for item in result for t in tensors_of(item)] if isinstance(result, (tuple, list)) else []


def dual(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    with forward_ad.dual_level():
        results = call(forward_ad.make_dual(x, torch.ones_like(x)), y)
        return [forward_ad.unpack_dual(result) for result in tensors_of(results)]


def dual_level_only(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    with forward_ad.dual_level():
        return call(x, y)


def traced(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    traced_call = torch.jit.trace(lambda a, b: tuple(tensors_of(call(a, b))), (x, y), check_trace=False)
    seen.append("grid::" in str(traced_call.graph))
    return traced_call(x, y)


def graphed(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    graph = make_fx(lambda a, b: tensors_of(call(a, b)))(x, y)
    seen.append([str(node.target) for node in graph.graph.nodes])
    return graph(x, y)


def compiled(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    torch.compiler.reset()
    nodes: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        nodes.extend(str(node.target) for node in graph.graph.nodes if "grid" in str(node.target))
        return graph.forward

    result = torch.compile(lambda a, b: call(a, b), backend=backend, fullgraph=True)(x, y)
    seen.append(nodes)
    return result


def exported(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    class Module(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return call(a, b)

    program = torch.export.export(Module(), (x, y))
    seen.append([str(node.target) for node in program.graph.nodes if "grid" in str(node.target)])
    return program.module()(x, y)


def in_fake_mode(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        return call(mode.from_tensor(x), mode.from_tensor(y))


def in_fake_mode_as_they_are(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return call(x, y)


def hooked(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    packed: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append((tuple(tensor.shape), tensor.dtype))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call(x, y)
    seen.append(packed)
    return result


def checkpointed(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    return checkpoint(call, x, y, use_reentrant=False)


def without_autograd(call: Call, x: Any, y: Any, seen: Seen) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return call(x, y)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def scalar_transform(make: Callable[[Callable[..., Tensor]], Callable[..., Any]]) -> Callable[..., Any]:
    """A mode that is a transform of a function of both tensors into a number."""
    return lambda call, x, y, seen: make(total(call))(x, y)


MODES: dict[str, Callable[[Call, Any, Any, Seen], Any]] = {
    "none": within(),
    "no_grad": within(torch.no_grad),
    "inference": within(torch.inference_mode),
    "enable_grad in no_grad": within(torch.no_grad, torch.enable_grad),
    "dual": dual,
    "dual level": dual_level_only,
    "grad": scalar_transform(torch.func.grad),
    "grad of a constant": lambda call, x, y, seen: torch.func.grad(lambda a: total(call)(x, y) + a)(torch.ones(())),
    "grad of grad": scalar_transform(lambda f: torch.func.grad(lambda x, y: (torch.func.grad(f)(x, y) ** 2).sum())),
    "jacrev": scalar_transform(torch.func.jacrev),
    "jacfwd": scalar_transform(torch.func.jacfwd),
    "hessian": scalar_transform(torch.func.hessian),
    "vjp": lambda call, x, y, seen: torch.func.vjp(total(call), x, y)[1](torch.ones(())),
    "jvp": lambda call, x, y, seen: torch.func.jvp(total(call), (x, y), (torch.ones_like(x), torch.ones_like(y))),
    "linearize": lambda call, x, y, seen: torch.func.linearize(total(call), x, y)[0],
    "vmap": lambda call, x, y, seen: torch.vmap(lambda a, b: tuple(tensors_of(call(a * 1, b))))(x, y),
    "vmap of a constant": lambda call, x, y, seen: torch.vmap(lambda a: total(call)(x, y) + a)(torch.ones(2)),
    "functionalize": lambda call, x, y, seen: torch.func.functionalize(lambda a, b: tuple(tensors_of(call(a, b))))(
        x, y
    ),
    "torch_function mode": logged(FunctionLog),
    "default device": within(lambda: torch.device("cpu")),
    "torch_dispatch mode": logged(DispatchLog),
    "fake": in_fake_mode,
    "fake mode": in_fake_mode_as_they_are,
    "autocast": within(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast off inside": within(
        lambda: torch.autocast("cpu", torch.bfloat16), lambda: torch.autocast("cpu", enabled=False)
    ),
    "profiler": profiled,
    "jit.trace": traced,
    "make_fx": graphed,
    "compile": compiled,
    "export": exported,
    "saved-tensor hooks": hooked,
    "save_on_cpu": within(torch.autograd.graph.save_on_cpu),
    "anomaly": within(lambda: torch.autograd.detect_anomaly(check_nan=True)),
    "deterministic": within(deterministic),
    "checkpoint": checkpointed,
    "below autograd": without_autograd,
    "multithreading off": within(lambda: torch.autograd.set_multithreading_enabled(False)),
}
