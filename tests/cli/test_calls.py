"""The calls that are timed: which there are, and what each of them does."""

import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.cli.benchmarked_calls import MODES, calls_of, kernel_of
from custom_autograd.verification.harness.targets import target_of


@custom_op("test_calls::halved", outputs=("half", "square"), hidden=("square",), reference=True)
def halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """The square is hidden, and differentiable."""
    return x / 2, x * x


@custom_op("test_calls::nested", reference=True)
def nested(xs: list[Tensor], y: Tensor) -> tuple[list[Tensor], Tensor]:
    """A list and a tensor."""
    return [x * 2 for x in xs], y * 3


class Recorder:
    """A callable that keeps what it is called with."""

    def __init__(self, function):
        self.function = function
        self.calls = []

    def __call__(self, *args):
        """Calls the function."""
        self.calls.append(args)
        return self.function(*args)


def gradients_of(function, sample):
    """The gradients that one call in the last mode leaves on the tensors of a sample."""
    recorder = Recorder(function)
    (*_, call) = calls_of(target_of(halved), sample, {"recorder": recorder}, modes=MODES[2:])
    leaves = Sample(*recorder.calls[-1]).tensors()
    for leaf in leaves:
        leaf.grad = None
    call.work()
    return [leaf.grad for leaf in leaves]


def test_the_op_its_reference_and_what_is_compared_are_called_in_every_mode():
    calls = calls_of(target_of(halved), Sample(torch.ones(2)), {"other": torch.sin}, modes=MODES)

    assert [(name, mode) for name in ("op", "reference", "other") for mode in MODES] == [
        (call.name, call.mode) for call in calls
    ]
    assert all(call.work is not None for call in calls)


def test_only_the_first_mode_has_inputs_without_gradients():
    recorder = Recorder(torch.sin)
    calls_of(target_of(halved), Sample(torch.ones(2)), {"recorder": recorder}, modes=MODES[:2])

    assert [False, True] == [x.requires_grad for (x,) in recorder.calls]


def test_the_sample_itself_is_left_alone():
    x = torch.ones(2, requires_grad=True)
    calls_of(target_of(halved), Sample(x), {}, modes=MODES)

    assert x.grad is None


def test_a_reference_is_not_charged_for_the_gradients_of_hidden_outputs(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.autograd, "backward", lambda tensors, grads: asked.append(len(tensors)))
    calls_of(target_of(halved), Sample(torch.ones(2)), {}, modes=MODES[2:])

    assert [1, 1] == asked  # the op and its reference


def test_every_tensor_in_containers_gets_its_gradient():
    def lists(x, y):
        return [x * 2, [y * 3]]

    def by_name(x, y):
        return {"x": x * 2, "y": y * 3}

    sample = Sample(torch.ones(2), torch.ones(3))

    for function in (lists, by_name):
        of_x, of_y = gradients_of(function, sample)
        torch.testing.assert_close(of_x, torch.full((2,), 2.0))
        torch.testing.assert_close(of_y, torch.full((3,), 3.0))


def test_lists_among_the_outputs_of_an_op_are_differentiated_too(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.autograd, "backward", lambda tensors, grads: asked.append(len(tensors)))
    calls_of(target_of(nested), Sample([torch.ones(2), torch.ones(3)], torch.ones(4)), {}, modes=MODES[2:])

    assert [3, 3] == asked


def test_what_has_no_gradient_says_so():
    (*_, call) = calls_of(target_of(halved), Sample(torch.ones(2)), {"sign": torch.Tensor.isnan}, modes=MODES)

    assert (None, "no output has a gradient", False) == (call.work, call.reason, call.is_finding)


def test_what_raises_is_a_finding_with_its_reason():
    def unlucky(x):
        raise ValueError("no luck\nat all")

    (*_, call) = calls_of(target_of(halved), Sample(torch.ones(2)), {"unlucky": unlucky}, modes=MODES)

    assert (None, "it raises ValueError: no luck", True) == (call.work, call.reason, call.is_finding)


@custom_op("test_calls::trebled", reference=True)
def trebled(x: Tensor) -> Tensor:
    """Three kernels in all, one of them for vectors only."""
    return x * 3


trebled.register_kernel("cpu", lambda x: x + x + x, name="sum")
trebled.register_kernel("cpu", lambda x: 3 * x, name="vectors", when=lambda x: x.dim() == 1, priority=1)


def test_the_kernel_of_a_sample_is_the_one_whose_condition_accepts_it():
    target = target_of(trebled)

    assert "cpu 'vectors'" == kernel_of(target, Sample(torch.ones(2)))
    assert "cpu 'sum'" == kernel_of(target, Sample(torch.ones(2, 2)))


def test_the_only_kernel_is_the_one_that_runs():
    assert "default" == kernel_of(target_of(halved), Sample(torch.ones(2)))


def test_a_plain_function_has_no_kernel_to_be_named():
    assert kernel_of(target_of(torch.sin), Sample(torch.ones(2))) is None
