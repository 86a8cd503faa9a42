"""Argument, Output and Schema: what an op takes and returns, as data; and its in-place and out variants."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from custom_autograd.core.lazy import Lazy
from custom_autograd.core.messages import quote
from custom_autograd.frozen_dataclass import dataclass

LIST_TYPES = frozenset({"Tensor[]", "Tensor?[]"})
TENSOR_TYPES = frozenset({"Tensor", "Tensor?"}) | LIST_TYPES
"""The types in which the dispatcher finds tensors: of any other, such as `Tensor[]?`, it takes no dispatch keys."""


@dataclass(frozen=True, slots=True)
class Value:
    """An argument or an output of an op.

    Attributes:
        name: as rules and calls spell it.
        type: as the dispatcher spells it: `Tensor`, `Tensor?[]`, `int`, `float`, `str`, ...
    """

    name: str
    type: str

    @property
    def holds_tensors(self) -> bool:
        """Return True if it is a tensor, an optional tensor, or a list of those."""
        return self.type in TENSOR_TYPES

    @property
    def is_tensor_list(self) -> bool:
        """Return True if it is a list of tensors."""
        return self.type in LIST_TYPES

    @property
    def is_optional(self) -> bool:
        """Return True if None may stand for it."""
        return self.type.endswith("?")


@dataclass(frozen=True, slots=True)
class Argument(Value):
    """One argument of an op.

    Attributes:
        is_keyword_only: it can only be given by name.
        is_positional_only: it cannot be given by name.
        is_variadic: it is `*name`, and takes all further positional arguments of a call.
        is_mutated: kernels write to it.
        is_differentiable: it may carry a gradient.
        has_default: a call may leave it out.
        default: what it then is, in the form kernels see it.
        is_filled: the dispatcher has no such default: its callers must give the argument.
        example: a value as a call writes it, for messages.
        to_dispatcher: turns a value of a call into the dispatcher's, or None if they are the same.
        from_dispatcher: the inverse.
        choices: the strings that it may be, where a `Literal` says which, or None.
    """

    is_keyword_only: bool = False
    is_positional_only: bool = False
    is_variadic: bool = False
    is_mutated: bool = False
    is_differentiable: bool = False
    has_default: bool = False
    default: Any = None  # Any: a default of whatever type the argument has
    is_filled: bool = False
    example: str = ""
    to_dispatcher: Callable[[Any], Any] | None = None
    from_dispatcher: Callable[[Any], Any] | None = None
    choices: tuple[str, ...] | None = None

    @property
    def is_optional(self) -> bool:
        """Return True if None may stand for it, and not only, in the dispatcher, for a default that it cannot spell."""
        back = self.from_dispatcher
        return self.type.endswith("?") and (back is None or back(None) is None)

    @property
    def kind(self) -> Any:  # Any: inspect gives the type of its kinds no public name
        """Return how a call gives it."""
        if self.is_variadic:
            return inspect.Parameter.VAR_POSITIONAL
        if self.is_keyword_only:
            return inspect.Parameter.KEYWORD_ONLY
        only = self.is_positional_only
        return inspect.Parameter.POSITIONAL_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD

    @property
    def is_converted(self) -> bool:
        """Return True if some value of a call travels in another form; one of `choices` does not."""
        return self.choices is None and (self.to_dispatcher is not None or self.from_dispatcher is not None)


@dataclass(frozen=True, slots=True)
class Output(Value):
    """One value an op returns.

    Attributes:
        is_hidden: kernels compute it and rules may use it, but a call does not return it.
        is_differentiable: it may carry a gradient.
        alias_of: the mutated or viewed input it is, or None for a new value.
        is_view: it shares memory with `alias_of` without having been written to.
        may_be: the input that kernels may return instead, as it is; the dispatcher sees a copy.
    """

    is_hidden: bool = False
    is_differentiable: bool = False
    alias_of: str | None = None
    is_view: bool = False
    may_be: str | None = None


@dataclass(frozen=True)  # no slots: what follows from the fields is computed once
class Schema:
    """Arguments and outputs of an op.

    Attributes:
        arguments: in the order of a call, keyword-only ones last.
        outputs: in the order kernels return them.
        text: the dispatcher's schema string, without the name of the op.
        named_tuple: the NamedTuple class that a call returns, or None for a plain tuple or value.
        is_one_tuple: the one output is returned in a tuple.
    """

    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    text: str
    named_tuple: type | None = None
    is_one_tuple: bool = False

    def __str__(self) -> str:
        return self.text

    @Lazy
    def argument_names(self) -> tuple[str, ...]:
        """Return the names of all arguments, in order."""
        return tuple([argument.name for argument in self.arguments])

    @Lazy
    def output_names(self) -> tuple[str, ...]:
        """Return the names of all outputs, in order."""
        return tuple([output.name for output in self.outputs])

    @Lazy
    def visible_outputs(self) -> tuple[Output, ...]:
        """Return the outputs that a call returns."""
        return tuple([output for output in self.outputs if not output.is_hidden])

    @Lazy
    def hidden_outputs(self) -> tuple[Output, ...]:
        """Return the outputs that only kernels and rules see."""
        return tuple([output for output in self.outputs if output.is_hidden])

    @Lazy
    def tensor_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that are tensors or lists of tensors."""
        return tuple([argument for argument in self.arguments if argument.type in TENSOR_TYPES])

    @Lazy
    def differentiable_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that may carry a gradient: what a backward answers for."""
        return tuple([argument for argument in self.arguments if argument.is_differentiable])

    @Lazy
    def differentiable_names(self) -> tuple[str, ...]:
        """Return the names of the arguments that may carry a gradient."""
        return tuple([argument.name for argument in self.differentiable_arguments])

    @Lazy
    def fixed_names(self) -> frozenset[str]:
        """Return the names of the tensors, arguments and outputs, that are declared to carry no gradient."""
        return frozenset([one.name for one in self.values if one.holds_tensors and not one.is_differentiable])

    @Lazy
    def mutated_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that kernels write to."""
        return tuple([argument for argument in self.arguments if argument.is_mutated])

    @Lazy
    def fresh_outputs(self) -> tuple[Output, ...]:
        """Return the outputs that are not a mutated argument handed back."""
        return tuple([output for output in self.outputs if output.alias_of is None or output.is_view])

    @Lazy
    def differentiable_results(self) -> tuple[Argument | Output, ...]:
        """Return what a call leaves behind that may carry a gradient: mutated inputs first, then new outputs."""
        written = [argument for argument in self.mutated_arguments if argument.is_differentiable]
        return (*written, *[output for output in self.fresh_outputs if output.is_differentiable])

    @Lazy
    def visible_results(self) -> tuple[str, ...]:
        """Return the names of those that a caller sees."""
        results = self.differentiable_results
        return tuple([one.name for one in results if not (isinstance(one, Output) and one.is_hidden)])

    @Lazy
    def hidden_results(self) -> tuple[str, ...]:
        """Return the names of those that only kernels and rules see."""
        return tuple([one.name for one in self.differentiable_results if one.name not in self.visible_results])

    @Lazy
    def sole_result(self) -> str | None:
        """Return the visible differentiable result, whose gradient may be called `grad`; None unless there is one."""
        return self.visible_results[0] if len(self.visible_results) == 1 else None

    @Lazy
    def grad_names(self) -> dict[str, str]:
        """Return the name of each differentiable result -> the name its incoming gradient has in rules.

        A mutated input is a result too: its gradient is with respect to its value after the call.
        """
        return {result.name: f"grad_{result.name}" for result in self.differentiable_results}

    @Lazy
    def results_by_grad(self) -> dict[str, str]:
        """Return every name that an incoming gradient has in rules -> the name of its result."""
        found = {grad: result for result, grad in self.grad_names.items()}
        return found if self.sole_result is None else {"grad": self.sole_result, **found}

    @Lazy
    def tensor_names(self) -> frozenset[str]:
        """Return the names of the arguments and outputs that are tensors or lists of tensors."""
        return frozenset([value.name for value in self.values if value.type in TENSOR_TYPES])

    @Lazy
    def has_lists(self) -> bool:
        """Return True if an argument or an output is a list of tensors."""
        return not LIST_TYPES.isdisjoint([value.type for value in self.values])

    @Lazy
    def is_view(self) -> bool:
        """Return True if an output shares memory with an input that is not written to."""
        return True in [output.is_view for output in self.outputs]

    @Lazy
    def may_return_inputs(self) -> bool:
        """Return True if kernels may return an input as it is."""
        return True in [output.may_be is not None for output in self.outputs]

    @Lazy
    def device_arguments(self) -> tuple[Argument, ...]:
        """Return the arguments that are devices or lists of devices: they choose the kernel if there are no tensors."""
        return tuple([argument for argument in self.arguments if argument.type.startswith("Device")])

    @Lazy
    def has_generator(self) -> bool:
        """Return True if a call may be given a generator."""
        return any(argument.type.startswith("Generator") for argument in self.arguments)

    @Lazy
    def values(self) -> tuple[Argument | Output, ...]:
        """Return all arguments, then all outputs."""
        return (*self.arguments, *self.outputs)

    def argument(self, name: str) -> Argument:
        """Return the argument of that name; KeyError where there is none."""
        return {argument.name: argument for argument in self.arguments}[name]


