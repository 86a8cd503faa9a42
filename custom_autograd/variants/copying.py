"""The op, and then a copy into the caller's tensors; and where a kernel may write there itself.

Both are ops that every mode of PyTorch handles, so gradients, tangents, batches and graphs need no rule. What PyTorch
refuses of its own in-place and out= operations is refused here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private import functions, transforms
from custom_autograd.torch_private.compiler import constant_in_graphs, raise_text
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree
from custom_autograd.values.tensors import do_overlap, first_tensor, tensors_in
from custom_autograd.variants.variant import Metadata


def has_internal_overlap(tensor: Tensor) -> bool:
    """Return True if a tensor is expanded, so that one write would change several of its elements."""
    if tensor.layout != torch.strided:
        return False
    return any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True))


def find_same(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Return two names of the same tensor, or None: all that can be compared in a traced graph, without addresses."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if tensors[other] is tensors[name]:
                return other, name
    return None


def find_shared(tensors: dict[str, Tensor]) -> tuple[str, str] | None:
    """Return two names whose tensors overlap in memory, or None."""
    names = list(tensors)
    for index, name in enumerate(names):
        for other in names[:index]:
            if do_overlap(tensors[other], tensors[name]):
                return other, name
    return None


def overlap_any(targets: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return True if a target overlaps another one, or one of the others."""
    seen = list(others)
    for target in targets:
        if any(do_overlap(target, other) for other in seen):
            return True
        seen.append(target)
    return False


def write_in_place(
    record: OpRecord, op: Callable[..., Any], given: Tensor, args: Sequence[Any], kwargs: dict[str, Any]
) -> Tensor:
    """Return the op, written into one of its arguments.

    Returns:
        The argument.
    """
    name = next(iter(record.declaration.schema.argument_names))
    _refuse_internal_overlap(record, f"{record.name}.inplace", name, given)
    _refuse_leaf(record, name, given)
    if _is_kept_for_backward(record, given, args, kwargs):
        kept = given.clone()  # what backward saves must not be written to
        args = [_replaced(value, given, kept) for value in args]
        kwargs = {key: _replaced(value, given, kept) for key, value in kwargs.items()}
    result = _call(record, op, args, kwargs)
    _check(record, f"{record.name}.inplace", name, given, result)
    if result.shape != given.shape:
        raise KernelError(
            f"{record.name}.inplace",
            f"the result has another shape than '{name}', into which it is written",
            expected=_shape(given),
            found=_shape(result),
            do=f"call the op itself, or give '{name}' the shape of the result",
            declared=record.declaration.location,
        )
    given.copy_(result)
    return given


def write_out(
    record: OpRecord, op: Callable[..., Any], targets: dict[str, Tensor], args: Sequence[Any], kwargs: dict[str, Any]
) -> None:
    """Run the op and write its results into other tensors."""
    label = f"{record.name}.out"
    for name, target in targets.items():
        if not isinstance(target, Tensor):
            raise KernelError(
                label,
                f"'{name}' is not a tensor",
                expected="a tensor",
                found=type(target).__name__,
                declared=record.declaration.location,
            )
        _refuse_internal_overlap(record, label, name, target)
    _refuse_gradients(record, targets, [*args, *kwargs.values()])
    refuse_shared_targets(record, targets)
    result = _call(record, op, args, kwargs)
    results = result if isinstance(result, tuple) else (result,)
    for (name, target), one in zip(targets.items(), results, strict=True):
        _check(record, label, name, target, one)
        if one.shape != target.shape and target.numel() != 0:
            raise KernelError(
                label,
                f"'{name}' has another shape than the result",
                expected=f"{_shape(one)}, or an empty tensor, which is resized",
                found=_shape(target),
                do=f"give '{name}' that shape, or resize it to zero elements",
                declared=record.declaration.location,
            )
    unfit = [(target, one) for target, one in zip(targets.values(), results, strict=True) if one.shape != target.shape]
    for target, one in unfit:
        target.resize_(one.shape)
    if unfit:
        refuse_shared_targets(record, targets)  # empty ones may share what they now need
    for target, one in zip(targets.values(), results, strict=True):
        target.copy_(one)


