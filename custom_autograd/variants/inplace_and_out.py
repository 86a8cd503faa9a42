"""`op.inplace(x, ...)` writes into the first argument, `op.out(..., out=tensor)` into tensors of the caller.

Both are the op, and then a copy. Every mode of PyTorch handles those two, so gradients, tangents, batches and graphs
need no rule. What PyTorch refuses of its own in-place and out= operations is refused here, before anything is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from custom_autograd.capabilities.autocast import policies_of
from custom_autograd.containers.op_adapter import adapter_of
from custom_autograd.core.errors import GradientError, KernelError
from custom_autograd.core.messages import quote, show
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.registration.registry import OpRecord
from custom_autograd.schema.schema import INPLACE, OUT, out_names
from custom_autograd.torch_private import functions, transforms
from custom_autograd.torch_private.compiler import constant_in_graphs, is_exporting, raise_text
from custom_autograd.torch_private.trees import flatten_tree, unflatten_tree
from custom_autograd.values.tensors import do_overlap, tensors_in
from custom_autograd.variants.variant import Variant, shape_of


class InplaceVariant(Variant):
    """`op.inplace(x, ...)`: the result is written into the first argument, which is returned."""

    kind = INPLACE
    label = "in-place"
    expected = "a tensor as first argument and one tensor as output, of new memory"

    def __call__(self, /, *args: Any, **kwargs: Any) -> Tensor:
        """Call the op, and write the result into its first argument.

        Returns:
            The first argument.

        Raises:
            KernelError: the result does not fit into it: another shape or device, or a dtype that cannot be cast.
            GradientError: it is a leaf that requires a gradient.
        """
        written: Tensor = self._call(args, kwargs)
        return written

    def _compose(self, /, *args: Any, **kwargs: Any) -> Tensor:
        name = self.op.declaration.schema.arguments[0].name
        given = args[0] if args else kwargs.get(name)
        if not isinstance(given, Tensor):
            problem = f"'{name}' is not a tensor to write to"
            raise self._origin.error(KernelError, problem, expected="a tensor", found=show(given))
        self._refuse_expanded(name, given)
        self._refuse_leaf(name, given)
        if _is_kept_for_backward(self.op, given, args, kwargs):
            kept = given.clone()  # what backward saves must not be written to
            leaves, structure = flatten_tree((args, kwargs))
            args, kwargs = unflatten_tree([kept if leaf is given else leaf for leaf in leaves], structure)
        result = _call_op(self.op, args, kwargs)
        self._refuse_cast(name, given, result)
        if result.shape != given.shape:
            raise self._origin.error(
                KernelError,
                f"the result has another shape than '{name}', into which it is written",
                expected=shape_of(given),
                found=shape_of(result),
                do=f"call the op itself, or give '{name}' the shape of the result",
            )
        given.copy_(result)
        return given

    def _refuse_leaf(self, name: str, given: Tensor) -> None:
        """Raise before anything is computed; where this cannot be read, PyTorch's own copy_ refuses it."""
        if torch.compiler.is_compiling() or transforms.is_transforming() or not torch.is_grad_enabled():
            return
        if functions.is_leaf_in_graph(given):
            raise self._origin.error(
                GradientError,
                f"'{name}' is a leaf that requires a gradient, or a view of one, and is written to",
                do="call it under torch.no_grad(), on a copy, or call the op itself",
            )


