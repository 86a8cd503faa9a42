"""The selective scan by value against Mamba's own definition in float64, with its gradients, chunks and options."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tables import each
from torch import Tensor

from gallery_values import (
    BUDGETS,
    assert_derivatives,
    assert_near,
    dtypes,
    interpreted,
    load,
    needs_compiler,
    random,
    saved_shapes,
    strided,
    transposed,
)

gallery = load("selective_scan")
scan = gallery.selective_scan
SHAPES = [(2, 3, 5, 2), (1, 17, 130, 3), (1, 2, 0, 2), (1, 2, 3, 0), (0, 2, 3, 2)]  # batch, channels, length, state


def make_inputs(shape: tuple[int, ...], dtype: torch.dtype, is_full: bool) -> dict[str, Tensor]:
    """Inputs of the scale of a trained layer's; all the optional ones too, where asked for."""
    batch, channels, length, state = shape
    one = partial(random, dtype=torch.float64)
    values = {
        "u": one(batch, channels, length),
        "delta": one(batch, channels, length, seed=1).abs(),
        "A": -one(channels, state, seed=2).abs() - 0.1,
        "B": one(batch, state, length, seed=3),
        "C": one(batch, state, length, seed=4),
    }
    if is_full:
        values |= {
            "D": one(channels, seed=5),
            "z": one(batch, channels, length, seed=6),
            "delta_bias": one(channels, seed=7),
            "initial_state": one(batch, channels, state, seed=8),
        }
    return {name: value.to(dtype) for name, value in values.items()}


