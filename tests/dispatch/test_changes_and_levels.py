"""What is registered, by whomever, is honoured by the next call; how much is checked; all of it from many threads."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tables import each
from torch import Tensor
from torch.torch_version import TorchVersion

import custom_autograd
from custom_autograd import KernelError, custom_op, through_dispatcher
from custom_autograd.core.errors import CustomAutogradError
from custom_autograd.kernels.shared_library import find_or_build


def made(name: str):
    """An op that has been called, and which returns its input plus one."""
    op = custom_op(f"changes::{name}", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)
    op.register_fake(torch.empty_like)
    op.register_backward(lambda grad: grad)
    op.register_kernel("cpu")(lambda x: x + 1)
    for _ in range(3):
        op(torch.zeros(2))
        op(torch.zeros(2, requires_grad=True))
    return op


def value(op, *, requires_grad: bool = False) -> tuple[float, float]:
    """What a call of the op, and of its overload, gives for zero."""
    x = torch.zeros(2, requires_grad=requires_grad)
    return op(x)[0].item(), op.overload(x)[0].item()


@pytest.mark.parametrize("requires_grad", [False, True])
class TestAnotherKernel:
    def test_of_register_kernel_runs_at_the_next_call(self, requires_grad):
        op = made("registered")
        op.register_kernel("cpu", replace=True)(lambda x: x + 2)

        assert (2, 2) == value(op, requires_grad=requires_grad)

    def test_that_is_switched_off_does_not_run(self, requires_grad):
        op = made("switched")
        op.register_kernel("cpu", replace=True)(lambda x: x + 2)
        with op.set_kernel_enabled("cpu", False):
            assert (1, 1) == value(op, requires_grad=requires_grad)
        assert (2, 2) == value(op, requires_grad=requires_grad)

    @pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")  # torch, at an override
    @each("key", ["CPU", "AutogradCPU", "Autograd"])
    def test_of_somebody_else_runs_at_the_next_call(self, key, requires_grad):
        op = made("foreign")
        with torch.library._scoped_library("changes", "IMPL") as library:
            library.impl("foreign", lambda x: x.detach() + 3, key, allow_override=True)

            assert (3, 3) == value(op, requires_grad=requires_grad)
        assert (1, 1) == value(op, requires_grad=requires_grad)

    @pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
    @pytest.mark.skipif(TorchVersion(torch.__version__) < (2, 13), reason="before 2.13 torch itself refuses")
    def test_of_torch_library_impl_runs_at_the_next_call(self, requires_grad):
        op = made("decorated")
        library = torch.library.Library("changes", "FRAGMENT")
        torch.library.impl("changes::decorated", "CPU", lib=library)(lambda x: x.detach() + 4)

        assert (4, 4) == value(op, requires_grad=requires_grad)
        library._destroy()
        assert (1, 1) == value(op, requires_grad=requires_grad)

    @pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
    def test_dies_with_its_library(self, requires_grad):
        op = made("dying")
        library = torch.library.Library("changes", "IMPL")
        library.impl("dying", lambda x: x.detach() + 5, "CPU", allow_override=True)
        assert (5, 5) == value(op, requires_grad=requires_grad)
        del library

        assert (1, 1) == value(op, requires_grad=requires_grad)


def test_a_foreign_kernel_for_autocast_runs_under_autocast():
    op = made("autocast")
    with torch.library._scoped_library("changes", "IMPL") as library, torch.autocast("cpu"):
        assert 1 == op(torch.zeros(2))[0].item()
        library.impl("autocast", lambda x: x.detach() + 6, "AutocastCPU")

        assert 6 == op(torch.zeros(2))[0].item()


@pytest.mark.filterwarnings("ignore:Warning only once for all operators:UserWarning")
def test_a_kernel_from_cpp_runs_at_the_next_call(tmp_path):
    op = made("compiled")
    source = tmp_path / "changes.cpp"
    source.write_text(PLUS_SEVEN)
    assert (1, 1) == value(op)
    torch.ops.load_library(find_or_build(source, [])[1])

    assert (7, 7) == value(op)


PLUS_SEVEN = """
#include <custom_autograd/kernel.h>
torch::stable::Tensor plus_seven(const torch::stable::Tensor& x) {
  torch::stable::Tensor out = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i) {
    static_cast<float*>(out.mutable_data_ptr())[i] = static_cast<const float*>(x.const_data_ptr())[i] + 7;
  }
  return out;
}
STABLE_TORCH_LIBRARY_IMPL(changes, CPU, m) { m.impl("compiled", TORCH_BOX(&plus_seven)); }
"""


# ---------------------------------------------------------------------------------------------------- how it is kept


@pytest.mark.parametrize("length", [0, 1, 3, 100])
def test_lists_of_every_length_have_a_road(length):
    op = custom_op("changes::lists", lambda xs: xs[0] + len(xs), schema="(Tensor[] xs) -> Tensor", replace=True)
    tensors = [torch.zeros(2) for _ in range(length + 1)]

    assert [length + 1] * 3 == [op(tensors)[0].item() for _ in range(3)]


def test_a_list_that_a_kernel_changes_is_its_own():
    op = custom_op("changes::popped", lambda xs: xs.pop() + 1, schema="(Tensor[] xs) -> Tensor", replace=True)
    tensors = [torch.zeros(2), torch.ones(2)]
    for _ in range(3):
        op(tensors)

    assert 2 == len(tensors)


# --------------------------------------------------------------------------------------------------------- validation


def aliasing(name: str):
    """An op that, from its second call on, returns memory of its input in a way that no constant-time look sees."""
    calls = []

    def kernel(x):
        calls.append(1)
        return torch.from_numpy(x.numpy()[:]) if len(calls) > 1 else x + 1

    return custom_op(f"changes::{name}", kernel, schema="(Tensor x) -> Tensor", replace=True)


def test_full_looks_at_every_call():
    op = aliasing("full")
    with custom_autograd.validation("full"):
        op(torch.zeros(2))
        with pytest.raises(KernelError, match="shares memory with input 'x'"):
            op(torch.zeros(2))


@pytest.mark.parametrize("calls", ["native", "generated", "dispatcher"])
def test_cheap_looks_at_the_first_call_of_a_kind(calls, request):
    op = custom_op(
        "changes::shared", lambda x: torch.from_numpy(x.numpy()[:]), schema="(Tensor x) -> Tensor", replace=True
    )
    if calls == "generated":
        request.getfixturevalue("generated_python")
    with through_dispatcher() if calls == "dispatcher" else contextlib.nullcontext():
        for _ in range(3):
            with pytest.raises(KernelError, match="shares memory with input 'x'"):
                op(torch.zeros(2))


def test_cheap_and_off_do_not_look_at_memory_in_later_calls():
    op = aliasing("cheap")
    op(torch.zeros(2))
    op(torch.zeros(2))
    op.validation = "off"
    op(torch.zeros(2))

    assert "off" == op.validation


def test_off_does_not_look_at_identity():
    op = custom_op("changes::identity", lambda x: x, schema="(Tensor x) -> Tensor", replace=True)
    op.validation = "off"
    op(torch.zeros(2))
    op.validation = None

    with pytest.raises(KernelError, match="shares memory"):
        op(torch.zeros(2))


def test_off_leaves_gradients_to_the_engine_and_the_innermost_level_holds():
    op = made("gradients")
    op.register_backward(lambda grad: grad.expand(3, 2), replace=True)
    x = torch.zeros(2, requires_grad=True)
    with custom_autograd.validation("full"), custom_autograd.validation("off"):
        op(x).sum().backward()
        assert "off" == op.validation
    assert torch.equal(torch.full((2,), 3.0), x.grad)

    with pytest.raises(custom_autograd.GradientError, match="wrong shape"):
        op(x).sum().backward()


def test_a_level_holds_in_its_thread_only():
    op = aliasing("threads")
    with through_dispatcher():
        op(torch.zeros(2))
    with custom_autograd.validation("full"), ThreadPoolExecutor(1) as pool:
        done = pool.submit(op, torch.zeros(2))
        if getattr(sys.flags, "thread_inherit_context", False):  # as in free-threaded Python
            assert isinstance(done.exception(), KernelError)
        else:
            assert torch.equal(torch.zeros(2), done.result())


def test_there_are_three_levels():
    with pytest.raises(CustomAutogradError, match="expected   'full', 'cheap' or 'off'"):
        custom_autograd.validation("x").__enter__()


# ------------------------------------------------------------------------------------------------------------- values

KINDS = {
    "int": ("int n", int),
    "float": ("float n", float),
    "bool": ("bool n", bool),
    "str": ("str n", str),
    "Scalar": ("Scalar n", float),
    "complex": ("complex n", complex),
    "int?": ("int? n", int),
    "float?": ("float? n", float),
    "int[]": ("int[] n", list),
    "float[]": ("float[] n", list),
    "int[]?": ("int[]? n", list),
    "ScalarType": ("ScalarType n", torch.dtype),
    "Device": ("Device n", torch.device),
    "Layout": ("Layout n", torch.layout),
    "MemoryFormat": ("MemoryFormat n", torch.memory_format),
}
SEEN: list[object] = []


def _noting(x: Tensor, n: object) -> Tensor:
    SEEN.append(n)
    return x + 1


VALUED = {
    kind: custom_op(f"changes::valued_{i}", _noting, schema=f"(Tensor x, {argument}) -> Tensor")
    for i, (kind, (argument, _)) in enumerate(KINDS.items())
}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=3),
    st.sampled_from([torch.float32, torch.device("cpu"), torch.device("cuda"), torch.strided, torch.channels_last]),
    st.sampled_from([np.float64(1.5), np.int64(3), np.bool_(True), torch.Size((1, 2))]),
    st.sampled_from([torch.tensor(2), torch.tensor(2.5), torch.tensor([1, 2])]),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3), st.lists(SCALARS, max_size=3).map(tuple))


def seen(kind: str, value: object) -> object:
    """What the kernel is given for a value, or the kind of error."""
    try:
        VALUED[kind](torch.zeros(1), value)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other way must raise it too
        return type(error).__name__
    return type(SEEN[-1]).__name__, repr(SEEN[-1])


@each("kind", KINDS)
@settings(max_examples=150)
@given(value=VALUES)
def test_a_kernel_is_given_what_the_dispatcher_gives_it(kind, value):
    direct = [seen(kind, value) for _ in range(2)]
    with through_dispatcher():
        expected = seen(kind, value)

    assert [expected, expected] == direct


# ------------------------------------------------------------------------------------------------------------ threads


def test_calls_backward_passes_and_registrations_from_eight_threads():
    op = made("threaded")
    start, problems = threading.Barrier(8), []

    def call() -> None:
        for index in range(300):
            x = torch.zeros(2 + index % 3, requires_grad=index % 2 == 0)
            out = op(x)
            if out[0].item() not in (1, 2, 3):
                problems.append(out)
            if x.requires_grad:
                out.sum().backward()
                if x.grad is None or x.grad[0].item() not in (1, 5):
                    problems.append(x.grad)

    def register() -> None:
        for index in range(60):
            op.register_kernel("cpu", replace=True)(lambda x, plus=1 + index % 2: x + plus)
            op.register_backward(lambda grad, times=1 + 4 * (index % 2): times * grad, replace=True)
            with op.set_kernel_enabled("cpu", index % 3 > 0):
                op(torch.zeros(2))

    def run(work) -> None:
        start.wait()
        work()

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(run, register if index == 0 else call) for index in range(8)]:
            done.result()

    assert [] == problems
    op.register_kernel("cpu", replace=True)(lambda x: x + 3)
    assert (3, 3) == value(op)
