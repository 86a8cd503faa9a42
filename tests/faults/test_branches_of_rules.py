"""Faults in one branch: of a rule at one scalar or one sign, on another device, without the first tensor of a list."""

import torch
from torch import Tensor
from verdicts import verdict

from custom_autograd import Sample, custom_op
from custom_autograd.verification.calls import exploration
from custom_autograd.verification.checks import explore

NAMESPACE = "faults_branches"


def explored(op, samples, monkeypatch):
    monkeypatch.setattr(explore, "SECONDS", 20.0)  # the machine may be slow
    monkeypatch.setattr(exploration, "LONGER", 0.5)
    return verdict("explore", samples)(op)


@custom_op(f"{NAMESPACE}::quantized", reference=True)
def quantized(x: Tensor, scale: Tensor) -> Tensor:
    return (x / scale.unsqueeze(-1)).round()


@quantized.register_kernel("cpu", name="away_from_zero")
def _(x, scale):
    whole = x / scale.unsqueeze(-1)
    return whole.sign() * (whole.abs() + 0.5).floor() + 0 * whole


def test_ties_of_a_quotient_by_several_scales_are_met(monkeypatch):
    found = explored(quantized, lambda make: [Sample(make(3, 5), make(3, low=0.3, high=2.0))], monkeypatch)

    assert "'x' with halves of 'scale', a power of 2: output 0[0, 0] = " in found.message


@custom_op(f"{NAMESPACE}::aligned")
def aligned(a: Tensor, b: Tensor) -> Tensor:
    sign = torch.where((a * b).sum() < 0, -1.0, 1.0)
    return a + sign * b


aligned.register_fake(lambda a, b: torch.empty_like(a))


@aligned.register_backward
def _(grad, a, b):
    return {"a": grad, "b": grad}


def test_a_sign_that_the_backward_forgets_is_found_without_a_reference():
    a = torch.tensor([1.0, 2.0, -0.5], requires_grad=True)
    result = verdict("directional", [Sample(a, a.detach().clone().requires_grad_())])(aligned)

    assert "failed" == result.status
    assert "numbers of 'b' with the other sign: the gradient of 'b' along a direction is" in result.message


@custom_op(f"{NAMESPACE}::power")
def power(x: Tensor, lam: float = 0.5) -> Tensor:
    return (x**lam - 1) / lam if lam else x.log()


power.register_fake(lambda x, lam: torch.empty_like(x))


@power.register_backward
def _(grad, x, lam):
    return {"x": grad * (x ** (lam - 1) if lam else 1 / x)}


@power.register_jvp
def _(tangent_x, x, lam):
    return tangent_x * (x ** (lam - 1) if lam else x.log())


def test_a_tangent_that_is_wrong_for_one_scalar_is_found(monkeypatch):
    found = explored(power, lambda make: [Sample(make(5, low=0.5, high=2.0))], monkeypatch)

    assert "lam=0.0, jvp: tangent of output 0[" in found.message