def by_definition(
    u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None = None, z: Tensor | None = None,
    delta_bias: Tensor | None = None, initial_state: Tensor | None = None, delta_softplus: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Written with indices, one step after the other."""
    if delta_bias is not None:
        delta = delta + torch.einsum("c,bcl->bcl", delta_bias, torch.ones_like(delta))
    if delta_softplus:
        delta = F.softplus(delta)
    h = u.new_zeros(u.shape[0], *A.shape) if initial_state is None else initial_state
    outs = []
    for t in range(u.shape[2]):
        h = torch.einsum("bc,cs->bcs", delta[..., t], A).exp() * h
        h = h + torch.einsum("bc,bs,bc->bcs", delta[..., t], B[..., t], u[..., t])
        outs.append(torch.einsum("bs,bcs->bc", C[..., t], h))
    out = torch.stack(outs, -1) if outs else u
    out = out if D is None else out + torch.einsum("c,bcl->bcl", D, u)
    return (out if z is None else out * z * torch.sigmoid(z)), h


def doubled(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.double() for name, value in inputs.items()}


def inputs_in_order() -> tuple[Tensor, ...]:
    """All inputs of a small scan, as SIZES orders them."""
    inputs = make_inputs((1, 2, 3, 2), torch.float64, is_full=True)
    return tuple(inputs[name] for name in gallery.NAMES)


@needs_compiler
@dtypes
@each("is_full", [False, True])
@each("shape", SHAPES)
def test_values(shape: tuple[int, ...], is_full: bool, dtype: torch.dtype) -> None:
    inputs = make_inputs(shape, dtype, is_full)
    out, last_state = scan(**inputs, delta_softplus=is_full)
    exact, exact_state = by_definition(**doubled(inputs), delta_softplus=is_full)

    assert (dtype, torch.promote_types(dtype, torch.float32)) == (out.dtype, last_state.dtype)
    assert_near(out, exact, dtype, 10 * BUDGETS[dtype])
    assert_near(last_state, exact_state, last_state.dtype, 10 * BUDGETS[last_state.dtype])


@needs_compiler
@dtypes
@each("is_full", [False, True])
@each("shape", SHAPES)
def test_gradients(shape: tuple[int, ...], is_full: bool, dtype: torch.dtype) -> None:
    inputs = {name: value.requires_grad_() for name, value in make_inputs(shape, dtype, is_full).items()}
    exact = {name: value.double().detach().requires_grad_() for name, value in inputs.items()}
    weights = [random(*o.shape, dtype=dtype, seed=9).double() for o in scan(**inputs)]
    losses = [
        sum((output.double() * weight).sum() for output, weight in zip(outputs, weights, strict=True))
        for outputs in (scan(**inputs, delta_softplus=is_full), by_definition(**exact, delta_softplus=is_full))
    ]
    found = torch.autograd.grad(losses[0], list(inputs.values()))
    expected = torch.autograd.grad(losses[1], list(exact.values()), materialize_grads=True)

    for one, other in zip(found, expected, strict=True):
        assert_near(one, other, dtype, 20 * BUDGETS[dtype] * max(1, float(other.abs().max()) if other.numel() else 1))


@needs_compiler
@each("layout", [transposed, strided])
def test_any_strides_are_read_where_they_lie(layout) -> None:
    """Activations of (batch, length, channels), seen as (batch, channels, length), are not copied."""
    plain = make_inputs((2, 18, 70, 3), torch.float64, is_full=True)
    views = {name: layout(value) for name, value in plain.items()}
    weight = random(2, 18, 70, dtype=torch.float64, seed=9)
    state_weight = random(2, 18, 3, dtype=torch.float64, seed=9)

    torch.testing.assert_close(scan(**views), scan(**plain))
    torch.testing.assert_close(
        gallery.selective_scan_grad(layout(weight), layout(state_weight), **views, delta_softplus=True),
        gallery.selective_scan_grad(weight, state_weight, **plain, delta_softplus=True),
    )


@needs_compiler
def test_two_halves_make_the_whole() -> None:
    """The last state of the first half begins the second."""
    inputs = make_inputs((1, 2, 9, 3), torch.float64, is_full=False)
    rates = {"A": inputs.pop("A")}
    first, second = ({n: v[..., part] for n, v in inputs.items()} for part in (slice(4), slice(4, 9)))
    out, state = scan(**first, **rates)
    end, last_state = scan(**second, **rates, initial_state=state)

    torch.testing.assert_close((torch.cat((out, end), -1), last_state), scan(**inputs, **rates))


@needs_compiler
def test_softplus_is_exact_over_its_range() -> None:
    """With zero rates and ones elsewhere the last state is the sum of the steps: tiny ones, great ones, and beyond."""
    raw = torch.linspace(-80, 80, 4001).view(1, 4001, 1)
    one = torch.ones(1, 1, 1)
    _, steps = scan(torch.ones_like(raw), raw, torch.zeros(4001, 1), one, one, delta_softplus=True)

    torch.testing.assert_close(steps.double(), torch.log1p(raw.double().exp()), rtol=5e-7, atol=0)


def test_derivatives() -> None:
    values = inputs_in_order()

    def named(function, *values: Tensor) -> tuple[Tensor, Tensor]:
        return function(**dict(zip(gallery.NAMES, values, strict=True)), delta_softplus=True)

    assert_derivatives(partial(named, scan), partial(named, by_definition), *values)


def test_only_inputs_are_saved() -> None:
    inputs = make_inputs((1, 2, 70, 3), torch.float32, is_full=False)
    saved = saved_shapes(lambda: scan(**{name: value.requires_grad_() for name, value in inputs.items()}))

    assert sorted(tuple(value.shape) for value in inputs.values()) == sorted(saved)


@interpreted
@each("dtype", [torch.float64, torch.float32, torch.bfloat16])
@each("is_full", [False, True])
def test_triton_interpreted(is_full: bool, dtype: torch.dtype) -> None:
    """More than one stretch of time, and neither the state nor the length a power of two."""
    inputs = make_inputs((1, 2, 70, 3), dtype, is_full)
    given = [inputs.get(name) for name in gallery.NAMES]
    exact = by_definition(**doubled(inputs), delta_softplus=is_full)
    budget = max(1e-9, 20 * BUDGETS[dtype])

    for found, expected in zip(gallery.scan_triton(*given, is_full), exact, strict=True):
        assert_near(found, expected, dtype, budget)


@interpreted
@each(("name", "special"), [("A", -torch.inf), ("delta", torch.nan), ("delta_bias", torch.nan)])
def test_specials_in_triton_interpreted(name: str, special: float) -> None:
    """Beyond the end of a stretch of time a step is 0, and 0 times infinity is NaN."""
    inputs = make_inputs((1, 2, 5, 3), torch.float64, is_full=True)
    inputs[name].view(-1)[1] = special
    given = [inputs.get(one) for one in gallery.NAMES]

    for found, expected in zip(
        gallery.scan_triton(*given, True), by_definition(**inputs, delta_softplus=True), strict=True
    ):
        torch.testing.assert_close(found, expected, equal_nan=True)


@each(
    ("name", "value", "message"),
    [
        ("u", torch.ones(2, 3), r"'u' must be \(b c l\)"),
        ("B", torch.ones(1, 2, 4), r"'B' must be \(b s l\) with l = 3"),
        ("A", torch.ones(3, 2), r"'A' must be \(c s\) with c = 2"),
        ("initial_state", torch.ones(1, 2, 9), r"'initial_state' must be \(b c s\) with s = 2"),
        ("A", torch.ones(2, 2) + 1j, "'A' must have a floating-point dtype, not torch.complex64"),
        ("D", torch.ones(2) + 1j, "'D' must have a floating-point dtype, not torch.complex64"),
        ("C", torch.ones(1, 2, 3, dtype=torch.int32), "'C' must have the dtype of 'u', torch.float32, not torch.int32"),
    ],
)
def test_bad_inputs_are_said(name: str, value: Tensor, message: str) -> None:
    inputs = make_inputs((1, 2, 3, 2), torch.float32, is_full=False)

    with pytest.raises((ValueError, TypeError), match=message):
        scan(**(inputs | {name: value}))
