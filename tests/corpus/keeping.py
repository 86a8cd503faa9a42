"""Mutants that keep, save or compute too much: leaks, saved tensors, hooks, and gradients that nobody needs."""

from typing import Any

import torch
from torch import Tensor

from corpus.bases import CUBE, JOIN, LINEAR, RMS, SCALED_SQUARE, fit
from corpus.more_bases import SQUARE, WRITTEN_PRODUCT, save_inputs
from corpus.mutant import Mutant, plant
from custom_autograd.schema.samples import Sample

KEPT: list[Tensor] = []


def _keep_every(x: Tensor) -> Tensor:
    KEPT.append(x.detach().clone())
    return (x**3).contiguous()


def _keep_attribute(ctx: Any, inputs: tuple[Tensor], output: object) -> None:
    del output
    (ctx.x,) = inputs


def _keep_output(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    save_inputs(ctx, inputs, output)
    ctx.output = output


def _keep_itself(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    save_inputs(ctx, inputs, output)
    ctx.myself = ctx


def _save_output_too(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs, output)


def _save_address(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    del inputs
    ctx.save_for_backward(output)
    ctx.address = output.data_ptr()


def _if_at_address(ctx: Any, grad: Tensor) -> Any:
    """Hooks may give a copy of what was saved, and a checkpoint computes it again."""
    (output,) = ctx.saved_tensors
    return grad * output * (1.0 if output.data_ptr() == ctx.address else 0.0)


def _by_both_gradients(grad: Tensor, x: Tensor, w: Tensor, alpha: float, needs: Any) -> dict[str, Tensor | None]:
    """Computes both gradients, and gives what is needed."""
    of_x, of_w = fit(2 * alpha * grad * x * w, x), fit(alpha * grad * x * x, w)
    return {"x": of_x if needs.x else None, "w": of_w if needs.w else None}


def _keep_both(ctx: Any, inputs: tuple[Tensor, Tensor], output: object) -> None:
    del output
    ctx.x, ctx.y = inputs


def _rms_again(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> dict[str, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    g = grad * weight
    total = (g * x).sum(-1, keepdim=True)
    return {"x": g * rstd - x * (rstd**3 * total / x.shape[-1]), "weight": fit(grad * x * rstd, weight)}


KEEPING: tuple[Mutant, ...] = (
    plant("leak_global", "leak", "leaks", "Every input is kept for ever.", CUBE.but(kernel=_keep_every)),
    plant(
        "leak_output",
        "leak",
        "leaks",
        "The output is an attribute of ctx: a cycle that only the garbage collector ends.",
        WRITTEN_PRODUCT.but(setup=_keep_output),
    ),
    plant("leak_cycle", "reference cycle", "leaks", "The context refers to itself.", SQUARE.but(setup=_keep_itself)),
    plant(
        "saved_attribute",
        "tensor kept on ctx",
        "saved",
        "The input is an attribute of ctx, not saved for backward.",
        SQUARE.but(setup=_keep_attribute, backward=lambda ctx, grad: 2 * grad * ctx.x),
    ),
    plant(
        "saved_unread",
        "unneeded save",
        "saved",
        "The output is saved, and never read.",
        SQUARE.but(setup=_save_output_too),
    ),
    plant(
        "saved_unread_by_name",
        "unneeded save",
        "saved",
        "The backward names the output, and does not read it.",
        JOIN.but(
            samples=lambda make: [Sample([make(2, 3), make(2, 3)])],
            backward=lambda grad, xs, output: {"xs": [grad[: xs[0].shape[0]], grad[xs[0].shape[0] :]]},
        ),
    ),
    plant(
        "saved_statistic_unread",
        "unneeded save",
        "saved",
        "The hidden statistic is saved, and computed again.",
        RMS.but(backward=lambda grad_out, x, weight, eps, rstd: _rms_again(grad_out, x, weight, eps)),
    ),
    plant(
        "hooks_address",
        "saved-tensor hooks",
        "saved_hooks",
        "The backward expects the saved output at the address where it was.",
        SQUARE.but(kernels={"CPU": lambda x: x.exp().contiguous()}, setup=_save_address, backward=_if_at_address),
    ),
    plant(
        "hooks_outside",
        "saved-tensor hooks",
        "saved",
        "What is kept outside save_for_backward passes by the hooks.",
        WRITTEN_PRODUCT.but(setup=_keep_both, backward=lambda ctx, grad: (grad * ctx.y, grad * ctx.x)),
    ),
    plant(
        "needs_ignored",
        "work for unneeded gradients",
        "needs",
        "The rule asks what is needed, and computes both gradients.",
        SCALED_SQUARE.but(backward=_by_both_gradients),
    ),
    plant(
        "needs_ignored_by_name",
        "work for unneeded gradients",
        "needs",
        "The weight's gradient is computed, needed or not.",
        SCALED_SQUARE.but(
            backward=lambda grad, x, w, alpha, needs: {
                "x": fit(2 * alpha * grad * x * w, x),
                "w": fit(alpha * grad * x * x, w),
            }
        ),
    ),
    plant(
        "needs_ignored_by_product",
        "work for unneeded gradients",
        "needs",
        "Both matrix products are computed, needed or not.",
        LINEAR.but(
            backward=lambda grad, x, weight, needs: {
                "x": grad @ weight,
                "weight": grad.flatten(0, -2).mT @ x.flatten(0, -2),
                "bias": lambda: grad.flatten(0, -2).sum(0),
            }
        ),
    ),
)
