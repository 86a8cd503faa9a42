"""custom_op and CustomOp: the public face. Signatures and docstrings; each method is one call downwards."""

from __future__ import annotations

import functools
import os
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, cast

import torch

from custom_autograd import cpp_rules, declare
from custom_autograd.capabilities import (
    autocast,
    autograd,
    effects,
    fake_rules,
    flops,
    kernel_rules,
    shape_notation,
    subclasses,
    vmap,
)
from custom_autograd.capabilities import reference_rules as references
from custom_autograd.core.decorators import or_decorator, or_decorator_for
from custom_autograd.core.errors import CheckError
from custom_autograd.core.lazy import Lazy
from custom_autograd.core.locations import location_of_declaration
from custom_autograd.core.option_types import check_bools
from custom_autograd.core.signatures import AnnotationsOfWrapped
from custom_autograd.execution import passing
from custom_autograd.execution.call import publish
from custom_autograd.execution.generated import generated_code_of, source_of
from custom_autograd.execution.kernel_options import KernelOptions
from custom_autograd.kernels import native_kernels
from custom_autograd.native import loading as native_loading
from custom_autograd.registration import dispatcher_library as library
from custom_autograd.registration.policy_types import Cast
from custom_autograd.registration.registry import OpRecord, one_declaration_at_a_time
from custom_autograd.schema.annotations import Refusal
from custom_autograd.schema.schema import Schema
from custom_autograd.shapes.rule import DType, ShapeOptions
from custom_autograd.torch_attributes import with_attributes
from custom_autograd.torch_private.compiler import computing_attributes, outside_compilation, traced_as
from custom_autograd.torch_private.definitions import OwnDefinition
from custom_autograd.torch_private.dispatch import OpOverload
from custom_autograd.values.validation import level_of, parse_level

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from custom_autograd.kernels.cpp import CppKernel
    from custom_autograd.registration.policy_types import SavingPolicy
    from custom_autograd.schema.samples import Sample
    from custom_autograd.variants import InplaceVariant, OutVariant
    from custom_autograd.verification.report import Report

    class Options(TypedDict, total=False):
        """The options of `custom_op` but `hidden`, for type checkers."""

        mutates_args: str | Iterable[str]
        device_types: str | Sequence[str] | None
        schema: str | None
        tags: Sequence[torch.Tag] | None
        outputs: Sequence[str] | None
        non_differentiable: Sequence[str]
        aliases: Mapping[str, str] | None
        reference: bool
        static: Sequence[str]
        inline: Literal["reference"] | None
        checkpoint: Literal["save", "recompute"] | None
        shapes: str | None
        along: str | Sequence[str] | None
        dtypes: Mapping[str, DType] | None
        flops: str | None
        numbers: Mapping[str, Any] | None  # Any: a function, or a value of the argument
        replace: bool


P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=str | Callable[..., Any])
H = TypeVar("H", bound="CustomOp[..., Any]")
DeviceTypes = str | Sequence[str] | None
Layouts = str | Mapping[str, str] | None


