"""Each step of the tutorial on fast kernels is a softmax, and the page shows what was recorded."""

import json
import sys
from pathlib import Path

import pytest
import torch
from tables import each

from cpp_sources import built_source
from custom_autograd.kernels import cpp_kernel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
STEPS = ("softmax_by_element", "softmax_by_pointer", "softmax_in_threads", "softmax_in_vectors", "softmax")


@pytest.fixture(scope="module")
def kernel_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import kernel_steps

        yield kernel_steps
        sys.modules.pop("kernel_steps")


@pytest.fixture(scope="module")
def source(kernel_steps, tmp_path_factory):
    text = kernel_steps.source_of(kernel_steps.DOCUMENT.read_text(encoding="utf-8"))
    return built_source(tmp_path_factory.mktemp("steps") / "softmax.cpp", text, "softmax")


def test_the_table_of_the_page_is_that_of_the_recorded_run(kernel_steps):
    recorded = json.loads(kernel_steps.RESULTS.read_text(encoding="utf-8"))

    assert kernel_steps.page(recorded) == kernel_steps.DOCUMENT.read_text(encoding="utf-8")


@each("step", STEPS)
@each("shape", [(3, 1), (2, 16), (5, 17), (40, 2000), (0, 4)])
def test_a_step_is_a_softmax(step, shape, source):
    x = 10 * torch.randn(shape)

    torch.testing.assert_close(cpp_kernel(source, step)(x), x.softmax(-1))


@each("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_last_step_takes_every_dtype_and_rounds_once(dtype, source, kernel_steps):
    x = torch.randn(4, 64).to(dtype)  # few enough columns for normal float16

    found = cpp_kernel(source, "softmax")(x)

    assert found.dtype == dtype
    assert kernel_steps.error_of(found, x) <= max(torch.finfo(dtype).eps / 2, 1e-6)


def test_a_sum_in_bfloat16_stops_growing(source):
    x = torch.zeros(1, 4096, dtype=torch.bfloat16)

    assert (1 / 4096, 1 / 256) == tuple(
        cpp_kernel(source, step)(x)[0, 0].item() for step in ("softmax", "softmax_with_narrow_sums")
    )


def test_operators_of_torch_are_called(source):
    q, k, bias = torch.randn(5, 8), torch.randn(6, 8), torch.randn(6)
    linear = cpp_kernel(source, "linear")

    torch.testing.assert_close(cpp_kernel(source, "attention_weights")(q, k), (q @ k.t()).softmax(-1))
    torch.testing.assert_close(linear(q, k, None), q @ k.t())
    torch.testing.assert_close(linear(q, k, bias), q @ k.t() + bias)
    with pytest.raises(RuntimeError, match=r"cannot be multiplied \(5x8 and 7x6\) \(raised by torch_call_dispatcher"):
        linear(q, torch.randn(6, 7), None)


@pytest.mark.slow
def test_the_script_measures_every_step(kernel_steps):
    rows = kernel_steps.run(seconds=0.1)["rows"]

    assert [f"{function} | {dtype}" for _, function, dtype in kernel_steps.STEPS] == list(rows)
    assert all(row["microseconds"] > 0 for row in rows.values())
