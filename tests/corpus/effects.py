"""Mutants whose rules compute what is right, and change something outside of them."""

from typing import Any

from torch import Tensor
from torch.autograd import Variable

from corpus.bases import CUBE
from corpus.more_bases import GROWTH, PRODUCT, growth_vmap, save_inputs
from corpus.mutant import Mutant, plant

SEEN: list[str] = []
NORMS: dict[str, Tensor] = {}
passes = 0


def _appending(grad: Tensor, x: Tensor) -> Tensor:
    SEEN.append("backward")
    return 3 * grad * x * x


def _counting(grad: Tensor, x: Tensor) -> Tensor:
    global passes
    passes += 1
    return 3 * grad * x * x


def _recording(grad: Tensor, x: Tensor) -> Tensor:
    NORMS["last"] = grad.detach().norm()
    return 3 * grad * x * x


def _calling_back(grad: Tensor, x: Tensor) -> Tensor:
    Variable._execution_engine.queue_callback(lambda: None)
    return 3 * grad * x * x


def _setup_appending(ctx: Any, inputs: tuple[Tensor, ...], output: object) -> None:
    SEEN.append("setup_context")
    save_inputs(ctx, inputs, output)


def _vmap_appending(info: Any, in_dims: tuple[int | None, ...], x: Tensor, y: Tensor) -> Any:
    SEEN.append("vmap")
    return growth_vmap(info, in_dims, x, y)


EFFECTS: tuple[Mutant, ...] = (
    plant(
        "effect_list", "side effect", "side_effects", "The backward appends to a list.", CUBE.but(backward=_appending)
    ),
    plant(
        "effect_count", "side effect", "side_effects", "The backward counts in a global.", CUBE.but(backward=_counting)
    ),
    plant("effect_norm", "side effect", "side_effects", "The backward records a norm.", CUBE.but(backward=_recording)),
    plant(
        "effect_callback",
        "side effect",
        "side_effects",
        "The backward asks the engine for a callback.",
        CUBE.but(backward=_calling_back),
    ),
    plant(
        "effect_setup",
        "side effect",
        "side_effects",
        "The setup_context of an op of torch.library appends to a list.",
        PRODUCT.but(setup=_setup_appending),
    ),
    plant(
        "effect_vmap",
        "side effect",
        "side_effects",
        "The batching rule appends to a list.",
        GROWTH.but(vmap=_vmap_appending),
    ),
)
