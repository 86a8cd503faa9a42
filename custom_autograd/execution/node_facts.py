"""Facts about the nodes of an op: its op, the names of what they save, and the attributes that show those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.function import Function

from custom_autograd.execution.function import FunctionWriter
from custom_autograd.frozen_dataclass import dataclass
from custom_autograd.registration.declaration import Declaration
from custom_autograd.registration.registry import OpRecord
from custom_autograd.torch_private.nodes import SAVED, class_of_function_nodes, set_members_of_nodes
from custom_autograd.values.kernel_results import restore

FACTS = "custom_autograd_node_facts"
"""Where the class of the nodes of a generated Function keeps the facts about them."""


@dataclass(frozen=True, slots=True)
class SavedName:
    """A tensor, or a list of tensors, that nodes save by name."""

    name: str
    is_output: bool
    is_list: bool


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about the nodes of an op, until a rule of it changes.

    Attributes:
        record: the op.
        saved: the tensors that nodes save by name, in order.
        kept: the names of the other values that they keep.
        has_context: the rules have a ctx, and save tensors by position.
    """

    record: OpRecord
    saved: tuple[SavedName, ...]
    kept: tuple[str, ...]
    has_context: bool

    @property
    def name(self) -> str:
        """Return the name of the nodes."""
        return name_of_nodes(self.record.declaration)

    @property
    def label(self) -> str:
        """Return what the text of a node says of its op."""
        return label_of_nodes(self.record.declaration)

    def by_name(self, node: Any, tensors: Sequence[Any]) -> dict[str, Any]:  # Any: nodes have no type; tensors or None
        """Return what a node saved by name, a list for a list of tensors."""
        values = restore(tensors, node.saved_lengths) if any(one.is_list for one in self.saved) else tensors
        return {one.name: value for one, value in zip(self.saved, values, strict=True)}


def facts_of(node: object) -> NodeFacts | None:
    """Return the facts about a node of a custom op, or None if it is the node of something else."""
    found: NodeFacts | None = getattr(class_of_function_nodes(node), FACTS, None)
    return found


def name_of_nodes(declaration: Declaration) -> str:
    """Return the name of the nodes of an op."""
    return f"{declaration.name}Backward"


def label_of_nodes(declaration: Declaration) -> str:
    """Return what the text of a node says of its op."""
    return f", declared at {declaration.location}" if declaration.location else ""


def describe_nodes(record: OpRecord, writer: FunctionWriter, function: type[Function]) -> dict[str, Any]:
    """Give the nodes of a generated Function the attributes that show what is known of them.

    Returns:
        The attributes (Any: of any type).
    """
    lists = {value.name: value.is_tensor_list for value in writer.schema.values}
    inputs = set(writer.schema.argument_names)
    has_context = writer.plan.drop_in is not None
    saved = () if has_context else tuple(SavedName(n, n not in inputs, lists[n]) for n in writer.saved_tensors)
    facts = NodeFacts(record, saved, () if has_context else tuple(writer.saved_values), has_context)
    members = {**members_of(facts), FACTS: facts}
    set_members_of_nodes(function, members)
    return members


def members_of(facts: NodeFacts) -> dict[str, Any]:  # Any: attributes of a class
    """Return the attributes of nodes: the name, `op`, the text, and `_saved_<name>` as built-in nodes have it."""

    def text(node: object) -> str:
        return f"<{facts.name} object at {id(node):#x}{facts.label}>"

    return {
        "__name__": facts.name,
        "__repr__": text,
        "op": OpOfNode(),
        "known": None,
        "is_odd": False,
        **{SAVED + one.name: SavedAttribute(one.name) for one in facts.saved},
        **{SAVED + name: KeptAttribute(name) for name in facts.kept},
    }


# These have no `__set__`: a setup_context may set any attribute of ctx, which is the node.
class OpOfNode:
    """The attribute `op` of a node: the op that recorded it."""

    def __get__(self, node: object, owner: Any) -> object:  # Any: the class of nodes, which has the facts, too
        facts: NodeFacts = getattr(owner, FACTS)
        return facts.record.handle


@dataclass(frozen=True, slots=True)
class SavedAttribute:
    """The attribute `_saved_<name>` of a node: a tensor, a tuple of tensors, or None."""

    name: str

    def __get__(self, node: Any, owner: type) -> Any:  # Any: nodes have no type
        facts = facts_of(node)
        if facts is None:
            return self
        value = facts.by_name(node, node.saved_tensors)[self.name]
        return tuple(value) if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class KeptAttribute:
    """The attribute `_saved_<name>` of a node: a value that is not a tensor."""

    name: str

    def __get__(self, node: Any, owner: type) -> Any:  # Any: as above
        return self if node is None else getattr(node, f"kept_{self.name}")
