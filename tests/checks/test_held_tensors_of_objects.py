"""An adjoint is given a module and its parameters, and may read those of the module: then no copy is the call."""

import functools

import pytest
import torch
from verdicts import verdict

from custom_autograd import Sample, check
from custom_autograd.verification.harness.held import held_by_objects
from custom_autograd.verification.harness.recorder import record_calls


class Adjoint(torch.autograd.Function):
    """As adjoints of differential equations do it: the parameters are arguments for the sake of their gradients."""

    @staticmethod
    def forward(ctx, step, x, *parameters):
        ctx.step = step
        ctx.save_for_backward(x, *parameters)
        return step(x)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.step(x)
        grads = torch.autograd.grad(y, (x, *parameters), grad)
        return None, *grads


class Functional(torch.autograd.Function):
    """The same, right for any parameters: it calls the module with those that it is given."""

    @staticmethod
    def forward(ctx, module, x, weight):
        ctx.module = module
        ctx.save_for_backward(x, weight)
        return torch.func.functional_call(module, {"weight": weight}, (x,))

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return None, grad @ weight, grad.flatten(0, -2).mT @ x.flatten(0, -2)


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)


def x():
    return torch.ones(4, 3, dtype=torch.float64, requires_grad=True)


MODULE = linear()
TEXT = (
    "it ignores 'parameters[0]', and reads the same tensors from another argument: checks pass copies, so that there "
    "is nothing to compare; call the module with torch.func.functional_call"
)


@pytest.mark.parametrize(
    "step",
    [MODULE, lambda x: MODULE(x), functools.partial(torch.nn.functional.linear, weight=MODULE.weight)],
    ids=["a module", "a function that closes over it", "a partial"],
)
def test_a_call_that_reads_a_module_instead_of_its_arguments_is_left_out(step):
    closed = MODULE

    def inner(x):
        return closed(x)

    step = inner if getattr(step, "__name__", "") == "<lambda>" else step
    (result,) = check(Adjoint, [Sample(step, x(), MODULE.weight)], checks=["gradcheck"], device="cpu").results
    assert ("skipped", TEXT) == (result.status, result.message)


def test_a_call_that_reads_its_arguments_is_checked():
    module = linear()
    sample = Sample(module, x(), module.weight)

    assert [module.weight] == held_by_objects(sample)
    assert "passed" == verdict("gradcheck", [sample])(Functional).status


def test_tensors_of_its_own_are_checked():
    other = linear().weight.detach().requires_grad_()
    assert [] == held_by_objects(Sample(MODULE, x(), other))
    assert "passed" == verdict("gradcheck", [Sample(MODULE, x(), other)])(Functional).status


def test_a_recorded_call_keeps_what_its_module_holds(tmp_path, monkeypatch):
    (tmp_path / "adjoints_of_a_test.py").write_text(
        "import torch\n"
        "class Adjoint(torch.autograd.Function):\n"
        "    @staticmethod\n"
        "    def forward(ctx, step, x, *parameters):\n"
        "        return step(x)\n"
        "    @staticmethod\n"
        "    def backward(ctx, grad):\n"
        "        return None, grad, None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with record_calls("adjoints_of_a_test") as calls:
        import adjoints_of_a_test

        adjoints_of_a_test.Adjoint.apply(MODULE, x(), MODULE.weight)

    (sample,) = calls[adjoints_of_a_test.Adjoint]
    assert sample.tensors()[1] is MODULE.weight
    assert sample.tensors()[0] is not x
    assert "skipped" == check(adjoints_of_a_test.Adjoint, [sample], checks=["gradcheck"]).results[0].status


def test_a_sparse_sample_stays_as_it_is_on_its_device():
    sparse = torch.eye(3, dtype=torch.float64).to_sparse()

    report = check(torch.sparse.sum, [Sample(sparse)], checks=["determinism"], device="cpu")
    assert ["passed"] == [row.status for row in report.results], str(report)
