"""flash_attention and flash_attention_varlen, by value, against PyTorch's attention in float64."""

import math
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from custom_autograd.core.errors import ShapeError
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
    statistic,
    strided,
)

flash = load("flash_attention")
backward = load("flash_attention_grad")
varlen = load("flash_attention_varlen")
varlen_backward = load("flash_attention_varlen_grad")

# batch, heads, kv_heads, queries, keys, features, values, dims of the bias that are broadcast (None: no bias)
Shape = tuple[int, int, int, int, int, int, int, str | None]
SHAPES: dict[str, Shape] = {
    "several blocks, grouped": (2, 4, 2, 100, 131, 20, 9, None),
    "fewer keys, shared, bias of each score": (1, 3, 1, 11, 7, 16, 32, ""),
    "bias of each key": (2, 2, 2, 98, 100, 8, 8, "bq"),
    "bias of each query": (2, 2, 1, 5, 6, 4, 4, "bhk"),
    "bias of each head": (2, 2, 2, 3, 97, 1, 1, "bqk"),
    "one query": (1, 2, 1, 1, 193, 8, 8, None),
    "no keys": (1, 2, 1, 3, 0, 4, 4, "h"),
    "no queries": (2, 2, 2, 0, 5, 4, 4, "q"),
    "no batch": (0, 2, 2, 3, 5, 4, 4, None),
    "no features": (1, 2, 2, 3, 5, 0, 4, None),
}
shapes = each("shape", SHAPES.values())
small_shapes = each("shape", [(1, 2, 1, 3, 4, 3, 2, "b"), (1, 2, 2, 4, 2, 2, 3, "q"), (2, 1, 1, 2, 2, 2, 2, None)])
causality = each("causal", [False, True])


def by_length(tensor: Tensor) -> Tensor:
    """(batch, length, heads, features) in memory, as projections leave it."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def made(shape: Shape, dtype: torch.dtype) -> tuple[Tensor | None, ...]:
    """q, k, v and bias."""
    batch, heads, kv_heads, queries, keys, features, values, broadcast = shape
    bias = None
    if broadcast is not None:
        sizes = {"b": batch, "h": heads, "q": queries, "k": keys}
        bias = random(*(1 if dim in broadcast else size for dim, size in sizes.items()), dtype=dtype, seed=3)
    return (
        random(batch, heads, queries, features, dtype=dtype),
        random(batch, kv_heads, keys, features, dtype=dtype, seed=1),
        random(batch, kv_heads, keys, values, dtype=dtype, seed=2),
        bias,
    )


def wide(*tensors: Tensor | None) -> list[Tensor | None]:
    return [None if tensor is None else tensor.detach().double() for tensor in tensors]


def mask(q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool) -> Tensor:
    """What is added to the scores."""
    hidden = ~torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    added = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
    added = added if bias is None else added + bias
    return added.masked_fill(hidden, -torch.inf) if causal else added


def built_in(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, causal: bool, scale: float | None = None):
    """PyTorch's attention over all scores: queries that see nothing get zero."""
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, mask(q, k, bias, causal=causal), scale=scale)


def exact_lse(q: Tensor, k: Tensor, bias: Tensor | None, *, causal: bool, scale: float) -> Tensor:
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return (scale * q @ k.mT + mask(q, k, bias, causal=causal)).logsumexp(-1)


@needs_compiler
@dtypes
@causality
@each("layout", [Tensor.contiguous, by_length, strided])
@shapes
def test_output(shape: Shape, layout: Callable[[Tensor], Tensor], causal: bool, dtype: torch.dtype) -> None:
    q, k, v, bias = made(shape, dtype)
    with flash.flash_attention.use_kernel("cpp"):
        out = flash.flash_attention(layout(q), layout(k), layout(v), bias, scale=0.3, causal=causal)

    assert out.is_contiguous()
    assert_near(out, built_in(*wide(q, k, v, bias), scale=0.3, causal=causal), dtype, 4 * BUDGETS[dtype])