INPLACE = "inplace"
OUT = "out"
SUFFIXES = {INPLACE: "_", OUT: "_out"}


def find_problem(schema: Schema, kind: str) -> str | None:
    """Return why an op of this schema has no such variant, or None if it has one."""
    if schema.mutated_arguments:
        return f"it writes to {quote(a.name for a in schema.mutated_arguments)} itself"
    if schema.is_view:
        return "it returns a view, which is not new memory"
    if schema.is_one_tuple:
        return "it returns a tuple of one"
    return _no_inplace(schema) if kind == INPLACE else _no_out(schema)


def _no_inplace(schema: Schema) -> str | None:
    first, visible = next(iter(schema.arguments), None), schema.visible_outputs
    if first is None or first.type != "Tensor" or first.is_keyword_only:
        return "its first argument is not a tensor"
    if len(visible) != 1:
        return f"it returns {len(visible)} values, and one tensor can hold one"
    if visible[0].type != "Tensor":
        return f"its output '{visible[0].name}' is not a tensor: {visible[0].type}"
    return None


def _no_out(schema: Schema) -> str | None:
    if not schema.visible_outputs:
        return "it returns nothing"
    for output in schema.visible_outputs:
        if output.type != "Tensor":
            return f"its output '{output.name}' is not a tensor: {output.type}"
    taken = sorted({*out_names(schema), OUT} & set(schema.argument_names))
    return f"it has an argument '{taken[0]}' already" if taken else None


