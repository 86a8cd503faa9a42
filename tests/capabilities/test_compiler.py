"""A changed rule is never served from a compile cache, neither on disk nor in the process."""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from custom_autograd import custom_op

PROGRAM = """
import os, sys
import torch
import torch._inductor.compile_fx  # here, once: the children below begin with it
from torch import Tensor
from custom_autograd import custom_op

def run(helper, gradient):
    @custom_op("cached::identity")
    def identity(x: Tensor) -> Tensor:
        return x.clone()

    identity.register_fake(torch.empty_like)
    scope = {}
    exec(f"def factor(): return {helper}\\ndef backward(grad): return {gradient}", scope)
    identity.register_backward(scope["backward"])
    f = torch.compile(lambda x: identity(x), fullgraph=True)  # nothing else: no C++ has to be compiled
    x = torch.ones(4, requires_grad=True)
    f(x).backward(torch.full_like(x, 3))
    counters = torch._dynamo.utils.counters["aot_autograd"]
    print(x.grad[0].item(), counters["autograd_cache_hit"], counters["autograd_cache_miss"], flush=True)

for case in sys.argv[1:]:
    child = os.fork()
    if not child:
        run(*case.split(";"))
        os._exit(0)
    os.waitpid(child, 0)
"""


def run(folder, *cases):
    """For each helper and gradient the compiled gradient, and the hits and misses of AOTAutograd's cache."""
    environment = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TORCHINDUCTOR_FX_GRAPH_CACHE": "1",
        "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
    }
    command = [sys.executable, "-c", PROGRAM, *cases]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return [tuple(map(float, line.split())) for line in finished.stdout.splitlines()]


@pytest.mark.slow
def test_a_changed_backward_or_a_function_that_it_calls_is_not_served_from_the_cache_on_disk(tmp_path):
    """Each case in a process of its own; the second shows that the cache works where nothing changed."""
    cases = ["1;grad * 2 * factor()", "1;grad * 2 * factor()", "1;grad * 10 * factor()", "2;grad * 2 * factor()"]

    assert [(6, 0, 1), (6, 1, 0), (30, 0, 1), (12, 0, 1)] == run(tmp_path, *cases)


@custom_op("compiler::scaled")
def scaled(x: Tensor) -> Tensor:
    return x.clone()


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_replaced_backward_is_traced_anew_in_the_same_process():
    f = torch.compile(lambda x: scaled(x).sum(), backend="aot_eager", fullgraph=True)
    x = torch.ones(2, requires_grad=True)
    for factor in (2.0, 10.0, 3.0):
        scaled.register_backward(lambda grad, factor=factor: grad * factor, replace=True)

        assert_close(torch.autograd.grad(f(x), x)[0], torch.full((2,), factor))


def weighted(x: Tensor, weight: Tensor | None) -> Tensor:
    return x.clone() if weight is None else x * weight


@pytest.mark.usefixtures("fresh_compiler")
class TestAnOpOfTensorsThatNoEagerCallHasSeen:
    """Dynamo traces code that nothing was generated for: see execution/passing.py."""

    @staticmethod
    def declare():
        op = custom_op("compiler::weighted", weighted, replace=True)
        op.register_fake(lambda x, weight: torch.empty_like(x))
        return op

    def test_it_takes_arguments_as_it_does_in_eager(self):
        op, x = self.declare(), torch.ones(2)
        f = torch.compile(lambda: [op(x, None), op(x, weight=2 * x), op(weight=3 * x, x=x)], backend="eager")

        assert [1, 2, 3] == [y[0].item() for y in f()]
        assert "__call__" in vars(type(op))  # that of passing.py

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda op, x: op(x), r"compiler::weighted\(\) missing 1 required positional argument: 'weight'"),
            (lambda op, x: op(x, x, x), r"compiler::weighted\(\) takes 2 positional arguments but 3 were given"),
            (lambda op, x: op(x, y=x), "got an unexpected keyword argument 'y'"),
        ],
        ids=["too few", "too many", "unknown"],
    )
    def test_a_wrong_call_raises_what_it_raises_in_eager(self, call, text):
        op, x = self.declare(), torch.ones(2)

        with pytest.raises(TypeError, match=text):
            torch.compile(call, backend="eager")(op, x)

    def test_callers_stay_compiled_after_the_first_eager_call(self):
        op, x, graphs = self.declare(), torch.ones(2), []
        f = torch.compile(lambda x: op(x, x), backend=lambda graph, inputs: graphs.append(graph) or graph)
        f(x)
        op(x, x)
        f(x)

        assert 1 == len(graphs)


class Settings:
    factor = 2.0


def doubled(x):
    return x * Settings.factor


@custom_op("compiler::applied", static="function", reference=True)
def applied(x: Tensor, function) -> Tensor:
    return function(x)


@custom_op("compiler::by_settings", reference=True)
def by_settings(x: Tensor) -> Tensor:
    return x * Settings.factor


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("call", [lambda x: applied(x, doubled), by_settings], ids=["static argument", "rule"])
def test_each_compilation_counts_what_is_read_then(monkeypatch, call):
    """The entries that a process adds to the cache are those of the values that it has when it adds them."""

    def key():
        torch._dynamo.reset()
        torch.compile(lambda x: call(x), backend="eager")(torch.ones(2))
        return torch.compiler.config.cache_key_tag

    before, again = key(), key()
    monkeypatch.setattr(Settings, "factor", 3.0)

    assert before == again != key()
