"""Kernels that return an input as it is: declared, eager calls share it and all others get a copy; or it is refused."""

# ruff: noqa: E501 - a message is as long as it is

import re

import numpy as np
import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from custom_autograd import DeclarationError, KernelError, Sample, custom_op, validation


@custom_op("aliases::floored", aliases={"output": "x"})
def floored(x: Tensor, low: float) -> Tensor:
    """The argument itself, where there is nothing to do."""
    return x if bool((x >= low).all()) else torch.from_numpy(np.maximum(x.numpy(), low))


@floored.register_fake
def _(x, low):
    return torch.empty_like(x)


@floored.register_backward
def _(grad, x, low):
    return {"x": grad * (x >= low)}


@custom_op("aliases::reversed", aliases={"output": "x"})
def reversed_(x: Tensor) -> Tensor:
    """The argument, always; the gradient changes its sign."""
    return x


@reversed_.register_fake
def _(x):
    return x


@reversed_.register_backward
def _(grad):
    return {"x": -grad}


@custom_op("aliases::both", outputs=("same", "twice"), aliases={"same": "x"}, reference=True)
def both(x: Tensor) -> tuple[Tensor, Tensor]:
    return x, 2 * x


@custom_op("aliases::by_output", aliases={"output": "x"}, reference=True)
def by_output(x: Tensor) -> Tensor:
    return x


@by_output.register_backward
def _(grad, output):
    """Saves the output, which is the input."""
    return {"x": grad * output}


OPS = {
    "sometimes, and now": lambda x: floored(x * 1, 0.0) * 2,
    "sometimes, not now": lambda x: floored(x * 1, 0.5) * 2,
    "one of two": lambda x: torch.stack(both(x * 1)),
}
PLAIN = {
    "sometimes, and now": lambda x: x * 2,
    "sometimes, not now": lambda x: x.clamp(min=0.5) * 2,
    "one of two": lambda x: torch.stack([x, 2 * x]),
}
every = pytest.mark.parametrize("name", OPS)


def rand(*shape, requires_grad=False):
    generator = torch.Generator().manual_seed(9)
    return torch.rand(shape or (4,), dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


@every
def test_values_are_right(name):
    for _ in range(2):
        assert torch.allclose(PLAIN[name](rand()), OPS[name](rand()))


@every
def test_gradients_of_all_orders_and_tangents_are_right(name):
    assert gradcheck(OPS[name], (rand(requires_grad=True),), check_forward_ad=True)
    assert gradgradcheck(OPS[name], (rand(requires_grad=True),))


@every
def test_functional_transforms_are_right(name):
    x, v = rand(), rand() + 1

    assert torch.allclose(torch.func.jvp(PLAIN[name], (x,), (v,))[1], torch.func.jvp(OPS[name], (x,), (v,))[1])
    assert torch.allclose(torch.func.jacrev(PLAIN[name])(x), torch.func.jacrev(OPS[name])(x))


@every
def test_a_batch_is_right(name):
    batch = rand(3, 4)

    assert torch.allclose(torch.vmap(PLAIN[name])(batch), torch.vmap(OPS[name])(batch))


@every
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_values_and_gradients_are_right(name, backend, fresh_compiler):
    compiled = torch.compile(OPS[name], backend=backend, fullgraph=True)
    (expected,) = torch.autograd.grad(PLAIN[name](x := rand(requires_grad=True)).sum(), x)

    assert torch.allclose(PLAIN[name](rand()), compiled(rand()))
    assert torch.allclose(expected, torch.autograd.grad(compiled(x).sum(), x)[0])


class Module(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, x):
        return OPS[self.name](x)


@every
@pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")  # torch itself, in run_decompositions
def test_exported_programs_are_right(name):
    program = torch.export.export(Module(name), (rand(),))

    assert torch.allclose(PLAIN[name](rand()), program.module()(rand()))
    assert torch.allclose(PLAIN[name](rand()), program.run_decompositions().module()(rand()))


def test_an_eager_call_shares_the_memory_and_its_version_counter():
    x = rand()
    y = floored(x, 0.0)
    y.add_(1)

    assert y.data_ptr() == x.data_ptr()
    assert 1 == x._version


def test_without_grad_mode_the_result_needs_no_gradient():
    x = rand(requires_grad=True)
    with torch.no_grad():
        y = floored(x, 0.0)

    assert not y.requires_grad
    assert y.data_ptr() == x.data_ptr()


def test_a_write_to_the_result_of_a_call_without_gradients_reaches_the_argument():
    x, factor = rand(), rand(requires_grad=True)
    y = floored(x, 0.0)
    y.mul_(factor)

    assert torch.equal(2 * rand(), torch.autograd.grad((x + y).sum(), factor)[0])


def test_a_write_to_the_argument_of_a_call_without_gradients_reaches_the_result():
    x, factor = rand(), rand(requires_grad=True)
    y = floored(x, 0.0)
    x.mul_(factor)

    assert torch.equal(2 * rand(), torch.autograd.grad((x + y).sum(), factor)[0])


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "with a gradient"])
def test_a_write_to_the_result_of_a_call_without_grad_mode_is_refused(requires_grad):
    x = rand(requires_grad=requires_grad) * 1
    with torch.no_grad():
        y = floored(x, 0.0)

    with pytest.raises(RuntimeError, match="A view was created in no_grad mode and is being modified"):
        y.mul_(rand(requires_grad=True))


