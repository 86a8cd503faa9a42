"""Mutants that remember, draw or race: hidden state, random numbers, and threads."""

import itertools
import threading
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from corpus.bases import CUBE, DROPOUT
from corpus.more_bases import COMPOSITE, SQUARE, save_inputs
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

CALLS = itertools.count()


NOISE = np.random.default_rng(0)


LAST: dict[str, Tensor] = {}


SCRATCH: dict[str, Tensor] = {}


LOCAL = threading.local()


def _remember(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    """Leaves the input where the next call leaves its own."""
    del ctx, output
    LAST["x"] = inputs[0]


def _remember_in_thread(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    save_inputs(ctx, inputs, output)
    LOCAL.factor = 2.0


def _read_from_thread(ctx: Any, grad: Tensor) -> Any:
    """The engine may run a backward in another thread than its forward."""
    return getattr(LOCAL, "factor", 0.0) * grad * ctx.saved_tensors[0]


def _recycled(grad: Tensor, x: Tensor) -> Tensor:
    """One buffer for the gradients of all calls."""
    value = 3 * grad * x * x
    buffer = SCRATCH.get(f"gradient {value.dtype} {value.shape}")
    if buffer is None:
        buffer = SCRATCH[f"gradient {value.dtype} {value.shape}"] = torch.empty_like(value)
    return buffer.copy_(value)


def _grad_workspace(ctx: Any, grad: Tensor) -> Tensor:
    (x,) = ctx.saved_tensors
    with torch.no_grad():
        buffer = SCRATCH.setdefault(f"library {x.dtype} {x.shape}", torch.zeros_like(x))
        return buffer.copy_(2 * grad * x)


def _consumes_saved(ctx: Any, grad: Tensor) -> Any:
    """Overwrites what was saved, so that a second backward reads it."""
    (x,) = ctx.saved_tensors
    result = 2 * grad * x.detach()
    x.data.mul_(0.5)
    return result


def _once_only(ctx: Any, grad: Tensor) -> Any:
    """Gives half the gradient where the graph is used again."""
    ctx.uses = getattr(ctx, "uses", 0) + 1
    return 2 * grad * ctx.saved_tensors[0] / ctx.uses


def _redraw(grad: Tensor, p: float) -> Tensor:
    """Draws a mask of its own."""
    return grad * (torch.rand(grad.shape, device=grad.device) >= p) / (1 - p)


def _shared_scratch(x: Tensor) -> Tensor:
    """Lays its result down where other threads lay down theirs, and picks it up a moment later."""
    SCRATCH["cube"] = x**3
    time.sleep(0.002)
    out = SCRATCH["cube"]
    return out.contiguous().clone() if out.shape == x.shape else (x**3).contiguous()


def _shared_scratch_in_backward(ctx: Any, grad: Tensor) -> Tensor:
    SCRATCH["square"] = ctx.saved_tensors[0]
    time.sleep(0.002)
    return 2 * grad * SCRATCH["square"]


def _stale(x: Tensor) -> Tensor:
    """Results are kept by shape and by the first element, and given again."""
    key = f"{tuple(x.shape)} {x.dtype} {float(x.reshape(-1)[0]) if x.numel() else 0}"
    return SCRATCH.setdefault(key, (x**3).contiguous()).clone()


def _save_copy(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    """Saves what has no version counter in common with the input."""
    del output
    ctx.save_for_backward(inputs[0].data)


def _one_first(x: Tensor) -> Sample:
    """A tensor whose first element is 1."""
    with torch.no_grad():
        x.view(-1)[0] = 1
    return Sample(x)


STATES: tuple[Mutant, ...] = (
    plant(
        "state_counter",
        "hidden state",
        "determinism",
        "Every call gives a little more than the one before.",
        CUBE.but(kernel=lambda x: (x**3 * (1 + 1e-3 * next(CALLS))).contiguous()),
    ),
    plant(
        "state_of_backward",
        "hidden state",
        "determinism",
        "Every backward gives a little more than the one before.",
        CUBE.but(backward=lambda grad, x: 3 * grad * x * x * (1 + 1e-3 * next(CALLS))),
    ),
    plant(
        "state_stale_cache",
        "stale cache",
        "reference",
        "Results are cached by shape and first element.",
        CUBE.but(kernel=_stale, samples=lambda make: [_one_first(make(4, 3)), _one_first(make(4, 3))]),
    ),
    plant(
        "state_last_call",
        "hidden state",
        "reuse",
        "The backward reads the input of the last call, not of its own.",
        SQUARE.but(setup=_remember, backward=lambda ctx, grad: 2 * grad * LAST["x"]),
    ),
    plant(
        "state_gradient_buffer",
        "aliasing",
        "reuse",
        "The backward gives the same buffer every time.",
        CUBE.but(backward=_recycled, is_once_differentiable=True),
    ),
    plant(
        "state_gradient_workspace",
        "aliasing",
        "reuse",
        "The backward of an op of the dispatcher gives the same buffer every time.",
        SQUARE.but(backward=_grad_workspace),
    ),
    plant(
        "state_saved_overwritten",
        "saved written to",
        "reuse",
        "The backward halves what was saved.",
        SQUARE.but(backward=_consumes_saved),
    ),
    plant(
        "state_second_backward",
        "hidden state",
        "reuse",
        "A second backward through one graph gives half.",
        SQUARE.but(backward=_once_only),
    ),
    plant(
        "state_version_bypassed",
        "saved written to",
        "saved",
        "An input that is changed before the backward is not noticed.",
        SQUARE.but(setup=_save_copy),
    ),
    plant(
        "grad_mode",
        "mode-dependent result",
        "determinism",
        "The result differs where grad mode is off.",
        COMPOSITE.but(
            kernels={"CompositeImplicitAutograd": lambda x: x * x * (1.0 if torch.is_grad_enabled() else 1.01)}
        ),
    ),
    plant(
        "noise_untagged",
        "undeclared RNG",
        "determinism",
        "Noise is added, and the op is not tagged as random.",
        CUBE.but(kernel=lambda x: (x**3 + 1e-3 * torch.rand(x.shape, dtype=x.dtype)).contiguous()),
    ),
    plant(
        "noise_numpy",
        "nondeterminism",
        "determinism",
        "Noise comes from a generator that torch does not know.",
        CUBE.but(kernel=lambda x: (x**3 * (1 + 1e-4 * float(NOISE.random()))).contiguous()),
    ),
    plant(
        "noise_backward",
        "nondeterminism",
        "determinism",
        "The gradient has noise of 1e-4.",
        CUBE.but(backward=lambda grad, x: 3 * grad * x * x * (1 + 1e-4 * torch.rand(x.shape, dtype=x.dtype))),
    ),
    plant(
        "noise_dropout_untagged",
        "undeclared RNG",
        "determinism",
        "Dropout is not tagged as random.",
        DROPOUT.but(tags=()),
    ),
    plant(
        "noise_mask_redrawn",
        "nondeterminism",
        "reuse",
        "The backward draws a mask of its own.",
        DROPOUT.but(backward=_redraw),
    ),
    plant(
        "race_scratch",
        "race",
        "threads",
        "All threads lay their results down in one place.",
        CUBE.but(kernel=_shared_scratch),
    ),
    plant(
        "race_in_backward",
        "race",
        "threads",
        "All threads lay what was saved down in one place.",
        SQUARE.but(backward=_shared_scratch_in_backward),
    ),
    plant(
        "race_thread_local",
        "race",
        "threads",
        "The backward reads what its forward left in its own thread.",
        SQUARE.but(setup=_remember_in_thread, backward=_read_from_thread),
    ),
)
