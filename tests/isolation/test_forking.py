"""Work in a forked process: what it tells and raises arrives, how it ends is known, and nothing is left behind."""

import ctypes
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

from custom_autograd.verification.processes.process import is_sound, run_forked

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")

PYTHON = (sys.executable, "-W", "ignore:This process:DeprecationWarning")
"""From 3.12 on Python warns of a fork beside threads, which is what these programs are for."""


class UnpicklableError(Exception):
    def __init__(self, one, two):
        super().__init__(one)


def raise_key(tell):
    raise KeyError("k")


def raise_unpicklable(tell):
    raise UnpicklableError(1, 2)


def tell_what_it_is(tell):
    tell(threading.current_thread() is threading.main_thread())
    tell(torch.get_num_threads())
    tell(os.getpid())


def crash(tell):
    tell("begun")
    ctypes.string_at(0)


def compute(tell):
    x = torch.ones(600, 600, requires_grad=True)
    (x @ x).sum().backward()
    tell(float(x.grad.sum()))


def test_what_is_told_arrives_in_order():
    told = []
    ending = run_forked(lambda tell: [tell(i) for i in range(3)], told.append)

    assert ([0, 1, 2], True) == (told, ending.is_finished)


def test_the_child_works_in_its_main_thread_with_the_threads_of_torch_of_the_parent():
    told = []
    run_forked(tell_what_it_is, told.append)

    assert [True, torch.get_num_threads()] == told[:2]
    assert os.getpid() != told[2]


def test_a_crash_is_an_exit_code_and_a_trace():
    told = []
    ending = run_forked(crash, told.append)

    assert (["begun"], -signal.SIGSEGV) == (told, ending.exit_code)
    assert "Segmentation fault" in ending.trace
    assert "in crash" in ending.trace


def test_the_end_of_a_process_that_leaves_is_its_code():
    assert 3 == run_forked(lambda tell: os._exit(3), print).exit_code


def test_a_process_whose_code_is_lost_has_not_finished(sigchld_ignored):
    ending = run_forked(crash, print)

    assert (False, None) == (ending.is_finished, ending.exit_code)
    assert "Segmentation fault" in ending.trace


def test_a_process_that_finishes_its_work_needs_no_code_for_that(sigchld_ignored):
    assert run_forked(lambda tell: tell(1), print).is_finished


def test_an_exception_is_raised_in_the_parent():
    with pytest.raises(KeyError, match="k"):
        run_forked(raise_key, print)


def test_an_exception_that_cannot_travel_is_raised_as_its_text():
    with pytest.raises(RuntimeError, match="UnpicklableError: 1"):
        run_forked(raise_unpicklable, print)


@pytest.mark.slow
def test_parallel_work_of_the_parent_does_not_stop_that_of_the_child():
    """Libgomp's threads are gone after a fork, and the thread that started them would wait for them for ever."""
    program = f"""
import sys, torch
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_forking import compute
from custom_autograd.verification.processes.process import run_forked
torch.set_num_threads(2)
compute(print)
print(run_forked(compute, print).exit_code)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=280, env=environment
    )

    assert ["432000000.0", "432000000.0", "None"] == finished.stdout.split(), finished.stderr


@pytest.mark.slow
def test_no_process_forks_once_numba_has_threads_of_openmp():
    """Numba ends a fork that runs a parallel kernel by SIGTERM: "fork() called from a process using GNU OpenMP"."""
    program = """
import numba, numpy
from custom_autograd.verification.processes.process import is_sound
numba.config.THREADING_LAYER = "omp"

@numba.njit(parallel=True)
def fill(out):
    for i in numba.prange(out.shape[0]):
        out[i] = i

print(is_sound())
fill(numpy.empty(10))
print(is_sound())
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=280)

    assert ["True", "False"] == finished.stdout.split(), finished.stderr


def test_sigterm_ends_a_child_whatever_the_parent_does_then():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        ending = run_forked(lambda tell: os.kill(os.getpid(), signal.SIGTERM), print)
    finally:
        signal.signal(signal.SIGTERM, before)

    assert -signal.SIGTERM == ending.exit_code


def test_a_child_is_ended_when_the_parent_stops_listening():
    pids = []

    def stop(pid):
        pids.append(pid)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_forked(lambda tell: (tell(os.getpid()), threading.Event().wait()), stop)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_active_mode_forbids_it():
    with torch.device("cpu"):
        assert not is_sound()
    with torch.autocast("cpu"):
        assert not is_sound()
    assert is_sound()


