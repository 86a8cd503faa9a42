"""Positional-only parameters, *args of tensors, and keyword-only tensors, in every mode."""

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Tensor
from torch.testing import assert_close
from ways import every_way

import custom_autograd
from custom_autograd import RegistrationError, Sample, custom_op

A, B, C = (torch.tensor(values, dtype=torch.float64) for values in ([1.0, 2.0], [3.0, 5.0], [7.0, 0.5]))


def with_gradients(*tensors):
    return tuple(tensor.clone().requires_grad_() for tensor in tensors)


# ---------------------------------------------------------------------------------------------------- positional-only


@custom_op("signatures::scaled")
def scaled(x: Tensor, /, y: Tensor, n: int = 2, *, k: float = 1.0) -> Tensor:
    return x * y * n * k


@scaled.register_fake
def _(x, y, n, *, k):
    return torch.empty_like(x)


@scaled.register_backward
def _(grad, x, y, n, k):
    return {"x": grad * y * n * k, "y": grad * x * n * k}


@scaled.register_vmap
def _(info, in_dims, x, y, n, *, k):
    x, y = (t if d is None else t.movedim(d, 0) for t, d in zip((x, y), in_dims[:2], strict=True))
    return scaled(x, y, n, k=k), 0


@scaled.register_samples
def _(make):
    yield Sample(make(3), make(3), k=2.0)


def test_positional_only_by_value(fresh_compiler):
    x, y = with_gradients(A, B)

    assert_close(scaled(A, y=B, k=3.0), A * B * 6)
    assert torch.autograd.gradcheck(scaled, (x, y), check_forward_ad=True)
    assert_close(torch.vmap(scaled, (0, None))(torch.stack([A, C]), B), torch.stack([A, C]) * B * 2)
    assert_close(torch.func.grad(lambda x: scaled(x, B).sum())(A), B * 2)
    assert_close(torch.compile(lambda x: scaled(x, y=B), fullgraph=True, backend="aot_eager")(x), A * B * 2)


def test_positional_only_by_name_is_refused_as_python_does():
    with pytest.raises(TypeError, match=r"signatures::scaled\(\) got some positional-only arguments"):
        scaled(x=A, y=B)


def test_positional_only_in_the_signature():
    assert "(x: torch.Tensor, /, y: torch.Tensor, n: int = 2, *, k: float = 1.0)" in str(scaled.__signature__)


# -------------------------------------------------------------------------------------------------------------- *args


@custom_op("signatures::product", reference=True)
def product(x: Tensor, *rest: Tensor, n: int = 2) -> Tensor:
    assert isinstance(rest, tuple)
    for factor in rest:
        x = x * factor
    return x * n


@custom_op("signatures::weighted")
def weighted(*xs: Tensor, weights: tuple[float, ...] = ()) -> Tensor:
    return torch.stack([x * w for x, w in zip(xs, weights, strict=True)]).sum(0)


@weighted.register_fake
def _(*xs, weights):
    return torch.empty_like(xs[0])


@weighted.register_backward
def _(grad, weights, needs):
    return {"xs": [grad * w if need else None for w, need in zip(weights, needs.xs, strict=True)]}


@weighted.register_jvp
def _(tangent_xs, weights):
    return sum(t * w for t, w in zip(tangent_xs, weights, strict=True) if t is not None)