def test_a_result_without_gradient_of_its_own_refuses_to_be_written_to():
    op = custom_op(
        "aliases::cut", lambda x: x, schema="(Tensor x) -> Tensor", aliases={"output": "x"}, non_differentiable="output"
    )
    y = op(rand(requires_grad=True))

    assert not y.requires_grad
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        y.mul_(rand(requires_grad=True))


def test_the_first_call_is_like_all_others():
    op = custom_op("aliases::first", lambda x: x, schema="(Tensor x) -> Tensor", aliases={"output": "x"})
    x = rand()

    assert [True] * 3 == [op(x).data_ptr() == x.data_ptr() for _ in range(3)]


@pytest.mark.parametrize("level", ["full", "cheap", "off"])
def test_the_dispatcher_gets_a_copy(level):
    x = rand()
    with validation(level):
        y = floored.overload(x, 0.0)

    assert y.data_ptr() != x.data_ptr()
    assert torch.equal(x, y)


def test_a_compiled_graph_may_write_to_the_argument(fresh_compiler):
    def f(x):
        base = x * 1
        y = floored(base, 0.0)
        base.add_(1)
        return y * 1, base

    y, base = torch.compile(f, backend="inductor", fullgraph=True)(rand())

    assert torch.equal(rand(), y)
    assert torch.equal(rand() + 1, base)


@pytest.mark.parametrize("written", ["result", "argument"])
def test_a_write_that_would_make_a_gradient_wrong_is_refused(written):
    x = rand(requires_grad=True) * 1
    y = floored(x, 0.0)

    def write():
        (y if written == "result" else x).mul_(3)
        return y.grad_fn

    with pytest.raises(RuntimeError, match="an input was returned as-is"):
        write()


def test_a_gradient_that_is_not_that_of_the_identity_is_kept():
    x = rand(requires_grad=True)

    assert torch.equal(-torch.ones_like(x), torch.autograd.grad(reversed_(x).sum(), x)[0])


def test_a_saved_output_belongs_to_the_op_and_not_to_its_input():
    """The rule says dy/dx = y, so the second derivative is y * y' = y."""
    x = rand(requires_grad=True)
    (first,) = torch.autograd.grad(by_output(x).sum(), x, create_graph=True)

    assert torch.allclose(rand(), torch.autograd.grad(first.sum(), x)[0])


def test_integers_may_be_returned_too():
    op = custom_op("aliases::integers", lambda x: x, schema="(Tensor x) -> Tensor", aliases={"output": "x"})

    assert [1, 2] == op(torch.tensor([1, 2])).tolist()


def test_inference_mode_is_right():
    with torch.inference_mode():
        assert torch.equal(rand(), floored(rand(), 0.0))


