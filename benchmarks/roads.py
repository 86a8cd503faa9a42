"""One op, x * y, on every road that is not a plain call: observers, modes, subclasses, transforms, compilation.

Each row is one run in which the peers take turns; only peers that give the right result on that road are in it.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import peers
import torch
from groups import MODES, Cases, modes_of, pair
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701 - it has no public name
from torch.utils.checkpoint import checkpoint

from custom_autograd import through_dispatcher
from custom_autograd.benchmarking.interleaved import Timing, measure
from custom_autograd.torch_private.dispatch import has_python_dispatch

LIBRARY, FUNCTION = "torch.library", "Function"
OURS = ("by name", "drop-in")
CALLS = 40
"""Calls in each graph whose compilation is timed."""

Call = Callable[..., Any]


class Function(peers.WithSetup):
    """The op as an autograd.Function that every transform takes."""

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save for both modes."""
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent_x: Tensor | None, tangent_y: Tensor | None) -> Tensor:
        """Return the tangent."""
        return tangent(*ctx.saved_tensors, tangent_x, tangent_y)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, y: Tensor) -> tuple[Tensor, int]:
        """Map."""
        return Function.apply(x, y), 0


def tangent(x: Tensor, y: Tensor, tangent_x: Tensor | None, tangent_y: Tensor | None) -> Any:
    """Return the tangent of x * y."""
    if tangent_y is None:
        return None if tangent_x is None else tangent_x * y
    return x * tangent_y if tangent_x is None else tangent_x * y + x * tangent_y


class Watching(TorchFunctionMode):
    """A mode that only passes on."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call."""
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):
    """A mode that only passes on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call."""
        return func(*args, **(kwargs or {}))


class Subclass(Tensor):
    """A subclass that only passes on."""


def subclassed(grad: bool) -> tuple[Any, ...]:
    """Return two tensors of a subclass."""
    return tuple(x.detach().as_subclass(Subclass).requires_grad_(grad) for x in pair()(grad))


def same(value: Any) -> Any:
    """Return a saved tensor as it is."""
    return value


def ops() -> dict[str, Call]:
    """Return the op in every way to declare it, with the same rules."""
    found: dict[str, Any] = {"by name": peers.by_name(), "drop-in": peers.drop_in(), LIBRARY: peers.torch_library()}
    found["by name"].register_jvp(lambda x, y, tangent_x, tangent_y: tangent(x, y, tangent_x, tangent_y))
    for op in found.values():
        op.register_vmap(lambda info, in_dims, x, y, op=op: (op(x, y), 0))
    return {**found, FUNCTION: Function.apply}


def called(names: tuple[str, ...], modes: tuple[str, ...] = MODES, make: Any = None, around: Any = None) -> Any:
    """Return what makes the cases of plain calls of some peers."""

    def cases(by_name: Mapping[str, Call]) -> Cases:
        found: Cases = {}
        for name in names:
            call = by_name[name] if around is None else around(by_name[name])
            found |= modes_of(name, call, make or pair(), modes)
        return found

    return cases


def profiled(by_name: Mapping[str, Any]) -> Cases:
    """Return the cases of the peers that a profile shows: from torch 2.15 on it hides the op of torch.library."""
    is_hidden = has_python_dispatch(by_name[LIBRARY]._opoverload)
    return called(tuple(name for name in ALL if name != LIBRARY or not is_hidden))(by_name)  # type: ignore[no-any-return]


def applied(
    names: tuple[str, ...], transform: Callable[[Call], Callable[[Tensor, Tensor], Any]], shape: Any = 8
) -> Any:
    """Return what makes the cases of transforms of some peers."""
    x, y = torch.rand(shape), torch.rand(shape)
    return lambda by_name: {f"{name} | ": functools.partial(transform(by_name[name]), x, y) for name in names}


def dual(names: tuple[str, ...]) -> Any:
    """Return what makes the cases of a forward-mode level, which is open."""

    def cases(by_name: Mapping[str, Call]) -> Cases:
        x, y = (forward_ad.make_dual(torch.rand(8), torch.rand(8)) for _ in range(2))
        return {f"{name} | ": functools.partial(by_name[name], x, y) for name in names}

    return cases


def checkpointed(op: Call) -> Call:
    """Return a call that is computed again in the backward."""
    return lambda x, y: checkpoint(op, x, y, use_reentrant=False)


