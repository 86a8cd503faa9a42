"""How a node of our own takes part in compiled autograd, as the nodes of `autograd.Function` do.

- `_dynamo.external_utils.call_backward`: runs the backward of a ctx's `_forward_cls` with tensors in place of its
  `saved_tensors`; Dynamo traces it.
- `AutogradCompilerInstance.hooks_proxy`, `fx_tracer`, `to_proxy`, `allocate_dummy`, `bind_objects_to_proxies`: the
  graph of one backward pass while it is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


def trace_backward(
    compiler: Any,  # Any: an AutogradCompilerInstance
    index: int,
    gradients: Sequence[Tensor | None],
    saved: Sequence[Tensor | None],
    needs: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """Record the call of a backward in the graph of compiled autograd.

    Args:
        compiler: what records.
        index: of the node's ctx among the objects that the graph is given.
        gradients: the incoming ones.
        saved: the saved tensors, as they are in the graph.
        needs: by input, whether its gradient is needed.

    Returns:
        By input: the tensor of its gradient in the graph, or None.
    """
    from torch._dynamo.external_utils import call_backward  # loads the compiler

    arguments = (compiler.hooks_proxy[index], compiler.to_proxy(list(saved)), *compiler.to_proxy(list(gradients)))
    found = compiler.fx_tracer.create_proxy("call_function", call_backward, args=arguments, kwargs={})
    results = [compiler.allocate_dummy() if need else None for need in needs]
    wanted = [(result, found[i]) for i, result in enumerate(results) if result is not None]
    compiler.bind_objects_to_proxies([result for result, _ in wanted], [proxy for _, proxy in wanted])
    return tuple(results)
