"""Mutants whose computation is right, and whose line of shapes claims what it does not do."""

import torch
from torch import Tensor

from corpus.forms import Declared, Rule
from corpus.lines import (
    EXP,
    HONEST_LINES,
    ONE,
    ROWS,
    TIMES,
    TRACK,
    TWO,
    Samples,
    batch_norm,
    count,
    labelled,
    mean_of_pairs,
    of_shapes,
    op,
    picked,
    stencil,
)
from corpus.mutant import Mutant, plant


def add_positions(x: Tensor) -> Tensor:
    """The number of each row is added to it."""
    return x + torch.arange(len(x), device=x.device).unsqueeze(1)


def add_up(x: Tensor) -> None:
    """A running sum in place."""
    x.cumsum_(0)


def over_rows(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of exp, divided by the number of rows."""
    return grad * x.exp() / len(x)


def false(name: str, purpose: str, form: Declared) -> Mutant:
    """An op whose line is false."""
    return plant(f"shapes_{name}", "false line", "shapes", purpose, form)


def rows(
    name: str, purpose: str, function: Rule, shapes: str = "x: n d -> output: n d", sample: Samples = ROWS
) -> Mutant:
    """A function of one tensor whose line is false."""
    return false(name, purpose, op(ONE, function, sample, shapes))


SQUARE = of_shapes((4, 4))
FALSE_LINES: tuple[Mutant, ...] = (
    false(
        "features",
        "The mean square is taken over the features.",
        HONEST_LINES["rows of a norm"].but(shapes="x: *b d, weight: d -> out: *b d, rstd: *b 1"),
    ),
    rows("batch_norm", "Mean and variance are taken over the rows.", batch_norm),
    rows("clipped", "The norm is taken over all elements.", lambda x: x / x.norm().clamp(min=1), "x: *b -> output: *b"),
    false(
        "bias",
        "The inner dimension is summed over, and each slice adds the bias.",
        HONEST_LINES["rows of a product"].but(shapes="x: *b i, weight: o i, bias?: o -> output: *b o"),
    ),
    false(
        "nonlinear",
        "The sum is inside of a nonlinearity.",
        op(
            TWO,
            lambda x, weight: (x @ weight.T).relu(),
            of_shapes((4, 6), (3, 6)),
            "x: n i, weight: o i -> output: n o",
        ),
    ),
    rows("mean", "The means of slices do not add up.", lambda x: x.mean(0), "x: n d -> output: d"),
    rows("max", "The maximum is not a sum.", lambda x: x.amax(0), "x: n d -> output: d"),
    rows("min", "The minimum is not a sum.", lambda x: x.amin(0), "x: n d -> output: d"),
    rows("argmax", "Places count from the start of a slice.", lambda x: x.argmax(0), "x: n d -> output: d"),
    rows("logsumexp", "The logarithm of a sum is not a sum.", lambda x: x.logsumexp(0), "x: n d -> output: d"),
    rows("square", "The sum is squared.", lambda x: x.sum(0).square(), "x: n d -> output: d"),
    rows("product", "The product is not a sum.", lambda x: x.prod(0), "x: n d -> output: d"),
    false(
        "whole",
        "An output does not depend on the rows.",
        op(
            "(Tensor x, Tensor weight) -> (Tensor out, Tensor norm)",
            lambda x, weight: (x * weight / weight.norm(), weight.norm()),
            of_shapes((6, 3), (3,)),
            "x: n [d], weight: [d] -> out: n [d], norm:",
        ),
    ),
    rows("running", "Each element holds a sum of others.", lambda x: x.cumsum(-1), "x: *b t -> output: *b t"),
    rows("sorted", "Slices are sorted each for itself.", lambda x: x.sort(0).values),
    rows("stencil", "The ends of a slice miss their neighbours.", stencil, "x: *b n -> output: *b n"),
    rows("reversed", "The first slice of the output is the last of the input.", lambda x: x.flip(0)),
    rows(
        "positions",
        "A slice counts its positions from 0.",
        lambda x: x + torch.arange(len(x), device=x.device).unsqueeze(1),
    ),
    rows("size", "The number of rows is a factor.", lambda x: x * len(x)),
    rows("pairs", "Slices of an odd size part a pair.", mean_of_pairs, "x: n d -> output: n d", of_shapes((4, 3))),
    false(
        "keys",
        "The softmax runs over the keys.",
        HONEST_LINES["queries of attention"].but(shapes="q: m [f], k: n [f], v: n [e] -> out: m [e], lse: m"),
    ),
    false(
        "values",
        "The hidden output does not depend on the features of the values.",
        HONEST_LINES["queries of attention"].but(shapes="q: m [f], k: [n] [f], v: [n] e -> out: m e, lse: m"),
    ),
    false(
        "heads",
        "The factors of the heads are in the wrong order.",
        HONEST_LINES["heads of one key"].but(shapes="q: (g k) f, k: k f -> output: (g k) f"),
    ),
    false(
        "interleaved",
        "The two of a pair lie side by side.",
        HONEST_LINES["interleaved pairs"].but(shapes="x: n (2 d), weight: d -> output: n (2 d)"),
    ),
    rows("flattened", "Rows lie one after the other.", lambda x: x.flatten().clone(), "x: h w -> output: (w h)"),
    rows(
        "swapped",
        "Equal sizes hide which dimension is which.",
        lambda x: x.clone(),
        "x: m n -> output: n m",
        of_shapes((4, 4)),
    ),
    rows("literal", "An output ends in another number.", lambda x: x.sum(-1, keepdim=True), "x: n [d] -> output: n 2"),
    rows("rank", "An output has one more dimension.", lambda x: x.clone(), "x: n [d] -> output: n"),
    false(
        "indices",
        "An index holds rows of the whole.",
        op(
            "(Tensor x, Tensor index) -> Tensor",
            lambda x, index: x.index_select(0, index),
            picked,
            "x: n d, index: m -> output: m d",
        ),
    ),
    false(
        "written_mean",
        "What is written is the mean over the rows.",
        TRACK.but(shapes="x: n d, running: d -> output: n d"),
    ),
    false(
        "written_count",
        "Each slice counts its own rows.",
        op(
            "(Tensor labels, Tensor(a!) counts) -> ()",
            count,
            labelled,
            "labels: n, counts: [c] ->",
            has_reference=False,
            mutates=("counts",),
            non_differentiable=("counts",),
        ),
    ),
    false(
        "written_sum",
        "What is written is a sum along the rows.",
        op(
            "(Tensor(a!) x) -> ()",
            add_up,
            ROWS,
            "x: n d ->",
            has_reference=False,
            mutates=("x",),
            backward=lambda grad_x: {"x": grad_x.flip(0).cumsum(0).flip(0)},
        ),
    ),
    false(
        "gradient_mean",
        "The gradient of the weight is a mean over the rows.",
        TIMES.but(backward=lambda grad, x, weight: {"x": lambda: grad * weight, "weight": lambda: (grad * x).mean(0)}),
    ),
    false(
        "gradient_size",
        "The gradient is divided by the number of rows.",
        EXP.but(backward=over_rows),
    ),
    false("gradient_norm", "The gradient has norm 1.", EXP.but(backward=lambda grad: grad / grad.norm())),
    false(
        "hidden",
        "A hidden output is the maximum of all elements.",
        op(
            "(Tensor x) -> (Tensor out, Tensor top)",
            lambda x: (2 * x, x.abs().amax()),
            ROWS,
            "x: n d -> out: n d, top:",
            hidden=("top",),
        ),
    ),
    false(
        "list",
        "Each element is divided by the rows of all.",
        HONEST_LINES["a list"].but(shapes="xs: n d -> output: n d"),
    ),
    false(
        "reference",
        "The reference has another shape than the line and the kernel.",
        op(
            ONE,
            lambda x: x.sum(0),
            ROWS,
            "x: n d -> output: d n",
            kernel=lambda x: x.T.clone(memory_format=torch.contiguous_format),
            fake=lambda x: x.new_empty(x.shape[::-1]),
            backward=lambda grad: grad.T,
        ),
    ),
    false(
        "dtype",
        "The line says nothing of the dtype of an output that is not that of the first tensor.",
        op(
            ONE,
            lambda x: (x > 0).contiguous(),
            ROWS,
            "x: n d -> output: n d",
            has_reference=False,
        ),
    ),
    false(
        "layout",
        "An output is not contiguous, and the fake that follows from the line is.",
        op(
            ONE,
            lambda x: x.T.clone(memory_format=torch.contiguous_format).T,
            ROWS,
            "x: n d -> output: n d",
            has_reference=False,
            backward=lambda grad: grad,
        ),
    ),
)
