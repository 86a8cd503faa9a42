"""The second device itself: its values are the CPU's, its random numbers and its rules are its own."""

import copy
import io
import pickle
import threading

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

DEVICE = torch.device("second", 0)


def on_both(function, *tensors):
    """The result on the second device, moved to the CPU, and the result on the CPU."""
    ours = function(*(tensor.to(DEVICE) for tensor in tensors))
    assert ours.device == DEVICE
    return ours.cpu(), function(*tensors)


def test_it_is_the_accelerator_of_the_process():
    assert torch.accelerator.current_accelerator().type == "second"
    assert torch.get_device_module("second").device_count() == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda device: torch.arange(5.0, device=device),
        lambda device: torch.eye(3, device=device),
        lambda device: torch.full((2, 3), 7, device=device),
        lambda device: torch.tensor([[1, 2], [3, 4]], device=device),
        lambda device: torch.zeros(2, 3, 4, 5, device=device).to(memory_format=torch.channels_last),
    ],
)
def test_factories(make):
    ours = make("second")

    assert ours.device == DEVICE
    assert_close(ours.cpu(), make("cpu"))
    assert ours.stride() == make("cpu").stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x * 2 + 1).exp().sum(0),
        lambda x, w: F.layer_norm(x @ w, (4,)),
        lambda x, w: torch.linalg.qr(w).R.abs(),
        lambda x, w: torch.fft.rfft(x).abs(),
        lambda x, w: x.sort(descending=True).values,
        lambda x, w: torch.cat([x, w]).index_select(0, torch.tensor([0, 2], device=x.device)),
        lambda x, w: F.conv1d(x[None], w[:, None].expand(4, 3, 4)),
    ],
)
def test_values_are_the_cpus(function):
    assert_close(*on_both(function, torch.randn(3, 4), torch.randn(4, 4)))


def test_views_share_memory():
    x = torch.arange(24.0, device=DEVICE)
    view = x.view(4, 6).t()[1:3].unfold(1, 2, 1)
    view.zero_()
    real = torch.view_as_real(torch.zeros(2, dtype=torch.complex64, device=DEVICE))
    real.fill_(2)

    assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert (x == 0).sum().item() == 9
    assert torch.view_as_complex(real).tolist() == [2 + 2j, 2 + 2j]


def test_lazy_conjugation_and_negation():
    x = torch.tensor([1 + 2j, 3 - 1j], device=DEVICE)
    target = torch.zeros_like(x)
    target.conj().copy_(x)

    assert x.conj().is_conj()
    assert x.conj().imag.is_neg()
    assert x.conj().imag.cpu().tolist() == [-2, 1]
    assert target.tolist() == [1 - 2j, 3 + 1j]


def test_writes_to_arguments():
    x = torch.ones(3, device=DEVICE)
    out = torch.empty(0, device=DEVICE)
    assert torch.add(x, x, out=out) is out
    x[1] = 5
    x[x > 2] = 0
    other = torch.zeros(3, device=DEVICE).set_(x)
    other.resize_(2)

    assert out.tolist() == [2, 2, 2]
    assert x.tolist() == [1, 0, 1]
    assert other.tolist() == [1, 0]


def test_inference_mode():
    x = torch.ones(2, 3, device=DEVICE)
    with torch.inference_mode():
        made, view = x + 1, x.reshape(6)
        promoted = x.reshape(6).to(torch.float64)

    assert made.is_inference()
    assert promoted.is_inference()
    assert not view.is_inference()
    assert promoted.tolist() == [1] * 6


def test_random_numbers_are_not_the_cpus():
    torch.manual_seed(0)
    ours, cpus = torch.randn(5, device=DEVICE).cpu(), torch.randn(5)
    torch.manual_seed(0)

    assert torch.equal(ours, torch.randn(5, device=DEVICE).cpu())
    assert torch.equal(cpus, torch.randn(5))
    assert not torch.equal(ours, cpus)


@pytest.mark.parametrize("draw", [torch.rand_like, F.dropout, lambda x: torch.randperm(100, device=x.device)])
def test_drawing_moves_the_state_of_the_device_alone(draw):
    x = torch.ones(100, device=DEVICE)
    cpus, ours = torch.get_rng_state(), torch.second.get_rng_state()
    first = draw(x)
    assert torch.equal(cpus, torch.get_rng_state())
    assert not torch.equal(ours, torch.second.get_rng_state())
    torch.second.set_rng_state(ours)

    assert torch.equal(first, draw(x))


