"""What a backward returned -> one gradient per input, or an error that says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from custom_autograd.core.errors import GradientError
from custom_autograd.core.messages import advise, advise_derivative, explicit_none, quote, show
from custom_autograd.core.metadata import LOW_PRECISION, Metadata, is_same_shape
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.rule_types import GradientRule
from custom_autograd.schema.named_tuples import in_order_of
from custom_autograd.schema.schema import Argument
from custom_autograd.values.tensors import is_wanted

Gradient = Any  # a tensor, None, or a list of those for a list of tensors
Needs = Any  # a bool, or a list of bools for a list of tensors


class GradientReader:
    """Reads the results of one gradient rule."""

    def __init__(self, declaration: Declaration, rule: GradientRule, *, is_checked: bool, is_strict: bool) -> None:
        self.declaration = declaration
        self.rule = rule
        self._error = partial(declaration.origin(rule.where).error, GradientError)
        self.is_checked = is_checked  # whether gradients are compared with their inputs
        self.is_strict = is_strict  # whether gradients of what can have none are refused
        self.valid = declaration.schema.differentiable_names
        self.inputs = rule.inputs or self.valid
        arguments = {argument.name: argument for argument in declaration.schema.arguments}
        self.arguments = [arguments[name] for name in self.inputs]

    def read(self, result: Any, needs: Mapping[str, Needs], metadata: Mapping[str, Any]) -> dict[str, Gradient]:
        """Turn a rule's result into gradients by input name.

        Returns:
            The gradient of each input of the rule; None if none is wanted, or the rule says there is none.
        """
        by_name = self._by_name(result, needs)
        found = {}
        for argument in self.arguments:
            name = argument.name
            gradient, need, known = by_name.get(name), needs[name], metadata.get(name)
            if need is not True or known is None or not _is_plainly_fit(gradient, known):
                gradient = self._one(argument, by_name, need, known)
            found[name] = gradient
        return found

    def one(self, name: str, gradient: Any, need: Needs, metadata: Callable[[], Any]) -> Gradient:
        """Check the gradient of one input, as `read` does; runs it where it is a callable."""
        if gradient is None and need is True:
            return None
        return self._one(self.arguments[self.inputs.index(name)], {name: gradient}, need, metadata())

    def _by_name(self, result: Any, needs: Mapping[str, Needs]) -> Mapping[str, Gradient]:
        if isinstance(result, Mapping):
            for name in result:
                if name not in self.inputs:
                    self._refuse_name(name)
            return result
        result = in_order_of(self.inputs, result, self._refuse, prefixes=("grad_",))
        is_list = len(self.arguments) == 1 and self.arguments[0].is_tensor_list
        if isinstance(result, tuple) or (isinstance(result, list) and not is_list):
            if len(result) != len(self.inputs):
                self._refuse(
                    "returns the wrong number of gradients",
                    expected=f"{len(self.inputs)}: {quote(self.inputs)}",
                    found=str(len(result)),
                    do="return one per differentiable input, in order, or a dict by name",
                )
            return dict(zip(self.inputs, result, strict=True))
        if result is None and not any(is_wanted(needs[name]) for name in self.inputs):
            return {}
        if len(self.inputs) == 1 and result is not None:
            return {self.inputs[0]: result}
        problem = "returns one value for several inputs"
        do = "return a dict by input name, or declare an input that never has a gradient in non_differentiable="
        if result is None:
            problem, do = "returns None", f"is a return missing? if the gradient is zero, {explicit_none(self.inputs)}"
        return self._refuse(problem, expected=f"a dict or a tuple for {quote(self.inputs)}", found=_kind(result), do=do)

    def _refuse(self, problem: str, **facts: str | None) -> NoReturn:
        raise self._error(f"the backward {problem}", **facts)

    def _refuse_name(self, name: Any) -> NoReturn:
        if name in self.declaration.schema.argument_names:
            self._refuse(
                f"returns a gradient for '{name}', which carries none",
                expected=f"gradients for {quote(self.inputs)}",
                do=f"leave '{name}' out of the result",
            )
        self._refuse(
            f"returns a gradient for {name!r}, which is not an input",
            expected=f"gradients for {quote(self.inputs)}",
            found=repr(name),
            do=advise(name, self.inputs),
        )

    def _one(self, argument: Argument, by_name: Mapping[str, Gradient], need: Needs, metadata: Any) -> Gradient:
        name = argument.name
        if self.is_strict:
            self._refuse_impossible(f"'{name}'", by_name.get(name), metadata)
        if not is_wanted(need):
            return [None] * len(need) if isinstance(need, list) else None
        if name not in by_name:
            raise self._error(
                f"the gradient of '{name}' is missing",
                expected=f"an entry '{name}'",
                found=f"entries {quote(map(str, by_name))}",
                do=f"return one; where it is zero, return '{name}': None",
            )
        gradient = self._called(f"'{name}'", by_name[name])
        if argument.is_tensor_list:
            return self._list(name, gradient, need, metadata)
        return self._checked(f"'{name}'", gradient, metadata)

    def _called(self, label: str, gradient: Any) -> Gradient:
        if isinstance(gradient, Tensor) or not callable(gradient):
            return gradient
        if (found := gradient()) is None:
            do = "is a return missing? if the gradient is zero, return None in place of the callable"
            self._refuse(f"returns a callable for {label} that returns None", do=do)
        return found

    def _refuse_impossible(self, label: str, gradient: Any, metadata: Any) -> None:
        """Raise if a gradient is returned for None, or for a tensor of integers or bools."""
        if isinstance(gradient, (list, tuple)) and isinstance(metadata, (list, tuple)):
            for index, (one, known) in enumerate(zip(gradient, metadata, strict=False)):
                self._refuse_impossible(f"{label[:-1]}[{index}]'", one, known)
        elif isinstance(gradient, Tensor) and not _can_have_gradient(metadata):
            self._refuse(
                f"returns a gradient for {label}, which has none in this call",
                expected="None, or no entry",
                found=f"{_kind(gradient)}, and {label} is {'None' if metadata is None else metadata.dtype}",
                do="return a callable, which runs only if the gradient is needed"
                if metadata is None
                else "return None",
            )

    def _list(self, name: str, gradients: Any, need: list[bool], metadata: Sequence[Metadata | None]) -> Gradient:
        if gradients is None:
            return [None] * len(need)
        if not isinstance(gradients, (list, tuple)):
            raise self._error(
                f"the gradient of the list '{name}' is not a list",
                expected=f"a list of {len(need)}",
                found=_kind(gradients),
                do="return one gradient (or None) per tensor of the list",
            )
        if len(gradients) != len(need):
            problem = f"the gradient of the list '{name}' has the wrong length"
            do = "return one per tensor, or None"
            raise self._error(problem, expected=str(len(need)), found=str(len(gradients)), do=do)
        return [
            self._checked(f"'{name}[{index}]'", gradient, known) if needed else None
            for index, (gradient, needed, known) in enumerate(zip(gradients, need, metadata, strict=True))
        ]

    def _checked(self, label: str, gradient: Any, metadata: Metadata | None) -> Tensor | None:
        if metadata is not None:
            gradient = self._called(label, gradient)
        if gradient is None or metadata is None:
            return None
        if not isinstance(gradient, Tensor):
            raise self._error(
                f"the gradient of {label} is not a tensor",
                expected="a tensor, None, or a callable that returns one",
                found=_kind(gradient),
                do=advise_derivative(gradient),
            )
        if self.is_checked:
            self._check_shape(label, gradient, metadata)
            raised = _raised_from_autocast(gradient, metadata)
            self._check_kind(label, raised, metadata)
            return raised
        return gradient

    def _check_shape(self, label: str, gradient: Tensor, metadata: Metadata) -> None:
        shapes = gradient.shape, metadata.shape
        if not is_same_shape(*shapes):
            raise self._error(
                f"the gradient of {label} has the wrong shape",
                expected=f"{tuple(metadata.shape)}, the shape of {label}",
                found=str(tuple(gradient.shape)),
                do=None if _depends_on_data(gradient) else _advise_shape(label, *map(tuple, shapes)),
            )

    def _check_kind(self, label: str, gradient: Tensor, metadata: Metadata) -> None:
        if gradient.dtype != metadata.dtype and metadata.grad_dtype not in (None, gradient.dtype):
            raise self._error(
                f"the gradient of {label} has the wrong dtype",
                expected=f"{metadata.dtype}, the dtype of {label}",
                found=str(gradient.dtype),
                do=_advise_dtype(gradient.dtype, metadata),
            )
        if gradient.device != metadata.device:
            raise self._error(
                f"the gradient of {label} is on the wrong device",
                expected=f"{metadata.device}, the device of {label}",
                found=str(gradient.device),
                do="compute it where the input is",
            )
        if gradient.layout != metadata.layout and metadata.layout != torch.strided:
            raise self._error(
                f"the gradient of {label} has the wrong layout",
                expected=str(metadata.layout),
                found=str(gradient.layout),
                do="convert it: .to_sparse(), .to_sparse_csr(), ...",
            )


def _raised_from_autocast(gradient: Tensor, metadata: Metadata) -> Tensor:
    """Return a gradient in the dtype of its input where autocast has lowered what the rule computes.

    A compiled backward runs under the autocast of its forward. The engine casts such gradients for every Function.
    """
    kind = metadata.device.type
    if gradient.dtype == metadata.dtype or not (metadata.dtype.is_floating_point and torch.is_autocast_enabled(kind)):
        return gradient
    return gradient.to(metadata.dtype) if gradient.dtype == torch.get_autocast_dtype(kind) else gradient


def _is_plainly_fit(gradient: Gradient, known: Metadata) -> bool:
    """Return True for a strided tensor that no check could refuse."""
    if type(gradient) is not Tensor or gradient.layout is not known.layout:
        return False
    try:
        is_alike = gradient.shape == known.shape
    except Exception:  # noqa: BLE001 - sizes that depend on data: `is_same_shape` asserts that they fit
        return False
    return is_alike and gradient.dtype == known.dtype and gradient.device == known.device


def are_fit(gradients: Any, needs: Sequence[bool], like: Sequence[Any]) -> bool:
    """Return True if the gradients of a list are all wanted, and plain tensors that fit their inputs."""
    if type(gradients) is not list or len(gradients) != len(needs):
        return False
    for gradient, needed, one in zip(gradients, needs, like, strict=True):
        if not needed or type(gradient) is not Tensor or not is_same_shape(gradient.shape, one.shape):
            return False
        if gradient.dtype != one.dtype or gradient.device != one.device:
            return False
    return True


def has_needed(result: Mapping[str, Any], names: frozenset[str], needs: Mapping[str, Needs]) -> bool:
    """Return True if a dict of gradients has nothing but the inputs of a rule, and all that are wanted."""
    return result.keys() <= names and all(name in result or not is_wanted(need) for name, need in needs.items())


def sum_to_shape(gradient: Tensor, shape: torch.Size) -> Tensor:
    """Reduce a broadcast gradient to its input's shape, as the autograd engine does."""
    return gradient if is_same_shape(gradient.shape, shape) else gradient.sum_to_size(shape)


