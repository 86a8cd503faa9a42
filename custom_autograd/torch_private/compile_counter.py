"""How often torch.compile compiles, and how to compile a backward (found in torch 2.13).

_dynamo.backends.registry.lookup_backend   aot_eager as a function, for a backend that counts and then calls it
_dynamo.compiled_autograd._enable          compiles the whole backward; torch documents only a process-wide setting
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor


class GraphCounter:
    """A backend for torch.compile that counts the graphs it is given.

    Attributes:
        graphs: how many graphs were compiled.
    """

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        """Compile as aot_eager does: forward and backward are traced, and nothing is generated."""
        from torch._dynamo.backends.registry import lookup_backend  # loads the compiler, which only this needs

        self.graphs += 1
        compiled: Callable[..., Any] = lookup_backend("aot_eager")(graph, inputs)
        return compiled


def compiled_backward() -> AbstractContextManager[None]:
    """Compile every backward within as a whole; what cannot be compiled runs as it is."""
    from torch._dynamo.compiled_autograd import _enable  # loads the compiler, which only this needs

    enabled: AbstractContextManager[None] = _enable(torch.compile(backend="eager"))
    return enabled
