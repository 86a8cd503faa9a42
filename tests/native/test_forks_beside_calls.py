"""A child that is forked while other threads call ops calls them too."""

import subprocess
import sys

import pytest

from custom_autograd.native.loading import library

pytestmark = [
    pytest.mark.skipif(library.module is None, reason=library.reason),
    pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only"),
]

DECLARED = """
import faulthandler, os, threading
import torch
from torch import Tensor
from custom_autograd import custom_op
from custom_autograd.native.loading import library
library.load()
torch.set_num_threads(1)

@custom_op("forked::product")
def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y

@product.register_backward
def _(grad, x, y):
    return grad * y, grad * x

plain, recorded = torch.ones(8), torch.ones(8, requires_grad=True)

def call():
    gradients = torch.autograd.grad(product(recorded, plain).sum(), recorded)
    return torch.equal(product(plain, plain), plain) and torch.equal(gradients[0], plain)

def end_of_child():
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        os._exit(0 if all(call() for _ in range(10)) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

for _ in range(5):
    call()
"""


def output_of(program):
    # From 3.12 on Python warns of a fork beside threads, which is what these programs are for.
    python = (sys.executable, "-W", "ignore:This process:DeprecationWarning")
    finished = subprocess.run([*python, "-c", DECLARED + program], capture_output=True, text=True, check=False)
    return finished.stdout, finished.stderr


def test_children_of_a_process_whose_threads_call():
    """A lock that another thread holds is never free in a child."""
    program = """
is_over = threading.Event()

def go_on():
    while not is_over.is_set():
        call()

threads = [threading.Thread(target=go_on) for _ in range(2)]
for thread in threads:
    thread.start()
print({end_of_child() for _ in range(40)})
is_over.set()
for thread in threads:
    thread.join()
"""
    assert ("{0}\n", "") == output_of(program)


def test_a_child_remembers_the_observers_of_its_parent(tmp_path):
    program = f"""
observer = torch.profiler.ExecutionTraceObserver().register_callback({str(tmp_path / "trace.json")!r})
observer.start()
end = end_of_child()
observer.stop()
print(end, end_of_child())
"""
    assert "0 0\n" == output_of(program)[0]  # the observer speaks on stderr
