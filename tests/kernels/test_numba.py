"""Numba kernels: compiled at the first call, on arrays for tensors; replaced where Numba is missing."""

import importlib.util
import sys
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from custom_autograd import KernelError, custom_op
from custom_autograd.kernels import KernelUnavailable, KernelWarning, NumbaKernel, numba_kernel
from python_server import run_python

needs_numba = pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="Numba is not installed")


@numba_kernel
def recurrence(decay, x):
    """out_i = decay · out_{i-1} + x_i: a loop that NumPy has no function for."""
    out = np.empty_like(x)
    for row in range(x.shape[0]):
        state = x.dtype.type(0)
        for i in range(x.shape[1]):
            state = decay * state + x[row, i]
            out[row, i] = state
    return out


@numba_kernel
def sums(xs, scale):
    """A list of tensors, and two results of which one is a single number."""
    total = xs[0].copy()
    for x in xs[1:]:
        total += x
    return total * scale, np.array(total.sum())


@custom_op("numba_sources::recurrence")
def recurrence_op(x: Tensor, decay: float) -> Tensor:
    raise NotImplementedError


@recurrence_op.register_kernel("cpu")
@numba_kernel(boundscheck=True)
def _(x, decay):
    out = x.copy()
    for i in range(1, x.shape[0]):
        out[i] += decay * out[i - 1]
    return out


def exact(decay: float, x: Tensor) -> Tensor:
    """The recurrence as a triangular matrix of powers."""
    steps = torch.arange(x.shape[1])
    distance = (steps[:, None] - steps).clamp(min=0)
    matrix = torch.where(steps[:, None] >= steps, torch.tensor(decay, dtype=torch.float64) ** distance, 0.0)
    return x.double() @ matrix.T


@needs_numba
@pytest.mark.parametrize("layout", [Tensor.contiguous, lambda x: x.t().contiguous().t()], ids=["rows", "columns"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_kernel_computes(dtype, layout):
    x = torch.randn(3, 5, dtype=torch.float64).to(dtype)

    torch.testing.assert_close(exact(0.5, x), recurrence(0.5, layout(x)).double(), rtol=1e-6, atol=1e-6)


@needs_numba
def test_lists_and_single_numbers():
    found = sums([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])], 2.0)

    assert [[8.0, 12.0], 10.0] == [out.tolist() for out in found]
    assert (2,) == found[0].shape
    assert () == found[1].shape


@needs_numba
@pytest.mark.parametrize(
    "result", [lambda x: x, lambda x: x[1:], lambda x: (x, x[::-1])], ids=["argument", "view", "two views"]
)
def test_a_result_owns_its_memory(result):
    x = torch.tensor([1.0, 2.0, 3.0])
    found = numba_kernel(result)(x)
    for out in found if isinstance(found, tuple) else [found]:
        out.fill_(99)

    assert [1, 2, 3] == x.tolist()


@needs_numba
def test_results_that_share_memory_are_parted():
    @numba_kernel
    def shared(x):
        y = x + 1
        return y, y[1:]

    whole, rest = shared(torch.zeros(3))
    whole.fill_(99)

    assert [1, 1] == rest.tolist()


@needs_numba
def test_a_fresh_result_is_not_copied():
    @numba_kernel
    def fresh(x):
        out = x + 1
        return out, np.array(out.ctypes.data)

    out, place = fresh(torch.ones(5))

    assert out.data_ptr() == place.item()


@needs_numba
def test_an_array_shares_the_memory_of_its_tensor():
    @numba_kernel
    def fill(x):
        x[:] = 7

    x = torch.zeros(3)
    fill(x[1:])

    assert [0, 7, 7] == x.tolist()


@needs_numba
def test_a_write_to_a_resolved_copy_is_refused():
    @numba_kernel
    def fill(x):
        x[:] = 7

    with pytest.raises(KernelError, match=r"Numba does not compile the kernel(.|\n)*[Rr]ead-?only"):
        fill(torch.conj(torch.tensor([1j])))


@needs_numba
def test_what_numba_does_not_compile_is_said():
    @numba_kernel
    def unknown(x):
        return no_such_name(x)  # noqa: F821

    with pytest.raises(KernelError, match=r"^unknown: Numba does not compile the kernel(.|\n)*no_such_name(.|\n)*  do"):
        unknown(torch.ones(1))


@needs_numba
@pytest.mark.parametrize(("xs", "place"), [([1, 2], "y"), ([2, 1], r"xs")], ids=["argument", "list"])
def test_a_dtype_that_numba_lacks_raises_and_names_the_argument(xs, place):
    @numba_kernel
    def total(xs, y):
        return xs[0] + y

    halves = [torch.ones(1).half() if number == 2 else torch.ones(1) for number in xs]

    with pytest.raises(KernelError, match=rf"^total: Numba has no type for '{place}'\n(.|\n)*an array of float16"):
        total(halves[:1], halves[1])


