"""SubsystemRules: how an op behaves in one subsystem of PyTorch: vmap, autocast, tensor subclasses, compilers.

Signatures and docstrings, as in op.py; each method is one call downwards.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from custom_autograd.capabilities import autocast, effects
from custom_autograd.capabilities.flops import capability as flops
from custom_autograd.capabilities.shapes import capability as shape_notation
from custom_autograd.capabilities.subclasses import capability as subclasses
from custom_autograd.capabilities.vmap import capability as vmap
from custom_autograd.core.decorators import or_decorator, or_decorator_for
from custom_autograd.handle import Handle
from custom_autograd.schema.policies import Cast
from custom_autograd.shapes.rule import DType, ShapeOptions

F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=str | Callable[..., Any])


class SubsystemRules(Handle):
    """The rules of an op for subsystems of PyTorch; `CustomOp` adds kernels, gradients and checks."""

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
        return shape_notation.register(
            self._record, fn, ShapeOptions(None, None, dtypes, flops, numbers), replace=replace
        )

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
    def register_flops(
        self,
        fn: F,
        /,
        *,
        backward: Callable[..., Any] | None = None,
        replace: bool = False,
    ) -> F:
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
