"""Every row of the table of argument types: its examples reach kernels, rules and graphs as they are."""

from typing import Any

import torch
from arguments.leaf_ops import weight
from tables import each
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import CustomOp, custom_op
from custom_autograd.schema.types import ARGUMENT_TYPES, TypeRow, classes_held_as, find_element_row, find_row

X = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
EXAMPLES = {
    f"{row.spelling} {example}": (row, example)
    for row in ARGUMENT_TYPES
    for example in row.examples
    if row.annotation is not torch.SymInt  # the same as int
}
EACH = each(("row", "example"), EXAMPLES.values(), ids=EXAMPLES)


def declared(row: TypeRow, annotation: Any, default: Any, name: str = "scale") -> CustomOp[..., Tensor]:
    """The op that multiplies with what says exactly which value it was given."""

    def scale(x: Tensor, value: Any = default) -> Tensor:
        return x * weight(value)

    scale.__annotations__["value"] = annotation
    op: CustomOp[..., Tensor] = custom_op(f"argument_types::{name}", scale, replace=True)

    @op.register_fake
    def _(x, value):
        return torch.empty_like(x)

    @op.register_backward
    def _(grad, value):
        return grad * weight(value)

    return op


@EACH
def test_an_example_reaches_a_kernel_and_a_backward(row, example):
    op, x = declared(row, row.annotation, example), X.clone().requires_grad_()

    assert_close(op(X, example), X * weight(example))
    assert_close(torch.autograd.grad(op(x, example).sum(), x), (torch.full_like(X, weight(example)),))


@EACH
def test_an_example_is_a_default(row, example):
    op = declared(row, row.annotation, example)

    assert_close(op(X), X * weight(example))


@EACH
def test_an_example_is_optional(row, example):
    op = declared(row, row.annotation | None, None)

    assert_close(op(X, example), X * weight(example))
    assert_close(op(X), X * weight(None))


def test_examples_are_traced(fresh_compiler):
    """One graph of all, with each example as an argument and as a default."""
    examples = [example for _, example in EXAMPLES.values()]
    ops = [declared(row, row.annotation, one, f"traced_{n}") for n, (row, one) in enumerate(EXAMPLES.values())]

    def call(x, given):
        return [op(x, one) for op, one in zip(ops, given, strict=True)] + [op(x) for op in ops]

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)

    assert_close(compiled(X, examples), [X * weight(example) for example in examples] * 2)


LISTED = {name: (row, example) for name, (row, example) in EXAMPLES.items() if row.has_list}


@each(("row", "example"), LISTED.values(), ids=LISTED)
def test_lists_and_tuples_of_examples(row, example):
    listed = declared(row, list[row.annotation] | None, None)
    assert_close(listed(X, [example, example]), X * weight([example, example]))

    paired = declared(row, tuple[row.annotation, ...] | None, None)
    assert_close(paired(X, (example,)), X * weight((example,)))


HELD = {name: pair for name, pair in EXAMPLES.items() if pair[0].letter}


@each(("row", "example"), HELD.values(), ids=HELD)
def test_an_example_is_held_by_a_container(row, example):
    op = declared(row, dict[str, row.annotation | list[row.annotation]], None)
    value = {"one": example, "several": [example, example]}

    assert_close(op(X, value), X * weight(value))


def test_a_row_is_found_by_its_spelling():
    assert find_row("int") is find_row("SymInt")
    assert torch.dtype is find_element_row("ScalarType[]?").annotation
    assert str is find_row("str").annotation
    assert find_row("ScalarType[]") is find_row("Stream") is None


def test_types_by_how_containers_hold_them():
    assert (int, torch.SymInt) == classes_held_as("I")
    assert {bool, str, complex} <= set(classes_held_as("="))
