"""What every test gets: one thread, and no compiled code of the test before."""

import atexit
import contextlib
import gc
import os
import signal
import sys

import pytest
import tables
import torch
from hypothesis import HealthCheck, settings

from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.native import loading
from custom_autograd.native.native_calls import NativeCalls
from custom_autograd.registration.registry import all_records
from custom_autograd.torch_private.awaited_modules import AwaitedModule
from custom_autograd.torch_private.verification import untimed_guards
from custom_autograd.verification.calls import exploration
from custom_autograd.verification.checks import explore
from repeated import REPEATED
from visible_gpus import hide_gpus

# How long an example takes depends on what else runs on the machine.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

explore.SECONDS = 0.3  # of CPU time for each op; tests of this check ask for what they need
exploration.LONGER = 0.0  # nor is another fault looked for

hide_gpus(sys.argv, os.environ)
torch.set_num_threads(1)
# FakeTensorMode gives CUDA builds a device that is not there. Had the first backward seen it, autograd would have
# started a thread for it, and no test of this process could fork.
torch.ones(1, requires_grad=True).sum().backward()
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton kernels run on CPU tensors, in this process
# Calls are native in this process from the first on, unless CUSTOM_AUTOGRAD_NATIVE=0 asks for none, and never in the
# processes that tests start.
# Workers of pytest-xdist inherit the first process's answer.
USES_NATIVE = os.environ.setdefault("TESTS_USE_NATIVE", os.environ.get("CUSTOM_AUTOGRAD_NATIVE", "1")) != "0"
os.environ["CUSTOM_AUTOGRAD_NATIVE"] = "0"
if USES_NATIVE:
    with contextlib.suppress(KernelUnavailable):
        loading.library.mode = "require"
        loading.library.load()
# Of what a test compiles, torch would time the guards: 22 ms for each graph.
AwaitedModule("torch._dynamo.guards").when_imported(untimed_guards().__enter__)
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts in the background


@pytest.fixture
def fresh_compiler():
    """No compiled code is left over, neither before nor after the test."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def generated_python(monkeypatch):
    """Calls run generated Python, as where there is no C++ compiler."""
    monkeypatch.setattr(NativeCalls, "are_learnt", False)
    for record in all_records():
        if record.road.native is not None:
            record.road.native.forget()


@pytest.fixture(params=["native", "generated"])
def both_calls(request):
    """Calls run native code, and in a second run of the test generated Python."""
    if request.param == "generated":
        request.getfixturevalue("generated_python")


@pytest.fixture
def imports_of(tmp_path, monkeypatch):
    """A folder to import from: what was imported from it is forgotten afterwards, and nothing else is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def sigchld_ignored():
    """A program that does not hear of the end of its children, as some servers leave what they start."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.fixture(autouse=True)
def seeded():
    """The global generator, where a test forgets to use its own."""
    tables.seed()


@pytest.fixture(autouse=True)
def settings():
    """What a test leaves changed, such as the planted faults that do so, is put back."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    if precision != torch.get_float32_matmul_precision():
        torch.set_float32_matmul_precision(precision)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """What runs at night only is slow, too: no command that leaves out slow tests names both marks."""
    known = set(REPEATED.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.slow)
        if item.nodeid.partition("[")[0] in known:
            item.add_marker(pytest.mark.repeated)


FULL_COLLECTIONS = pytest.StashKey[int]()


def pytest_collection_finish():
    """Leave what is imported by now out of every later garbage collection: there are a million objects."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Leave what outlives a full collection, such as the ops of a module and what was compiled, out of later ones."""
    collections = gc.get_stats()[2]["collections"]
    if collections != item.session.stash.get(FULL_COLLECTIONS, 0):
        item.session.stash[FULL_COLLECTIONS] = collections
        gc.freeze()


atexit.register(gc.unfreeze)  # the end of the process collects it; what pytest collects at its own end stays quick