@typing.overload
def custom_op(
    name: str, fn: None = None, /, *, hidden: tuple[()] = (), **options: Unpack[Options]
) -> Callable[[Callable[P, R]], CustomOp[P, R]]: ...
@typing.overload
def custom_op(
    name: str, fn: None = None, /, *, hidden: Sequence[str], **options: Unpack[Options]
) -> Callable[[Callable[P, Any]], CustomOp[P, Any]]: ...
@typing.overload
def custom_op(
    name: str, fn: Callable[P, R], /, *, hidden: Sequence[str] = (), **options: Unpack[Options]
) -> CustomOp[P, R]: ...
def custom_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    device_types: DeviceTypes = None,
    schema: str | None = None,
    tags: Sequence[torch.Tag] | None = None,
    outputs: Sequence[str] | None = None,
    hidden: Sequence[str] = (),
    non_differentiable: Sequence[str] = (),
    aliases: Mapping[str, str] | None = None,
    reference: bool = False,
    static: Sequence[str] = (),
    inline: Literal["reference"] | None = None,
    checkpoint: Literal["save", "recompute"] | None = None,
    shapes: str | None = None,
    along: str | Sequence[str] | None = None,
    dtypes: Mapping[str, DType] | None = None,
    flops: str | None = None,
    numbers: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Any:  # Any: the overloads say what
    """Declare a PyTorch operation. A superset of `torch.library.custom_op`.

    Args:
        name: "namespace::name".
        fn: the function; leave it out to use this as a decorator. It computes the op on any device that has no kernel
            of its own.
        mutates_args: the names of the arguments that kernels write to, or "unknown" for all tensors.
        device_types: the device types that `fn` serves; None for every one.
        schema: the schema string, where annotations cannot say it; `fn` then needs none.
        tags: dispatcher tags.
        outputs: one name per output; default: from the schema, NamedTuple or `shapes`, else `output` or `output_0`, ...
        hidden: outputs that rules can use but a call does not return.
        non_differentiable: inputs and outputs that never carry a gradient. Integers and bools do not by themselves.
        aliases: by output, the input that kernels may return instead: `{"output": "x"}`. The caller may then get
            memory that is shared with that input; graphs and transforms see a copy.
        reference: `fn` is written in differentiable PyTorch operations; it serves as what is not registered.
        static: arguments that take functions or classes that can be imported; they travel as "module:name".
        inline: "reference": under `torch.compile` the reference takes the place of the op in the graph, so that the
            compiler can fuse it with its neighbours; gradients are those of the op's rules.
        checkpoint: whether `custom_autograd.checkpointing()` saves the op's outputs ("save") or runs the op again.
        shapes: the dimensions of all tensors in one line, such as `"x: *b [d], weight: [d] -> out: *b [d]"`; see
            `register_shapes`, which also takes a function.
        along: in place of `shapes`, where jaxtyping's annotations say the dimensions: those that the op computes along.
        dtypes: as in `register_shapes`.
        flops: as in `register_shapes`.
        numbers: as in `register_shapes`.
        replace: an op of that name may exist. Old handles to it keep what they were declared with.

    Returns:
        The op, or a decorator that makes it.

    Raises:
        DeclarationError: the declaration cannot be an op, or the name is taken.

    Example:
        >>> import torch
        >>> from torch import Tensor
        >>> from custom_autograd import custom_op
        >>> @custom_op("docs::cube")
        ... def cube(x: Tensor) -> Tensor:
        ...     return x * x * x
        >>> @cube.register_backward
        ... def _(grad, x):
        ...     return 3 * grad * x * x
        >>> torch.func.grad(cube)(torch.tensor(2.0))
        tensor(12.)
    """
    declare.require_name(name)

    def decorate(function: Callable[..., Any]) -> CustomOp[..., Any]:
        refuse = Refusal(name, location_of_declaration(function))
        options = declare.options_of(
            refuse, mutates_args, schema, outputs, hidden, non_differentiable, tags, aliases, static, inline, checkpoint
        )
        notation = ShapeOptions(shapes, along, dtypes, flops, numbers)
        record = declare.declare(
            function, options, device_types, refuse, is_reference=reference, shapes=notation, replace=replace
        )
        op: CustomOp[..., Any] = CustomOp(record)
        native_loading.start(record)
        return op

    return decorate if fn is None else decorate(fn)


