# ruff: noqa: F722, F821  # dimensions are not forward references
"""The line of jaxtyping's annotations, with `along=` for what is in brackets."""

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.core.errors import DeclarationError, ShapeError

jaxtyping = pytest.importorskip("jaxtyping")
Float, Int64 = jaxtyping.Float, jaxtyping.Int64


def line_of(op):
    return op.capabilities()["shapes"].partition(": ")[2]


@custom_op("shapes_annotations::norm", outputs=("out", "rstd"), along=("d",))
def norm(
    x: Float[Tensor, "*b d"], weight: Float[Tensor, "d"] | None = None
) -> tuple[Float[Tensor, "*b d"], Float[Tensor, "*b 1"]]:
    rstd = x.square().mean(-1, keepdim=True).rsqrt()
    return x * rstd * (1 if weight is None else weight), rstd


def test_annotations_say_the_line():
    assert "x: *b [d], weight?: [d] -> out: *b [d], rstd: *b 1" == line_of(norm)


def test_sizes_are_refused():
    with pytest.raises(ShapeError, match=r"'weight' must be \(d\) with d = 3"):
        norm(torch.ones(2, 3), torch.ones(2))


@custom_op("shapes_annotations::pick", along="n")
def pick(x: Float[Tensor, "n d"], index: Int64[Tensor, "rows=4"], scale: Float[Tensor, ""]) -> Float[Tensor, "4 d"]:
    return x[index] * scale


def test_named_literals_and_scalars():
    assert "x: [n] d, index: 4, scale:  -> output: 4 d" == line_of(pick)
    assert (4, 3) == pick(torch.ones(5, 3), torch.arange(4), torch.tensor(2.0)).shape


def test_name_in_along_that_no_annotation_has():
    def same(x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return x.clone()

    with pytest.raises(DeclarationError, match="along= names 'e', which no annotation has"):
        custom_op("shapes_annotations::other", same, along="e")


def test_tensor_without_an_annotation():
    def same(x: Tensor) -> Float[Tensor, "n"]:
        return x.clone()

    with pytest.raises(DeclarationError, match="'x' has no annotation with its dimensions"):
        custom_op("shapes_annotations::bare", same, along="n")


def test_dimension_that_a_line_does_not_have():
    def same(x: Float[Tensor, "n-1"]) -> Float[Tensor, "n"]:
        return x.clone()

    with pytest.raises(DeclarationError, match="has the dimension 'n-1'"):
        custom_op("shapes_annotations::sums", same, along="n")


def test_line_and_annotations_together():
    with pytest.raises(DeclarationError, match="both shapes= and along="):
        custom_op("shapes_annotations::both", norm.__wrapped__, along="d", shapes="x: d -> out: d")