@needs_compiler
@dtypes
@causality
def test_lse(causal: bool, dtype: torch.dtype) -> None:
    q, k, v, bias = made(SHAPES["fewer keys, shared, bias of each score"], dtype)
    _, lse = flash.flash_attention_cpu(q, k, v, bias, 0.3, causal)
    q, k, bias = wide(q, k, bias)

    assert_near(lse, exact_lse(q, k, bias, scale=0.3, causal=causal), statistic(dtype), 4 * BUDGETS[statistic(dtype)])


@needs_compiler
@dtypes
@causality
@shapes
def test_gradients(shape: Shape, causal: bool, dtype: torch.dtype) -> None:
    """The output is rounded before the backward sees it: a few roundings more than its own."""
    inputs = made(shape, dtype)
    given = [tensor for tensor in inputs if tensor is not None]
    exact = [tensor.double().requires_grad_() for tensor in given]
    out_grad = random(*inputs[0].shape[:3], inputs[2].shape[-1], dtype=dtype, seed=4)
    out = built_in(*exact, *[None] * (4 - len(given)), causal=causal)
    expected = torch.autograd.grad(out, exact, out_grad.double(), materialize_grads=True)

    given = [tensor.requires_grad_() for tensor in given]
    found = torch.autograd.grad(flash.flash_attention(*given, causal=causal), given, by_length(out_grad))

    for gradient, other in zip(found, expected, strict=True):
        scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
        assert_near(gradient / scale, other / scale, dtype, 4 * BUDGETS[dtype])


@needs_compiler
def test_more_threads_than_heads_share_one() -> None:
    """Each adds up gradients of its own, which are summed in the end."""
    threads = torch.get_num_threads()
    shape = (1, 2, 1, 400, 130, 8, 8, None)
    q, k, v = (tensor.requires_grad_() for tensor in made(shape, torch.float64)[:3])
    expected = torch.autograd.grad(built_in(q, k, v, None, causal=True).square().sum(), (q, k, v))
    torch.set_num_threads(3)
    try:
        found = torch.autograd.grad(flash.flash_attention(q, k, v, causal=True).square().sum(), (q, k, v))
    finally:
        torch.set_num_threads(threads)

    torch.testing.assert_close(found, expected)


def test_last_query_sees_last_key() -> None:
    """The output of the last query alone, with a cache of keys, is the last of all."""
    q, k, v, _ = made((1, 2, 1, 9, 9, 4, 4, None), torch.float64)
    whole = flash.flash_attention(q, k, v, causal=True)

    found = flash.flash_attention(q[:, :, 7:], k, v, causal=True)

    torch.testing.assert_close(found, whole[:, :, 7:])


def test_query_that_sees_nothing_has_output_and_gradients_zero() -> None:
    q, k, v, _ = made((1, 1, 1, 3, 3, 4, 4, None), torch.float64)
    q.requires_grad_()
    bias = torch.tensor([[0.0], [-torch.inf], [0.0]], dtype=torch.float64).requires_grad_()
    out = flash.flash_attention(q, k, v, bias)
    q_grad, bias_grad = torch.autograd.grad(out.sum(), (q, bias))

    assert torch.equal(torch.zeros(4, dtype=torch.float64), out[0, 0, 1])
    assert torch.equal(torch.zeros(4, dtype=torch.float64), q_grad[0, 0, 1])
    assert 0 == float(bias_grad[1])


def test_nothing_of_the_size_of_the_scores_is_saved() -> None:
    inputs = [tensor.requires_grad_() for tensor in made((1, 2, 2, 300, 300, 4, 4, None), torch.float32)[:3]]

    assert 2 * 300 * 4 == max(map(math.prod, saved_shapes(lambda: flash.flash_attention(*inputs, causal=True))))


@causality
@small_shapes
def test_derivatives(shape: Shape, causal: bool) -> None:
    """The saved out and lse depend on the inputs: their share is in every block of the Hessian."""
    inputs = [tensor for tensor in made(shape, torch.float64) if tensor is not None]

    def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return flash.flash_attention.__wrapped__(q, k, v, bias, causal=causal)[0]

    assert_derivatives(partial(flash.flash_attention, causal=causal), reference, *inputs)


