"""The operators that the dispatcher knows, by name.

- `_C._dispatch_get_all_op_names`: all of them, of which `torch.ops` lists only those already looked up.
- `_C._get_schema`: the schema of an overload, without making the overload.
- `_C._dispatch_has_kernel_for_dispatch_key`: whether an op is taken apart before autograd, and so is never seen itself.
- `OpOverloadPacket`: the type of `torch.ops.ns.name`, which has no public name; its `_qualified_op_name`.
"""

from __future__ import annotations

from torch import _C
from torch._ops import OpOverloadPacket as OpOverloadPacket


def all_names() -> list[str]:
    """Return the names of all overloads: "ns::name" for the default one, "ns::name.overload" for the others."""
    return list(_C._dispatch_get_all_op_names())


def name_of_packet(packet: OpOverloadPacket) -> str:
    """Return "ns::name"."""
    name: str = packet._qualified_op_name
    return name


def argument_names(name: str) -> list[str]:
    """Return the names of the arguments of an overload."""
    operator, _, overload = name.partition(".")
    return [argument.name for argument in _C._get_schema(operator, overload).arguments]


def is_mutable(name: str) -> bool:
    """Return True if an overload writes to its arguments."""
    operator, _, overload = name.partition(".")
    return bool(_C._get_schema(operator, overload).is_mutable)


def is_taken_apart(name: str) -> bool:
    """Return True if an op is a composition for autograd too, so that modes see its parts and not itself."""
    return bool(_C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))