def _can_have_gradient(metadata: Metadata | None) -> bool:
    return metadata is not None and (metadata.dtype.is_floating_point or metadata.dtype.is_complex)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "None" if value is None else f"{type(value).__name__}: {show(value)}"


def _advise_dtype(found: torch.dtype, metadata: Metadata) -> str:
    conversion = f"convert it: grad.to({metadata.dtype})"
    if found not in LOW_PRECISION and metadata.dtype not in LOW_PRECISION:
        return conversion
    policy = f"op.register_autocast({metadata.device.type!r}, 'keep')"
    return f"{conversion}; or {policy}, which keeps autocast out of op and rule"


def _depends_on_data(gradient: Tensor) -> bool:
    """Return True if sizes of a tensor in a graph follow from data, so that they cannot be compared one by one."""
    if all(type(size) is int for size in gradient.shape):
        return False
    from custom_autograd.torch_private.symbols import symbols_in  # loads sympy

    return bool(symbols_in(gradient))


def _advise_shape(label: str, found: tuple[int, ...], expected: tuple[int, ...]) -> str | None:
    """Return the likely cause of a wrong shape."""
    if len(found) >= len(expected):
        extra = len(found) - len(expected)
        tail = zip(found[extra:], expected, strict=True)
        dims = [*range(extra), *(extra + i for i, (f, e) in enumerate(tail) if f != e and e == 1)]
        if tuple(f if e != 1 else 1 for f, e in zip(found[extra:], expected, strict=True)) == expected:
            noun = "dimension" if len(dims) == 1 else "dimensions"
            return f"sum over {noun} {', '.join(map(str, dims))}: {label} was broadcast there"
    if found != expected and sorted(found) == sorted(expected):
        return "the sizes are right but in another order: a transpose is missing or too many"
    is_as_large = torch.Size(found).numel() == torch.Size(expected).numel()
    return f"reshape it to the shape of {label}" if is_as_large else f"make it as large as {label}"