ALL, NAMED = (*OURS, LIBRARY, FUNCTION), ("by name", FUNCTION)
TRANSFORMED = (*OURS, FUNCTION)  # torch.func refuses the gradients of torch.library
ROADS: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Mapping[str, Call]], Cases]]] = {
    "dispatcher": (through_dispatcher, called((*OURS, LIBRARY))),
    "profiler": (lambda: torch.autograd.profiler.profile(use_kineto=True), profiled),
    "function mode": (Watching, called((*OURS, LIBRARY))),
    "dispatch mode": (Dispatching, called(ALL)),
    "subclass": (contextlib.nullcontext, called(ALL, make=subclassed)),
    "dual level": (forward_ad.dual_level, dual(NAMED)),
    "checkpoint": (contextlib.nullcontext, called(ALL, ("forward + backward",), around=checkpointed)),
    "saved-tensor hooks": (lambda: saved_tensors_hooks(same, same), called(ALL, ("forward", "forward + backward"))),
    "func.grad": (
        contextlib.nullcontext,
        applied(TRANSFORMED, lambda op: lambda x, y: torch.func.grad(lambda x: op(x, y).sum())(x)),
    ),
    "func.jvp": (contextlib.nullcontext, applied(NAMED, lambda op: lambda x, y: torch.func.jvp(op, (x, y), (y, x)))),
    "hessian": (
        contextlib.nullcontext,
        applied(NAMED, lambda op: lambda x, y: torch.func.hessian(lambda x: op(x, op(x, y)).sum())(x)),
    ),
    "vmap": (contextlib.nullcontext, applied(ALL, torch.vmap, (3, 8))),
    "vmap(grad)": (
        contextlib.nullcontext,
        applied(TRANSFORMED, lambda op: torch.vmap(torch.func.grad(lambda x, y: op(x, y).sum())), (3, 8)),
    ),
}
"""By name: what is open meanwhile, and the calls."""

PROCESSES = {"newer torch": ({}, "2.19.0"), "no native calls": ({"CUSTOM_AUTOGRAD_NATIVE": "0"}, "")}
"""Plain calls in a process of their own: what its environment says, and which version its torch."""


LIMITS = {
    "checkpoint": {"forward + backward": 0.66},
    "function mode": {"no grad": 0.36, "forward": 0.26, "forward + backward": 0.54},
    "no native calls": {"no grad": 0.85, "forward": 0.75, "forward + backward": 0.90},
}
"""Ratios that are not to be passed; on every other road 1.0."""


def targets() -> list[tuple[str, str, str, dict[str, float]]]:
    """Return the targets of all roads, as in overhead.py: against each peer that gives the right result there."""
    roads = [*ROADS, *PROCESSES, "compile, aot_eager", "compile, inductor"]
    names = [(f"{road}: {ours}", f"{road}: {peer}") for road in roads for ours in OURS for peer in (LIBRARY, FUNCTION)]
    limits = {name: LIMITS.get(name.partition(":")[0], dict.fromkeys(["", *MODES], 1.0)) for name, _ in names}
    return [(ours, peer, "<=", limits[ours]) for ours, peer in names]


def road_group(seconds: float) -> dict[str, Timing]:
    """Return the timings of all rows, in µs, as "road: peer | mode"."""
    by_name, found = ops(), {}
    each = seconds / (len(ROADS) + len(PROCESSES))
    for road, (around, make) in ROADS.items():
        with around():
            found |= {f"{road}: {name}": timing for name, timing in measure(make(by_name), seconds=each).items()}
    for road, (environment, version) in PROCESSES.items():
        found |= {f"{road}: {name}": timing for name, timing in in_process(environment, version, each).items()}
    return found | compilation(by_name)


def in_process(environment: Mapping[str, str], version: str, seconds: float) -> dict[str, Timing]:
    """Return the timings of plain calls in another process."""
    program = f"import torch; torch.__version__ = {version!r} or torch.__version__; import roads; roads.main({seconds})"
    command = [sys.executable, "-W", "ignore", "-c", program]
    finished = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    return {name: Timing(*figures) for name, figures in json.loads(finished.stdout).items()}


def compilation(by_name: Mapping[str, Call], rounds: int = 5) -> dict[str, Timing]:
    """Return the time to compile a graph of `CALLS` calls with gradients, without any cache."""
    found: dict[str, list[float]] = {}
    x, y = torch.ones(8, requires_grad=True), torch.ones(8)

    def chain(op: Call) -> Call:
        def run(x: Tensor, y: Tensor) -> Tensor:
            for _ in range(CALLS):
                x = op(x, y)
            return x

        return run

    with uncached():
        for _ in range(rounds):
            for backend in ("aot_eager", "inductor"):
                for name in (*OURS, LIBRARY):
                    torch.compiler.reset()
                    gc.collect()
                    start = time.perf_counter()
                    torch.compile(chain(by_name[name]), fullgraph=True, backend=backend)(x, y).sum().backward()
                    found.setdefault(f"compile, {backend}: {name} | ", []).append((time.perf_counter() - start) * 1e6)
    return {name: Timing(min(times), sorted(times)[rounds // 2], rounds, 1) for name, times in found.items()}


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Compile all anew."""
    import torch._functorch.config
    import torch._inductor.config

    with (
        torch._inductor.config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield


def main(seconds: float) -> None:
    """Print the timings of plain calls in this process, as JSON."""
    torch.set_num_threads(1)
    by_name = {"by name": peers.by_name(), "drop-in": peers.drop_in(), LIBRARY: peers.torch_library()}
    cases = {case: work for name, op in by_name.items() for case, work in modes_of(name, op, pair()).items()}
    timings = measure(cases, seconds=seconds)
    print(json.dumps({name: [t.minimum, t.median, t.rounds, t.calls] for name, t in timings.items()}))