@with_attributes
class CustomOp(OwnDefinition, Generic[P, R]):
    """A PyTorch operation declared with `custom_op`; not to be made by hand."""

    if sys.version_info >= (3, 14):  # before, `functools.update_wrapper` gives each op those of its function
        __annotations__ = cast("dict[str, Any]", AnnotationsOfWrapped())

    def __new__(cls: type[H], record: OpRecord) -> H:
        """Return an instance of a new subclass, which gets the `__call__` that is generated for the op."""
        names: dict[str, object] = {"__module__": cls.__module__, "__slots__": native_kernels.SLOTS}
        call = passing.first_call(cls.__call__, record.declaration)
        if call is not None:
            names["__call__"] = call
        return cast(H, object.__new__(type(cls.__name__, (cls,), names)))

    def __init__(self, record: OpRecord) -> None:
        self._record: OpRecord = record
        self._hash = hash(record.overload)
        function = self.python_function
        functools.update_wrapper(self, function, updated=())
        self.__name__ = getattr(function, "__name__", record.declaration.name.name)
        self.__signature__ = declare.signature_of(record)
        self._compute = computing_attributes(self)
        with record.lock:
            record.road.uncalled.add(self)
        if record.handle is None:
            with one_declaration_at_a_time:  # another thread may replace the op: torch must not find it half attached
                record.handle = self
                library.publish(record)

    def __eq__(self, other: object) -> bool:
        """Return True for this op and for its overload, which policies of selective checkpointing are asked about."""
        return self is other or (isinstance(other, OpOverload) and other is self._record.overload)

    def __hash__(self) -> int:
        """Return the hash of the overload that the op had when this handle was made: a set may hold either."""
        return self._hash

    def __repr__(self) -> str:
        return f"<CustomOp {self._record.name}{self._record.declaration.schema.text}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: name, schema, capabilities, kernels and generated source."""
        from custom_autograd.verification.report import html  # only a notebook needs it

        record = self._record
        capabilities, kernels = declare.capabilities(record), record.kernels.listed()
        location = record.declaration.location
        return html.format_op(
            record.name, record.declaration.schema.text, location, capabilities, kernels, source_of(record)
        )

    def __deepcopy__(self: H, memo: dict[int, Any]) -> H:
        return self

    def __copy__(self: H) -> H:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, declare.pickled(self._record)

    def _call_in_graph(self, /, *args: Any, **kwargs: Any) -> Any:  # Any: as the schema declares
        """Call the op while Dynamo traces, until `publish` has replaced `__call__`."""
        dispatched = self._record.dispatched
        dispatched.generate()  # type: ignore[union-attr]  # the op is defined
        return dispatched.in_graphs(self, *args, **kwargs)  # type: ignore[union-attr]  # as above

    @traced_as(_call_in_graph)
    @outside_compilation  # this frame, when it runs eagerly
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the op; hidden outputs are dropped."""
        if self._record.call_behind is not None:
            return self._record.call_behind(self, *args, **kwargs)  # type: ignore[no-any-return]  # what the schema declares
        if native_loading.start(self._record):
            return self(*args, **kwargs)
        publish(self._record)
        return type(self).__call__(self, *args, **kwargs)

    @property
    def name(self) -> str:
        """Return the qualified name, "namespace::name"."""
        return self._record.name

    @property
    def schema(self) -> Schema:
        """Return arguments and outputs, with names, types, mutability and differentiability."""
        return self._record.declaration.schema

    @property
    def overload(self) -> OpOverload:
        """Return the dispatcher's op, `torch.ops.namespace.name.default`; it returns hidden outputs too."""
        assert self._record.overload is not None
        return self._record.overload

    @property
    def inplace(self) -> InplaceVariant:
        """Return the variant `op.inplace(x, ...)`, which writes the result into its first argument and returns that.

        Raises:
            DeclarationError: the op can have none; the message gives the reason.
        """
        self._compute("_inplace")
        return self._inplace

    @property
    def out(self) -> OutVariant:
        """Return the variant `op.out(..., out=tensor)`, which writes the results into tensors of the caller.

        Raises:
            DeclarationError: the op can have none; the message gives the reason.
        """
        self._compute("_out")
        return self._out

    @Lazy
    def _inplace(self) -> InplaceVariant:
        from custom_autograd.variants import InplaceVariant  # loaded for ops whose variants are used

        return InplaceVariant(self._record)

    @Lazy
    def _out(self) -> OutVariant:
        from custom_autograd.variants import OutVariant  # as above

        return OutVariant(self._record)

    @property
    def function(self) -> type[torch.autograd.Function]:
        """Return the generated `torch.autograd.Function`, with `setup_context`."""
        return generated_code_of(self._record).recording.function

    @property
    def source(self) -> str:
        """Return the generated Python source of the wrapper, the Function and the kernels' frame."""
        return source_of(self._record)

    @property
    def reference(self) -> Callable[..., Any] | None:  # Any: takes and returns what the schema declares
        """Return the computation in differentiable PyTorch operations: a decomposition of `overload`; or None.

        It is the decorated function of an op declared with `reference=True`, or that of `register_reference`; where
        arguments are containers, it takes what the schema has for them.
        """
        return self._record.reference()

    @property
    def python_function(self) -> Callable[..., Any]:  # Any: as above
        """Return the function that was decorated, as its author wrote it."""
        declaration = self._record.declaration
        function = declaration.function
        return function if declaration.tree is None else function.__wrapped__  # type: ignore[attr-defined]  # of wraps

    def decompositions(self) -> dict[OpOverload, Callable[..., Any]]:  # Any: as above
        """Return the op's overload with its reference, for `ExportedProgram.run_decompositions`.

        Returns:
            A dict from `op.overload` to `op.reference`, which replaces the op by PyTorch's own ops in a program.

        Raises:
            RegistrationError: the op has no reference.

        Example:
            >>> import torch
            >>> from custom_autograd import custom_op
            >>> @custom_op("deployed::twice", reference=True)
            ... def twice(x: torch.Tensor) -> torch.Tensor:
            ...     return x + x
            >>> program = torch.export.export(torch.nn.Sequential(torch.nn.ReLU()), (torch.ones(2),))
            >>> len(program.run_decompositions(twice.decompositions()).graph.nodes)
            3
        """
        from custom_autograd.deployment import require_reference  # loaded only here

        return {self.overload: require_reference(self._record)}

    def build_library(self, path: str | os.PathLike[str], *, kernel: CppKernel | None = None) -> Path:
        """Build a shared library that registers the op and its C++ kernel when it is loaded, without Python.

        A C++ program that loads it (`dlopen`) can run packages of `torch._inductor.aoti_compile_and_package` that call
        the op. The library has forward calls on the CPU alone, and is compiled for the processor of this machine.

        Args:
            path: where the library is written.
            kernel: the C++ function, which takes and returns what the op does, by position; by default the op's first
                kernel for the CPU.

        Returns:
            The path.

        Raises:
            RegistrationError: the kernel is a Python function, or the C++ function takes or returns something else.
            KernelUnavailable: there is no compiler, it refuses the source, or the path cannot be written.
        """
        from custom_autograd.deployment import build_library  # loaded only here

        return build_library(self._record, path, kernel)

    @property
    def kernels(self) -> dict[str, str]:
        """Return the file and line of the kernels, by device type; the default kernel is under "default".

        Where there are several for a device type, they stand in the order in which they are tried, by name.
        """
        return self._record.kernels.listed()

    @property
    def validation(self) -> str:
        """Return how much each call of this op checks: "full", "cheap" or "off"; see `custom_autograd.validation`.

        Set it to change that for this op; None takes back what was set.
        """
        return level_of(self._record.validation)

    @validation.setter
    def validation(self, level: str | None) -> None:
        self._record.validation = None if level is None else parse_level(level, f"{self.name}, validation")
        self._record.forget()

    def capabilities(self) -> dict[str, str]:
        """Return where each capability comes from: registered, derived (from what), or missing."""
        return declare.capabilities(self._record)

    coverage = capabilities  # its name in the first release

    @or_decorator_for
    def register_kernel(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        device_types: DeviceTypes,
        fn: F,
        /,
        *,
        name: str | None = None,
        when: Callable[..., bool] | None = None,
        priority: int = 0,
        layouts: Layouts = None,
        inline: bool = False,
        replace: bool = False,
    ) -> F:
        """Register a kernel for one or several device types; kernels of different names coexist.

        For each call the kernel with the highest priority runs whose condition accepts the arguments. Of equal ones
        those with a condition come first, then those that were registered first; after all of a device type come those
        for any device. A kernel that raises `KernelUnavailable` is passed over in this process, with a warning.

        Args:
            device_types: such as "cpu" or ("cpu", "cuda"); None for any device.
            fn: takes the op's arguments and returns its outputs, hidden ones included; runs outside autograd, with the
                device of its tensors as the current one.
            name: what `use_kernel` calls it; by default the device type, or "default".
            when: a function of some of the op's arguments, by name; the kernel takes those for which it returns True.
            priority: a kernel with a higher one is asked earlier.
            layouts: what the kernel relies on, by argument or for all tensors: "contiguous", "contiguous_rows" (the
                last dimension has stride 1), "channels_last", "channels_last_3d". Other tensors reach it as copies;
                what it writes to a copy is written back.
            inline: under `torch.compile` its PyTorch operations and launches of Triton kernels take the op's place.
            replace: the device type may have a kernel of that name.

        Returns:
            `fn`, or a decorator.

        Raises:
            RegistrationError: the parameters do not fit the schema, the device type is unknown, the name is taken, or
                a term cannot be kept.
        """
        kernel_options = KernelOptions(name, when, priority, layouts, inline)
        return kernel_rules.register(self._record, device_types, fn, kernel_options, replace=replace)

    def use_kernel(self, name: str) -> AbstractContextManager[None]:
        """Run only kernels of that name while the context is open, in this thread and in backward passes it starts.

        Compiled code follows it too, unless a kernel is inlined: which kernel runs is no part of a graph.
        In the environment, CUSTOM_AUTOGRAD_KERNELS=namespace::op=name,... says the same for a whole process.

        Args:
            name: as given to `register_kernel`; "default" for the decorated function.

        Raises:
            KernelError: there is no such kernel, here or, in a call, for the device type; or its condition says no.
            KernelUnavailable: in a call, it cannot be built or loaded.
        """
        return self._record.kernels.insist(name)

    @or_decorator
    def register_fake(  # pyright: ignore[reportIncompatibleMethodOverride]  # as above
        self, fn: F, /, *, replace: bool = False
    ) -> F:
        """Register what the op returns for fake tensors: empty tensors of the right shape, dtype and device.

        Raises:
            RegistrationError: the parameters do not fit the schema, or a fake is registered.
        """
        return fake_rules.register(self._record, fn, replace=replace)

    @or_decorator
    def register_reference(self, fn: F, /, *, surrogate: str | None = None, replace: bool = False) -> F:
        """Register the same computation in differentiable PyTorch operations.

        It serves as default for whatever is not registered (kernel, fake, backward, jvp, vmap), and as an oracle. Of an
        op that draws random numbers it gives no derivative: it would draw others.

        Args:
            fn: takes the op's arguments and returns its outputs.
            surrogate: why its gradients by autograd are not the derivative of its values, if it detaches on purpose;
                checks then compare with these gradients, and not with finite differences.
            replace: a reference may be registered.

        Raises:
            RegistrationError: the parameters do not fit the schema, or a reference is registered.
        """
        return references.register(self._record, fn, surrogate=surrogate, replace=replace)

    @or_decorator
    def register_backward(
        self,
        fn: F,
        /,
        *,
        once_differentiable: bool = False,
        materialize_grads: bool = True,
        saving: Mapping[str, SavingPolicy] | None = None,
        clear_saved: bool = False,
        surrogate: str | None = None,
        replace: bool = False,
    ) -> F:
        """Register the whole backward, bound by the names of its parameters.

        Args:
            fn: its parameters may be names of inputs and outputs (which are then saved), `grad` or `grad_<output>`,
                `needs` and `meta`. It returns a dict by input name, a tuple in the order of the differentiable inputs,
                or one tensor; values are tensors, None, lists for lists, or callables that run only if needed. A
                `cpp_kernel` is bound by the names in its schema.
            once_differentiable: a second derivative raises.
            materialize_grads: undefined incoming gradients arrive as zeros rather than None, except for parameters
                with a default of None.
            saving: by name of a tensor that the rule names, a policy that keeps it until the backward, such as
                `custom_autograd.graph.offload()`; under `torch.func` and when compiled, it is kept as it is.
            clear_saved: a saved tensor is freed once `fn` has deleted it (`del x`), unless the graph is retained.
            surrogate: why the gradients are not the derivative, such as "clipped"; checks skip comparisons of these
                gradients with finite differences and the reference, and report this reason.
            replace: a backward may be registered.

        Raises:
            RegistrationError: a parameter names nothing, or a backward is registered.
        """
        options = autograd.GradientOptions(once_differentiable, materialize_grads, surrogate, saving, clear_saved)
        with cpp_rules.in_place_of(fn, self._record, (), custom_op, replace=replace) as rule:
            autograd.register_backward(self._record, rule, options, replace=replace)
        return fn

    def register_grad(
        self,
        *inputs: str,
        once_differentiable: bool = False,
        materialize_grads: bool = True,
        surrogate: str | None = None,
        replace: bool = False,
    ) -> Callable[[F], F]:
        """Register the gradient of one input, or of several that are returned as a tuple.

        It runs only if one of them is needed, and only then is saved what it names.

        Args:
            inputs: names of differentiable inputs.
            once_differentiable: as in `register_backward`.
            materialize_grads: as in `register_backward`.
            surrogate: as in `register_backward`.
            replace: a gradient of these inputs may be registered.

        Raises:
            RegistrationError: a name is not a differentiable input, a parameter is unknown, or a rule exists already.
        """
        autograd.check_inputs(self._record, inputs)
        options = autograd.GradientOptions(once_differentiable, materialize_grads, surrogate)

        def register(fn: F) -> F:
            with cpp_rules.in_place_of(fn, self._record, inputs, custom_op, replace=replace) as rule:
                autograd.register_gradient(self._record, inputs, rule, options, replace=replace)
            return fn

        return register

    @or_decorator
    def register_jvp(self, fn: F, /, *, surrogate: str | None = None, replace: bool = False) -> F:
        """Register forward mode, bound by the names of its parameters.

        Args:
            fn: its parameters may be names of inputs and outputs, `tangent_<input>` (None if an input has none),
                `needs` and `meta`. An input whose tangent is not named must not have one. It returns the tangents of
                the visible outputs by name, as a tuple, or one tensor.
            surrogate: why the tangents are not the derivative, if they are not on purpose: checks skip what compares
                tangents with the derivative, and report the reason.
            replace: a jvp may be registered.

        Raises:
            RegistrationError: a parameter names nothing, or a jvp is registered.
        """
        return autograd.register_jvp(self._record, fn, surrogate=surrogate, replace=replace)

    def register_autograd(
        self,
        backward: Callable[..., Any],
        /,
        *,
        setup_context: Callable[..., Any] | None = None,
        surrogate: str | None = None,
        replace: bool = False,
    ) -> None:
        """Register a backward as `torch.library` takes it.

        Args:
            backward: `(ctx, *grads)`, one gradient per output; returns one per argument.
            setup_context: `(ctx, inputs, output)`, also with `keyword_only_inputs`; saves on ctx.
            surrogate: as in `register_backward`.
            replace: a backward may be registered.

        Raises:
            RegistrationError: the parameters do not fit the schema, the op mutates, or a backward is registered.
        """
        autograd.register_drop_in(self._record, backward, setup_context, surrogate=surrogate, replace=replace)

    @or_decorator
    def register_samples(self, fn: F, /, *, replace: bool = False) -> F:
        """Register a generator of `Sample`s: `(make)`, where `make(*shape)` makes tensors for the check at hand.

        Raises:
            RegistrationError: it does not take one argument, or samples are registered.
        """
        return references.register_samples(self._record, fn, replace=replace)

    @typing.overload  # type: ignore[override]  # it takes what torch takes, and more
    def register_vmap(self, func: None = None, *, replace: bool = False) -> Callable[[F], F]: ...
    @typing.overload
    def register_vmap(self, func: F, *, replace: bool = False) -> F: ...
    def register_vmap(self, func: Callable[..., Any] | None = None, *, replace: bool = False) -> Any:
        """Register a batching rule: `(info, in_dims, *args, **kwargs) -> (output, out_dims)`.

        `in_dims` has one entry per positional argument; those of the keyword-only ones follow, if any holds tensors.

        Args:
            func: the rule; leave it out to use this as a decorator. `torch.library` gives it this name.
            replace: a rule may be registered.

        Raises:
            RegistrationError: the parameters do not fit the schema, or a rule is registered.
        """
        if func is None:
            return lambda function: vmap.register(self._record, function, replace=replace)
        return vmap.register(self._record, func, replace=replace)

    def register_autocast(  # pyright: ignore[reportIncompatibleMethodOverride]  # torch returns its own kernel
        self,
        device_type: str,
        cast_inputs: Cast | Mapping[str, Cast],
        *,
        output: Cast | Mapping[str, Cast] | None = None,
        replace: bool = False,
    ) -> None:
        """Register what autocast casts on a device type; within the op and its backward autocast is then off.

        As in PyTorch's own ops, float64, integers and tensors on other devices are left alone, and gradients arrive in
        the dtypes of the inputs before the casts.

        Args:
            device_type: such as "cpu" or "cuda"; each has a policy of its own.
            cast_inputs: a dtype, "lower" (the dtype that autocast is set to), "float32", "promote" (the widest of the
                arguments that say so) or "keep"; or a dict of those by argument, which keeps the others. One for all
                leaves out arguments that the op writes to or returns views of.
            output: the same for outputs, by name or for all, with "input" (the dtype that the first floating-point
                input had) in place of "promote". Hidden, written and viewed outputs are never cast.
            replace: the device type may have a policy.

        Raises:
            RegistrationError: the device type has no autocast or has a policy, or a cast or a name is none.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from custom_autograd import custom_op
            >>> @custom_op("docs::scaled_product", reference=True)
            ... def scaled_product(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
            ...     return (x @ weight) * scale
            >>> scaled_product.register_autocast("cpu", {"x": "lower", "weight": "lower", "scale": "float32"})
            >>> with torch.autocast("cpu", torch.bfloat16):
            ...     scaled_product(torch.ones(2, 2), torch.ones(2, 2), torch.ones(2)).dtype
            torch.float32
        """
        autocast.register(self._record, device_type, cast_inputs, output, replace=replace)

    def register_effect(self, effect: Any) -> None:  # Any: torch.library's EffectType, which has no public name
        """Register how compilers order calls with respect to those of other ops that have effects.

        Args:
            effect: `torch._library.effects.EffectType.ORDERED`, or None for an op whose calls may be reordered, which
                is the default.
        """
        effects.register(self._record, effect)

    @or_decorator
    def register_shapes(
        self,
        fn: S,
        /,
        *,
        dtypes: Mapping[str, DType] | None = None,
        flops: str | None = None,
        numbers: Mapping[str, Any] | None = None,
        replace: bool = False,
    ) -> S:
        """Register the dimensions of all tensors: a line, or a function that returns it for some arguments.

        From the line follow refusals of wrong sizes and, unless a rule or a reference gives them, the fake, batching,
        samples and sharding. In a line, `name` is one dimension, `*name` any number of them, `#name` may also be 1,
        `(k g)` is a product, `[name]` a dimension that the op computes along, and `_` one that is not described.
        A dimension without brackets is a claim, which `check` verifies: slices of the inputs give slices of the
        outputs, and where an output lacks the dimension, they add up; the same holds for gradients.

        Args:
            fn: the line; or a function of some of the op's arguments, by name, which returns it. Tensors arrive as
                their shapes, and None as it is.
            dtypes: the dtype of an output by its name, where it is not that of the floating and complex inputs: a
                `torch.dtype`, the name of an argument, or "wide" (that of these inputs, but at least float32).
            flops: the floating-point operations of a call over the names, such as "2*b*i*o".
            numbers: what samples take for an argument: a value, or `(make, shape, sizes)` which returns it.
            replace: a line may be registered.

        Raises:
            RegistrationError: the line cannot be read or does not fit the op, or one is registered.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from custom_autograd import custom_op
            >>> @custom_op("docs::weigh", shapes="x: *b d, weight: d -> output: *b d")
            ... def weigh(x: Tensor, weight: Tensor) -> Tensor:
            ...     return x * weight
            >>> weigh(torch.ones(2, 3), torch.ones(4))
            Traceback (most recent call last):
            custom_autograd.core.errors.ShapeError: docs::weigh: 'weight' must be (d) with d = 3...
        """
        options = ShapeOptions(None, None, dtypes, flops, numbers)
        return shape_notation.register(self._record, fn, options, replace=replace)

    @or_decorator_for
    def register_sharding(
        self, dim: str, fn: F, /, *, arguments: Callable[..., Any] | None = None, replace: bool = False
    ) -> F:
        """Register how the outputs of slices are combined where a dimension in brackets is cut across ranks.

        Dimensions without brackets need no rule. With one, DTensors that are sharded along the dimension stay so if
        least is sent that way: each rank runs the op on its slice, with autograd, and the function combines what the
        ranks have. Every rank returns the whole of an output that lacks the dimension, and its slice of an output that
        has it.

        Args:
            dim: the name of the dimension in the line.
            fn: its parameters are names of outputs, hidden ones included, of arguments, or of what a rank has: `gather`
                (a differentiable function that stacks a tensor of all ranks), `group` (the process group, for
                other collectives that autograd knows), `index` (of the slice), `count` (of slices), `start` (of the
                slice in the whole dimension) and `size` (of the whole). It returns the visible outputs in order, or a
                dict by name.
            arguments: takes arguments and what a rank has by name, and returns a dict of the arguments that a rank is
                to be given instead: an offset for numbers that depend on the position, or a halo from other ranks.
            replace: a rule may be registered.

        Raises:
            RegistrationError: the line has no such dimension in brackets, a parameter names nothing, or a rule is
                registered.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from custom_autograd import custom_op
            >>> @custom_op("docs::log_sum", shapes="x: *b [n] -> total: *b")
            ... def log_sum(x: Tensor) -> Tensor:
            ...     return x.logsumexp(-1)
            >>> @log_sum.register_sharding("n")
            ... def _(total, gather):
            ...     return gather(total).logsumexp(0)
        """
        from custom_autograd.sharding import combining  # loaded for ops that have such rules

        return combining.register(self._record, dim, fn, arguments, replace=replace)

    @or_decorator
    def register_flops(self, fn: F, /, *, backward: Callable[..., Any] | None = None, replace: bool = False) -> F:
        """Register the number of floating-point operations of a call, for `torch.utils.flop_counter.FlopCounterMode`.

        Without it the number is derived from the reference, if there is one. What a backward runs in PyTorch's
        operations and in ops is counted as it runs.

        Args:
            fn: its parameters are names of arguments. Tensors arrive as their shapes, lists of tensors as lists of
                shapes, other values as they are. It returns an int: 2 * m * k * n for a matrix product.
            backward: the same for one backward, in place of what is counted as it runs; `needs` says which gradients
                are needed. It is for rules that call kernels which are not ops.
            replace: a function may be registered.

        Raises:
            RegistrationError: a parameter names nothing, or a function is registered.

        Example:
            >>> import torch
            >>> from torch import Tensor
            >>> from torch.utils.flop_counter import FlopCounterMode
            >>> from custom_autograd import custom_op
            >>> @custom_op("docs::product")
            ... def product(x: Tensor, weight: Tensor) -> Tensor:
            ...     return x @ weight
            >>> @product.register_flops
            ... def _(x, weight):
            ...     return 2 * x.numel() * weight[-1]
            >>> with FlopCounterMode(display=False) as counter:
            ...     product(torch.ones(2, 3), torch.ones(3, 4)).shape
            torch.Size([2, 4])
            >>> counter.get_total_flops()
            48
        """
        return flops.register(self._record, fn, backward, replace=replace)

    @or_decorator_for
    def register_torch_dispatch(  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        self, torch_dispatch_class: type, fn: F, /, *, replace: bool = False
    ) -> F:
        """Register what the op does for a tensor subclass or a mode: `(cls_or_mode, func, types, args, kwargs)`.

        Raises:
            RegistrationError: the parameters do not fit, or the class has a rule.
        """
        return subclasses.register(self._record, torch_dispatch_class, fn, replace=replace)

    def set_kernel_enabled(  # type: ignore[override]  # torch names a private class
        self, device_type: str, enabled: bool = True
    ) -> AbstractContextManager[None]:
        """Switch the kernel of a device type on or off while the context is open."""
        return self._record.kernels.enabled(device_type, enabled)

    def check(
        self,
        samples: Iterable[Sample] | None = None,
        *,
        checks: Sequence[str] | None = None,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        seed: int = 0,
        raise_on_failure: bool = True,
        isolated: bool = True,
        seconds: float | None = None,
    ) -> Report:
        """Run every check there is on this op; see `custom_autograd.check`.

        Raises:
            CheckError: a check failed, or there are no samples.
        """
        from custom_autograd.verification.check import check  # loaded only here

        refuse = functools.partial(self._record.declaration.origin().error, CheckError)
        check_bools(lambda: refuse, raise_on_failure=raise_on_failure, isolated=isolated)
        return check(
            self,
            samples,
            checks=checks,
            device=device,
            dtype=dtype,
            seed=seed,
            raise_on_failure=raise_on_failure,
            isolated=isolated,
            seconds=seconds,
        )


def _restore(name: str, modules: str | tuple[str, ...]) -> CustomOp[..., Any]:
    """Unpickle an op: by name, after importing the module that declares it; the one that lives in this process."""
    record = declare.find_or_import(name, modules)
    return record.handle if isinstance(record.handle, CustomOp) else CustomOp(record)
