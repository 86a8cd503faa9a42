"""Modules of torch that checks make it load, which takes seconds (found in torch 2.13).

torch._dynamo, torch._inductor.compile_fx, torch.fx.experimental.symbolic_shapes   nothing public loads them ahead of
    their first use, and a forked process would load them each time
"""

import importlib
from collections.abc import Collection

SYMBOLS = frozenset({"derivatives", "layout", "determinism"})
DYNAMO = frozenset({"compiler", "metadata", "saving", "system", "transforms", "bounds", "uninitialised"})
INDUCTOR = frozenset({"compiler"})


def load_for(words: Collection[str]) -> None:
    """Load what the checks of these groups and names make torch load."""
    if not SYMBOLS.isdisjoint(words):
        importlib.import_module("torch.fx.experimental.symbolic_shapes")
    if not DYNAMO.isdisjoint(words):
        importlib.import_module("torch._dynamo")
    if not INDUCTOR.isdisjoint(words):
        importlib.import_module("torch._inductor.compile_fx")
