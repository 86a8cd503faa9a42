"""A size, or what is computed from one, may be a constant of a structure: a graph is compiled for its value."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from tables import each
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close
from torch.utils import _pytree as pytree

from custom_autograd import custom_op


class Scaled:
    def __init__(self, x: Tensor, factor: Any) -> None:
        self.x, self.factor = x, factor


pytree.register_pytree_node(
    Scaled,
    lambda value: ([value.x], value.factor),
    lambda children, factor: Scaled(*children, factor),
    serialized_type_name="test_symbolic_constants.Scaled",
)


@dataclasses.dataclass
class Options:
    plus: bool = False
    power: Literal["none", 2, 3] = 2


@custom_op("symbolic_constants::literal")
def literal(x: Tensor, n: Literal["all", 2, 3, 4, 5, None] = None) -> Tensor:
    return x * (n if isinstance(n, int) else 7)


@custom_op("symbolic_constants::optional_record")
def optional_record(x: Tensor, options: Options | None = None) -> Tensor:
    options = options or Options()
    return x ** (0 if options.power == "none" else options.power) + options.plus


@custom_op("symbolic_constants::record")
def record(x: Tensor, options: Options) -> Tensor:
    return optional_record(x, options)


@custom_op("symbolic_constants::anything")
def anything(x: Tensor, values: list[Any]) -> Tensor:
    assert [int, bool] == [type(value) for value in values]
    return x * values[0] + values[1]


@custom_op("symbolic_constants::table")
def table(x: Tensor, values: dict[str, int | bool | None]) -> Tensor:
    return x * values["n"] + values["plus"]


@custom_op("symbolic_constants::keyed")
def keyed(x: Tensor, values: dict[int, Tensor]) -> Tensor:
    return x * next(iter(values))


@custom_op("symbolic_constants::node")
def node(value: Scaled) -> Tensor:
    return value.x * value.factor


for like_x in (literal, optional_record, record, anything, table, keyed):
    like_x.register_fake(lambda x, *others: torch.empty_like(x))
node.register_fake(lambda value: torch.empty_like(value.x))

CALLS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "a Literal with other types": literal,
    "a bool of a record": lambda x, n: record(x, Options(plus=n > 2)),
    "a bool of an optional record": lambda x, n: optional_record(x, Options(plus=n > 2)),
    "a Literal of an optional record": lambda x, n: optional_record(x, Options(power=n)) if 1 < n < 4 else x,
    "a bool of a list": lambda x, n: anything(x, [n, n > 2]),
    "a bool of a dict": lambda x, n: table(x, {"n": n, "plus": n > 2}),
    "the context of a pytree node": lambda x, n: node(Scaled(x, n)),
    "a float in the context of a pytree node": lambda x, n: node(Scaled(x, n / 2)),
}
KEYED = {"a key of a dict": lambda x, n: keyed(x, {n: x})}  # a symbol has no hash where Python runs


@each("name", [*CALLS, *KEYED])
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_int_of_a_compiled_call(name, dynamic):
    call = {**CALLS, **KEYED}[name]
    compiled = torch.compile(call, fullgraph=True, backend="eager", dynamic=dynamic)

    for n in (3, 2, 4, 5):
        assert_close(compiled(torch.arange(3.0), n), call(torch.arange(3.0), n))


@each("name", [*CALLS, *KEYED])
def test_a_size_of_a_compiled_call(name):
    call = {**CALLS, **KEYED}[name]
    compiled = torch.compile(lambda x: call(x, x.shape[0]), fullgraph=True, backend="eager")

    for n in (3, 2, 4, 5):
        assert_close(compiled(torch.arange(float(n))), call(torch.arange(float(n)), n))


@each("name", CALLS)
def test_a_size_of_an_exported_call(name):
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return CALLS[name](x, x.shape[0])

    x = torch.arange(3.0)
    program = torch.export.export(Model(), (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},), strict=False)

    assert_close(program.module()(x), Model()(x))


@each("name", CALLS)
def test_a_size_of_a_traced_call(name):
    x = torch.arange(3.0)
    graph = make_fx(lambda x: CALLS[name](x, x.shape[0]), tracing_mode="symbolic")(x)

    assert_close(graph(x), CALLS[name](x, 3))
