"""Kernel and fake of the op of an autograd.Function, which return values that forward keeps on ctx as hidden outputs.

INPUT, OUTPUT         the same tensor
HIDDEN, NUMBER        a hidden output: an intermediate tensor, or a number that depends on data
COMPUTED              computed from shapes and numbers: forward runs again on tensors without data
PARAMETER, CONSTANT   an argument, or the same value in all recorded calls, if forward cannot run without data

Recorded calls decide which of these a value on ctx is. The kernel checks it in each call, and raises for any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from custom_autograd.adoption.forward_calls import AbstractForward, Call, Function, run_forward
from custom_autograd.adoption.function_types import Parameters
from custom_autograd.core.errors import KernelError, Origin
from custom_autograd.core.messages import show
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.schema.annotations import Refusal
from custom_autograd.torch_private.fakes import fakes_alone
from custom_autograd.torch_private.storages import may_share

INPUT, OUTPUT, HIDDEN, NUMBER, COMPUTED, PARAMETER, CONSTANT = (
    "the argument",
    "the output",
    "an intermediate tensor",
    "a number",
    "computed from shapes",
    "the argument's value",
    "the constant",
)
HIDDEN_OUTPUTS = (HIDDEN, NUMBER)


@dataclass(frozen=True, slots=True)
class Kept:
    """Source of one leaf on ctx in the backward.

    Attributes:
        path: its name, for messages.
        source: a constant of this file.
        value: the name of an argument or an output, or the value itself.
        is_optional: True for a hidden output that may be None.
    """

    path: str
    source: str
    value: Any = None  # Any: a constant is anything
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """Facts about a Function from recorded calls. Holds nothing of a later call.

    Attributes:
        call: the first of them.
        kept: by leaf on ctx.
        types: annotations of the outputs (Any: an annotation can be any object).
        fixed: names of the outputs without a gradient.
        abstract: forward on tensors without data, or None if it does not run on them.
    """

    function: Function
    origin: Origin
    parameters: Parameters
    call: Call
    kept: tuple[Kept, ...]
    outputs: tuple[str, ...]
    types: tuple[Any, ...]
    fixed: tuple[str, ...]
    abstract: AbstractForward | None

    @property
    def names(self) -> list[str]:
        """Return the names of the arguments."""
        return [one.name for one in self.parameters]

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the names of the hidden outputs."""
        return tuple([one.value for one in self.kept if one.source in HIDDEN_OUTPUTS])

    @property
    def is_computed(self) -> bool:
        """Return True if forward runs again on tensors without data."""
        return any(one.source == COMPUTED for one in self.kept)

    @property
    def signature(self) -> inspect.Signature:
        """Return the signature of the kernel, which returns the hidden outputs too."""
        rows = [one for one in self.kept if one.source in HIDDEN_OUTPUTS]
        hidden = [Optional[Tensor] if one.is_optional else Tensor for one in rows]  # noqa: UP045 - a value
        is_one = not hidden and not self.call.is_tuple
        returned = self.types[0] if is_one else tuple.__class_getitem__((*self.types, *hidden))
        return inspect.Signature(self.parameters, return_annotation=returned)

    def leaves(self, values: Mapping[str, Any], arguments: Sequence[Any]) -> list[Any]:  # Any: as kept on ctx
        """Return what is on ctx from arguments and outputs by name; None for a hidden output without a value yet."""
        computed = self.abstract.leaves(arguments) if self.abstract is not None and self.is_computed else ()
        found = []
        for position, one in enumerate(self.kept):
            constant = one.value if one.source == CONSTANT else values.get(one.value)
            found.append(computed[position] if one.source == COMPUTED else constant)
        return found

    def kernel(self, *arguments: Any) -> Any:  # Any: as the schema declares
        """Run forward; return its outputs and the hidden ones."""
        call = run_forward(self.function, arguments)
        if call.structure != self.call.structure:
            raise self._other("the list of values on ctx", _listed(self.call), _listed(call))
        values = dict(zip((*self.names, *self.outputs), (*arguments, *call.outputs), strict=False))
        rows = zip(self.kept, call.leaves, self.leaves(values, arguments), strict=True)
        checked = [self._checked(*row) for row in rows]
        return self._returned(
            call, [leaf for one, leaf in zip(self.kept, checked, strict=True) if one.source in HIDDEN_OUTPUTS]
        )

    def fake(self, *arguments: Any) -> Any:  # Any: as above
        """Run forward on tensors without data."""
        call = run_forward(self.function, arguments)
        found = [leaf for one, leaf in zip(self.kept, call.leaves, strict=True) if one.source == HIDDEN]
        return self._returned(call, found)

    def _returned(self, call: Call, hidden: Sequence[Any]) -> Any:
        """Return the results of a kernel: no tensor shares memory with an argument or another output."""
        found: list[Any] = []
        known = [one for one in call.arguments if isinstance(one, Tensor)]
        for value in (*call.outputs, *hidden):
            is_shared = isinstance(value, Tensor) and any(may_share(value, one) for one in known)
            found.append(value.clone() if is_shared else value)
            known += [found[-1]] if isinstance(value, Tensor) else []
        return found[0] if len(found) == 1 and not call.is_tuple else tuple(found)

    def _checked(self, kept: Kept, leaf: Any, known: Any) -> Any:
        """Return the leaf of a hidden output; raise if a leaf does not have the value that the plan expects."""
        if kept.source == HIDDEN and (isinstance(leaf, Tensor) or (leaf is None and kept.is_optional)):
            return leaf
        if kept.source == NUMBER and is_number(leaf):
            return _tensor_of(leaf)
        if kept.source not in HIDDEN_OUTPUTS and is_same(leaf, known):
            return known
        expected = kept.source if kept.value is None else f"{kept.source} {show(kept.value)}"
        raise self._other(kept.path, expected, "another tensor" if isinstance(leaf, Tensor) else show(leaf))

    def _other(self, path: str, expected: str, found: str) -> KernelError:
        return self.origin.error(
            KernelError,
            f"{path} differs from the recorded calls",
            expected=expected,
            found=found,
            do="add a call like this one to samples= of from_function",
        )


