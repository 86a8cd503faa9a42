"""A native call is the dispatcher's way: in every mode, for every kind of tensor, for every shape of schema."""

from __future__ import annotations

import contextlib
import re
import warnings
from typing import Any

import pytest
import torch
from dispatch.grid_modes import MODES, tensors_of
from dispatch.grid_ops import OPS, GridOp
from dispatch.grid_tensors import KINDS, Wrapper, numbers
from torch import Tensor

from custom_autograd.execution import proofs
from custom_autograd.execution.proofs import through_dispatcher
from custom_autograd.native.loading import library
from custom_autograd.native.native_calls import why_not

native = pytest.mark.skipif(library.module is None, reason=library.reason)
SLOW = ("compile", "export", "linearize")  # these trace the call, which is not native: one op, a third of the kinds
TRANSFORMS = (
    "grad of grad",
    "grad of a constant",
    "jvp",
    "vmap",
    "make_fx",
    "jacrev",
    "jacfwd",
    "hessian",
    "jit.trace",
)
"""These calls are not native either: `make test` looks at every sixth op."""


def shown(value: Any) -> Any:
    """A value as something that two runs can be compared by."""
    if isinstance(value, Wrapper):
        return "wrapper", shown(value.inner)
    if isinstance(value, Tensor):
        return shown_tensor(value)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [shown(item) for item in value]
    return type(value).__name__, re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def shown_tensor(tensor: Tensor) -> tuple[Any, ...]:
    facts: list[Any] = [type(tensor).__name__, tensor.dtype, str(tensor.device), str(tensor.layout)]
    facts += [tensor.requires_grad, tensor.grad_fn and tensor.grad_fn.name(), tensor.is_leaf, tensor.is_inference()]
    facts += [tensor.is_conj(), tensor.is_neg(), tensor._is_zerotensor()]
    if tensor.layout is torch.strided and not tensor.is_nested:
        facts += [tuple(tensor.shape), tensor.stride(), tensor.storage_offset()]
    if not tensor.is_inference():
        facts.append(tensor._version)
    return (*facts, values_of(tensor))


def values_of(tensor: Tensor) -> str:
    """All numbers; for fakes and the like, which have none, their kind."""
    with torch.no_grad():
        if tensor.is_nested:
            return str([values_of(part) for part in tensor.unbind()])
        if tensor.is_meta or type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
            return "no data"
        with contextlib.suppress(RuntimeError):  # a list is written in a fifth of the time
            return repr(tensor.detach().to_dense().tolist())
        try:
            return repr(tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach())
        except RuntimeError as error:
            return f"unreadable: {type(error).__name__}"


def outcome(mode: str, grid_op: GridOp, kind: str) -> list[Any]:
    """Everything that one call does: results, gradients, versions, or its error."""
    seen: list[Any] = []
    x, y = KINDS[kind]()
    try:
        result = MODES[mode](grid_op.call, x, y, seen)
        seen.append(shown(result))
        seen += gradients(result, x, y)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other way must raise it too
        seen.append((type(error).__name__, first_line(error)))
    seen += [shown(x), shown(y)]
    return seen


def first_line(error: Exception) -> str:
    """The message without addresses, without the names of generated variables, and without where Dynamo was."""
    return re.sub(r"0x[0-9a-f]+|\d{6,}", "0x", str(error)).split("\n")[0]


def gradients(result: Any, x: Any, y: Any) -> list[Any]:
    """The gradients of all results, with a graph, and then once more."""
    outputs = [t for t in tensors_of(result) if t.requires_grad]
    inputs = [t for t in (x, y) if isinstance(t, Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return []
    found = torch.autograd.grad(
        outputs, inputs, [torch.ones_like(t) for t in outputs], create_graph=True, allow_unused=True
    )
    second = [t for t in found if t is not None and t.requires_grad]
    if not second:
        return [shown(found)]
    again = torch.autograd.grad(second, inputs, [torch.ones_like(t) for t in second], allow_unused=True)
    return [shown(found), shown(again)]


def is_quick(mode: str, op: str) -> bool:
    """Whether `make test` looks at a cell: at each third one, and at fewer of the modes without native calls."""
    place, index = list(OPS).index(op), list(MODES).index(mode)
    return place == 0 if mode in SLOW else (place + index) % (6 if mode in TRANSFORMS else 3) == 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_slow", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["quick", "rest"])
@pytest.mark.parametrize("op", OPS)
def test_every_mode_is_the_same_called_natively_and_through_the_dispatcher(op, is_slow):
    differences = []
    for mode in [mode for mode in MODES if is_quick(mode, op) is not is_slow]:
        torch.compiler.reset()
        for kind in list(KINDS)[::3] if mode in SLOW else KINDS:
            for _ in range(2):
                OPS[op].call(*numbers(3, 2))  # the kind of plain tensors is known: no other tensor may pass for one
            runs = [outcome(mode, OPS[op], kind) for _ in range(1 if mode in (*SLOW, *TRANSFORMS) else 3)]
            with through_dispatcher():
                expected = outcome(mode, OPS[op], kind)
            differences += [(mode, kind, run, expected) for run in (runs[0], runs[-1]) if run != expected]

    assert [] == [
        f"{mode}, {kind}:\n  native     {ours}\n  dispatcher {theirs}" for mode, kind, ours, theirs in differences
    ]


@native
@pytest.mark.parametrize("op", [name for name in OPS if name != "in_place"])
def test_plain_calls_are_native(op):
    """Without this, the grid could compare the dispatcher with itself."""
    x, y = numbers(3, 2)
    for leaf in (x, y, x, y):
        OPS[op].call(leaf.requires_grad_(leaf is x), y)
    native = OPS[op].op._record.road.native

    assert (why_not(OPS[op].op._record) is None) == (native is not None and native.call.count_kinds() > 0)


@native
def test_a_road_that_differs_is_reported(monkeypatch):
    """The comparison itself: a native call with another kernel than the dispatcher's is found."""
    wrong = proofs.Proof(lambda x, y: x - y, None, is_checked=False)
    monkeypatch.setattr(proofs.Prover, "_prove", lambda *_, **__: wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        OPS["one"].op._record.forget()
        found = [outcome("none", OPS["one"], "plain") for _ in range(2)][-1]
    with through_dispatcher():
        expected = outcome("none", OPS["one"], "plain")
    OPS["one"].op._record.forget()

    assert found != expected
