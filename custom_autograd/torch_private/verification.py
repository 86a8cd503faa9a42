"""What verification needs of torch that has no public name; one line each says why (found in torch 2.13).

FakeTensorMode (in fakes.py)   runs an op on metadata only; torch.library.opcheck uses it, nothing public gives it
ShapeEnv                       lets a fake of data-dependent size answer with a symbol instead of raising
CustomOpDef._opoverload        the overload behind torch.library.custom_op
CustomOpDef._init_fn           the function it was declared with, for its file and line
CustomOpDef._backward_fn       its backward, to see the gradients it returns
CustomOpDef._setup_context_fn, _vmap_fn   its other rules, to see what they change
BackwardCFunction._forward_cls the Function that a node of Python came from, for the same
OpOverload, OpOverloadPacket   the classes, to tell an op from another callable
OpOverload._schema             argument and return names, types and alias annotations
_debug_only_display_vmap_fallback_warnings   silences a warning written past Python's warnings
Tensor._version                tells an in-place write from none

utils._python_dispatch.TorchDispatchMode     the only way to see every op that runs; its module is private
_DisableTorchDispatch                        lets a wrapper follow a change of shape in place
_set_throw_on_mutable_data_ptr               makes the address of a tensor without memory an error
Tensor._make_wrapper_subclass                the only way to make a tensor that holds another one

torch._dynamo, torch._inductor.compile_fx, torch.fx.experimental.symbolic_shapes   nothing public loads them ahead of
    their first use, and a forked process would load them each time

_dynamo.backends.registry.lookup_backend   aot_eager as a function, for a backend that counts and then calls it
_dynamo.compiled_autograd._enable          compiles the whole backward; torch documents only a process-wide setting
_dynamo.guards.profile_guard_manager       times new guards for a log, once the cache of the CPU is empty: 22 ms
"""

import contextlib
import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.torch_private.definitions import is_foreign
from custom_autograd.torch_private.fakes import new_fake_mode
from custom_autograd.torch_private.functions import COMPRESSED

Overload: TypeAlias = OpOverload
"""An op of the dispatcher; torch names the class in a private module only."""


Definition: TypeAlias = CustomOpDef
"""What torch.library.custom_op gives; torch.library holds the name without exporting it to type checkers."""


@dataclass(frozen=True, slots=True)
class OverloadArgument:
    """One argument of an overload: its name, its type as the schema spells it, whether it is written to, its default.

    The default is `inspect.Parameter.empty` where there is none.
    """

    name: str
    type: str
    is_mutated: bool
    default: object


@contextlib.contextmanager
def quiet_vmap() -> Iterator[None]:
    """Silence torch's note on the terminal that an op of torch.library has no batching rule and is looped over."""
    torch._C._debug_only_display_vmap_fallback_warnings(False)  # type: ignore[attr-defined]  # it has no stub
    yield