@custom_op(f"{NAMESPACE}::noise", tags=torch.Tag.nondeterministic_seeded)
def noise(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    return x + torch.randn_like(x)


noise.register_fake(lambda x, generator: torch.empty_like(x))


def test_a_generator_that_is_ignored_is_found_in_a_declared_op():
    sample = Sample(torch.ones(3), torch.Generator().manual_seed(1))

    result = verdict("determinism", [sample])(noise)

    assert "it draws from torch's own generator, although it is given one" == result.message.splitlines()[0]


@custom_op(f"{NAMESPACE}::blended")
def blended(layers: list[Tensor | None], weights: list[float]) -> Tensor:
    return torch.stack([x * w for x, w in zip(layers, weights, strict=True) if x is not None]).sum(0)


blended.register_fake(lambda layers, weights: torch.empty_like(next(x for x in layers if x is not None)))


@blended.register_backward
def _(grad, layers, weights):
    present = [i for i, x in enumerate(layers) if x is not None]
    found: list[Tensor | None] = [None] * len(layers)
    for weight, i in zip(weights, present, strict=False):
        found[i] = grad * weight
    return {"layers": found}


def test_a_list_without_its_first_tensor_is_called(monkeypatch):
    found = explored(blended, lambda make: [Sample([make(3), make(3)], [0.25, 2.0])], monkeypatch)

    assert "without 'layers[0]', as given: the gradient of 'layers[1]' along a direction is" in found.message


def places(x: Tensor) -> Tensor:
    return torch.arange(x.shape[-1], dtype=x.dtype)


@custom_op(f"{NAMESPACE}::decayed")
def decayed(x: Tensor) -> Tensor:
    return x * places(x)


@custom_op(f"{NAMESPACE}::decayed_backward")
def decayed_backward(x: Tensor) -> Tensor:
    return x * places(x).to(x.device)


@custom_op(f"{NAMESPACE}::decayed_on_the_cpu", device_types="cpu")
def decayed_on_the_cpu(x: Tensor) -> Tensor:
    return x * places(x)


for one in (decayed, decayed_backward, decayed_on_the_cpu):
    one.register_fake(lambda x: torch.empty_like(x))


@decayed_backward.register_backward
@decayed_on_the_cpu.register_backward
def _(grad):
    return {"x": grad * places(grad)}


@decayed.register_backward
def _(grad):
    return {"x": grad * places(grad).to(grad.device)}


def matrices(make):
    return [Sample(make(2, 5))]


def test_a_kernel_that_makes_a_tensor_on_the_cpu_is_found():
    result = verdict("fake", matrices)(decayed)

    assert "failed" == result.status
    assert "on another device than the CPU the default kernel raises RuntimeError: " in result.message
    assert "give it device=x.device" in result.cause


def test_a_rule_that_makes_a_tensor_on_the_cpu_is_found():
    result = verdict("fake", matrices)(decayed_backward)

    assert "on another device than the CPU a rule raises RuntimeError: " in result.message


def test_an_op_of_the_cpu_alone_may_do_so():
    assert "passed" == verdict("fake", matrices)(decayed_on_the_cpu).status


@custom_op(f"{NAMESPACE}::spectrum")
def spectrum(z: Tensor, n: int) -> Tensor:
    if n // 2 + 1 != z.shape[-1]:
        raise ValueError(f"faults_branches::spectrum: {z.shape[-1]} frequencies are not those of {n} numbers")
    return torch.fft.irfft(z, n)


spectrum.register_fake(lambda z, n: z.real.new_empty((*z.shape[:-1], n)))


@spectrum.register_backward
def _(grad, z, n):
    found = torch.fft.rfft(grad) / n
    found[..., 1:-1] *= 2  # the last one of an odd number has a mirror image, too
    return {"z": found}


def test_an_odd_length_is_called_where_samples_have_even_ones(monkeypatch):
    def samples(make):
        return [Sample(make(4, dtype=torch.complex64), 6)]

    assert "n=7: the gradient of 'z' along a direction is" in explored(spectrum, samples, monkeypatch).message


@custom_op(f"{NAMESPACE}::every", schema="(Tensor x, int step=2) -> Tensor", reference=True)
def every(x, step):
    return x[::step].clone()


def test_a_default_of_the_schema_alone_reaches_the_reference():
    samples = [Sample(torch.randn(6, requires_grad=True))]

    assert "passed" == verdict("reference_gradients", samples)(every).status


@custom_op(f"{NAMESPACE}::push_", mutates_args=("buffer", "position"))
def push_(buffer: Tensor, position: Tensor, rows: Tensor) -> None:
    for row in rows:
        buffer[position] = row
        position.copy_((position + 1) % buffer.shape[0])


def test_an_argument_may_keep_its_value_in_one_sample():
    def samples(make):
        return [Sample(torch.zeros(4), torch.tensor(1), torch.ones(count)) for count in (4, 3)]

    (first, second) = check_schema(samples)

    assert ("passed", "passed") == (first.status, second.status)


def test_an_argument_that_keeps_its_value_in_all_samples_fails():
    (result,) = check_schema(lambda make: [Sample(torch.zeros(4), torch.tensor(1), torch.ones(4))])

    assert "'position' is declared as written to, but keeps its value" == result.message


def check_schema(samples):
    return push_.check(samples, checks=["schema"], isolated=False, raise_on_failure=False).results


def test_an_error_is_met_although_the_tensors_of_the_sample_require_gradients():
    @custom_op(f"{NAMESPACE}::bounded_", mutates_args=("counts",))
    def bounded_(counts: Tensor, values: Tensor, low: float) -> None:
        if low > 1:
            raise ValueError("'low' is above 1")
        counts += (values > low).sum()

    samples = [Sample(torch.zeros(2), torch.ones(3, requires_grad=True), 2.0).raises(ValueError, match="above 1")]
    (result,) = bounded_.check(samples, checks=["errors"], isolated=False, raise_on_failure=False).results

    assert "passed" == result.status


@custom_op(f"{NAMESPACE}::peaks", outputs=("out", "place"), hidden="place", non_differentiable="place")
def peaks(x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    if x.shape[-1] % window:
        raise ValueError("faults_branches::peaks: 'window' must divide the last dimension")
    found = x.unflatten(-1, (-1, window)).max(-1)
    return found.values, found.indices.to(torch.uint8)


@peaks.register_fake
def _(x, window):
    shape = (*x.shape[:-1], x.shape[-1] // window)
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.uint8)


@peaks.register_backward
def _(grad_out, place, window):
    found = grad_out.new_zeros(*grad_out.shape, window)
    return {"x": found.scatter(-1, place.long().unsqueeze(-1), grad_out.unsqueeze(-1)).flatten(-2)}


def test_a_place_that_8_bits_do_not_hold_is_found(monkeypatch):
    found = explored(peaks, lambda make: [Sample(make(3, 12), 4)], monkeypatch)

    assert "size 12 -> 1025, window=1025: the gradient of 'x' along a direction is" in found.message


@custom_op(f"{NAMESPACE}::unit_rows", reference=True)
def unit_rows(x: Tensor) -> Tensor:
    largest = x.abs().amax(-1, keepdim=True)
    return x / torch.where(largest == 0, 1, largest)


@unit_rows.register_kernel("cpu", name="unguarded")
def _(x):
    return x / x.abs().amax(-1, keepdim=True) if x.numel() else x.clone()


def test_nan_where_the_reference_jumps_is_found():
    result = verdict("reference", lambda make: [Sample(make(3, 5))])(unit_rows)

    assert "numbers of 'x' zero: output 0[0, 0] = nan, expected 0" in result.message
