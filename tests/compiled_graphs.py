"""What compiled code consists of: the operators in its graphs, and the kernels that Inductor generates for it."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func


def operators_of(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """Return the names of the operators in the graphs of a function's forward and, if there is one, backward."""
    names = []

    def note(graph, inputs):
        names.append([str(node.target) for node in graph.graph.nodes if node.op == "call_function"])
        return make_boxed_func(graph.forward)

    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=note, bw_compiler=note), fullgraph=True)
    found = compiled(*args)
    if found.requires_grad:
        found.sum().backward()
    return names


def count_kernels(function: Callable[..., Any], *args: Any, context: AbstractContextManager[Any]) -> int:
    """Return how many kernels Inductor generates for a function that is compiled in a context, without gradients."""
    import torch._inductor.config
    from torch._inductor import metrics

    torch.compiler.reset()
    metrics.reset()
    with context, torch._inductor.config.patch(force_disable_caches=True), torch.no_grad():
        torch.compile(function, fullgraph=True)(*args)
    return metrics.generated_kernel_count