@contextlib.contextmanager
def fake_mode() -> Iterator[Callable[[Tensor], Tensor]]:
    """Run everything within on metadata; yield the function that turns a real tensor into a fake one."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = new_fake_mode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    with mode:
        yield lambda tensor: mode.from_tensor(tensor, static_shapes=True)


def find_overload(value: object) -> Overload | None:
    """Return the overload, or the default overload of a packet such as torch.ops.aten.sin; None for anything else."""
    if isinstance(value, OpOverloadPacket):
        return getattr(value, "default", None)
    return value if isinstance(value, OpOverload) else None


def overload_of_definition(definition: Definition) -> Overload:
    """Return the overload behind an op declared by torch.library.custom_op."""
    overload: Overload = definition._opoverload
    return overload


def function_of_definition(definition: Definition) -> Callable[..., object]:
    """Return the function an op was declared with by torch.library.custom_op."""
    function: Callable[..., object] = definition._init_fn
    return function


@dataclass(frozen=True, slots=True)
class Returned:
    """The gradients that a backward returned, unchanged, one per argument, and the number of arguments."""

    grads: tuple[object, ...]
    arguments: int


def _arguments_of(value: object, ctx: Any) -> int:  # Any: a ctx has whatever a rule puts on it
    """Return how many gradients there are to be; the dispatcher drops arguments that equal their defaults."""
    if is_foreign(value):
        return sum(not argument.kwarg_only for argument in value._opoverload._schema.arguments)
    return len(ctx.needs_input_grad)


def rules_of_definition(value: object) -> dict[str, Callable[..., Any]]:  # Any: rules of any signature
    """Return the rules for derivatives of an op of `torch.library.custom_op`, by what they are; none for others."""
    if not is_foreign(value):
        return {}
    rules = {"backward": value._backward_fn, "setup_context": value._setup_context_fn, "vmap rule": value._vmap_fn}
    return {title: rule for title, rule in rules.items() if rule is not None}


@contextlib.contextmanager
def watched_backward(value: object, node: object) -> Iterator[tuple[bool, list[Returned]]]:
    """Watch what a backward returns, before the engine sums, casts or drop any of it.

    Yields:
        Whether it is watched: not if the backward is none of Python's; and what each backward returned.
    """
    seen: list[Returned] = []

    def watching(backward: Callable[..., Any]) -> Callable[..., Any]:  # Any: whatever a backward takes and returns
        def watch(ctx: Any, *grads: Any) -> Any:
            result = backward(ctx, *grads)
            returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
            seen.append(Returned(returned, _arguments_of(value, ctx)))
            return result

        return watch

    function: Any = getattr(node, "_forward_cls", None)  # Any: a subclass of Function, whose methods are untyped
    owner: Any
    own: Any
    if is_foreign(value) and value._backward_fn is not None:
        owner, name, own = value, "_backward_fn", value._backward_fn
        watched: object = watching(own)
    elif function is not None:
        owner, name, own = function, "backward", function.__dict__.get("backward")
        watched = staticmethod(watching(function.backward))
    else:
        yield False, seen
        return
    setattr(owner, name, watched)
    try:
        yield True, seen
    finally:
        if own is None:  # it is inherited
            delattr(owner, name)
        else:
            setattr(owner, name, own)


def arguments_of_overload(overload: Overload) -> tuple[OverloadArgument, ...]:
    """Return the arguments of an overload, in the order of its schema."""
    return tuple(
        OverloadArgument(
            argument.name,
            str(argument.type),
            argument.alias_info is not None and argument.alias_info.is_write,
            argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
        )
        for argument in overload._schema.arguments
    )


def may_alias(overload: Overload) -> bool:
    """Return True if the schema declares that a return shares memory with an argument."""
    return any(result.alias_info is not None for result in overload._schema.returns)


def version_of(tensor: Tensor) -> int | None:
    """Return how often a tensor was written to in place; None if that is unknown, as for an inference tensor."""
    return None if tensor.is_inference() or tensor.layout in COMPRESSED else tensor._version


def name_of_overload(overload: Overload) -> str:
    """Return the name of an overload, "namespace::name", with ".overload" unless it is the default one."""
    name: str = overload.name()
    return name.removesuffix(".default")


def schema_text(overload: Overload) -> str:
    """Return the schema of an overload as the dispatcher prints it."""
    return str(overload._schema)


OnOp = Callable[[Overload, Sequence[object], Mapping[str, object], object], None]
"""Told of an op, its arguments and what it returned."""


class Watch(TorchDispatchMode):
    """Within, every op that runs is reported and runs as it would."""

    def __init__(self, on_op: OnOp) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no annotation here
        self._on_op = on_op

    def __torch_dispatch__(
        self, func: Overload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # Any: whatever the op returns
        """Run the op, then report it."""
        found = func(*args, **(kwargs or {}))
        self._on_op(func, args, kwargs or {}, found)
        return found


class Wrapped(Tensor):
    """A tensor that holds another one and no data of its own; ops run on what it holds.

    Attributes:
        held: the tensor it holds.
        seen: names of the ops that reached it, shared by all that are derived from it.
    """

    held: Tensor
    seen: list[str]

    @staticmethod
    def __new__(cls: type["Wrapped"], inner: Tensor, seen: list[str]) -> "Wrapped":
        """Return a wrapper of the same metadata, which does not require grad."""
        if inner.is_conj() or inner.is_neg():
            raise NotImplementedError("a wrapper does not pass on that what it holds is a conjugate view")
        made: Wrapped = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
        )
        torch._C._set_throw_on_mutable_data_ptr(made)  # it has none: what reads at an address of 0 ends the process
        made.held, made.seen = inner, seen
        return made

    def __repr__(self) -> str:  # type: ignore[override]  # torch's own takes the contents as well
        """Return the tensor within."""
        return f"Wrapped({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch types it more loosely
        cls, func: Overload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # Any: whatever the op returns
        """Run the op on what is held, and hold what it returns."""
        seen: list[str] = []

        def unwrap(wrapper: Wrapped) -> Tensor:
            nonlocal seen
            seen = wrapper.seen
            return wrapper.held

        values, named = tree_map_only(Wrapped, unwrap, (args, kwargs or {}))
        found = func(*values, **named)
        seen.append(name_of_overload(func))
        if torch.Tag.inplace_view in func.tags:  # squeeze_, of a vector times a matrix: the wrapper has a shape as well
            with torch._C._DisableTorchDispatch():
                func(*args, **(kwargs or {}))
            return args[0]
        return tree_map_only(Tensor, lambda tensor: Wrapped(tensor, seen), found)


LOADED_BY = (
    ("torch.fx.experimental.symbolic_shapes", "derivatives layout determinism"),
    ("torch._dynamo", "metadata autocast bounds explore needs nesting profiler saved_hooks subclasses uninitialised"),
    ("torch._decomp.decompositions_for_jvp", "forward_mode adjoint nesting compiled_transforms explore"),
    ("torch.export._trace", "symbolic export compiled_autograd compiled_transforms compile recompilation opcheck"),
    ("torch._inductor.compile_fx", "compile recompilation opcheck"),
)
"""Modules that torch loads when it is asked for symbols, traces, tangents or compiled code, and who asks for them."""


def load_for(words: Collection[str]) -> None:
    """Load what the checks of these groups and names make torch load; what an unknown torch lacks is left to it."""
    wanted = [module for module, asking in LOADED_BY if not set(asking.split()).isdisjoint(words)]
    for module in wanted:
        if module not in sys.modules:
            with warnings.catch_warnings(), contextlib.suppress(ImportError):
                warnings.simplefilter("ignore")  # of torch itself, about what it imports
                importlib.import_module(module)


class GraphCounter:
    """A backend for torch.compile that counts the graphs it is given.

    Attributes:
        graphs: how many graphs were compiled.
    """

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        """Compile as aot_eager does: forward and backward are traced, and nothing is generated."""
        from torch._dynamo.backends.registry import lookup_backend  # loads the compiler, which only this needs

        self.graphs += 1
        compiled: Callable[..., Any] = lookup_backend("aot_eager")(graph, inputs)
        return compiled


@contextlib.contextmanager
def compiled_backward() -> Iterator[None]:
    """Compile every backward within as a whole; what cannot be compiled runs as it is."""
    from torch._dynamo.compiled_autograd import _enable  # loads the compiler, which only this needs

    with _enable(torch.compile(backend="eager")), untimed_guards():
        yield


@contextlib.contextmanager
def untimed_guards() -> Iterator[None]:
    """Compile what is compiled within without timing its guards, which a log shows and nothing needs."""
    from torch._dynamo import guards  # loads the compiler, which only this needs

    module: Any = guards  # its stubs do not export the name
    timing = module.profile_guard_manager
    module.profile_guard_manager = lambda *_: 0.0
    try:
        yield
    finally:
        module.profile_guard_manager = timing
