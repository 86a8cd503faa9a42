"""The checks on ops declared with `custom_op`: right ones pass, and each fault is found by the check it belongs to."""

import pytest
import torch
from torch import Tensor

from custom_autograd import CheckError, Sample, check, custom_op


@custom_op(
    "checks::scaled_square",
    outputs=("out", "square"),
    hidden=("square",),
    reference=True,
    shapes="x: n d, w: d -> out: n d, square: n d",
)
def scaled_square(x: Tensor, w: Tensor, k: float = 2.0) -> tuple[Tensor, Tensor]:
    square = x * x
    return k * square * w, square


@scaled_square.register_kernel("cpu")
def _(x, w, k):
    square = x**2
    return square * w * k, square


@scaled_square.register_fake
def _(x, w, k):
    return torch.empty_like(x, dtype=torch.promote_types(x.dtype, w.dtype)), torch.empty_like(x)


@scaled_square.register_backward
def _(grad, x, w, k, square):
    return {"x": 2 * k * grad * (x * w).conj(), "w": lambda: (k * grad * square.conj()).sum(0)}


@scaled_square.register_samples
def _(make):
    yield Sample(make(4, 3), make(3))
    yield Sample(make(2, 3), make(3), k=1.7).named("other k")


@custom_op("checks::numpy_cube")
def numpy_cube(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() ** 3)


@numpy_cube.register_fake
def _(x):
    return torch.empty_like(x)


@numpy_cube.register_backward(once_differentiable=True)
def _(grad, x):
    return 3 * grad * x**2


@custom_op("checks::numpy_backward")
def numpy_backward(x: Tensor) -> Tensor:
    return x * 2


@numpy_backward.register_fake
def _(x):
    return torch.empty_like(x)


@numpy_backward.register_backward(once_differentiable=True)
def _(grad):
    return torch.from_numpy(2 * grad.numpy())


@custom_op("checks::scale_", mutates_args=("x",))
def scale_(x: Tensor, k: float) -> None:
    x.mul_(k)


@scale_.register_backward
def _(grad, k):
    return grad * k


@custom_op("checks::joined", reference=True)
def joined(tensors: list[Tensor], weights: list[float]) -> Tensor:
    return torch.cat([weight * tensor for weight, tensor in zip(weights, tensors, strict=True)])


@custom_op("checks::kernel_differs", reference=True)
def kernel_differs(x: Tensor) -> Tensor:
    return x * 2


@kernel_differs.register_kernel("cpu")
def _(x):
    return x * 2 + (x > 1.5)


@custom_op("checks::wrong_shape")
def wrong_shape(x: Tensor) -> Tensor:
    return x * 2


@wrong_shape.register_backward
def _(grad):
    return 2 * grad.sum()


@custom_op("checks::bare")
def bare(x: Tensor) -> Tensor:
    return x * 2


@custom_op("checks::wrong_jvp", reference=True)
def wrong_jvp(x: Tensor) -> Tensor:
    return x**2


@wrong_jvp.register_jvp
def _(tangent_x, x):
    return tangent_x * x


def vector(make):
    yield Sample(make(5))


def statuses_of(op, samples=None, **options):
    report = check(op, samples, **options)
    return {result.check: result.status for result in report.results}, report


@pytest.mark.parametrize("dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=str)
def test_op_with_everything_passes_everything(dtype):
    statuses, report = statuses_of(scaled_square, dtype=dtype)
    skipped = {name for name, status in statuses.items() if status == "skipped"}

    assert {"passed", "skipped"} == set(statuses.values()), str(report)
    # No sample is to raise, no variant has a kernel of its own, no two tensors have one shape, there may be no CUDA.
    assert skipped <= {"errors", "parity", "shared_inputs", "streams"}, str(report)


def test_method_uses_registered_samples_and_returns_the_report():
    report = scaled_square.check(checks=["gradcheck"])

    assert ["sample 0: (float32[4, 3], float32[3])", "other k"] == [result.sample for result in report.results]


def test_numpy_op_has_no_findings_and_says_what_it_cannot_do():
    statuses, report = statuses_of(numpy_cube, vector)

    assert report.ok, str(report)
    assert ("skipped", "skipped") == (statuses["second_order"], statuses["forward_mode"])


def test_numpy_in_a_backward_is_found_where_it_is_compiled_and_where_a_tensor_has_no_memory():
    statuses, report = statuses_of(numpy_backward, vector)

    failed = {name for name, status in statuses.items() if status == "failed"}
    assert {"opcheck", "compile", "nesting", "subclasses"} == failed - {"explore"}  # which has little time in tests
    assert (
        "static shapes: compiling raises BackendCompilerFailed: backend='aot_eager' raised: GradientError: "
        "checks::numpy_backward: the backward rule reads the memory of a tensor that has none" in str(report)
    )


def test_in_place_op_has_no_findings():
    report = check(scale_, lambda make: [Sample(make(3), 2.0)])

    assert report.ok, str(report)


def test_list_op_has_no_findings():
    report = check(joined, lambda make: [Sample([make(3), make(2)], [0.5, 2.0])])

    assert report.ok, str(report)


def test_op_without_rules_is_skipped_where_it_can_do_nothing():
    statuses, report = statuses_of(bare, vector)

    assert report.ok
    assert {"passed"} == {statuses[name] for name in ("schema", "vmap")}
    assert {"skipped"} == {statuses[name] for name in ("fake", "gradcheck", "second_order", "forward_mode", "compile")}


def test_kernel_that_differs_is_found_by_both_value_checks():
    statuses, report = statuses_of(kernel_differs, [Sample(torch.tensor([1.0, 2.0]))], checks=["reference", "kernels"])

    assert {"reference": "failed", "kernels": "failed"} == statuses
    assert "output 0[1] = 5, expected 4 (ratio 1.25), by the reference" in report.results[0].message


def test_gradient_of_the_wrong_shape_fails_once_with_the_ops_own_message():
    statuses, report = statuses_of(wrong_shape, vector, checks=["gradcheck", "cotangents", "second_order"])

    assert {"gradcheck": "failed", "cotangents": "skipped", "second_order": "skipped"} == statuses
    assert "the gradient of 'x' has the wrong shape" in report.results[0].message
    assert "the check gradcheck fails first" == report.results[1].message


def test_wrong_jvp_is_found():
    statuses, report = statuses_of(wrong_jvp, vector, checks=["gradcheck", "forward_mode"])

    assert {"gradcheck": "passed", "forward_mode": "failed"} == statuses
    assert "the tangent of output 0 along 'x' is wrong" in report.results[1].message


def test_method_raises_on_failure():
    with pytest.raises(CheckError, match="checks::wrong_jvp: forward_mode"):
        wrong_jvp.check([Sample(torch.ones(2))])
