"""Lines are declared, or registered as text or a function of arguments; what does not fit is refused at once."""

import functools
import re
from typing import NamedTuple

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor

from custom_autograd import Sample, custom_op, validation
from custom_autograd.core.errors import DeclarationError, RegistrationError, ShapeError


@custom_op("shapes_registration::loss", reference=True)
def loss(x: Tensor, bias: Tensor | None = None, reduction: str = "none") -> Tensor:
    found = x if bias is None else x + bias
    return found.sum(-1) if reduction == "none" else found.sum()


@loss.register_shapes
def _(bias, reduction):
    return f"x: n {'d' if bias is None else '[d]'}, bias?: d -> output: {'n' if reduction == 'none' else ''}"


def test_function_is_bound_by_name_and_sees_whether_a_tensor_is_there():
    samples = [Sample(torch.ones(4, 3), None), Sample(torch.ones(4, 3), torch.ones(3))]

    assert ["passed", "passed"] == [row.status for row in loss.check(samples, checks=["shapes"]).results]


def test_line_of_a_function_refuses():
    with pytest.raises(ShapeError, match=r"'bias' must be \(d\) with d = 3"):
        loss(torch.ones(4, 3), torch.ones(4), "sum")


def test_second_line_is_refused_and_replaced_on_request():
    @custom_op("shapes_registration::twice", shapes="x: n, y: n -> output: n")
    def twice(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum() + x.new_zeros(len(x))

    with pytest.raises(RegistrationError):
        twice.register_shapes("x: n, y: m -> output: n")
    with pytest.raises(ShapeError):
        twice(torch.ones(2), torch.ones(3))
    twice.register_shapes("x: n, y: m -> output: n", replace=True)

    assert (2,) == twice(torch.ones(2), torch.ones(3)).shape


def test_line_registered_after_calls_holds_for_the_next():
    @custom_op("shapes_registration::later")
    def later(x: Tensor, y: Tensor) -> Tensor:
        return x + y.sum()

    later(torch.ones(2), torch.ones(3))
    later.register_shapes("x: n, y: n -> output: n")

    with pytest.raises(ShapeError, match="'y' must be"):
        later(torch.ones(2), torch.ones(3))


def test_validation_off_lets_wrong_sizes_pass():
    @custom_op("shapes_registration::unchecked", shapes="x: n, y: n -> output: n")
    def unchecked(x: Tensor, y: Tensor) -> Tensor:
        return x + y.sum()

    with validation("off"):
        assert (2,) == unchecked(torch.ones(2), torch.ones(3)).shape
    with pytest.raises(ShapeError):
        unchecked(torch.ones(2), torch.ones(3))


def two(x: Tensor, y: Tensor | None = None, k: int = 2) -> Tensor:
    return x.clone()


def refusal(text):
    """What is wrong with a line, what would be right, and what to do."""
    with pytest.raises(DeclarationError) as caught:
        declared(shapes=text)
    rows = (caught.value.problem, caught.value.expected, caught.value.found, caught.value.do)
    return "\n".join(row for row in rows if row is not None)


declared = functools.partial(custom_op, "shapes_registration::bad", two)


def test_message_of_a_line_that_cannot_be_read():
    assert_expected_inline(
        refusal("x: n y?: n -> output: n"),
        """\
the line of shapes cannot be read: a dimension is expected: a name, a number or a product
x: n y?: n -> output: n
                   ^
separate dimensions by spaces and tensors by commas: 'x: *b i, weight: o i -> out: *b o'""",
    )


def test_message_of_a_line_without_a_tensor():
    assert_expected_inline(
        refusal("x: n -> output: n"),
        """\
the line of shapes does not fit the op: the line declares nothing of the input 'y'
x: n -> output: n
add 'y: ...' if its shape is not to be described""",
    )


def test_message_of_a_tensor_that_is_none_of_the_op():
    assert_expected_inline(
        refusal("x: n, z: n -> output: n"),
        """\
the line of shapes does not fit the op: the line has an input 'z', which the op does not have
'x', 'y'
x: n, z: n -> output: n""",
    )


def test_message_of_a_dimension_that_no_input_has():
    assert_expected_inline(
        refusal("x: n, y?: n -> output: m"),
        """\
the line of shapes does not fit the op: the output 'output' has the dimension 'm', which no input has
dimensions of inputs, or int arguments of the op
x: n, y?: n -> output: m
write _ for one that does not follow from the inputs, or give 'm' to an input""",
    )


def test_message_of_an_argument_that_is_not_in_brackets():
    assert_expected_inline(
        refusal("x: n, y?: n -> output: k"),
        """\
the line of shapes does not fit the op: the dimension 'k' is an argument of the op, whose value is not that of a slice
x: n, y?: n -> output: k
write [k]: it cannot be cut""",
    )


def test_message_of_a_name_twice_in_one_tensor():
    assert_expected_inline(
        refusal("x: n n, y?: n -> output: n"),
        """\
the line of shapes does not fit the op: 'x' has the dimension 'n' twice: slices would be blocks on a diagonal
x: n n, y?: n -> output: n
write [n]: it cannot be cut""",
    )


def test_message_of_an_output_with_another_name():
    with pytest.raises(DeclarationError) as caught:
        declared(shapes="x: n, y?: n -> out: n", outputs=("found",))

    assert_expected_inline(
        re.sub(r":\d+", ":N", str(caught.value)).partition(": ")[2],
        """\
the line of shapes does not fit the op: the line has an output 'out', which the op does not have
  expected   'found'
  found      x: n, y?: n -> out: n
  rule       test_registration.py:N, shapes
  declared   test_registration.py:N
  do         use its names in the line, or name it alike in outputs=""",
    )


class Halves(NamedTuple):
    low: Tensor
    high: Tensor


def halves(x: Tensor) -> Halves:
    return Halves(x / 2, x / 2)


def written(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.clone(), x.mean(-1)


NAMES = {
    "one": (lambda x: x.clone(), "x: n -> out: n", {"schema": "(Tensor x) -> Tensor"}, ("out",)),
    "several": (written, "x: *b [d] -> out: *b [d], mean: *b", {"hidden": ("mean",)}, ("out", "mean")),
    "outputs=": (written, "x: *b [d] -> out: *b [d], mean: *b", {"outputs": ("out", "mean")}, ("out", "mean")),
    "schema": (written, "x: *b [d] -> a: *b [d], b: *b", {"schema": "(Tensor x) -> (Tensor a, Tensor b)"}, ("a", "b")),
    "NamedTuple": (halves, "x: n -> low: n, high: n", {}, ("low", "high")),
    "beside what is written": (
        lambda x: (x, x.clone()),
        "x: n -> copy: n",
        {"schema": "(Tensor(a!) x) -> (Tensor(a!), Tensor)", "mutates_args": ("x",)},
        ("output_0", "copy"),
    ),
}


@each("case", NAMES)
def test_line_names_the_outputs(case):
    function, line, options, expected = NAMES[case]

    op = custom_op("shapes_registration::named", function, shapes=line, replace=True, **options)

    assert expected == op.schema.output_names


def test_names_of_the_line_are_those_of_rules():
    @custom_op("shapes_registration::normed", shapes="x: *b [d] -> out: *b [d], rstd: *b 1", hidden=("rstd",))
    def normed(x: Tensor) -> tuple[Tensor, Tensor]:
        rstd = x.square().mean(-1, keepdim=True).rsqrt()
        return x * rstd, rstd

    @normed.register_backward
    def _(grad_out, out, rstd):
        return {"x": rstd * (grad_out - out * (grad_out * out).mean(-1, keepdim=True))}

    assert normed.check([Sample(torch.randn(3, 4, requires_grad=True))], checks=["directional", "gradcheck"]).ok


BAD = {
    "not a tensor": ("x: n, y?: n, k: n -> output: n", "gives dimensions to 'k', which is not a tensor"),
    "always there": ("x?: n, y?: n -> output: n", "marks 'x' as optional, and the op always has it"),
    "broadcast output": ("x: n, y?: n -> output: #n", "'output' has a '#', and only inputs are broadcast"),
    "two outputs": ("x: n, y?: n -> out: n, other: n", "has an output 'out', which the op does not have"),
    "unknown product": ("x: (a b), y?: _ -> output: _", "in a product of unknown factors"),
}


@pytest.mark.parametrize("case", BAD)
def test_line_that_does_not_fit_is_refused(case):
    text, problem = BAD[case]

    with pytest.raises(DeclarationError, match=problem):
        declared(shapes=text)


OPTIONS = {
    "dtype of nothing": ({"dtypes": {"out": torch.float32}}, "dtypes= names 'out', which is not an output"),
    "no dtype": ({"dtypes": {"output": "float32"}}, "dtypes= does not say what the dtype of 'output' is"),
    "number of nothing": ({"numbers": {"z": 3}}, "numbers= names 'z', which is not an argument"),
    "flops of nothing": ({"flops": "2*n*m"}, "flops= names 'm', which is not a dimension"),
    "flops that cannot be read": ({"flops": "2*"}, "flops= cannot be read"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_option_that_does_not_fit_is_refused(case):
    options, problem = OPTIONS[case]

    with pytest.raises(DeclarationError, match=problem.replace("*", r"\*")):
        declared(shapes="x: n, y?: n -> output: n", **options)


def test_options_without_a_line():
    with pytest.raises(DeclarationError, match="add to a line of shapes, and there is none"):
        declared(flops="2")


@pytest.mark.parametrize("found", [None, 3, "x: n ->", "x n"], ids=str)
def test_function_that_does_not_return_a_line(found):
    op = custom_op(f"shapes_registration::function_{id(found)}", two)
    op.register_shapes(lambda k: found)

    with pytest.raises(RegistrationError):
        op(torch.ones(2))


def test_function_with_a_parameter_that_names_nothing():
    op = custom_op("shapes_registration::parameter", two)

    with pytest.raises(RegistrationError, match="'z' that names nothing"):
        op.register_shapes(lambda z: "x: n, y?: n -> output: n")
