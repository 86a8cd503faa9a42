"""The backward pass in progress in this thread.

- `_C._current_graph_task_id`: its number, or -1 outside a backward; inner backwards have numbers of their own.
- `Variable._execution_engine.queue_callback`: calls a function when it ends without an error; a function that it has
  not called it drops with the pass.
- `_C._get_dispatch_mode`: whether the operations of this thread are recorded in a graph (`make_fx`).
- `_dynamo.compiled_autograd.in_compiled_autograd_region`: whether a compiled backward runs, which drops what is queued
  by a rule that Dynamo could not trace.
"""

from __future__ import annotations

import sys

import torch
from torch.autograd import Variable

from custom_autograd.torch_private.compiler import is_tracing

NONE = -1
"""The number of a backward where there is none."""

current_task = torch._C._current_graph_task_id
queue_callback = Variable._execution_engine.queue_callback


def is_recorded() -> bool:
    """Return True if what runs now is recorded in a graph, which later runs in its place."""
    if torch.compiler.is_compiling() or is_tracing():
        return True
    compiled_autograd = sys.modules.get("torch._dynamo.compiled_autograd")  # another thread may be importing it
    is_in_region = getattr(compiled_autograd, "in_compiled_autograd_region", False)
    return is_in_region or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None
