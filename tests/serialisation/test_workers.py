"""Ops run in the processes that data loaders, executors and torch.multiprocessing start, forked or spawned."""

import os

import pytest
from serialisation.processes import run

HEAD = """
import multiprocessing, os, sys, threading
import concurrent.futures
import torch
from torch import Tensor
from custom_autograd import CustomAutogradError, custom_op

@custom_op("work::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return x * x * x

@cube.register_backward
def _(grad, x):
    return 3 * x * x * grad

@custom_op("work::silent")
def silent(x: Tensor) -> Tensor:
    return x * 1

def slope(value):
    x = torch.tensor(float(value), requires_grad=True)
    return torch.autograd.grad(cube(x), x)[0].item()

def fail(value):
    silent(torch.tensor(float(value), requires_grad=True)).backward()

class Slopes(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return slope(index)
"""
LOADER = """
if __name__ == "__main__":
    assert 3.0 == slope(1)  # used in the parent before
    loader = torch.utils.data.DataLoader(Slopes(), num_workers=2, multiprocessing_context=sys.argv[1])
    print(sorted(one.item() for one in loader))
"""
EXECUTOR = """
if __name__ == "__main__":
    assert 3.0 == slope(1)
    context = multiprocessing.get_context(sys.argv[1])
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        print(list(executor.map(slope, range(4))), executor.submit(cube, torch.tensor(2.0)).result().item())
        try:
            executor.submit(fail, 1).result()
        except CustomAutogradError as error:
            print(type(error).__name__, str(error).splitlines()[0])
"""
SHARED = """
def work(op, given, taken):
    x = given.get().requires_grad_()
    taken.put(torch.autograd.grad(op(x).sum(), x)[0].tolist())

if __name__ == "__main__":
    assert 3.0 == slope(1)
    context = torch.multiprocessing.get_context(sys.argv[1])
    given, taken = context.Queue(), context.Queue()
    worker = context.Process(target=work, args=(cube, given, taken))
    worker.start()
    given.put(torch.arange(4.0))
    print(taken.get())
    worker.join()
"""
LOCKED = """
from custom_autograd.registration import registry
from custom_autograd.execution import proofs
from custom_autograd.values import validation
from custom_autograd.torch_private.definitions import changes

held, done = threading.Event(), threading.Event()

def hold():
    with registry.one_declaration_at_a_time, cube._record.lock, changes.lock, proofs._lock, validation._lock:
        held.set()
        done.wait()

slope(1)
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    import signal
    signal.alarm(60)
    op = custom_op("work::after_fork", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    cube.register_jvp(lambda tangent_x, x: 3 * x * x * tangent_x)
    with __import__("custom_autograd").validation("full"):
        print(op(torch.ones(1)).item(), slope(2), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
done.set()
thread.join()
print(os.waitstatus_to_exitcode(status), slope(3))
"""

METHODS = ["fork", pytest.param("spawn", marks=pytest.mark.slow)] if hasattr(os, "fork") else ["spawn"]
pytestmark = pytest.mark.multi_rank


@pytest.mark.parametrize("method", METHODS)
def test_a_data_loader(method, tmp_path):
    assert "[0.0, 3.0, 12.0, 27.0]\n" == run(HEAD + LOADER, method, folder=tmp_path, is_script=True)


@pytest.mark.parametrize("method", METHODS)
def test_an_executor_brings_values_and_errors(method, tmp_path):
    expected = (
        "[0.0, 3.0, 12.0, 27.0] 8.0\n"
        "GradientUnavailable work::silent: a gradient is requested, but no backward is registered\n"
    )

    assert expected == run(HEAD + EXECUTOR, method, folder=tmp_path, is_script=True)


@pytest.mark.parametrize("method", METHODS)
def test_torch_multiprocessing(method, tmp_path):
    assert "[0.0, 3.0, 12.0, 27.0]\n" == run(HEAD + SHARED, method, folder=tmp_path, is_script=True)


@pytest.mark.skipif("fork" not in METHODS, reason="there is no fork")
def test_a_child_forked_while_another_thread_declares_can_declare(tmp_path):
    assert "2.0 12.0\n0 27.0\n" == run(HEAD + LOCKED, folder=tmp_path, is_script=True)
