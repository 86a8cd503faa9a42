"""Numbers that depend on data, which fake tensors do not have. Loads sympy: imported when there are any.

- `DataDependentOutputException`: raised if a number is read from a fake tensor.
- `GuardOnDataDependentSymNode`: raised if a symbol for data is to be a number. Dynamo breaks the graph at these two, if
  it may; at any other error of a fake it raises. `cond` is what torch.export makes a suggestion of, if it is a Boolean.
- `symbolic_shapes.free_unbacked_symbols`: the symbols for data that the sizes of tensors have.
"""

from __future__ import annotations

from typing import Any

from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols

from custom_autograd.torch_private.fakes import WITHOUT_DATA


class GraphBreakError(GuardOnDataDependentSymNode):
    """An error at which Dynamo breaks the graph, with a text of ours."""

    cond: Any = None


def needs_data(error: Exception) -> bool:
    """Return True if an error says that a value was read from a tensor that has none."""
    is_of_class = isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode))
    return is_of_class or any(text in str(error) for text in WITHOUT_DATA)


def symbols_in(result: Any) -> frozenset[Any]:  # Any: what a fake returned; a sympy.Symbol has no annotations
    """Return the symbols for data that the sizes of outputs have."""
    return frozenset(free_unbacked_symbols(result))
