"""Fake tensors whose sizes are symbols, and numbers that depend on data. Loads sympy.

FakeTensorMode, ShapeEnv, StatelessSymbolicContext, DimDynamic, ConstantSource
                        torch.compile makes its fake tensors so; torch.export.Dim reaches only whole programs
ShapeEnv.guards         the conditions under which what was traced holds
ShapeEnv.replacements   which symbol was found to be a number
enable_python_dispatcher
                        torch.compile traces so: ops such as constant_pad_nd have kernels in C++ that make numbers of
                        sizes, and decompositions in Python that do not
SymInt.node.expr        a size as an expression, to compute it for other sizes
SymInt.node.hint        what a size was when the graph was traced

- `DataDependentOutputException`: raised if a number is read from a fake tensor.
- `GuardOnDataDependentSymNode`: raised if a symbol for data is to be a number. Dynamo breaks the graph at these two, if
  it may; at any other error of a fake it raises. `cond` is what torch.export makes a suggestion of, if it is a Boolean.
- `torch._check`: asserts what only data can decide; the graph is traced as if it held.
- `symbolic_shapes.free_unbacked_symbols`: the symbols for data that the sizes of tensors have.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols

from custom_autograd.torch_private.fakes import WITHOUT_DATA, new_fake_mode

LIMIT = 2**30
"""Numbers above are limits of torch's own, such as the largest index that fits into 32 bits."""


class Symbols:
    """One symbol per size: dimensions of equal size share it, as they do where torch.compile sees them first."""

    def __init__(self, environment: Any, mode: Any) -> None:  # Any: ShapeEnv and FakeTensorMode have no annotations
        self._environment = environment
        self._mode = mode
        self._symbols: dict[int, Any] = {}  # Any: a sympy.Symbol, which has no annotations

    def fake(self, tensor: Tensor, position: int, free: Collection[int]) -> Tensor:
        """Return a fake tensor; its dimensions of the free sizes, which are above 1, are symbols."""
        from torch._dynamo.source import ConstantSource  # loads the compiler, which only this needs
        from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext  # loads sympy

        dims: Any = [DimDynamic.DUCK if size in free else DimDynamic.STATIC for size in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
        fake: Tensor = self._mode.from_tensor(tensor, source=ConstantSource(f"_{position}"), symbolic_context=context)
        shape: tuple[Any, ...] = fake.shape  # Any: torch says int, where a SymInt may stand
        for size, symbolic in zip(tensor.shape, shape, strict=True):
            if isinstance(symbolic, torch.SymInt):
                self._symbols[size] = symbolic.node.expr
        return fake

    def is_fixed(self, size: int) -> bool:
        """Return True if what was traced holds for this size alone."""
        symbol = self._symbols.get(size)
        return symbol is not None and bool(self._environment.replacements.get(symbol, symbol).is_number)

    def holds_for(self, sizes: Mapping[int, int]) -> bool:
        """Return True if what was traced holds for other sizes, given by the old ones."""
        return all(_value(guard.expr, self._at(sizes)) is not False for guard in self._environment.guards)

    def edges(self, names: Mapping[int, str]) -> Iterator[tuple[str, list[dict[int, int]]]]:
        """Yield each condition on sizes that compares with a number, and sizes beyond it, by the old one."""
        words = {str(symbol): names[size] for size, symbol in self._symbols.items() if size in names}
        seen = set()
        for guard in self._environment.guards:
            numbers = sorted(int(number) for number in guard.expr.atoms() if number.is_Integer and 2 < number < LIMIT)
            if guard.expr in seen or not numbers or not guard.expr.is_Relational:
                continue
            seen.add(guard.expr)
            for size, symbol in self._symbols.items():
                near = [n + step for n in numbers for step in (1, n, 0, -1) if symbol in guard.expr.free_symbols]
                sizes = [{size: other} for other in near if other != size and other > 1]
                beyond = [row for row in sizes if _value(guard.expr, self._at(row)) is False]
                if beyond:
                    yield re.sub(r"\w+", lambda word: words.get(word[0], word[0]), str(guard.expr)), beyond[:2]

    def size_at(self, size: int | torch.SymInt, sizes: Mapping[int, int]) -> int | None:
        """Return a size or stride for other sizes; None if it depends on data."""
        if not isinstance(size, torch.SymInt):
            return size
        found = _value(size.node.expr, self._at(sizes))
        return None if found is None else int(found)

    def _at(self, sizes: Mapping[int, int]) -> dict[Any, int]:  # Any: a sympy.Symbol
        return {symbol: sizes.get(size, size) for size, symbol in self._symbols.items()}


@contextlib.contextmanager
def symbolic_mode() -> Iterator[Symbols]:
    """Run everything within on metadata; yield a factory of fake tensors with symbols for sizes."""
    from torch._dispatch.python import enable_python_dispatcher  # loads functorch, which only this needs
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment = ShapeEnv()
    mode = new_fake_mode(shape_env=environment, allow_non_fake_inputs=True)
    with enable_python_dispatcher(), mode:
        yield Symbols(environment, mode)


def hint_of(size: int | torch.SymInt) -> int:
    """Return what a size was when it was traced, without a condition on it; 1 for one that depends on data."""
    if not isinstance(size, torch.SymInt):
        return size
    hint = getattr(size.node, "hint", None)
    return 1 if hint is None else int(hint)


def _value(expression: Any, values: Mapping[Any, int]) -> int | bool | None:  # Any: sympy's expressions
    """Return an expression with numbers for symbols; None if a symbol is left, or it divides by 0."""
    try:
        found = expression.subs(values)
    except ZeroDivisionError:
        return None
    if found.free_symbols:
        return None
    return bool(found) if found.is_Boolean else int(found)


class GraphBreakError(GuardOnDataDependentSymNode):
    """An error at which Dynamo breaks the graph, with a text of ours."""

    cond: Any = None


def needs_data(error: Exception) -> bool:
    """Return True if an error says that a value was read from a tensor that has none."""
    is_of_class = isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode))
    return is_of_class or any(text in str(error) for text in WITHOUT_DATA)


def are_asserted_equal(sizes: Sequence[int], others: Sequence[int]) -> bool:
    """Return True if sizes are equal. What only data can decide is asserted, as the autograd engine does."""
    return all(map(_is_asserted_equal, sizes, others))


def _is_asserted_equal(size: int, other: int) -> bool:
    try:
        return bool(size == other)
    except GuardOnDataDependentSymNode:
        torch._check(size == other)
        return True


def symbols_in(result: Any) -> frozenset[Any]:  # Any: what a fake returned; a sympy.Symbol has no annotations
    """Return the symbols for data that the sizes of outputs have."""
    return frozenset(free_unbacked_symbols(result))
