"""What a vmap rule returns is read as the schema declares, or refused in words: the output, and its out_dims."""

from dataclasses import dataclass

import pytest
import torch
from tables import each
from torch import Tensor, vmap
from torch.func import grad
from torch.testing import assert_close

from custom_autograd import KernelError, Sample, custom_op

X = torch.arange(6.0).reshape(3, 2) + 1


@custom_op("vmap_results::double")
def double(x: Tensor) -> Tensor:
    return x * 2


@custom_op("vmap_results::pair", outputs=("first", "second"))
def pair(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x * 3


@custom_op("vmap_results::listed")
def listed(x: Tensor) -> list[Tensor]:
    return [x * 2, x * 3]


@custom_op("vmap_results::optional", outputs=("out", "size", "extra"))
def optional(x: Tensor) -> tuple[Tensor, int, Tensor | None]:
    return x * 2, 7, None


@custom_op("vmap_results::summed", outputs=("out", "lse"), hidden=("lse",))
def summed(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * x.sum(-1, keepdim=True), x.sum(-1, keepdim=True)


@summed.register_fake
def _(x):
    return torch.empty_like(x), x.new_empty((*x.shape[:-1], 1))


@summed.register_backward
def _(grad_out, lse, x):
    return {"x": grad_out * lse + (grad_out * x).sum(-1, keepdim=True)}


@dataclass
class Both:
    out: Tensor
    total: Tensor


@custom_op("vmap_results::both")
def both(x: Tensor) -> Both:
    return Both(x * 2, x.sum(-1))


@custom_op("vmap_results::one_tuple")
def one_tuple(x: Tensor) -> tuple[Tensor]:
    return (x * 2,)


@custom_op("vmap_results::written", mutates_args="x")
def written(x: Tensor) -> None:
    x.mul_(2)


def by_method(op, rule):
    op.register_vmap(rule, replace=True)


def by_object(op, rule):
    op.register_vmap(rule, replace=True)  # torch.library's has no replace=
    torch.library.register_vmap(op, rule)


def by_name(op, rule):
    op.register_vmap(rule, replace=True)
    torch.library.register_vmap(op.overload._name, rule)


def run(op, returned, register=by_method):
    register(op, lambda info, in_dims, x: returned(x.movedim(in_dims[0], 0)))
    return vmap(op)(X)


RIGHT = {
    "tensor": (double, lambda x: (x * 2, 0)),
    "negative dimension": (double, lambda x: ((x * 2).T, -1)),
    "dimension that is a tensor": (double, lambda x: (x * 2, torch.tensor(0))),
    "tuple": (pair, lambda x: ((x * 2, x * 3), (0, 0))),
    "tuple, one dimension": (pair, lambda x: ((x * 2, x * 3), 0)),
    "tuple, list of dimensions": (pair, lambda x: ((x * 2, x * 3), [0, 0])),
    "list for a tuple": (pair, lambda x: ([x * 2, x * 3], (0, 0))),
    "other dimensions": (pair, lambda x: ((x * 2, (x * 3).T), (0, 1))),
    "list": (listed, lambda x: ([x * 2, x * 3], [0, 0])),
    "list, one dimension": (listed, lambda x: ([x * 2, x * 3], 0)),
    "tuple for a list": (listed, lambda x: ((x * 2, x * 3), (0, 0))),
    "list, other dimensions": (listed, lambda x: ([x * 2, (x * 3).T], (0, 1))),
    "hidden": (summed, lambda x: (summed.overload(x), (0, 0))),
    "hidden, one dimension": (summed, lambda x: (summed.overload(x), 0)),
    "tuple of one": (one_tuple, lambda x: ((x * 2,), (0,))),
}


@each(("op", "returned"), RIGHT.values(), ids=RIGHT)
@each("register", [by_method, by_object, by_name])
def test_what_fits_the_schema_is_what_a_loop_gives(op, returned, register):
    found, expected = run(op, returned, register), [op(x) for x in X]

    if isinstance(expected[0], Tensor):
        found, expected = [found], [(one,) for one in expected]
    assert_close(list(found), [torch.stack(column) for column in zip(*expected, strict=True)])


def test_a_container_has_one_dimension_for_all_or_one_each():
    for dims in (0, Both(0, 0)):
        both.register_vmap(lambda info, in_dims, x, dims=dims: (Both(x * 2, x.sum(-1)), dims), replace=True)

        assert_close(vmap(lambda x: both(x).total)(X), X.sum(-1))


def test_an_output_that_is_not_batched_is_the_same_for_all():
    assert_close(run(double, lambda x: (torch.ones(2), None)), torch.ones(3, 2))
    assert_close(run(pair, lambda x: ((x * 2, torch.ones(2)), (0, None))), (X * 2, torch.ones(3, 2)))


def test_outputs_that_are_not_tensors_have_no_dimension():
    optional.register_vmap(lambda info, in_dims, x: ((x * 2, 7, None), 0), replace=True)
    found = []
    vmap(lambda x: found.append(optional(x)) or x)(X)

    assert [7, None] == list(found[0][1:])


@pytest.mark.parametrize("returned", [(None, None), ((), ()), (None, ()), (None, 0)], ids=str)
def test_an_op_without_outputs_returns_whatever_it_likes(returned):
    written.register_vmap(lambda info, in_dims, x: (written(x), returned)[1], replace=True)
    x = X.clone()
    vmap(lambda x: (written(x), x)[1])(x)

    assert_close(x, X * 2)


def test_the_gradient_of_a_rule_that_returns_hidden_outputs():
    run(summed, lambda x: (summed.overload(x), (0, 0)))
    expected = torch.stack([2 * x.sum() * torch.ones(2) for x in X])

    assert_close(vmap(grad(lambda x: summed(x).sum()))(X), expected)
    assert_close(grad(lambda x: vmap(summed)(x).sum())(X), expected)


WRONG = {
    "hidden left out": (summed, lambda x: (x, 0), ["number of outputs", "2 outputs: 'out', 'lse'",
        "found      a tensor of shape (3, 2)", "'lse' as well", "return summed.overload(...), (0, 0)"]),
    "hidden left out of a tuple": (summed, lambda x: ((x,), (0,)), ["number of outputs", "found      a tuple of 1"]),
    "tensor for two": (pair, lambda x: (x, 0), ["number of outputs", "2 outputs: 'first', 'second'",
        "a tensor of shape (3, 2)", "one value per output"]),
    "one for two": (pair, lambda x: ((x,), (0,)), ["number of outputs", "a tuple of 1"]),
    "three for two": (pair, lambda x: ((x, x, x), (0, 0, 0)), ["number of outputs", "a tuple of 3"]),
    "list of three for two": (pair, lambda x: ([x, x, x], 0), ["number of outputs", "a list of 3"]),
    "three with a hidden": (summed, lambda x: ((x, x, x), 0), ["number of outputs", "one value per output"]),
    "none for two": (pair, lambda x: (None, None), ["number of outputs", "None"]),
    "tensor for a container": (both, lambda x: (x, 0), ["the vmap rule", "returns another container"]),
    "none in a tuple": (pair, lambda x: ((x, None), (0, None)), ["'second' of the vmap rule is not a tensor", "None"]),
    "too few dimensions": (pair, lambda x: ((x, x), (0,)), ["number of out_dims", "a tuple of 1"]),
    "too many dimensions": (pair, lambda x: ((x, x), [0, 0, 0]), ["number of out_dims", "a list of 3"]),
    "tuple for one": (double, lambda x: ((x,), (0,)), ["'output' of the vmap rule is not a tensor", "a tuple of 1"]),
    "pair for one": (double, lambda x: ((x, x), 0), ["'output' of the vmap rule is not a tensor", "a tuple of 2"]),
    "none for one": (double, lambda x: (None, None), ["'output' of the vmap rule is not a tensor", "None"]),
    "number for one": (double, lambda x: (3.0, None), ["'output' of the vmap rule is not a tensor", "float: 3.0"]),
    "tuple of dimensions for one": (double, lambda x: (x, (0,)), ["no dimension for output 'output'", "a tuple of 1"]),
    "text for a dimension": (double, lambda x: (x, "0"), ["no dimension for output 'output'", "str: '0'"]),
    "float for a dimension": (double, lambda x: (x, 0.0), ["no dimension for output 'output'", "float: 0.0"]),
    "text among dimensions": (pair, lambda x: ((x, x), (0, "a")), ["no dimension for output 'second'", "str: 'a'"]),
    "dict of dimensions": (pair, lambda x: ((x, x), {}), ["no dimension for output 'first'", "dict: {}"]),
    "nested dimensions": (pair, lambda x: ((x, x), (0, (0,))), ["no dimension for output 'second'", "a tuple of 1"]),
    "dimension out of range": (pair, lambda x: ((x, x), (0, 7)), ["'second' is batched over", "shape (3, 2)"]),
    "negative out of range": (double, lambda x: (x, -3), ["'output' is batched over dimension -3", "shape (3, 2)"]),
    "tensor for a list": (listed, lambda x: (x, 0), ["'output' of the vmap rule is not a list", "a tensor"]),
    "none in a list": (listed, lambda x: ([x, None], 0), ["'output[1]' of the vmap rule is not a tensor", "None"]),
    "too few for a list": (listed, lambda x: ([x, x], (0,)), ["the list 'output' do not fit", "expected   2", "1"]),
    "text in a list": (listed, lambda x: ([x, x], [0, "a"]), ["no dimension for output 'output[1]'"]),
}  # fmt: skip


@each(("op", "returned", "parts"), WRONG.values(), ids=WRONG)
@each("register", [by_method, by_name])
def test_what_does_not_fit_the_schema_is_refused(op, returned, parts, register):
    with pytest.raises(KernelError) as caught:
        run(op, returned, register)

    for part in [op.overload._name.split(".")[0], "test_vmap_results.py:", *parts]:
        assert part in str(caught.value)


def test_check_shows_the_error():
    summed.register_vmap(lambda info, in_dims, x: (summed(x.movedim(in_dims[0], 0)), 0), replace=True)
    report = summed.check([Sample(X)], checks=["vmap"], raise_on_failure=False)

    assert "failed" == report.results[0].status
    assert "the vmap rule returns the wrong number of outputs" in report.results[0].message
    assert "return the hidden output 'lse' as well" in report.results[0].cause
