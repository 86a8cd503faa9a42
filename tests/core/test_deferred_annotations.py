"""Annotations that Python evaluates only when they are read may name what does not exist then."""

# ruff: noqa: F821 - names that are not defined are the subject

import dataclasses
import functools
import inspect
import sys
from typing import NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import DeclarationError, custom_op

if sys.version_info < (3, 14):
    pytest.skip("before Python 3.14, annotations are evaluated where the function is defined", allow_module_level=True)

X = torch.tensor([1.0, 3.0], dtype=torch.float64)


def taking_unknown(x: Tensor, size: Nowhere) -> Tensor:
    return x * size


def taking_a_list_of_unknown(x: Tensor, size: list[Nowhere] | None) -> Tensor:
    return x if size is None else x * size[0]


def returning_unknown(x: Tensor) -> Nowhere:
    return x * 2


@each(
    ("function", "name", "text"),
    [
        (taking_unknown, "size", "Nowhere"),
        (taking_a_list_of_unknown, "size", r"list\[Nowhere\] \| None"),
        (returning_unknown, "return", "Nowhere"),
    ],
)
@each("wrapped", [lambda function: function, functools.partial], ids=["function", "partial"])
def test_an_unknown_name_is_refused_with_the_op_the_parameter_and_the_text(function, name, text, wrapped):
    with pytest.raises(DeclarationError, match=f"^deferred::op: the annotation of '{name}' cannot be read\n.*'{text}'"):
        custom_op("deferred::op", wrapped(function))


def test_a_name_that_a_module_lacks_is_refused():
    def op(x: Tensor, size: torch.Nowhere) -> Tensor:
        return x * size

    with pytest.raises(DeclarationError, match="annotations cannot be read: module 'torch' has no attribute 'Nowhere'"):
        custom_op("deferred::attribute", op)


def test_a_name_that_is_local_to_the_function_around_it_is_read():
    Size = int  # noqa: N806 - a type

    @custom_op("deferred::local")
    def op(x: Tensor, size: Size | None = None) -> Tensor:
        return x * (size or 1)

    assert "(Tensor x, SymInt? size=None) -> Tensor" == str(op.schema)
    assert_close(X * 3, op(X, 3))


@dataclasses.dataclass
class Outer:
    """Its first field has the class below."""

    inner: Inner
    factor: float = 2.0


class Inner(NamedTuple):
    """Its field has the alias below."""

    value: Later


Later = Tensor


def test_fields_may_have_classes_that_are_defined_below_them():
    @custom_op("deferred::fields")
    def op(x: Outer) -> Inner:
        return Inner(x.inner.value * x.factor)

    assert "(Tensor x_inner_value, float x_factor) -> (Tensor)" == str(op.schema)
    assert_close(Inner(X * 2), op(Outer(Inner(X))))


def test_rules_and_kernels_are_not_asked_for_their_annotations():
    @custom_op("deferred::rules", outputs=("out",))
    def op(x: Tensor, factor: float) -> Tensor:
        return x * factor

    @op.register_fake
    def _(x: Nowhere, factor: Nowhere) -> Nowhere:
        return torch.empty_like(x)

    @op.register_backward
    def _(grad_out: Nowhere, *, factor: Nowhere) -> Nowhere:
        return {"x": grad_out * factor}

    @op.register_jvp
    def _(tangent_x: Nowhere, factor: Nowhere) -> Nowhere:
        return tangent_x * factor

    @op.register_vmap
    def _(info: Nowhere, in_dims: Nowhere, x: Nowhere, factor: Nowhere) -> Nowhere:
        return x * factor, in_dims[0]

    @op.register_kernel("cpu")
    def _(x: Nowhere, factor: Nowhere) -> Nowhere:
        return x * factor

    twice = functools.partial(op, factor=2.0)
    assert_close((X * 2, X * 2), torch.func.jvp(twice, (X,), (X,)))
    assert_close(torch.full_like(X, 2.0), torch.func.grad(lambda x: twice(x).sum())(X))
    assert_close(X * 2, torch.func.vmap(twice)(X))
    assert_close(X * 2, torch.compile(twice, fullgraph=True, backend="aot_eager")(X))


def test_an_op_with_a_schema_is_not_asked_for_its_annotations():
    @custom_op("deferred::schema", schema="(Tensor x, float factor) -> Tensor")
    def op(x: Nowhere, factor: Nowhere) -> Nowhere:
        return x * factor

    assert_close(X * 3, op(X, 3.0))
    assert ["x", "factor"] == list(inspect.signature(op).parameters)
    with pytest.raises(NameError, match="Nowhere"):
        inspect.get_annotations(op)


class Rows(NamedTuple):
    """Its fields cannot be read."""

    value: Nowhere
    count: Nowhere


def test_dimensions_are_not_found_in_annotations_that_cannot_be_read():
    def op(x: Tensor) -> Rows:
        return Rows(x * 2, x * 3)

    with pytest.raises(DeclarationError, match="'x' has no annotation with its dimensions"):
        custom_op("deferred::along", op, schema="(Tensor x) -> (Tensor value, Tensor count)", along=("n",))
