"""Native calls of one op: which ops can have them, and how they are handed over.

Python proves (execution/proofs.py), and native code (source/kinds.h) recognises the same kinds of calls by
itself: an op's class gets a vectorcall in C, which calls the kernel, looks at what it returns, and records a node.
Calls of other kinds run the generated `__call__`, as without it.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

import torch

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.core.lazy import Lazy
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.execution.kernel_call import note_kernel
from custom_autograd.execution.proofs import Prover
from custom_autograd.execution.source import default_of
from custom_autograd.execution.watching import undeclared_write
from custom_autograd.native.recipes import Recipe
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.schema import Argument
from custom_autograd.shapes.size_checks import find_size_check
from custom_autograd.torch_private import guards
from custom_autograd.torch_private.compiler import compiling_callback
from custom_autograd.torch_private.definitions import changes
from custom_autograd.torch_private.dispatch import function_of, seen_function_of, set_function
from custom_autograd.values.kernel_results import ResultReader
from custom_autograd.values.tensors import tensors_in

MOST = 63  # arguments and outputs of an op, together: MOST in source/node.h
RULES: dict[str, tuple[str, type]] = {
    "Tensor": ("T", torch.Tensor),
    "Tensor[]": ("L", list),
    "SymInt": ("i", int),
    "int": ("i", int),
    "str": ("s", str),
    "bool": ("=", bool),
    "float": ("=", float),
    "Device": ("=", torch.device),
}
"""By type of the dispatcher: the test by which native code passes a value on as the dispatcher would, unchanged."""


class NativeCalls:
    """The native calls of one op.

    Attributes:
        are_learnt: whether kinds of calls are handed over; tests of generated Python switch it off.
    """

    are_learnt = True

    def __init__(self, record: OpRecord, native: ModuleType, proofs: Prover) -> None:
        schema = record.declaration.schema
        self._record = record
        self._native, self._proofs = native, proofs
        self._recipe: Recipe | None = None
        rows = tuple([_row(argument) for argument in schema.arguments])
        visible = _bits([not output.is_hidden for output in schema.outputs])
        written = _bits([argument.is_mutated for argument in schema.arguments])
        # Tensors that no rule has a gradient for: the dispatcher says so of one that requires it.
        self._fixed = _bits([not argument.is_differentiable for argument in schema.arguments])
        keywords = tuple([argument.name for argument in schema.arguments if argument.is_keyword_only])
        objects = (
            self.learn, self.read, self.run_instead, KernelUnavailable, functools.partial(note_kernel, record),
            compiling_callback, schema.named_tuple, keywords or None, self.run_dispatched, self.refuse_write,
            tuple(schema.output_names),
        )  # fmt: skip
        differentiable = _bits([output.is_differentiable for output in schema.outputs])
        self.call = native.Call(rows, len(schema.outputs), visible, written, differentiable, objects)
        assert record.overload is not None  # the op is attached
        self._overload = record.overload
        function = function_of(record.overload)
        self._function = native.Overload(self.call, function, seen_function_of(record.overload))
        set_function(record.overload, self._function)

    def forget(self) -> None:
        """Forget all kinds of calls."""
        self.call.forget()
        self.call.expect()
        self._release_if_moved()

    def expect(self) -> None:
        """Ask for the kind of the next call, also after many calls that were not known."""
        self.call.expect()

    def take_over(self) -> None:
        """Take over the calls of the op's handle: again after its class was given another `__call__`."""
        if self._record.handle is not None:
            self._native.take_over(self._record.handle, self.call)

    def _release_if_moved(self) -> None:
        """Restore the function of the overload if the op has moved to another one."""
        if self._record.overload is not self._overload:
            original = self._function.release()
            if function_of(self._overload) is self._function:
                set_function(self._overload, original)

    def learn(self, call: Any, values: tuple[Any, ...], device_type: str, seen: int, shared: int, tracked: int) -> None:
        """Pass the kind of a call to native code if it can be proven; it is kept if this call passes every check."""
        self._release_if_moved()
        if not NativeCalls.are_learnt or tracked & self._fixed:
            return
        epoch = changes.count
        changes.tell_once(self.forget)  # then what was not proven is asked again, too
        keys = guards.names_of(seen), guards.names_of(shared)
        found = self._proofs.prove(tensors_in(values), device_type, *keys, is_tracked=tracked != 0)
        if found is None:
            return
        recipe = None if found.record is None else self._recipe_for_kinds()
        kernel, sizes = self._sizes_for(found.function, values)
        with changes.lock:
            if epoch == changes.count:
                call.add(values, kernel, found.record, found.is_checked, recipe, found.function, sizes)

    def _sizes_for(self, function: Any, values: tuple[Any, ...]) -> tuple[Any, tuple[tuple[int, ...], ...]]:
        """Return a kernel, and the sizes that native code compares before it calls it; `function` runs if they differ.

        Each row has the argument, its tensor and the dimension, then the same of another, or -1, 0 and a number.
        """
        check = find_size_check(function)
        names = self._record.declaration.schema.argument_names
        found = None if check is None else check.constraints(dict(zip(names, values, strict=True)))
        if check is None or found is None:
            return function, ()
        rows = []
        for (name, element, dim), other in found:
            its = (-1, 0, other) if isinstance(other, int) else (names.index(other[0]), *other[1:])
            rows.append((names.index(name), element, dim, *its))
        return check.function, tuple(rows)

    @Lazy
    def _reader(self) -> ResultReader:
        return ResultReader(self._record.declaration, self._record.kernels.describe)

    def read(self, result: Any, values: tuple[Any, ...], function: Any, is_checked: bool) -> Any:
        """Return the results of a kernel that are not the plain new tensors they should be, or raise."""
        schema = self._record.declaration.schema
        rows = zip(schema.arguments, values, strict=True)
        tensors = {argument.name: value for argument, value in rows if argument.holds_tensors}
        return self._reader.read(result, tensors, function, is_checked=is_checked)

    def refuse_write(self, index: int, function: Any) -> None:
        """Raise: a kernel has written to an argument that is not declared as mutated."""
        raise undeclared_write(self._record, self._record.declaration.schema.argument_names[index], function)

    def run_instead(self, function: Any, error: Exception, values: tuple[Any, ...]) -> Any:
        """Run another kernel in place of one that turned out not to be available."""
        schema = self._record.declaration.schema
        rows = list(zip(schema.arguments, values, strict=True))
        positional = [value for argument, value in rows if not argument.is_keyword_only]
        keywords = {argument.name: value for argument, value in rows if argument.is_keyword_only}
        try:
            raise error
        except KernelUnavailable as reason:  # the context of what is raised below
            return self._record.kernels.instead(function, reason)(*positional, **keywords)

    def run_dispatched(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call through the dispatcher, where observers see it; arguments are those of the op."""
        dispatched = self._record.dispatched
        assert dispatched is not None  # the op is attached
        return dispatched.observed(*args, **kwargs)

    def _recipe_for_kinds(self) -> Recipe | None:
        generated = generated_code_of(self._record)
        if not generated.has_native_node or not generated.has_native_backward:
            return None
        if self._recipe is None or self._recipe.generated is not generated:
            self._recipe = Recipe(generated, self.forget)
        return self._recipe


def _row(argument: Argument) -> tuple[str, str, bool, bool, bool, type | tuple[str, ...], tuple[Any, ...]]:
    rule, cls = RULES[argument.type.removesuffix("?")]
    given = (default_of(argument, for_dispatcher=False)[1],) if argument.has_default else ()
    # Compared by address: a name that is made here has no other owner.
    keyword = f"{argument.name}, by position" if argument.is_positional_only else sys.intern(argument.name)
    flags = argument.is_optional, argument.is_keyword_only, argument.is_differentiable
    return keyword, rule, *flags, argument.choices or cls, given


def _bits(flags: list[bool]) -> int:
    return sum(1 << index for index, flag in enumerate(flags) if flag)


def why_not(record: OpRecord) -> str | None:
    """Return why calls of an op cannot be native, or None: they need plain arguments and outputs (source/kinds.h)."""
    schema = record.declaration.schema
    if record.declaration.tree is not None:
        return "an argument or a result is a container"
    if schema.is_one_tuple:
        return "it returns a tuple of one tensor"
    if len(schema.arguments) + len(schema.outputs) > MOST:
        return f"it has more than {MOST} arguments and outputs"
    for output in schema.outputs:
        if output.type != "Tensor" or output.alias_of is not None or output.may_be is not None:
            return f"the output '{output.name}' is not always a new tensor"
    for argument in schema.arguments:
        if not _is_plain(argument):
            return f"the argument '{argument.name}' ({argument.type}) is of a type that they do not take"
    return None if schema.tensor_arguments else "no argument is a tensor"


def _is_plain(argument: Argument) -> bool:
    return argument.type.removesuffix("?") in RULES and not argument.is_variadic and not argument.is_converted
