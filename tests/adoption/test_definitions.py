"""from_custom_op_def: the op has everything that was registered with torch.library's definition, and its name."""

import itertools

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd import custom_op, from_custom_op_def

numbers = itertools.count()


class Logged(TorchDispatchMode):
    """A mode for which a rule is registered."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def scaled(*, device_types=None):
    """A new definition with every kind of rule."""

    @torch.library.custom_op(f"definitions::scaled_{next(numbers)}", mutates_args=(), device_types=device_types)
    def scaled(x: Tensor, scale: float = 2.0, *, shift: float | None = None) -> Tensor:
        return x * scale + (shift or 0)

    @scaled.register_fake
    def _(x, scale=2.0, *, shift=None):
        return torch.empty_like(x)

    def setup_context(ctx, inputs, keyword_only_inputs, output):
        ctx.scale = inputs[1]

    def backward(ctx, grad):
        return grad * ctx.scale, None

    scaled.register_autograd(backward, setup_context=setup_context)
    return scaled


def test_values_gradients_and_transforms_are_those_of_the_definition():
    definition = scaled()
    x = torch.rand(3, requires_grad=True)
    expected = torch.autograd.grad(definition(x, 3.0, shift=1.0).sum(), x), definition(x, 3.0, shift=1.0)
    op = from_custom_op_def(definition)

    torch.testing.assert_close(op(x, 3.0, shift=1.0), expected[1])
    torch.testing.assert_close(torch.autograd.grad(op(x, 3.0, shift=1.0).sum(), x), expected[0])
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(x.detach()), torch.full((3,), 2.0))
    compiled = torch.compile(lambda x: op(x, 3.0).sum(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(torch.autograd.grad(compiled(x), x), expected[0])


def test_the_op_has_the_name_and_the_schema_and_the_old_object_calls_it():
    definition = scaled()
    schema = str(definition._opoverload._schema)
    op = from_custom_op_def(definition)

    assert str(op.overload._schema) == schema
    assert op.overload is getattr(torch.ops.definitions, op.name.partition("::")[2]).default
    assert torch.equal(definition(torch.ones(2)), op(torch.ones(2)))


def test_kernels_stay_with_their_devices_and_places():
    definition = scaled(device_types="cpu")

    @definition.register_kernel("cuda")
    def on_cuda(x, scale=2.0, *, shift=None):
        return x

    kernels = from_custom_op_def(definition).kernels

    assert kernels.keys() == {"cpu", "cuda"}
    assert kernels["cuda"] == f"test_definitions.py:{on_cuda.__code__.co_firstlineno}"


def test_other_rules_come_along():
    definition = scaled()
    definition.register_vmap(lambda info, in_dims, x, scale=2.0: (x * 7, in_dims[0]))
    definition.register_autocast("cpu", torch.bfloat16)
    definition.register_torch_dispatch(Logged, lambda mode, func, types, args, kwargs: args[0] * 9)
    op = from_custom_op_def(definition)

    assert torch.equal(torch.vmap(op)(torch.ones(2, 3)), torch.full((2, 3), 7.0))
    with torch.autocast("cpu"):
        assert op(torch.ones(2)).dtype is torch.bfloat16
    with Logged():
        assert op(torch.ones(2)).tolist() == [9.0, 9.0]


def test_an_op_that_mutates():
    @torch.library.custom_op("definitions::add_one_", mutates_args=("x",))
    def add_one_(x: Tensor) -> None:
        x.add_(1)

    op, x = from_custom_op_def(add_one_), torch.zeros(2)
    op(x)

    assert torch.equal(x, torch.ones(2))
    assert [argument.is_mutated for argument in op.schema.arguments] == [True]


@custom_op("definitions::own")
def own(x: Tensor) -> Tensor:
    return x * 1


@pytest.mark.parametrize("given", [own, torch.sin], ids=["an op of this package", "a function"])
def test_anything_else_is_refused(given):
    text = message(lambda: from_custom_op_def(given))

    if given is own:
        assert_expected_inline(
            text,
            """\
DeclarationError: definitions::own: this is not a definition of torch.library.custom_op
  found      <CustomOp definitions::own(Tensor x) -> Tensor>
  do         pass what torch.library.custom_op returned; an op of custom_autograd needs no change""",
        )
    else:
        assert "not a definition" in text
