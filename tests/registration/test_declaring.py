"""What cannot be an op is refused when it is declared, with the argument, what was expected, and where."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import each
from torch import Tensor

from custom_autograd import CustomAutogradError, DeclarationError, custom_op
from custom_autograd.registration.registry import find_record


def identity(x: Tensor) -> Tensor:
    return x.clone()


@pytest.mark.parametrize("name", ["name", "_dir", "__init__", "__getattr__"])
def test_a_name_that_torch_ops_uses_itself_is_refused(name):
    with pytest.raises(DeclarationError, match="is something else"):
        custom_op(f"declaring::{name}", identity)


def test_a_refusal_is_a_value_error_and_a_runtime_error():
    with pytest.raises(ValueError, match="no namespace"):
        custom_op("refused", identity)
    with pytest.raises(CustomAutogradError):
        custom_op("refused", identity)


# ------------------------------------------------------------------------------------------------------- the good side


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


def named(x: Tensor) -> Pair:
    return Pair(x + 1, x + 2)


def test_a_named_tuple_is_what_a_call_returns():
    op = custom_op("declaring::named", named)
    pair = op(torch.zeros(1))

    assert ("first", "second") == op.schema.output_names
    assert isinstance(pair, Pair)
    assert 2.0 == pair.second.item()


def test_an_annotation_may_name_what_is_local_to_a_function():
    class Halves(NamedTuple):
        low: Tensor
        high: Tensor

    def halves(x: Tensor) -> "Halves":
        return Halves(x[:1].clone(), x[1:].clone())

    op = custom_op("declaring::local_annotation", halves)
    found = op(torch.tensor([1.0, 2.0]))

    assert isinstance(found, Halves)
    assert (1.0, 2.0) == (found.low.item(), found.high.item())


def test_output_names_come_from_the_schema():
    op = custom_op(
        "declaring::named_by_schema",
        lambda x: (x + 1, x + 2),
        schema="(Tensor x) -> (Tensor above, Tensor far_above)",
    )

    assert ("above", "far_above") == op.schema.output_names


AWKWARD = ["self", "ctx", "function", "device", "torch", "result", "layout", "call", "kernel", "apply", "overload",
           "inputs", "autograd", "cls", "keyset", "below", "flat", "values", "args", "kwargs", "entry", "plain", "_x",
           "known", "backward_of", "gradients", "saved", "in_place", "named_tuple", "from_dispatcher_x",
           "default_x", "x_"]  # fmt: skip


def _awkward(name, op_name):
    scope = {"Tensor": Tensor, "torch": torch}
    exec(f"def f({name}: Tensor, n: int = 2, *, s: float = 1.5) -> Tensor:\n    return {name} * n * s\n", scope)
    op = custom_op(f"declaring::{op_name}", scope["f"])
    exec(f"def rule(grad, {name}, output, n, s, needs, meta):\n"
         f"    return {{'{name}': grad * n * s + 0 * {name} + 0 * output}}\n", scope)  # fmt: skip
    op.register_backward(scope["rule"])
    return op


@each("name", AWKWARD)
def test_arguments_may_have_any_name(name):
    op = _awkward(name, f"awkward_argument_{name}")
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    y = op(x, 3, s=0.5)
    y.sum().backward()

    assert torch.allclose(x.detach() * 1.5, y.detach())
    assert torch.allclose(torch.full((3,), 1.5, dtype=x.dtype), x.grad)
    assert torch.equal(y, op(**{name: x}, n=3, s=0.5))


@each("name", AWKWARD)
def test_arguments_may_have_any_name_under_torch_func(name):
    op = find_record(f"declaring::awkward_argument_{name}") or _awkward(name, f"awkward_argument_{name}")._record
    x = torch.rand(3, dtype=torch.float64)
    op.dispatched.generate()
    found = torch.func.grad(lambda t: op.dispatched.call(t, 3, s=0.5).sum())(x)
    _, tangent = torch.func.jvp(lambda t: op.dispatched.call(t, 3, s=0.5), (x,), (x,))

    assert torch.allclose(torch.full((3,), 1.5, dtype=x.dtype), found)
    assert torch.allclose(1.5 * x, tangent)


@each("name", ["apply", "call", "autograd", "kernel", "forward", "backward", "torch", "overload",
                                  "function", "default", "x", "n"])  # fmt: skip
def test_ops_may_have_any_name(name):
    op = _awkward("x", name)
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    y = op(x, 3)
    y.sum().backward()

    assert torch.allclose(x.detach() * 4.5, y.detach())
    assert torch.allclose(torch.full((3,), 4.5, dtype=x.dtype), x.grad)
    assert f"declaring::{name}Backward" == y.grad_fn.name()


# ---------------------------------------------------------------------------------------------- schemas, as properties

TYPES = ["Tensor", "Tensor?", "Tensor[]", "Tensor?[]", "int", "int?", "int[]", "float", "float?", "bool", "str", "str?",
         "ScalarType?", "Device?", "Layout?", "MemoryFormat?", "complex", "Scalar", "float[]", "bool[]"]  # fmt: skip
DEFAULTS = {"int": "3", "float": "0.5", "bool": "True", "str": '"text"', "int[]": "[1, 2]"}


@st.composite
def schemas(draw):
    """A schema text of arguments with and without defaults, of which some are keyword-only, and of results."""
    count = draw(st.integers(1, 6))
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=count, max_size=count))
    star = draw(st.integers(0, count))
    first_default = draw(st.integers(0, star))
    parts = []
    for index, kind in enumerate(kinds):
        if index == star:
            parts.append("*")
        default = "None" if kind.endswith("?") else DEFAULTS.get(kind)
        must = first_default <= index < star
        if must and default is None:
            kind, default = "int?", "None"
        has_default = must or (index >= star and default is not None and draw(st.booleans()))
        parts.append(f"{kind} a{index}" + (f"={default}" if has_default else ""))
    results = draw(st.lists(st.sampled_from(["Tensor", "Tensor[]", "Tensor?", "int", "float"]), max_size=3))
    if len(results) == 1:
        return f"({', '.join(parts)}) -> {results[0]}"
    return f"({', '.join(parts)}) -> ({', '.join(results)})"


def _parse(text):
    from custom_autograd.schema.annotations import DeclarationOptions, Refusal, read_function
    from custom_autograd.schema.inference import schema_of
    from custom_autograd.schema.names import parse_name

    parse_name("declaring::property")
    declaration_options = DeclarationOptions(
        op="declaring::property", mutates=(), schema=text, outputs=None, hidden=(), non_differentiable=()
    )
    refuse = Refusal(declaration_options.op, "test_declaring.py")
    return schema_of(_anything, read_function(_anything, declaration_options, refuse), declaration_options, refuse)


def _anything(*args, **kwargs):
    return None


@given(schemas())
def test_a_schema_says_the_same_when_its_text_is_read_again(text):
    schema = _parse(text)

    assert schema == _parse(str(schema))
    assert text == str(schema)
    assert text.count("*") == any(argument.is_keyword_only for argument in schema.arguments)


@given(schemas())
def test_a_schema_agrees_with_the_parser_of_the_dispatcher(text):
    parsed = torch._C.parse_schema(f"f{text}")
    schema = _parse(text)

    assert [a.name for a in parsed.arguments] == list(schema.argument_names)
    assert [a.kwarg_only for a in parsed.arguments] == [a.is_keyword_only for a in schema.arguments]
    assert [a.has_default_value() for a in parsed.arguments] == [a.has_default for a in schema.arguments]
    assert len(parsed.returns) == len(schema.outputs)


@pytest.mark.parametrize("option", [{"mutates_args": 3}, {"device_types": 3}, {"hidden": 3}, {"tags": ["x"]}], ids=str)
def test_an_option_of_the_wrong_kind_is_refused_by_name(option):
    with pytest.raises(DeclarationError, match=f"wrong_option: the option '{next(iter(option))}' has the wrong type"):
        custom_op("declaring::wrong_option", **option)(wrong_option)


def wrong_option(x: Tensor) -> Tensor:
    return x * 1