@needs_numba
def test_an_option_that_numba_does_not_know_is_named():
    with pytest.raises(KernelError, match=r"^<lambda>: Numba does not know an option\n(.|\n)*'zork'"):
        numba_kernel(zork=1)(lambda x: x)(torch.ones(1))


@needs_numba
@pytest.mark.parametrize("error", [KeyError, NotImplementedError])
def test_an_error_of_the_kernel_keeps_its_class(error):
    @numba_kernel
    def raising(x):
        raise error("of the kernel")

    with pytest.raises(error, match="of the kernel"):
        raising(torch.ones(1))


@needs_numba
def test_an_error_of_the_kernel_is_an_error_of_python():
    @numba_kernel(boundscheck=True)
    def beyond(x):
        return x + x[5]

    with pytest.raises(IndexError):
        beyond(torch.ones(2))


@needs_numba
def test_a_dtype_that_numpy_lacks_raises_and_names_the_argument():
    with pytest.raises(KernelError, match=r"^recurrence: 'x' cannot become a NumPy array"):
        recurrence(0.5, torch.ones(2, 2, dtype=torch.bfloat16))


@needs_numba
def test_an_op_runs_its_numba_kernel_by_name():
    assert [1.0, 2.5, 4.25] == recurrence_op(torch.tensor([1.0, 2.0, 3.0]), decay=0.5).tolist()


@needs_numba
def test_the_interpreter_is_free_meanwhile():
    """The kernel runs until another thread has written to its argument, which a held lock would keep from running."""

    @numba_kernel
    def wait(flag, mask):
        rounds = 0
        while flag[rounds & mask[0]] == 0 and rounds < 10**9:  # read anew each time: it may have been written to below
            rounds += 1
            flag[1] = rounds
        return flag.copy()

    mask = torch.tensor([0])
    wait(torch.tensor([1, 0]), mask)  # compiled before
    flag, found = torch.tensor([0, 0]), []
    setter = threading.Thread(target=lambda: flag.__setitem__(0, 1))
    waiter = threading.Thread(target=lambda: found.append(wait(flag, mask)))
    waiter.start()
    setter.start()
    waiter.join()
    setter.join()

    assert found[0][1].item() < 10**9


@pytest.mark.slow
@needs_numba
def test_parallel_kernels_in_threads_take_turns():
    """Numba's default pool ends the process if two threads enter it."""
    script = """
import threading, torch, numba, numpy
numba.config.THREADING_LAYER = "workqueue"
from custom_autograd.kernels import numba_kernel
@numba_kernel(parallel=True)
def doubled(x):
    out = numpy.empty_like(x)
    for i in numba.prange(x.size):
        out[i] = x[i] * 2
    return out
x = torch.ones(10000)
def work():
    for _ in range(200):
        assert doubled(x).sum() == 20000
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads], [t.join() for t in threads]
print("done")
"""
    finished = run_python("-c", script)

    assert ("done\n", 0) == (finished.stdout, finished.returncode), finished.stderr


def test_without_numba_one_warning_and_the_fallback(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kernel = numba_kernel(fallback=torch.neg)(abs)
    with pytest.warns(KernelWarning, match="abs: the kernel needs Numba(.|\n)*'abs' runs in its fallback") as caught:
        found = [kernel(torch.ones(1)).item(), kernel(torch.ones(1)).item()]

    assert [-1.0, -1.0] == found
    assert 1 == len(caught)


def test_without_numba_and_fallback_every_call_raises(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    kernel = numba_kernel(abs)

    for _ in range(2):
        with pytest.raises(KernelUnavailable, match=r"do +pip install custom-autograd\[numba\]"):
            kernel(torch.ones(1))


def test_numba_is_not_imported_before_the_first_call():
    script = """
import sys
from custom_autograd.kernels import numba_kernel
numba_kernel(abs)
print("numba" in sys.modules)
"""
    finished = run_python("-c", script)

    assert "False\n" == finished.stdout, finished.stderr


def test_options_are_those_of_njit():
    kernel = numba_kernel(fastmath=True)(abs)

    assert isinstance(kernel, NumbaKernel)
    assert {"fastmath": True} == kernel.options


@needs_numba
def test_no_folder_to_keep_compiled_code_in_is_one_warning_and_the_fallback():
    """As in a read-only installation of a user without a home folder; Numba has none for a source like this."""
    scope = {}
    exec("def doubled(x):\n    return x + x\n", scope)
    kernel = numba_kernel(cache=True, fallback=torch.neg)(scope["doubled"])
    advice = r"no folder in which to keep the kernel(.|\n)*cannot cache(.|\n)*set NUMBA_CACHE_DIR"
    with pytest.warns(KernelWarning, match=advice) as caught:
        found = [kernel(torch.ones(1)).item(), kernel(torch.ones(1)).item()]

    assert [-1.0, -1.0] == found
    assert 1 == len(caught)
