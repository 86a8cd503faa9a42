"""The gradients of flash_attention as ops of their own: opaque kernels that stay differentiable by their references.

    p_ij = exp(s_ij - lse_i),    g_ij = p_ij (out_grad_i · v_j - delta_i),    delta_i = out_grad_i · out_i - lse_grad_i
    q_grad_i = scale Σ_j g_ij k_j,    k_grad_j = scale Σ_i g_ij q_i,    v_grad_j = Σ_i p_ij out_grad_i

and g itself, summed where it was broadcast, is the gradient of the bias. p and g are recomputed tile by tile.
lse and delta have the dtype of sums.
Source: Dao et al. 2022, "FlashAttention", appendix B.2 and algorithm 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from flash_attention_reference import check_grads, fits_triton, gradients, repeated, scale_of, score_grads, scores_of
from flash_attention_triton_backward import launch_grads
from flash_attention_triton_bias import launch_bias_grad
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.kernels import cpp_kernel

NAME = "gallery::flash_attention_grad"
BIAS_NAME = "gallery::flash_attention_bias_grad"


@custom_op(NAME, outputs=("q_grad", "k_grad", "v_grad"), reference=True)
def flash_attention_grad(
    out_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    lse: Tensor,
    delta: Tensor,
    scale: float | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of flash_attention with respect to q, k and v."""
    check_grads(NAME, out_grad, q, k, v, bias, lse, delta)
    scores = scores_of(q, k, bias, scale, causal=causal)
    return gradients(scores, out_grad, q, k, v, lse, delta, scale_of(q, scale))


@custom_op(BIAS_NAME, outputs=("bias_grad",), reference=True)
def flash_attention_bias_grad(
    out_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    lse: Tensor,
    delta: Tensor,
    scale: float | None,
    causal: bool,
) -> Tensor:
    """The gradient of flash_attention with respect to bias."""
    check_grads(BIAS_NAME, out_grad, q, k, v, bias, lse, delta)
    _, grads = score_grads(scores_of(q, k, bias, scale, causal=causal), repeated(v, q), out_grad, lse, delta)
    return grads.sum_to_size(bias.shape).to(bias.dtype)


# lse and delta are given: gradients of keys add up over queries, and those of queries over keys.
@flash_attention_grad.register_shapes
def _(causal):
    m, n = ("[m]", "[n]") if causal else ("m", "n")
    heads = f"out_grad: b (k g) {m} [e], q: b (k g) m [f], k: b k {n} [f], v: b k n [e], bias?: #b #(k g) #m #n"
    return f"{heads}, lse: b (k g) m, delta: b (k g) m -> q_grad: b (k g) m f, k_grad: b k n f, v_grad: b k n e"


flash_attention_bias_grad.register_shapes(
    "out_grad: [b (k g) m e], q: b (k g) m [f], k: b k [n] f, v: b k n e, bias: [*s], lse: b (k g) m, "
    "delta: b (k g) m -> bias_grad: [*s]"
)
SOURCE = Path(__file__).with_name("flash_attention.cpp")
grad_cpp = cpp_kernel(SOURCE, "flash_attention_grad", fallback=flash_attention_grad.__wrapped__)
bias_grad_cpp = cpp_kernel(SOURCE, "flash_attention_bias_grad", fallback=flash_attention_bias_grad.__wrapped__)

ROWS = dict.fromkeys(("out_grad", "q", "k", "v"), "contiguous_rows")


def four_dims(bias: Tensor | None) -> Tensor | None:
    """As the kernels take it."""
    return None if bias is None else bias[(None,) * (4 - bias.dim())]


@flash_attention_grad.register_kernel("cpu", name="cpp", layouts=ROWS)
def flash_attention_grad_cpu(out_grad, q, k, v, bias, lse, delta, scale, causal) -> tuple[Tensor, Tensor, Tensor]:
    """C++: heads in parallel; each tile of scores serves all three gradients."""
    return grad_cpp(out_grad, q, k, v, four_dims(bias), lse, delta, scale_of(q, scale), causal)


@flash_attention_bias_grad.register_kernel("cpu", name="cpp", layouts=ROWS)
def flash_attention_bias_grad_cpu(out_grad, q, k, v, bias, lse, delta, scale, causal) -> Tensor:
    """C++: tiles of the bias in parallel; each sums over all scores that it was added to, in a fixed order."""
    grad = bias_grad_cpp(out_grad, q, k, v, four_dims(bias), lse, delta, scale_of(q, scale), causal)
    return grad.reshape(bias.shape)


@flash_attention_grad.register_kernel("cuda", name="triton", layouts=ROWS, when=fits_triton)
def flash_attention_grad_cuda(out_grad, q, k, v, bias, lse, delta, scale, causal) -> tuple[Tensor, Tensor, Tensor]:
    """Triton: one kernel per block of queries, one per block of keys; no atomics, so that the sums have one order."""
    grads = flash_attention_grad_fake(out_grad, q, k, v, bias, lse, delta)
    launch_grads(out_grad, q, k, v, bias, (None, None), lse, delta, scale_of(q, scale), causal, *grads)
    return grads


@flash_attention_bias_grad.register_kernel("cuda", name="triton", layouts=ROWS, when=fits_triton)
def flash_attention_bias_grad_cuda(out_grad, q, k, v, bias, lse, delta, scale, causal) -> Tensor:
    """Triton: one program per tile of the bias, which sums over all scores that it was added to."""
    grad = flash_attention_bias_grad_fake(out_grad, q, k, v, bias, lse, delta)
    launch_bias_grad(out_grad, q, k, v, four_dims(bias), lse, delta, scale_of(q, scale), causal, four_dims(grad))
    return grad


@flash_attention_grad.register_fake
def flash_attention_grad_fake(out_grad, q, k, v, bias, lse, delta, scale=None, causal=False) -> tuple[Tensor, ...]:
    """All contiguous."""
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@flash_attention_bias_grad.register_fake
def flash_attention_bias_grad_fake(out_grad, q, k, v, bias, lse, delta, scale=None, causal=False) -> Tensor:
    """Contiguous."""
    return bias.new_empty(bias.shape)


# lse is near the logarithm of the number of keys, as in use: with any numbers the weights would be of all magnitudes.
@flash_attention_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    k, v, rows = make(1, 2, 5, 4), make(1, 2, 5, 3), (1, 2, 3)
    lse = make(*rows, low=1, high=2)
    yield Sample(make(*rows, 3), make(*rows, 4), k, v, None, lse, make(*rows), 0.002, False)
    yield Sample(make(*rows, 3), make(*rows, 4), k, v, make(2, 1, 5), lse, make(*rows), 0.002, True)
    bad = Sample(make(*rows, 4), make(*rows, 4), k, v, None, lse, make(*rows), None, False)
    yield bad.raises(ValueError, match="'v' must be .b k n e. with e = 4")


@flash_attention_bias_grad.register_samples
def _(make: Callable[..., Tensor]) -> Iterator[Sample]:
    k, v, rows = make(1, 1, 5, 4), make(1, 1, 5, 3), (1, 2, 3)
    lse = make(*rows, low=1, high=2)
    for shape in ((1, 2, 3, 5), (3, 1)):  # a bias of each score, and one of each query
        yield Sample(make(*rows, 3), make(*rows, 4), k, v, make(*shape), lse, make(*rows), 0.002, False)


if __name__ == "__main__":
    flash_attention_grad.check()
    flash_attention_bias_grad.check()
