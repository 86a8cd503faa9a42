"""The rules by which DTensors are placed, `torch.distributed.tensor`; `register_sharding` is public, but see below.

- `DTensor._op_dispatcher.sharding_propagator`, its `register_op_strategy` and `op_strategy_funcs`, and
  `RuntimeSchemaInfo`: the public `register_sharding` leaves str, bool, float and int[] arguments out of the key of its
  cache, so that a second call with another value gets the placements, the shape and the dtype of the first.
- `OpStrategy`, `OpSpec`, `DTensorSpec`, `TupleStrategy`, `generate_redistribute_costs`: what a strategy is made of.
- `debug._clear_sharding_prop_cache`: placements that were learnt under a rule that has been replaced.

The module takes half a second to import, and whoever has made a DTensor has imported it: what is registered before
waits for the import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.torch_private.awaited_modules import AwaitedModule
from custom_autograd.torch_private.dispatch import OpOverload

MODULE = "torch.distributed.tensor"

Placement: TypeAlias = int | str
"""A dimension that is cut, or REPLICATE or PARTIAL: what becomes a placement of torch."""
REPLICATE, PARTIAL = "replicate", "partial"

Placements: TypeAlias = tuple[Sequence[Placement], Sequence[Placement]]
"""What one dimension of a mesh may hold: of each input, and of each output."""
Rule: TypeAlias = Callable[[Sequence[Any], dict[str, Any], Sequence[int]], list[Sequence[Placements]]]
"""(arguments, keyword arguments, sizes of the mesh) -> each choice, with one entry per dimension of the mesh.

Any: tensors have a shape and placements, lists of them are lists, and all else is as the dispatcher has it.
"""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a rule sees of a DTensor.

    Attributes:
        shape: of the whole tensor.
        placements: of torch, one for each dimension of the mesh (Any: their classes are torch's).
    """

    shape: Sequence[int]
    placements: tuple[Any, ...]


_tensors = AwaitedModule(MODULE)
when_imported = _tensors.when_imported


def is_loaded() -> bool:
    """Return True if the program can have made a DTensor."""
    return _tensors.module is not None


def is_placed(value: object) -> bool:
    """Return True if a value is a DTensor."""
    return _tensors.module is not None and isinstance(value, _tensors.module.DTensor)


def register(overload: OpOverload, rule: Rule, first_in_key: int, keywords_in_key: tuple[str, ...]) -> None:
    """Register how the calls of an op are placed, once the module of DTensors is loaded; a user's own rule stays."""
    if has_other_rule(overload):
        return
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    is_known = overload in _propagator().op_strategy_funcs
    key = RuntimeSchemaInfo(first_in_key, list(keywords_in_key) or None, needs_pytree=True)
    _propagator().register_op_strategy(overload, _Function(rule), key)
    if is_known:
        _forget()


def withdraw(overload: OpOverload) -> None:
    """Take back what was registered, if anything was; as `register`, once the module is loaded."""
    if isinstance(_propagator().op_strategy_funcs.get(overload), _Function):
        del _propagator().op_strategy_funcs[overload]
        _forget()


def has_other_rule(overload: OpOverload) -> bool:
    """Return True if the user has registered a rule with torch."""
    if not is_loaded():
        return False
    tables = (_propagator().op_strategy_funcs, getattr(_propagator(), "op_single_dim_strategy_funcs", {}))
    return any(overload in table and not isinstance(table[overload], _Function) for table in tables)


def _propagator() -> Any:  # Any: its class is torch's
    """Return what finds the placements of a call, which has torch's table of rules."""
    assert _tensors.module is not None
    return _tensors.module.DTensor._op_dispatcher.sharding_propagator


class _Function:
    """What torch calls for the strategies of a call."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule

    def __call__(self, schema: Any) -> Any:  # Any: OpSchema and OpStrategy
        """Return every choice with its cost."""
        from torch.distributed.tensor._op_schema import OpStrategy

        mesh = schema.get_mesh_from_args()
        arguments = [_placed(value) for value in schema.args_schema]
        keywords = {name: _placed(value) for name, value in schema.kwargs_schema.items()}
        sizes = [mesh.size(dim) for dim in range(mesh.ndim)]
        choices = self._rule(arguments, keywords, sizes)
        inputs = [*schema.args_strategy]
        return OpStrategy([_spec(mesh, inputs, choice) for choice in choices])


def _spec(mesh: Any, inputs: Sequence[Any], choice: Sequence[Placements]) -> Any:  # Any: as above
    """Return one choice with its cost."""
    from torch.distributed.tensor._dtensor_spec import DTensorSpec
    from torch.distributed.tensor._op_schema import OpSpec
    from torch.distributed.tensor._ops.utils import generate_redistribute_costs

    count = len(choice[0][1])
    wanted = [torch_placements([per_dim[0][at] for per_dim in choice]) for at in range(len(inputs))]
    made = [torch_placements([per_dim[1][at] for per_dim in choice]) for at in range(count)]
    input_specs = [
        DTensorSpec(mesh, placements, tensor_meta=one.strategies[0].output_spec.tensor_meta)
        for one, placements in zip(inputs, wanted, strict=True)
    ]
    outputs = tuple(DTensorSpec(mesh, placements) for placements in made)
    costs = [generate_redistribute_costs(one, spec) for one, spec in zip(inputs, input_specs, strict=True)]
    output_specs = None if not outputs else outputs[0] if count == 1 else outputs
    return OpSpec(output_specs=output_specs, input_specs=input_specs, redistribute_cost=costs)


def torch_placements(placements: Iterable[Any]) -> tuple[Any, ...]:  # Any: our placements, or torch's
    """Return the placements of a tensor as torch has them."""
    tensor = sys.modules[MODULE]
    known = {REPLICATE: tensor.Replicate, PARTIAL: tensor.Partial}
    return tuple(
        tensor.Shard(one) if isinstance(one, int) else known[one]() if isinstance(one, str) else one
        for one in placements
    )


def _placed(value: Any) -> Any:  # Any: an argument
    from torch.distributed.tensor._op_schema import OpStrategy, TupleStrategy

    if isinstance(value, OpStrategy):
        spec = value.strategies[0].output_spec
        return Placed(value.shape, spec.placements)
    if isinstance(value, TupleStrategy):
        return [_placed(one) for one in value.children]
    if isinstance(value, (list, tuple)):
        return [_placed(one) for one in value]
    return value


def _forget() -> None:
    """Forget all placements that were found: the rule of an op was replaced."""
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    _clear_sharding_prop_cache()
