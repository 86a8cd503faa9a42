"""Read what a vmap rule returns: a value and a dimension for each output, or an error that says what to return."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NoReturn

from torch import Tensor

from custom_autograd.core.errors import KernelError
from custom_autograd.core.messages import quote, show
from custom_autograd.core.named_tuples import in_order_of, sole_value
from custom_autograd.core.schema import Output
from custom_autograd.registration.one_tuple import content
from custom_autograd.registration.registry import OpRecord
from custom_autograd.registration.rule_types import Rule

RETURN = "return the output, and for each output the dimension that is batched, or None"


class BatchedResultReader:
    """Reads what one vmap rule returns in one call.

    PyTorch trusts the structure of it: it reads past the end of a tuple that is too short.
    """

    def __init__(self, record: OpRecord, rule: Rule, batch_size: int) -> None:
        self.record = record
        self.rule = rule
        self.batch_size = batch_size
        self.schema = record.declaration.schema
        self.origin = record.declaration.origin(rule.location)

    def read(self, found: Any) -> tuple[Any, Any]:  # Any: whatever the user's rule returned
        """Return the output and its out_dims, in one structure.

        Raises:
            KernelError: if they are not what the schema says, or an output is not batched where the rule says so.
        """
        if not isinstance(found, tuple) or len(found) != 2:
            raise self.origin.error(
                KernelError,
                "the vmap rule returns no pair",
                expected="(output, out_dims)",
                found=type(found).__name__ if not isinstance(found, tuple) else f"a tuple of {len(found)}",
                do=RETURN,
            )
        result, out_dims = found
        outputs = self.schema.outputs
        if not outputs:
            return (), ()
        if len(outputs) == 1:
            return self._one(outputs[0], self._sole(result), self._sole(out_dims))
        rows = zip(outputs, self._values(result), self._dims(out_dims), strict=True)
        values, dims = zip(*[self._one(*row) for row in rows], strict=True)
        return values, dims

    def _sole(self, value: Any) -> Any:
        """Return what is in the tuple or the NamedTuple that the op returns, too."""
        if self.schema.is_one_tuple:
            return content(value)
        return value if type(value) is tuple else sole_value(self.schema, value)

    def _values(self, result: Any) -> Sequence[Any]:
        outputs = self.schema.outputs
        result = in_order_of(self.schema.output_names, result, self._refuse)
        if isinstance(result, (list, tuple)) and len(result) == len(outputs):
            return result
        do = self._advise_count(len(result) if isinstance(result, (list, tuple)) else 1)
        expected = f"{len(outputs)} outputs: {quote(self.schema.output_names)}"
        raise self.origin.error(
            KernelError,
            "the vmap rule returns the wrong number of outputs",
            expected=expected,
            found=_kind(result),
            do=do,
        )

    def _refuse(self, problem: str, **facts: str) -> NoReturn:
        raise self.origin.error(KernelError, f"the vmap rule {problem}", **facts)

    def _advise_count(self, count: int) -> str:
        """Return what to do about a number of outputs: a backward below the vmap may have saved the hidden ones."""
        outputs = self.schema.outputs
        hidden = [output.name for output in outputs if output.is_hidden]
        if not hidden or count != len(outputs) - len(hidden):
            return "return one value per output, in the order of the schema"
        kind = "output" if len(hidden) == 1 else "outputs"
        call = f"{self.record.declaration.name.name}.overload(...), ({', '.join('0' for _ in outputs)})"
        return f"return the hidden {kind} {quote(hidden)} as well, as the op's overload does: return {call}"

    def _dims(self, out_dims: Any) -> Sequence[Any]:
        outputs = self.schema.outputs
        out_dims = in_order_of(self.schema.output_names, out_dims, self._refuse)
        if not isinstance(out_dims, (list, tuple)):
            return [out_dims] * len(outputs)  # one number for all: torch.vmap takes it so, too
        if len(out_dims) != len(outputs):
            raise self.origin.error(
                KernelError,
                "the vmap rule returns the wrong number of out_dims",
                expected=f"{len(outputs)}, one per output: {quote(self.schema.output_names)}",
                found=_kind(out_dims),
                do="return one dimension (or None) per output, in the order of the schema, or one for all",
            )
        return out_dims

    def _one(self, output: Output, value: Any, dim: Any) -> tuple[Any, Any]:
        if output.type in ("Tensor", "Tensor?"):
            return self._tensor(output, output.name, value, dim)
        if not output.holds_tensors:
            return value, None
        if value is None and output.type.endswith("?"):
            return None, None
        if not isinstance(value, (list, tuple)):
            problem = f"the output '{output.name}' of the vmap rule is not a list"
            raise self.origin.error(KernelError, problem, expected="a list of tensors", found=_kind(value), do=RETURN)
        dims = list(dim) if isinstance(dim, (list, tuple)) else [dim] * len(value)
        if len(dims) != len(value):
            raise self.origin.error(
                KernelError,
                f"the out_dims of the list '{output.name}' do not fit it",
                expected=f"{len(value)}, one per tensor of the list, or one for all",
                found=f"{len(dims)}",
                do="return one dimension (or None) per tensor of the list",
            )
        rows = enumerate(zip(value, dims, strict=True))
        read = [self._tensor(output, f"{output.name}[{index}]", *row) for index, row in rows]
        return [one for one, _ in read], [its for _, its in read]

    def _tensor(self, output: Output, label: str, value: Any, dim: Any) -> tuple[Any, Any]:
        if value is None and "?" in output.type:
            return None, None
        if not isinstance(value, Tensor):
            raise self.origin.error(
                KernelError,
                f"the output '{label}' of the vmap rule is not a tensor",
                expected="a tensor",
                found=_kind(value),
                do="return (output, out_dims), and a tuple only if the op has several outputs",
            )
        if dim is None:
            return value, None
        return value, self._batch_dim(output, label, value, dim)

    def _batch_dim(self, output: Output, label: str, value: Tensor, dim: Any) -> int:
        try:
            index = operator.index(dim)
        except TypeError:
            raise self.origin.error(
                KernelError,
                f"the out_dims of the vmap rule have no dimension for output '{label}'",
                expected="an int, or None if the output is not batched",
                found=_kind(dim),
                do=RETURN,
            ) from None
        if value.is_nested or (-value.dim() <= index < value.dim() and value.shape[index] == self.batch_size):
            return index
        raise self.origin.error(
            KernelError,
            f"the vmap rule says that output '{output.name}' is batched over dimension {index}, and it is not",
            expected=f"{self.batch_size} samples there",
            found=f"shape {tuple(value.shape)}",
            do="return as out_dims the dimension of each output that has the batch, or None",
        )


def _kind(value: Any) -> str:
    """Return what a value is, in words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if value is None:
        return "None"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__}: {show(value)}"
