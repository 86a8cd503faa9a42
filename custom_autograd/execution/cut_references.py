"""Finds where a reference cuts the graph from an input, whose gradient would silently be zero.

PyTorch shows a cut: the result of `x.detach().sin()` does not require a gradient. The result of an op does, so its
derived backward has to look. An input that is not reached may also have no influence, and then zero is right. So the
reference runs once more with the graph kept through `detach`, `.data`, `no_grad`, `inference_mode` and reads of values:
what is reached only then was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.overrides import TorchFunctionMode, resolve_name

from custom_autograd.core.errors import GradientUnavailable
from custom_autograd.core.locations import location_of
from custom_autograd.registration.declaration import Declaration
from custom_autograd.torch_private.nodes import Node, is_of_function
from custom_autograd.values.tensors import tensors_in

Recompute = Callable[..., tuple[Tensor, ...]]


def check_reached(
    declaration: Declaration,
    reference: Callable[..., Any],  # Any: takes and returns what the schema declares
    names: Sequence[str],
    recompute: Recompute,
    primals: Sequence[Tensor],
    outputs: Sequence[Tensor],
    *,
    wanted: int,
    are_visible: bool,
) -> None:
    """Raise if the gradients of a reference miss something that its results depend on."""
    reached = [_reached([output], primals) for output in outputs]
    if all(reached) and set().union(*reached) == set(range(len(primals))):
        return
    again = [primal.view_as(primal) for primal in primals]
    with _Uncut() as uncut:
        results = recompute(*again)
    everywhere = set().union(*reached)
    lost = _reached([*results, *uncut.read], again) - everywhere
    for before, result in zip(reached, results, strict=True):
        lost |= set() if before else _reached([result], again)
    if lost:
        name = names[min(lost)]
        asked = f"the gradient of '{name}' is" if min(lost) < wanted else f"a second derivative along '{name}' may be"
        problem = f"{asked} asked for, and the reference is cut from it"
        raise _error(declaration, reference, name, problem, ", ".join(uncut.cuts))
    if are_visible and not everywhere and all(tensor.numel() for tensor in (*primals, *outputs)):
        problem = f"the gradient of '{names[0]}' is asked for, and no result of the reference depends on it"
        raise _error(declaration, reference, names[0], problem, "results that do not require a gradient")


def is_of_torch(outputs: Iterable[Tensor], primals: Sequence[Tensor]) -> bool:
    """Return True if only PyTorch's own backwards run from outputs to primals: those of a Function may be cut, too."""
    ends = {get_gradient_edge(primal).node for primal in primals}
    return not any(is_of_function(node) for node in _nodes(outputs, ends))


def _reached(outputs: Iterable[Tensor], primals: Sequence[Tensor]) -> set[int]:
    """Return the indices of the primals to which the graph leads."""
    indices = {get_gradient_edge(primal).node: index for index, primal in enumerate(primals)}
    found: set[int] = set()
    for node in _nodes(outputs, indices):
        if node in indices:
            found.add(indices[node])
        if len(found) == len(primals):
            break
    return found


def _nodes(outputs: Iterable[Tensor], ends: Collection[Node]) -> Iterator[Node]:
    """Yield the nodes of the graph of the outputs, as far as the ends."""
    nodes = [get_gradient_edge(output).node for output in outputs if output.requires_grad]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        yield node
        if node not in ends:
            following = {one for one, _ in node.next_functions if one is not None} - seen
            seen |= following
            nodes += following


class _Uncut(TorchFunctionMode):
    """Keeps the graph where functions of PyTorch would cut it.

    Attributes:
        cuts: the names of what did.
        read: tensors that require a gradient, and whose values were read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict[str, None] = {}
        self.read: list[Tensor] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = [tensor for tensor in tensors_in([*args, *(kwargs or {}).values()]) if tensor.requires_grad]
        if given and func in CUTS:
            self.cuts[resolve_name(func) or func.__name__] = None
            return args[0].clone()
        if given and func in READS:
            self.cuts[resolve_name(func) or func.__name__] = None
            self.read += given
            return func(*[one.detach() if isinstance(one, Tensor) else one for one in args], **(kwargs or {}))
        if not given or torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        cut = "torch.inference_mode" if torch.is_inference_mode_enabled() else "torch.no_grad"
        try:
            with torch.inference_mode(False):  # it enables gradients as well
                result = func(*args, **(kwargs or {}))
        except RuntimeError:  # it writes to an `out=`, which nothing is recorded of
            self.cuts[cut] = None
            self.read += given
            return func(*args, **(kwargs or {}))
        if any(tensor.requires_grad for tensor in tensors_in([result])):
            self.cuts[cut] = None
        return result


def _error(
    declaration: Declaration, reference: Callable[..., Any], name: str, problem: str, found: str
) -> GradientUnavailable:
    return declaration.origin(f"{location_of(reference)}, reference").error(
        GradientUnavailable,
        problem,
        expected=f"differentiable PyTorch operations from '{name}' to the result",
        found=found,
        do=f"register_backward, or declare what has no gradient: non_differentiable=({name!r},)",
    )


GET_DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # torch's stubs give it the type of its value
CUTS = frozenset({torch.detach, torch.detach_, Tensor.detach, Tensor.detach_, GET_DATA})
READS = frozenset({
    Tensor.numpy, Tensor.__array__, Tensor.item, Tensor.tolist, Tensor.__float__, Tensor.__complex__,
    Tensor.__dlpack__, Tensor.data_ptr, Tensor.new_tensor, torch.tensor,
})  # fmt: skip