def plan_of(function: Function, parameters: Parameters, calls: Sequence[Call], refuse: Refusal) -> Plan:
    """Return the facts that all recorded calls agree on; raise if outputs or values on ctx are not alike."""
    first = calls[0]
    _check_alike(calls, refuse)
    abstract, problem = _find_abstract(function, calls)
    outputs = ("output",) if len(first.outputs) == 1 else tuple(f"output_{i}" for i in range(len(first.outputs)))
    kept = [_kept(i, path, calls, parameters, outputs, abstract) for i, path in enumerate(first.paths())]
    _require_sources(kept, problem, refuse)
    numbers = [one.value for one in kept if one.source == NUMBER]
    fixed = [
        name
        for name, one in zip(outputs, first.outputs, strict=True)
        if find_identical(one, first.context.custom_autograd_fixed) is not None
    ]
    return Plan(
        function=function,
        origin=Origin(refuse.op, refuse.location),
        parameters=parameters,
        call=first,
        kept=tuple(kept),
        outputs=outputs,
        types=tuple(_type_of_output([call.outputs[i] for call in calls]) for i in range(len(outputs))),
        fixed=(*fixed, *numbers),
        abstract=abstract,
    )


def _require_sources(kept: Sequence[Kept], problem: str, refuse: Refusal) -> None:
    """Raise if a value on ctx has no source."""
    for one in kept:
        if one.source == "":
            raise refuse(
                f"{one.path} cannot be computed again for the backward, and is not a tensor or a number",
                expected="a value that follows from arguments and shapes",
                found=show(one.value),
                do=f"let forward keep tensors or numbers, or run on tensors without data: {problem}",
            )


def _check_alike(calls: Sequence[Call], refuse: Refusal) -> None:
    first, do = calls[0], "make one op for each kind of call, with samples= of that kind"
    for call in calls[1:]:
        own, its = len(first.outputs), len(call.outputs)
        if own != its:
            raise refuse("forward returns more outputs in some calls", expected=str(own), found=str(its), do=do)
        if first.structure != call.structure:
            kept, found = _listed(first), _listed(call)
            raise refuse("forward keeps different values on ctx in different calls", expected=kept, found=found, do=do)