def test_arguments_that_do_not_fit() -> None:
    """Each message says what must hold, and what was found."""
    good = {"q": (1, 4, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 6)}
    changes: tuple[dict[str, tuple[int, ...]], ...] = (
        {"q": (4, 3, 8)}, {"k": (1, 2, 5, 7)}, {"v": (1, 2, 4, 6)}, {"q": (2, 4, 3, 8)}, {"q": (1, 3, 3, 8)},
        {"k": (1, 0, 5, 8), "v": (1, 0, 5, 6)}, {"bias": (4, 5)}, {"bias": (1, 1, 1, 1, 5)},
    )  # fmt: skip
    messages = []
    for change in changes:
        with pytest.raises(ShapeError, match="gallery::flash_attention") as error:
            flash.flash_attention(**{name: torch.zeros(shape) for name, shape in (good | change).items()})
        messages.append(f"{error.value.problem}: {error.value.expected}")

    assert_expected_inline(
        "\n".join(messages),
        """\
'q' must be (b (k g) m f): 4 dimensions
'k' must be (b k n f) with f = 8: f = 8, as in 'q'
'v' must be (b k n e) with n = 5: n = 5, as in 'k'
'k' must be (b k n f) with b = 2: b = 2, as in 'q'
'q' must be (b (k g) m f) with k = 2: a multiple of 2 where it has 3
'q' must be (b (k g) m f) with k = 0: 0 where it has 4
'bias' must be (#b #(k g) #m n) with m = 3: m = 3, or 1
'bias' must be (#b #(k g) #m n): 1 to 4 dimensions""",
    )


@needs_compiler
def test_kernel_looks_at_what_it_is_given() -> None:
    """The C++ may be called without the op: nothing that does not fit becomes an address."""
    q, k, v, _ = made((1, 2, 1, 3, 5, 4, 4, None), torch.float32)
    calls = (
        lambda: flash.attention_cpp(q, k[:, :, :2], v, None, 1.0, False),
        lambda: flash.attention_cpp(q, k.double(), v, None, 1.0, False),
        lambda: flash.attention_cpp(q, k, v, torch.zeros(1, 1, 3, 4), 1.0, False),
        lambda: flash.attention_cpp(q, k, v.mT, None, 1.0, False),
        lambda: backward.grad_cpp(q[:, :1], q, k, v, None, q[..., 0], q[..., 0], 1.0, False),
        lambda: backward.grad_cpp(q, q, k, v, None, q[..., 0, 0], q[..., 0], 1.0, False),
    )

    for call in calls:
        with pytest.raises(RuntimeError, match="must "):
            call()


def test_without_a_compiler_the_reference_runs() -> None:
    q, k, v, bias = made((1, 2, 1, 3, 4, 4, 3, "b"), torch.float64)
    found = flash.attention_cpp.fallback(q, k, v, bias, 0.5, True)

    torch.testing.assert_close(found, flash.flash_attention_cpu(q, k, v, bias, 0.5, True))


QUERY_ENDS, KEY_ENDS = torch.tensor([0, 30, 30, 130, 133, 133]), torch.tensor([0, 100, 104, 104, 106, 140])