def test_generators():
    first, second = (torch.Generator(device=DEVICE).manual_seed(3) for _ in range(2))
    copied = first.clone_state()
    drawn = torch.rand(3, generator=first, device=DEVICE)

    assert first.initial_seed() == 3
    assert torch.equal(drawn, torch.rand(3, generator=second, device=DEVICE))
    assert torch.equal(drawn, torch.rand(3, generator=copied, device=DEVICE))
    with pytest.raises(RuntimeError, match="Expected a 'second' device type for generator but found 'cpu'"):
        torch.rand(3, generator=torch.Generator(), device=DEVICE)


def test_fork_rng():
    before = torch.second.get_rng_state()
    with torch.random.fork_rng():
        torch.randn(3, device=DEVICE)

    assert torch.equal(before, torch.second.get_rng_state())


@pytest.mark.parametrize(
    "mix",
    [
        lambda ours, cpus: ours + cpus,
        lambda ours, cpus: cpus + ours,
        lambda ours, cpus: ours.add_(cpus),
        lambda ours, cpus: cpus.add_(ours),
        lambda ours, cpus: torch.cat([ours, cpus]),
        lambda ours, cpus: torch.where(cpus > 0, ours, ours),
        lambda ours, cpus: torch.add(cpus, 1, out=ours),
        lambda ours, cpus: ours.index_select(0, torch.tensor([0])),
        lambda ours, cpus: torch.equal(ours, cpus),
        lambda ours, cpus: torch.dot(ours, cpus),
    ],
)
def test_tensors_of_two_devices_are_refused(mix):
    with pytest.raises(RuntimeError, match="same device"):
        mix(torch.ones(3, device=DEVICE), torch.ones(3))


def test_what_may_be_mixed_on_an_accelerator_may_be_mixed_here():
    x = torch.arange(3.0, device=DEVICE)

    assert (x + torch.tensor(1.0)).tolist() == [1, 2, 3]
    assert x[torch.tensor([2, 0])].tolist() == [2, 0]
    assert x.copy_(torch.zeros(3)).tolist() == [0, 0, 0]


def test_waits_are_counted():
    x = torch.ones(3, device=DEVICE)
    before = torch.second.waits()
    x[0].item()
    bool(x[1] > 0)

    assert torch.second.waits() == before + 2


def test_calls_are_counted():
    x, before = torch.ones(3, device=DEVICE), torch.second.calls("aten::sin")
    x.sin().cos()

    assert torch.second.calls("aten::sin") == before + 1


def test_an_operator_with_a_kernel_for_the_cpu_alone_does_not_run():
    @torch.library.custom_op("second_device::on_the_cpu", mutates_args=(), device_types="cpu")
    def on_the_cpu(x: torch.Tensor) -> torch.Tensor:
        return x.sin()

    with pytest.raises(NotImplementedError, match="from the 'second' backend"):
        on_the_cpu(torch.ones(3, device=DEVICE))


def test_a_backward_runs_on_a_thread_of_its_own():
    seen = []

    class Note(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(threading.get_ident())
            return grad

    for device in ("cpu", "second"):
        Note.apply(torch.ones(2, device=device, requires_grad=True)).sum().backward()

    assert seen[0] == threading.get_ident() != seen[1]


def test_checkpoint_draws_the_same_numbers_again():
    drawn = []

    def function(x):
        drawn.append(torch.rand_like(x))
        return (x * drawn[-1]).sin()

    checkpoint(function, torch.ones(30, device=DEVICE, requires_grad=True), use_reentrant=False).sum().backward()

    assert torch.equal(*drawn)


def test_modules_and_optimizers():
    module, reference = torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    reference.load_state_dict(module.state_dict())
    for each, device in ((module.to(DEVICE), DEVICE), (reference, "cpu")):
        optimizer = torch.optim.AdamW(each.parameters())
        each(torch.ones(3, 4, device=device)).square().sum().backward()
        optimizer.step()

    assert_close(module.weight.cpu(), reference.weight)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies(again):
    x = torch.arange(6.0, device=DEVICE).view(2, 3).t()

    assert_close(again(x), x)


def test_saving_and_loading():
    file = io.BytesIO()
    torch.save(torch.arange(3, device=DEVICE), file)
    file.seek(0)

    assert_close(torch.load(file), torch.arange(3, device=DEVICE))


def test_streams_and_events():
    event = torch.Event("second")
    event.record()
    torch.accelerator.synchronize()

    assert event.query()
    assert torch.accelerator.current_stream().device == DEVICE


def test_comparison_names_the_devices():
    with pytest.raises(AssertionError, match="second:0 != cpu"):
        assert_close(torch.ones(3, device=DEVICE), torch.ones(3))