class OutVariant(Variant):
    """`op.out(..., out=tensor)`: the results are written into tensors of the caller, which are returned."""

    kind = OUT
    label = "out"
    expected = "outputs that are tensors, of new memory"

    def __call__(self, /, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Call the op, and write its results.

        Args:
            args: as of the op.
            out: the tensor to write to, or one per output; those may also be given under the names of the outputs.
            kwargs: as of the op.

        Returns:
            What was written to.

        Raises:
            KernelError: a result does not fit into its tensor: another shape (an empty tensor is resized) or device,
                or a dtype that cannot be cast.
            GradientError: a tensor requires a gradient, and grad mode is on.
        """
        names = out_names(self.op.declaration.schema)
        given = {name: kwargs.pop(name) for name in names if name in kwargs}
        if out is not None:
            several = out if isinstance(out, (tuple, list)) else (out,)
            given = dict(zip(names, several, strict=True)) if len(several) == len(names) and not given else {}
        if len(given) != len(names):
            several_tensors = f"out= {len(names)} tensors, or by keyword {quote(names)}"
            raise self._origin.error(
                KernelError,
                "the call does not say where each output is to be written",
                expected="out=tensor" if len(names) == 1 else several_tensors,
                do="give one tensor per output",
            )
        if torch.compiler.is_dynamo_compiling():  # elsewhere whatever runs can look at addresses
            self._refuse_shared(given)
        return self._call(args, {**kwargs, **given})

    def _compose(self, /, *args: Any, **kwargs: Any) -> Any:
        schema = self.op.declaration.schema
        targets = {name: kwargs.pop(name) for name in out_names(schema)}
        self._refuse(targets, [*args, *kwargs.values()])
        result = _call_op(self.op, args, kwargs)
        results = result if isinstance(result, tuple) else (result,)
        unfit = []
        for (name, target), one in zip(targets.items(), results, strict=True):
            self._refuse_cast(name, target, one)
            if one.shape != target.shape:
                self._refuse_shape(name, target, one)
                unfit.append((target, one))
        for target, one in unfit:
            target.resize_(one.shape)
        if unfit:
            self._refuse_shared(targets)  # empty ones may share what they now need
        for target, one in zip(targets.values(), results, strict=True):
            target.copy_(one)
        if len(targets) == 1:
            return next(iter(targets.values()))
        if schema.named_tuple is not None and not schema.hidden_outputs:
            return schema.named_tuple(*targets.values())
        return tuple(targets.values())

    def _refuse(self, targets: dict[str, Any], values: list[Any]) -> None:  # Any: what the caller gave
        """Raise before anything is computed: for what is not a tensor, memory in common, and gradients."""
        for name, target in targets.items():
            if not isinstance(target, Tensor):
                problem = f"'{name}' is not a tensor"
                raise self._origin.error(KernelError, problem, expected="a tensor", found=type(target).__name__)
            self._refuse_expanded(name, target)
        if torch.is_grad_enabled() and any(one.requires_grad for one in tensors_in([*targets.values(), *values])):
            raise self._origin.error(
                GradientError,
                "functions with out=... do not support automatic differentiation, and a tensor requires a gradient",
                do="call it under torch.no_grad(), or call the op itself",
            )
        self._refuse_shared(targets)

    def _refuse_shape(self, name: str, target: Tensor, result: Tensor) -> None:
        if target.numel() != 0:
            raise self._origin.error(
                KernelError,
                f"'{name}' has another shape than the result",
                expected=f"{shape_of(result)}, or an empty tensor, which is resized",
                found=shape_of(target),
                do=f"give '{name}' that shape, or resize it to zero elements",
            )

    def _refuse_shared(self, targets: dict[str, Tensor]) -> None:
        """Raise if two targets share memory; while a graph is traced, only the same tensor twice is seen."""
        is_traced = torch.compiler.is_dynamo_compiling()
        for (name, target), (other_name, other) in itertools.combinations(targets.items(), 2):
            if target is other or (not is_traced and do_overlap(target, other)):
                raise_text(KernelError, _sharing(self._origin.op, self._origin.declared, name, other_name))


def _call_op(op: OpRecord, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:  # Any: what the schema declares
    """Return the op as users call it; where that might return an argument as it is, by way of the dispatcher."""
    # In-place and out= operations do not take part in autocast, PyTorch's own neither.
    for policy in policies_of(op):
        if torch.is_autocast_enabled(policy.device_type):
            with torch.autocast(policy.device_type, enabled=False):
                return _call_op(op, args, kwargs)
    if torch.compiler.is_dynamo_compiling() or op.declaration.schema.may_return_inputs:
        assert op.dispatched is not None
        op.dispatched.generate()
        return op.dispatched.outer(*args, **kwargs)
    assert op.handle is not None
    return op.handle(*args, **kwargs)


def _is_kept_for_backward(op: OpRecord, given: Tensor, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return True if backward may save what is written to, under any of its names."""
    if not torch.is_grad_enabled():
        return False
    if not is_exporting() and not any(map(_is_recorded, tensors_in([*args, *kwargs.values()]))):
        return False
    if torch.compiler.is_dynamo_compiling():
        return True  # a compiler drops a copy that is never read
    plan = generated_code_of(op).plan
    if plan.drop_in is not None or plan.jvp is not None or adapter_of(op.declaration).has_containers:
        return True
    names = op.declaration.schema.argument_names
    if names[0] in plan.saved:
        return True
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return any(one is given for name in plan.saved if name in named for one in tensors_in([named[name]]))


def _is_recorded(tensor: Tensor) -> bool:
    """Return True if a tensor requires a gradient; outside of compiled code, at any level of transforms."""
    return tensor.requires_grad or (
        not torch.compiler.is_dynamo_compiling()
        and transforms.is_transforming()
        and transforms.is_recorded_anywhere(tensor)
    )


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