@weighted.register_vmap
def _(info, in_dims, *xs, weights):
    pairs = zip(xs, in_dims, strict=True)
    moved = [x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
    return weighted(*moved, weights=weights), 0


@product.register_samples
def _(make):
    yield Sample(make(3), make(3), make(3), n=3)
    yield Sample(make(3))


@weighted.register_samples
def _(make):
    yield Sample(make(3), make(3), weights=(2.0, 0.5))


@custom_op("signatures::squares")
def squares(*xs: Tensor) -> list[Tensor]:
    return [x * x for x in xs]


@squares.register_fake
def _(*xs):
    return [torch.empty_like(x) for x in xs]


@squares.register_backward
def _(grad, xs):
    return {"xs": [2 * g * x for g, x in zip(grad, xs, strict=True)]}


@custom_op("signatures::total")
def total(x: Tensor, n: int = 1, *sizes: int) -> Tensor:
    return x * (n + sum(sizes))


def test_star_in_the_schema():
    assert "(Tensor x, Tensor[] rest, *, SymInt n=2) -> Tensor" == product.schema.text
    assert "(Tensor x, SymInt n=1, SymInt[] sizes) -> Tensor" == total.schema.text


@pytest.mark.parametrize("rest", [(), (B,), (B, C)], ids=len)
def test_star_by_value(rest):
    expected = A * 2 * torch.stack([torch.ones_like(A), *rest]).prod(0)

    assert_close(product(A, *rest), expected)
    assert_close(torch.ops.signatures.product(A, list(rest)), expected)
    assert torch.autograd.gradcheck(product, with_gradients(A, *rest), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(product, with_gradients(A, *rest))


def test_star_with_rules_by_value():
    expected = 2 * A + 0.5 * B - C

    assert torch.autograd.gradcheck(by_weights, with_gradients(A, B, C), check_forward_ad=True)
    gradients = torch.func.grad(lambda *xs: by_weights(*xs).sum(), (0, 2))(A, B, C)
    assert_close(gradients, (torch.full_like(A, 2), -torch.ones_like(A)))
    assert_close(torch.vmap(by_weights, (0, None, 0))(torch.stack([A, C]), B, torch.stack([C, A])),
                 torch.stack([expected, 2 * C + 0.5 * B - A]))  # fmt: skip


def test_star_to_a_list_of_results():
    assert torch.autograd.gradcheck(lambda *xs: tuple(squares(*xs)), with_gradients(A, B, C), check_forward_ad=True)
    assert_close(torch.vmap(squares)(A, B), [A * A, B * B])


def test_star_of_numbers():
    assert_close(total(A), A)
    assert_close(total(A, 2, 3, 4), A * 9)


def by_weights(*xs):
    return weighted(*xs, weights=(2.0, 0.5, -1.0))


@every_way
def test_star_in_every_way(way, plainly):
    assert_close(way(lambda *xs: product(*xs, n=3), A, B, C), plainly(lambda x, y, z: x * y * z * 3, A, B, C))
    assert_close(way(by_weights, A, B, C), plainly(lambda x, y, z: 2 * x + 0.5 * y - z, A, B, C))


def test_star_in_a_kernel_of_its_own():
    product.register_kernel("cpu", lambda x, *rest, n: torch.stack([x, *rest]).prod(0) * n)

    assert_close(product(A, B, C), A * B * C * 2)
    with custom_autograd.validation("full"):
        assert_close(product(A, B, C), A * B * C * 2)


def test_star_in_setup_context():
    op = custom_op("signatures::drop_in", lambda x, xs: x * xs[0] * xs[1], schema="(Tensor x, Tensor[] xs) -> Tensor")
    starred = custom_op("signatures::starred", drop_in_function)

    def setup_context(ctx, inputs, output):
        x, xs = inputs
        ctx.save_for_backward(x, *xs)

    def backward(ctx, grad):
        x, y, z = ctx.saved_tensors
        return grad * y * z, [grad * x * z, grad * x * y]

    op.register_autograd(backward, setup_context=setup_context)
    starred.register_autograd(backward, setup_context=setup_context)

    assert torch.autograd.gradcheck(starred, with_gradients(A, B, C))


def drop_in_function(x: Tensor, *xs: Tensor) -> Tensor:
    return x * xs[0] * xs[1]


def test_a_kernel_without_the_star_is_refused():
    assert_expected_inline(
        message(lambda: weighted.register_kernel("cpu", lambda xs, weights: xs)),
        """\
RegistrationError: signatures::weighted: the cpu kernel does not fit the schema: it has no parameter like '*xs'
  expected   (*xs, weights)
  found      (xs, weights)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         give it these parameters""",
    )


def test_a_vmap_rule_without_the_star_is_refused():
    with pytest.raises(RegistrationError, match="the vmap rule does not fit the schema"):
        product.register_vmap(lambda info, in_dims, x, rest, n: x)


@pytest.mark.parametrize("op", [scaled, product, weighted], ids=["positional-only", "star, reference", "star, rules"])
def test_check(op):
    op.check(checks=["schema", "kernels", "fake", "gradcheck", "needs", "opcheck", "compile", "export"], isolated=False)


# ------------------------------------------------------------------------------------------------ keyword-only tensors


@custom_op("signatures::affine")
def affine(x: Tensor, *, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return x * weight if bias is None else x * weight + bias


@affine.register_fake
def _(x, *, weight, bias):
    return torch.empty_like(x)


@affine.register_backward
def _(grad, x, weight):
    return {"x": grad * weight, "weight": grad * x, "bias": grad}


@affine.register_jvp
def _(x, weight, tangent_x, tangent_weight, tangent_bias):
    options = [(tangent_x, weight), (tangent_weight, x), (tangent_bias, 1)]
    return sum(tangent * factor for tangent, factor in options if tangent is not None)


@affine.register_vmap
def _(info, in_dims, x, *, weight, bias):
    x, weight, bias = (t if d is None else t.movedim(d, 0) for t, d in zip((x, weight, bias), in_dims, strict=True))
    return affine(x, weight=weight, bias=bias), 0


affine.register_autocast("cpu", torch.float32)


@affine.register_samples
def _(make):
    yield Sample(make(3), weight=make(3), bias=make(3))
    yield Sample(make(3), weight=make(3))


def by_position(x, weight, bias=None):
    return affine(x, weight=weight, bias=bias)


def test_keyword_only_by_value(fresh_compiler):
    x, weight, bias = with_gradients(A, B, C)

    assert_close(affine(A, weight=B, bias=C), A * B + C)
    assert torch.autograd.gradcheck(by_position, (x, weight, bias), check_forward_ad=True)
    assert_close(torch.func.jvp(by_position, (A, B, C), (B, C, A)), (A * B + C, B * B + A * C + A))
    assert_close(torch.vmap(by_position, (0, None, 0))(torch.stack([A, B]), B, torch.stack([C, A])),
                 torch.stack([A * B + C, B * B + A]))  # fmt: skip
    assert_close(torch.compile(by_position, fullgraph=True, backend="aot_eager")(x, weight, bias), A * B + C)


def test_keyword_only_under_autocast():
    x, weight, bias = (tensor.bfloat16().requires_grad_() for tensor in (A, B, C))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = affine(x, weight=weight, bias=bias)
    actual.sum().backward()

    assert torch.float32 == actual.dtype
    assert_close((x.grad, weight.grad), (B.bfloat16(), A.bfloat16()))


def test_keyword_only_check():
    affine.check(checks=["schema", "fake", "gradcheck", "forward_mode", "opcheck", "compile", "export"], isolated=False)


@custom_op("signatures::keyword_drop_in")
def keyword_drop_in(x: Tensor, *, weight: Tensor) -> Tensor:
    return x * weight


def keep(ctx, inputs, keyword_only_inputs, output):
    ctx.save_for_backward(*inputs, keyword_only_inputs["weight"])


def differentiate(ctx, grad):
    x, weight = ctx.saved_tensors
    return grad * weight, grad * x


keyword_drop_in.register_autograd(differentiate, setup_context=keep)


def test_keyword_only_in_the_drop_in_style():
    assert torch.autograd.gradcheck(lambda x, w: keyword_drop_in(x, weight=w), with_gradients(A, B))