def out_names(schema: Schema) -> tuple[str, ...]:
    """Return the keywords of the out variant: `out`, or where there are several outputs their names."""
    visible = schema.visible_outputs
    return (OUT,) if len(visible) == 1 else tuple(output.name for output in visible)


def variant_of(schema: Schema, kind: str) -> Schema:
    """Return the schema of a variant that the op can have."""
    return _inplace(schema) if kind == INPLACE else _out(schema)


def _inplace(schema: Schema) -> Schema:
    first, *rest = schema.arguments
    given = re.sub(rf"^Tensor {first.name}", f"Tensor(a!) {first.name}", _given(schema))
    written = replace(first, is_mutated=True)
    return Schema((written, *rest), (_handed_back(first.name),), f"({given}) -> Tensor(a!)")


def _out(schema: Schema) -> Schema:
    names = out_names(schema)
    given = _given(schema)
    annotations = [f"Tensor(o{index}!)" for index in range(len(names))]
    added = [f"{annotation} {name}" for annotation, name in zip(annotations, names, strict=True)]
    is_behind_star = any(argument.is_keyword_only for argument in schema.arguments)
    parts = [*([given] if given else []), *([] if is_behind_star else ["*"]), *added]
    result = annotations[0] if len(names) == 1 else f"({', '.join(annotations)})"
    written = [
        Argument(name, "Tensor", is_keyword_only=True, is_mutated=True, is_differentiable=True) for name in names
    ]
    outputs = tuple(_handed_back(name) for name in names)
    named_tuple = None if schema.hidden_outputs else schema.named_tuple
    return Schema((*schema.arguments, *written), outputs, f"({', '.join(parts)}) -> {result}", named_tuple)


def _given(schema: Schema) -> str:
    """Return the arguments as the schema spells them."""
    return schema.text[1 : schema.text.rindex(" -> ")].rstrip().removesuffix(")").strip()


def _handed_back(name: str) -> Output:
    return Output(name, "Tensor", is_differentiable=True, alias_of=name)
