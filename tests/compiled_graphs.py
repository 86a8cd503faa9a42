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


RECORD_LAUNCHES = '''
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from triton.backends.compiler import GPUTarget


class Driver:
    """Names a GPU that is not here: PyTorch asks Triton's compiler what a kernel writes to."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


triton.runtime.driver.set_active(Driver())
launches = []


def note(graph, inputs):
    for node in graph.graph.nodes:
        if "scale" in str(node.target) or "triton" in str(node.target):
            launches.append((str(node.target), list(node.kwargs["kwargs"]), node.kwargs["tensors_to_clone"]))
    outputs = [node.meta["val"] for node in list(graph.graph.nodes)[-1].args[0]]
    return make_boxed_func(lambda *_: [torch.zeros(tuple(one.shape)) for one in outputs])


x = torch.ones(100, requires_grad=True)
compiler = aot_autograd(fw_compiler=note, bw_compiler=note)
torch.compile(lambda x: torch.relu(scale(x + 1, 2.0)), backend=compiler, fullgraph=True)(x).sum().backward()
'''
"""The end of a program that declares `scale(x, factor)`: `launches` are those in its graphs, forward and backward."""
