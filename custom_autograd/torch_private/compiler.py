"""Keeps compilers out of code that the dispatcher calls, and connects nodes and compile caches with them.

- `_C._dynamo.eval_frame.set_code_exec_strategy`: what `torch.compiler.disable` does with each call, once and for all
  calls of one function, and without importing Dynamo, which takes a second.
- `_C._dynamo.eval_frame.get_eval_frame_callback`: whether Dynamo would compile the functions that are called now.
- `_dynamo_marked_constant`: the mark that `torch.compiler.assume_constant_result` sets, which imports Dynamo to do so.
- `_torchdynamo_inline`: the attribute of a function that holds the one that Dynamo traces in its place.
- `_guards.TracingContext`: whether Dynamo or AOTAutograd traces now; `torch.compiler.is_compiling` is for traced code.
- `_C._get_dispatch_mode`, `_C._TorchDispatchModeKey.PROXY`, `_C._is_tracing`: whether `make_fx` or `torch.jit.trace`
  records.
- `torch.compiler.config.cache_key_tag` is public, but its module imports the compiler: it is set once that is loaded.

- `_dynamo.external_utils.call_backward`: runs the backward of a ctx's `_forward_cls` with tensors in place of its
  `saved_tensors`; Dynamo traces it.
- `AutogradCompilerInstance.hooks_proxy`, `fx_tracer`, `to_proxy`, `allocate_dummy`, `bind_objects_to_proxies`: the
  graph of one backward pass while it is recorded.

- `_library.triton.set_wrap_triton_enabled`: what `torch.library.triton_op` runs its function under in eager calls:
  there, a launch as a node of a graph would take about a millisecond (found in torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch._C._dynamo import eval_frame
from torch._guards import TracingContext
from torch._library.triton import set_wrap_triton_enabled

F = TypeVar("F", bound=Callable[..., object])

TRACES_ATTRIBUTES = torch.__version__ >= "2.13"
"""Whether Dynamo can list the attributes of an instance: torch 2.11 and 2.12 cannot."""

COMPILES_RULES_OF_FUNCTIONS = torch.__version__ >= "2.15"
"""Whether Dynamo traces the backward of a `torch.autograd.Function` under `torch.func`, and not its forward only."""

compiling_callback = eval_frame.get_eval_frame_callback
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def outside_compilation(function: F) -> F:
    """Return the same function, which Dynamo does not compile: a kernel may do what no compiler understands."""
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function


def is_tracing() -> bool:
    """Return True if a compiler traces in this thread: asked by what it calls, such as a fake kernel."""
    return TracingContext.try_get() is not None


def is_exporting() -> bool:
    """Return True if `torch.export`, `make_fx` or `torch.jit.trace` records a program, which may be trained later."""
    if torch.compiler.is_exporting() or torch.compiler.is_dynamo_compiling():
        return torch.compiler.is_exporting()
    return torch._C._is_tracing() or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def constant_in_graphs(function: F) -> F:
    """Return the same function; Dynamo calls it while it traces, with constants, and takes the result for one."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # an attribute of a function
    return function


def computing_attributes(owner: object) -> Callable[[str], None]:
    """Return a function that computes a lazy attribute of an object, also for Dynamo.

    Dynamo would trace the write to the object: it warns of it in an export, and traces the caller again in the next
    call, which finds another object.
    """
    found = ref(owner)

    @constant_in_graphs
    def compute(attribute: str) -> None:
        with suppress(Exception):  # whoever reads the attribute gets the error
            getattr(found(), attribute)

    return compute


def traced_as(traced: Callable[..., object]) -> Callable[[F], F]:
    """Return a decorator of a function that Dynamo traces another one in place of; it guards on the code of both."""

    def decorate(function: F) -> F:
        function._torchdynamo_inline = traced  # type: ignore[attr-defined]  # as above
        return function

    return decorate


def raise_text(kind: type[Exception], text: str) -> NoReturn:
    """Raise an exception with a text, where Dynamo may trace that."""
    # Dynamo of torch 2.11 and 2.12 leaves out the text of an exception whose class has an `__init__`. Eager code, which
    # runs the call again if the graph breaks here, gets the class.
    if torch.compiler.is_dynamo_compiling():
        raise RuntimeError(text)
    raise kind(text)


class CacheTag:
    """The part of `torch.compiler.config.cache_key_tag` for the rules of all ops.

    Sums are kept, so that the tag does not depend on the order in which ops are declared.
    """

    def __init__(self) -> None:
        self._parts: dict[str, int] = {}
        self._total = 0
        self._written = ""
        self._counted: WeakKeyDictionary[TracingContext, set[str]] = WeakKeyDictionary()

    def is_due(self, name: str) -> bool:
        """Return True if a compilation runs in this thread, and this is its first call with a name."""
        compilation = TracingContext.try_get()
        if compilation is None or name in self._counted.setdefault(compilation, set()):
            return False
        self._counted[compilation].add(name)
        return True

    def update(self, name: str, part: int) -> None:
        """Set the share of one op, and write the tag."""
        self._total = (self._total - self._parts.get(name, 0) + part) % 2**64
        self._parts[name] = part
        self._write()

    def _write(self) -> None:
        from torch.compiler import config

        rest = config.cache_key_tag.replace(self._written, "") if self._written else config.cache_key_tag
        self._written = f"|custom_autograd:{self._total:016x}"
        config.cache_key_tag = rest + self._written


def trace_backward(
    compiler: Any,  # Any: an AutogradCompilerInstance
    index: int,
    gradients: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Record the call of a backward in the graph of compiled autograd; return its gradients there, by input."""
    from torch._dynamo.external_utils import call_backward  # loads the compiler

    arguments = (compiler.hooks_proxy[index], compiler.to_proxy(list(saved)), *compiler.to_proxy(list(gradients)))
    found = compiler.fx_tracer.create_proxy("call_function", call_backward, args=arguments, kwargs={})
    results = [compiler.allocate_dummy() if need else None for need in needs]
    wanted = [(result, found[i]) for i, result in enumerate(results) if result is not None]
    compiler.bind_objects_to_proxies([result for result, _ in wanted], [proxy for _, proxy in wanted])
    return tuple(results)


def launching_directly() -> AbstractContextManager[None]:
    """Let `torch.library.wrap_triton` return kernels as they are while the context is open."""
    return set_wrap_triton_enabled(False)
