"""custom_op and CustomOp: the thin public face. Signatures and docstrings; each method is one call downwards."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar

import torch

from custom_autograd import cpp_rules, declare
from custom_autograd.capabilities import autograd, fake, kernels
from custom_autograd.capabilities import reference as references
from custom_autograd.core.decorators import or_decorator, or_decorator_for
from custom_autograd.execution.call import publish
from custom_autograd.execution.kernel_options import KernelOptions
from custom_autograd.native import loading as native_loading
from custom_autograd.options import options_of
from custom_autograd.shapes.rule import DType, ShapeOptions
from custom_autograd.subsystem_rules import SubsystemRules
from custom_autograd.torch_private.compiler import outside_compilation
from custom_autograd.values.validation import level_of, parse_level

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

    from custom_autograd.options import Options
    from custom_autograd.schema.policies import SavingPolicy
    from custom_autograd.schema.samples import Sample
    from custom_autograd.verification.report import Report

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
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

    def decorate(function: Callable[..., Any]) -> CustomOp[..., Any]:
        declared = options_of(
            name,
            function,
            mutates_args,
            schema,
            outputs,
            hidden,
            non_differentiable,
            tags,
            aliases,
            static,
            inline,
            checkpoint,
        )
        notation = ShapeOptions(shapes, along, dtypes, flops, numbers)
        record = declare.declare(
            function, declared, device_types, is_reference=reference, shapes=notation, replace=replace
        )
        op: CustomOp[..., Any] = CustomOp(record)
        native_loading.start(record)
        return op

    return decorate if fn is None else decorate(fn)


class CustomOp(SubsystemRules, Generic[P, R]):
    """A PyTorch operation declared with `custom_op`; not to be made by hand."""

    @outside_compilation
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the op; hidden outputs are dropped."""
        if torch.compiler.is_dynamo_compiling():
            self._record.dispatched.generate()  # type: ignore[union-attr]  # the op is defined
            return self._record.dispatched.in_graphs(*args, **kwargs)  # type: ignore[union-attr,no-any-return]
        if self._record.call_behind is not None:
            return self._record.call_behind(self, *args, **kwargs)  # type: ignore[no-any-return]  # what the schema says
        if native_loading.start(self._record):
            return self(*args, **kwargs)
        publish(self._record)
        return type(self).__call__(self, *args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, declare.pickled(self._record)

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
        return kernels.register(self._record, device_types, fn, kernel_options, replace=replace)

    def use_kernel(self, name: str) -> AbstractContextManager[None]:
        """Run only kernels of that name while the context is open, in this thread and in backward passes it starts.

        Compiled code follows it too: which kernel runs is no part of a graph. In the environment,
        CUSTOM_AUTOGRAD_KERNELS=namespace::op=name,... says the same for a whole process.

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
        return fake.register(self._record, fn, replace=replace)

    @or_decorator
    def register_reference(self, fn: F, /, *, surrogate: str | None = None, replace: bool = False) -> F:
        """Register the same computation in differentiable PyTorch operations.

        It serves as default for whatever is not registered (kernel, fake, backward, jvp, vmap), and as an oracle.

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
        return cpp_rules.register_backward(
            self._record,
            fn,
            custom_op,
            once_differentiable=once_differentiable,
            materialize_grads=materialize_grads,
            saving={} if saving is None else saving,
            clear_saved=clear_saved,
            surrogate=surrogate,
            replace=replace,
        )

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
        return lambda fn: cpp_rules.register_gradient(
            self._record,
            inputs,
            fn,
            custom_op,
            once_differentiable=once_differentiable,
            materialize_grads=materialize_grads,
            surrogate=surrogate,
            replace=replace,
        )

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
    ) -> Report:
        """Run every check there is on this op; see `custom_autograd.check`.

        Raises:
            CheckError: a check failed, or there are no samples.
        """
        from custom_autograd.verification.check import check  # loaded only here

        return check(
            self,
            samples,
            checks=checks,
            device=device,
            dtype=dtype,
            seed=seed,
            raise_on_failure=raise_on_failure,
            isolated=isolated,
        )


def _restore(name: str, modules: str | tuple[str, ...]) -> CustomOp[..., Any]:
    """Unpickle an op: by name, after importing the module that declares it; the one that lives in this process."""
    record = declare.find_or_import(name, modules)
    return record.handle if isinstance(record.handle, CustomOp) else CustomOp(record)