def test_a_thread_at_work_forbids_it_and_one_that_waits_does_not():
    let_go, has_begun, is_over = threading.Event(), threading.Event(), []

    def work():
        has_begun.set()
        while not is_over:
            pass

    waiting = threading.Thread(target=let_go.wait)
    waiting.start()
    is_sound_beside_one_that_waits = is_sound()
    busy = threading.Thread(target=work)
    busy.start()
    has_begun.wait()
    is_sound_beside_one_at_work = is_sound()
    is_over.append(True)
    let_go.set()
    busy.join()
    waiting.join()

    assert is_sound_beside_one_that_waits
    assert not is_sound_beside_one_at_work


def test_an_accelerator_in_use_forbids_it(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)

    assert not is_sound()


class Device:
    """The module of an accelerator that torch does not know by itself."""

    @staticmethod
    def is_initialized():
        return True


@pytest.mark.parametrize("name", ["xpu", "mtia", "hpu"])
def test_every_accelerator_in_use_forbids_it(monkeypatch, name):
    monkeypatch.setattr(torch, name, Device, raising=False)

    assert not is_sound()


def test_a_library_with_threads_of_its_own_forbids_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", sys)

    assert not is_sound()


def test_a_fork_waits_for_what_other_threads_import():
    """The child has the lock of a module, and not the thread that would release it."""
    program = """
import faulthandler, os, sys, threading, time
import torch
from torch import Tensor
from custom_autograd import custom_op

NAME = "custom_autograd.containers.container_adapter"
importing = threading.Event()

class Slow:
    def find_spec(self, name, path, target=None):
        if name != NAME:
            return None
        spec = next(spec for finder in sys.meta_path if finder is not self and (spec := finder.find_spec(name, path)))
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: (importing.set(), time.sleep(0.5), execute(module))
        return spec

@custom_op("forking::doubled", reference=True)
def doubled(x: dict[str, Tensor]) -> Tensor:
    return x["a"] * 2

torch.ones(3) * 2  # what PyTorch initialises in its first product, no child could finish
assert NAME not in sys.modules
sys.meta_path.insert(0, Slow())
thread = threading.Thread(target=lambda: doubled({"a": torch.ones(3)}))
thread.start()
importing.wait()
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    print(doubled({"a": torch.ones(3)}).tolist(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
thread.join()
"""
    finished = subprocess.run([*PYTHON, "-c", program], capture_output=True, text=True, check=False)

    assert ("[2.0, 2.0, 2.0]\n", "") == (finished.stdout, finished.stderr)


def test_a_child_does_not_wait_for_what_another_thread_computes_of_an_overload():
    """Before Python 3.12 a cached property has a lock, which that thread holds at the fork."""
    program = """
import faulthandler, os, threading, time
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("forking::tripled", reference=True)
def tripled(x: Tensor) -> Tensor:
    return x * 3

torch.ones(3) * 2
find, computing = torch._C._dispatch_find_schema_or_throw, threading.Event()

def slow(*name):
    if threading.current_thread() is thread:
        computing.set()
        time.sleep(0.5)
    return find(*name)

torch._C._dispatch_find_schema_or_throw = slow
overload = torch.ops.forking.tripled.default
vars(overload).pop("_handle", None)  # from PyTorch 2.15 on, a declaration asks for it
thread = threading.Thread(target=lambda: overload._handle)
thread.start()
assert computing.wait(60)
pid = os.fork()
if pid == 0:
    faulthandler.dump_traceback_later(60, exit=True)
    overload._handle
    print(tripled(torch.ones(3)).tolist(), flush=True)
    os._exit(0)
os.waitpid(pid, 0)
thread.join()
"""
    finished = subprocess.run([*PYTHON, "-c", program], capture_output=True, text=True, check=False)

    assert ("[3.0, 3.0, 3.0]\n", "") == (finished.stdout, finished.stderr)


def test_a_fork_waits_for_no_other_package(tmp_path):
    """The main thread lets the import go on after the fork only."""
    (tmp_path / "custom_autograd_extras.py").write_text(
        "import builtins; builtins.begun.set(); builtins.is_over.wait()"
    )
    program = """
import builtins, faulthandler, os, sys, threading
import custom_autograd.declare
faulthandler.dump_traceback_later(60, exit=True)
builtins.begun, builtins.is_over = threading.Event(), threading.Event()
thread = threading.Thread(target=__import__, args=("custom_autograd_extras",))
thread.start()
builtins.begun.wait()
pid = os.fork()
if pid == 0:
    os._exit(0)
builtins.is_over.set()
os.waitpid(pid, 0)
thread.join()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    finished = subprocess.run([*PYTHON, "-c", program], capture_output=True, text=True, check=False, env=environment)

    assert (0, "") == (finished.returncode, finished.stderr)