def packed(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(random(*shape, dtype=dtype, seed=n) for n, shape in enumerate(((133, 4, 8), (140, 2, 8), (140, 2, 5))))


def one_by_one(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> Tensor:
    """PyTorch's attention of each sequence."""
    outputs = []
    for i in range(QUERY_ENDS.numel() - 1):
        rows, keys = slice(*QUERY_ENDS[i : i + 2].tolist()), slice(*KEY_ENDS[i : i + 2].tolist())
        sequence = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (q[rows], k[keys], v[keys]))
        outputs.append(built_in(*sequence, None, causal=causal)[0].transpose(0, 1))
    return torch.cat(outputs)


@needs_compiler
@dtypes
@causality
def test_packed_sequences(causal: bool, dtype: torch.dtype) -> None:
    """Some have no queries, some no keys."""
    inputs = [tensor.requires_grad_() for tensor in packed(dtype)]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    out = varlen.flash_attention_varlen(*inputs, QUERY_ENDS, KEY_ENDS.int(), causal=causal)
    expected = one_by_one(*exact, causal=causal)
    out_grad = random(*out.shape, dtype=dtype, seed=5)
    gradients = torch.autograd.grad(out, inputs, out_grad)

    assert_near(out, expected, dtype, 4 * BUDGETS[dtype])
    for found, other in zip(gradients, torch.autograd.grad(expected, exact, out_grad.double()), strict=True):
        scale = float(other.abs().max())
        assert_near(found / scale, other / scale, dtype, 4 * BUDGETS[dtype])


@causality
def test_derivatives_of_packed_sequences(causal: bool) -> None:
    shapes = (4, 2, 2), (5, 1, 2), (5, 1, 3)
    inputs = tuple(random(*shape, dtype=torch.float64, seed=n) for n, shape in enumerate(shapes))
    ends = {"cu_seqlens_q": torch.tensor([0, 1, 4]), "cu_seqlens_k": torch.tensor([0, 3, 5]), "causal": causal}

    def reference(*inputs: Tensor) -> Tensor:
        return varlen.flash_attention_varlen.__wrapped__(*inputs, **ends)[0]

    assert_derivatives(partial(varlen.flash_attention_varlen, **ends), reference, *inputs)


@each("ends", [[0, 5, 3, 133], [1, 133], [0, 132], [0, 134], [0, 2**40, 133]])
def test_ends_that_do_not_rise_to_the_number_of_rows(ends: list[int]) -> None:
    keys = torch.linspace(0, 140, len(ends)).long()
    with pytest.raises(ValueError, match="'cu_seqlens_q' must rise from 0 to the number of rows, 133; found"):
        varlen.flash_attention_varlen(*packed(torch.float32), torch.tensor(ends), keys)


@pytest.fixture
def products_of_bfloat16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's interpreter keeps bfloat16 as integers, and would multiply those."""
    import numpy as np
    from triton import language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    multiply = InterpreterBuilder.create_dot

    def widened(handle: TensorHandle) -> TensorHandle:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: InterpreterBuilder, a: TensorHandle, b: TensorHandle, *rest: object) -> TensorHandle:
        return multiply(self, widened(a), widened(b), *rest)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    return


NARROW = each("dtype", [torch.float32, torch.bfloat16, torch.float16])
TRITON_SHAPES: dict[str, tuple[Shape, bool]] = {
    "several blocks, grouped": ((1, 2, 1, 66, 67, 20, 9, None), True),
    "fewer keys, bias of each score": ((1, 1, 1, 5, 3, 16, 32, ""), True),
    "bias of each query": ((1, 2, 1, 5, 6, 4, 4, "bhk"), False),
    "no keys": ((1, 2, 1, 3, 0, 4, 4, "h"), False),
}


@interpreted
@pytest.mark.usefixtures("products_of_bfloat16")
@NARROW
@each(("shape", "causal"), TRITON_SHAPES.values())
def test_triton_kernels_interpreted(shape: Shape, causal: bool, dtype: torch.dtype) -> None:
    """Weights are rounded before they multiply values, and the interpreter truncates bfloat16: some roundings more."""
    q, k, v, bias = made(shape, dtype)
    budget = max(8 * BUDGETS[dtype], 1e-5)
    out, lse = flash.flash_attention_cuda(by_length(q), k, v, bias, 0.3, causal)
    out_grad, delta = random(*out.shape, dtype=dtype, seed=4), random(*lse.shape, dtype=lse.dtype, seed=5)
    exact_out, exact = flash.flash_attention.__wrapped__(*wide(q, k, v, bias), scale=0.3, causal=causal)
    arguments = (out_grad, q, k, v, bias, lse, delta)

    assert_near(out, exact_out, dtype, budget)
    assert_near(lse, exact, dtype, budget)
    pairs = [(backward.flash_attention_grad_cuda, backward.flash_attention_grad)]
    pairs += [] if bias is None else [(backward.flash_attention_bias_grad_cuda, backward.flash_attention_bias_grad)]
    for kernel, op in pairs:
        found, expected = kernel(*arguments, 0.3, causal), op.__wrapped__(*wide(*arguments), 0.3, causal)
        for one, other in zip(found, expected, strict=True):
            scale = max(1.0, float(other.abs().max())) if other.numel() else 1.0
            assert_near(one / scale, other / scale, dtype, budget)