def test_checks_pass():
    samples = [Sample(rand(), 0.0), Sample(rand(), 0.5)]

    assert floored.check(samples, checks=["schema", "kernels", "opcheck", "compile", "reuse"]).ok


# ------------------------------------------------------------------------------------------------------------- messages


def message(call, kind):
    with pytest.raises(kind) as caught:
        call()
    lines = (line for line in str(caught.value).splitlines() if not line.startswith("  declared"))
    return re.sub(r"\w+\.py:\d+", "FILE:LINE", "\n".join(lines))


def declare(name, schema="(Tensor x) -> Tensor", function=lambda x: x, **options):
    return custom_op(f"aliases::{name}", function, schema=schema, **options)


def test_an_input_that_is_not_declared():
    op = declare("undeclared")
    assert_expected_inline(
        message(lambda: op(rand()), KernelError),
        """\
aliases::undeclared: the default kernel, FILE:LINE, returns an output 'output' that shares memory with input 'x'
  expected   new memory
  do         return a copy (.clone()), or declare aliases={'output': 'x'} for 'x' itself, or 'Tensor(a)' in schema= for a view""",
    )


def test_a_part_of_the_declared_input():
    op = declare("part", function=lambda x: x[1:], aliases={"output": "x"})
    assert_expected_inline(
        message(lambda: op(rand()), KernelError),
        """\
aliases::part: the default kernel, FILE:LINE, returns an output 'output' that shares memory with input 'x'
  expected   new memory
  do         return 'x' itself, which aliases= allows, or a copy (.clone()); a part of it is neither""",
    )


def test_another_input_than_the_declared_one():
    op = declare("other", "(Tensor x, Tensor y) -> Tensor", lambda x, y: y, aliases={"output": "x"})
    assert "shares memory with input 'y'" in message(lambda: op(rand(), rand()), KernelError)


def test_an_unknown_output():
    assert_expected_inline(
        message(lambda: declare("a", aliases={"outptu": "x"}), DeclarationError),
        """\
aliases::a: aliases= names 'outptu', which is not an output
  expected   'output'
  found      'outptu'
  do         did you mean 'output'?""",
    )


def test_an_unknown_input():
    assert_expected_inline(
        message(lambda: declare("b", aliases={"output": "y"}), DeclarationError),
        """\
aliases::b: aliases= names 'y', which is not an input
  expected   'x'
  found      'y'
  do         write aliases={'output': 'input'}""",
    )


def test_a_list():
    call = lambda: declare("c", "(Tensor[] x) -> Tensor", aliases={"output": "x"})  # noqa: E731 - two names are needed
    assert_expected_inline(
        message(call, DeclarationError),
        """\
aliases::c: aliases= declares that output 'output' may be 'x', and they are not both one tensor
  expected   Tensor and Tensor
  found      Tensor and Tensor[]""",
    )


def test_a_written_input():
    call = lambda: declare(  # noqa: E731 - as above
        "d", "(Tensor(a!) x) -> Tensor", aliases={"output": "x"}, mutates_args=("x",)
    )
    assert_expected_inline(
        message(call, DeclarationError),
        """\
aliases::d: aliases= declares that output 'output' may be 'x', and the schema declares more of them
  expected   an output of new memory, and an input that is not written to
  found      (Tensor(a!) x) -> Tensor
  do         take it out of aliases=: what the schema declares holds in every call""",
    )


def test_no_names():
    assert_expected_inline(
        message(lambda: declare("e", aliases=["x"]), DeclarationError),
        """\
aliases::e: aliases= takes a name of an input for a name of an output
  expected   {'output': 'x'}
  found      ['x']""",
    )


def test_message_for_a_list_of_views():
    """`-> Tensor(a)[]` declares nothing for the tensors in the list, so the advice is not to declare more."""
    op = custom_op("results::unbound", lambda x: list(x.unbind(0)), schema="(Tensor(a) x) -> Tensor(a)[]")

    with pytest.raises(KernelError, match="shares memory with input 'x'") as caught:
        op(torch.ones(2, 3))

    assert "return copies (.clone()); views can be outputs one by one" in caught.value.do