def _call(record: OpRecord, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Return the op as users call it.

    In-place and out= operations do not take part in autocast, PyTorch's own neither.
    """
    for device in record.registrations.autocast:
        if torch.is_autocast_enabled(device):
            with torch.autocast(device, enabled=False):
                return op(*args, **kwargs)
    return op(*args, **kwargs)


def _is_kept_for_backward(record: OpRecord, given: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if backward may save what is written to, under any of its names."""
    if not torch.is_grad_enabled() or not any(one.requires_grad for one in tensors_in([*args, *kwargs.values()])):
        return False
    if torch.compiler.is_dynamo_compiling():
        return True  # a compiler drops a copy that is never read
    plan = generated_code_of(record).plan
    if plan.drop_in is not None or plan.jvp is not None or adapter_of(record.declaration).has_containers:
        return True
    names = record.declaration.schema.argument_names
    if next(iter(names)) in plan.saved:
        return True
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return any(one is given for name in plan.saved if name in named for one in tensors_in([named[name]]))


def _replaced(value: Any, given: Tensor, kept: Tensor) -> Any:  # Any: an argument of any type
    """Return an argument with one tensor in place of another, also inside containers."""
    if value is given:
        return kept
    if not isinstance(value, (list, tuple, dict)):
        return value
    leaves, structure = flatten_tree(value)
    return unflatten_tree([kept if leaf is given else leaf for leaf in leaves], structure)


def _check(record: OpRecord, label: str, name: str, target: Tensor, result: Tensor) -> None:
    """Refuse another device, and a dtype that cannot be cast, by PyTorch's rule."""
    if result.device != target.device:
        raise KernelError(
            label,
            f"'{name}' is on another device than the result",
            expected=str(result.device),
            found=str(target.device),
            do=f"move '{name}', or the other arguments, to one device",
            declared=record.declaration.location,
        )
    if _kind(result.dtype) > _kind(target.dtype):
        raise KernelError(
            label,
            f"a result of {result.dtype} cannot be cast to the dtype of '{name}'",
            expected=f"{result.dtype}, or a dtype that it can be cast to without losing its kind",
            found=str(target.dtype),
            do=f"give '{name}' that dtype",
            declared=record.declaration.location,
        )


def _kind(dtype: torch.dtype) -> int:
    """Return bool, integer, real or complex: `torch.can_cast` casts upwards only, and would enter an exported graph."""
    if dtype.is_complex:
        return 3
    return 2 if dtype.is_floating_point else int(dtype != torch.bool)


def _refuse_internal_overlap(record: OpRecord, label: str, name: str, tensor: Tensor) -> None:
    if has_internal_overlap(tensor):
        raise KernelError(
            label,
            f"several elements of '{name}' have one place in memory",
            expected="a tensor that is not expanded",
            found=f"strides {tuple(tensor.stride())} for {_shape(tensor)}",
            do=f"clone() '{name}' before the call",
            declared=record.declaration.location,
        )


def _refuse_leaf(record: OpRecord, name: str, given: Tensor) -> None:
    """Raise before anything is computed; where this cannot be read, PyTorch's own copy_ refuses it."""
    if torch.compiler.is_compiling() or transforms.is_transforming() or not torch.is_grad_enabled():
        return
    if functions.is_leaf_in_graph(given):
        raise GradientError(
            f"{record.name}.inplace",
            f"'{name}' is a leaf that requires a gradient, or a view of one, and is written to",
            do="call it under torch.no_grad(), on a copy, or call the op itself",
            declared=record.declaration.location,
        )


def _refuse_gradients(record: OpRecord, targets: dict[str, Tensor], values: list[Any]) -> None:
    """Refuse tensors that require a gradient, as PyTorch does."""
    if not torch.is_grad_enabled():
        return
    if any(tensor.requires_grad for tensor in tensors_in([*targets.values(), *values])):
        raise GradientError(
            f"{record.name}.out",
            "functions with out=... do not support automatic differentiation, and a tensor requires a gradient",
            do="call it under torch.no_grad(), or call the op itself",
            declared=record.declaration.location,
        )


def refuse_shared_targets(record: OpRecord, targets: dict[str, Tensor]) -> None:
    """Refuse two targets in the same memory; while a graph is traced, only the same tensor twice is seen."""
    if len(targets) == 1:
        return
    shared = find_same(targets) if torch.compiler.is_dynamo_compiling() else find_shared(targets)
    if shared is not None:
        raise_text(KernelError, _sharing(f"{record.name}.out", record.declaration.location, *shared))


@constant_in_graphs  # Dynamo cannot trace how a message is laid out
def _sharing(label: str, declared: str, one: str, other: str) -> str:
    error = KernelError(
        label,
        f"'{one}' and '{other}' share memory",
        expected="memory of its own for each output",
        declared=declared,
        do="give each output a tensor of its own",
    )
    return str(error)


def _shape(tensor: Tensor) -> str:
    return f"shape {tuple(tensor.shape)}"


def fits(targets: Sequence[Tensor], results: Metadata | None, others: Sequence[Any]) -> bool:  # Any: other arguments
    """Return True if tensors have the shape, dtype and device of the results, and no element twice in memory."""
    if results is None:
        return False
    like = first_tensor(others)
    for target, (shape, dtype) in zip(targets, results, strict=True):
        if target.shape != shape or target.dtype != dtype or has_internal_overlap(target):
            return False
        if like is not None and target.device != like.device:
            return False
    return not overlap_any(targets, tensors_in(others))