def _listed(call: Call) -> str:
    return ", ".join(call.paths()) or "nothing"


def _find_abstract(function: Function, calls: Sequence[Call]) -> tuple[AbstractForward | None, str]:
    """Return forward on tensors without data if its results agree with the recorded ones, else why they do not."""
    abstract = AbstractForward(function)
    for call in calls:
        try:
            with fakes_alone():
                found = abstract.run(call.arguments)
        except Exception as error:  # noqa: BLE001 - it reads data, or runs a kernel of its own
            return None, f"it raises {type(error).__name__} there"
        pairs = zip((*call.outputs, *call.leaves), (*found.outputs, *found.leaves), strict=False)
        if found.structure != call.structure or not all(_is_alike(own, its) for own, its in pairs):
            return None, "what it returns or keeps is different there"
    return abstract, ""


def _is_alike(real: Any, fake: Any) -> bool:
    if isinstance(real, Tensor) and isinstance(fake, Tensor):
        return (real.shape, real.dtype, real.device) == (fake.shape, fake.dtype, fake.device)
    return is_same(real, fake)


def _kept(
    position: int,
    path: str,
    calls: Sequence[Call],
    parameters: Parameters,
    outputs: tuple[str, ...],
    abstract: AbstractForward | None,
) -> Kept:
    leaves = [call.leaves[position] for call in calls]
    equal = [
        one.name
        for index, one in enumerate(parameters)
        if all(is_same(leaf, call.arguments[index]) for leaf, call in zip(leaves, calls, strict=True))
    ]
    if any(isinstance(leaf, Tensor) for leaf in leaves):
        if equal:
            return Kept(path, INPUT, equal[0])
        found = {find_identical(leaf, call.outputs) for leaf, call in zip(leaves, calls, strict=True)}
        if len(found) == 1 and None not in found:
            return Kept(path, OUTPUT, outputs[found.pop() or 0])
        if all(isinstance(leaf, Tensor) or leaf is None for leaf in leaves):
            return Kept(path, HIDDEN, f"saved_{position}", is_optional=None in leaves)
    elif abstract is not None:
        return Kept(path, COMPUTED)
    elif equal:
        return Kept(path, PARAMETER, next((name for name in equal if path == f"ctx.{name}"), equal[0]))
    elif all(map(is_number, leaves)) and len(set(map(type, leaves))) == 1:
        return Kept(path, NUMBER, f"saved_{position}")
    elif all(is_same(leaf, leaves[0]) for leaf in leaves):
        return Kept(path, CONSTANT, leaves[0])
    return Kept(path, "", leaves[0])


def _type_of_output(values: list[Any]) -> Any:
    given = [value for value in values if value is not None]
    annotation = type(given[0]) if given and not isinstance(given[0], Tensor) else Tensor
    return annotation if len(given) == len(values) else Optional[annotation]  # noqa: UP045 - a value


def find_identical(value: object, tensors: Sequence[object]) -> int | None:
    """Return the position of a value among others, by identity."""
    return next((index for index, one in enumerate(tensors) if one is value), None)


def is_same(own: Any, its: Any) -> bool:
    """Return True for one tensor, or for equal values of one type."""
    if own is its or isinstance(own, Tensor) or isinstance(its, Tensor):
        return own is its
    return type(own) is type(its) and bool(own == its)


def is_number(leaf: Any) -> bool:
    """Return True for a number, or a row of numbers."""
    if isinstance(leaf, (tuple, list)):
        return len(leaf) > 0 and all(isinstance(one, (bool, int, float)) for one in leaf)
    return isinstance(leaf, (bool, int, float))


def _tensor_of(leaf: Any) -> Tensor:
    found = torch.tensor(leaf)
    return torch.tensor(leaf, dtype=torch.float64) if found.is_floating_point() else found