@interpreted
@causality
def test_triton_kernels_of_packed_sequences_interpreted(causal: bool) -> None:
    q, k, v = (tensor[:, -1:] for tensor in packed(torch.float32))
    out, lse = varlen.flash_attention_varlen_cuda(q, k, v, QUERY_ENDS, KEY_ENDS, None, causal)
    out_grad, delta = random(*out.shape, dtype=q.dtype, seed=4), random(*lse.shape, dtype=lse.dtype, seed=5)
    found = varlen_backward.flash_attention_varlen_grad_cuda(
        out_grad, q, k, v, QUERY_ENDS, KEY_ENDS, lse, delta, None, causal
    )
    wide_inputs = (*wide(out_grad, q, k, v), QUERY_ENDS, KEY_ENDS, *wide(lse, delta))

    assert_near(out, one_by_one(*wide(q, k, v), causal=causal), q.dtype, 1e-5)
    for one, other in zip(
        found, varlen_backward.flash_attention_varlen_grad.__wrapped__(*wide_inputs, None, causal), strict=True
    ):
        assert_near(one, other, q.dtype, 1e-4)


@interpreted
def test_triton_kernels_stay_inside_whatever_the_ends_say() -> None:
    """The device raises nothing: rows of no sequence are zero."""
    q, k, v = (tensor[:, -1:] for tensor in packed(torch.float32))
    ends = torch.tensor([-5, 3, 2**40]), torch.tensor([7, -9, 2**40])
    out, _ = varlen.flash_attention_varlen_cuda(q, k, v, *ends, None, False)
    short, _ = varlen.flash_attention_varlen_cuda(q, k, v, torch.tensor([0, 3]), torch.tensor([0, 4]), None, False)

    assert bool(out.isfinite().all())
    assert 0 == int(short[3:].count_nonzero())


@each("ends", [[0, 7, 4], [1, 2, 4], [0, 1, 3]])
def test_ends_that_do_not_rise_in_a_batch(ends: list[int]) -> None:
    """The reference, which is mapped, raises for an index out of bounds; then the calls are made one by one."""
    q, ends_k = torch.ones(2, 4, 1, 3), torch.tensor([0, 2, 4])
    with pytest.raises(ValueError, match="'cu_seqlens_q' must rise from 0 to the number of rows, 4; found"):
        torch.vmap(lambda q, ends: varlen.flash_attention_varlen(q, q, q, ends, ends_k))(q, torch.tensor([ends, ends]))


@needs_compiler
def test_strided_ends() -> None:
    """Values and gradients are those of ends in one piece."""
    q, ends = torch.rand(5, 2, 4, requires_grad=True), torch.tensor([0, 9, 2, 9, 5, 9])[::2]
    expected = varlen.flash_attention_varlen(q, q, q, ends.contiguous(), ends.contiguous())
    (expected_grad,) = torch.autograd.grad(expected.square().sum(), q)
    out = varlen.flash_attention_varlen(q, q, q, ends, ends)

    (grad,) = torch.autograd.grad(out.square().sum(), q)

    assert torch.equal(expected, out)
    assert torch.equal(expected_grad, grad)


@each("name", ["dense", "packed"])
def test_autocast_reaches_the_inputs_and_not_the_reference(name: str) -> None:
    q, k, v = (random(1, 2, 5, 4, dtype=torch.bfloat16, seed=seed).requires_grad_() for seed in range(3))
    ends = torch.tensor([0, 2, 5])
    op = flash.flash_attention if name == "dense" else varlen.flash_attention_varlen
    packed = [x[0].transpose(0, 1) for x in (q, k, v)]
    call = partial(op, q, k, v) if name == "dense" else partial(op, *packed, ends, ends)

    def results() -> list[Tensor]:
        with op.use_kernel("default"):
            out = call()
        return [out, *torch.autograd.grad(out.square().sum(), (q, k, v))]

    expected = results()
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(results(), expected)
