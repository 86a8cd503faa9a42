"""The check `autocast` fails an op whose fake does not know what autocast or mixed dtypes do to the kernel."""

from typing import NamedTuple

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from custom_autograd import custom_op
from custom_autograd.capabilities.autocast import AutocastRule, parse_policy
from custom_autograd.schema.samples import Sample

result_of = verdict("autocast", lambda make: [Sample(make(4, 3), make(3, 4))])


@custom_op("faults_autocast::product", reference=True)
def product(x: Tensor, w: Tensor) -> Tensor:
    return x * w.mT


@custom_op("faults_autocast::lowered", reference=True)
def lowered(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


lowered.register_autocast("cpu", torch.bfloat16)


@custom_op("faults_autocast::precise", outputs=("out", "sum"), hidden=("sum",), reference=True)
def precise(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    return x * w.mT, x.sum()


precise.register_autocast("cpu", {"x": "lower", "w": "promote"}, output="input")


@custom_op("faults_autocast::not_followed", reference=True)
def not_followed(x: Tensor, w: Tensor) -> Tensor:
    return x * w.mT


@custom_op("faults_autocast::output_not_followed", reference=True)
def output_not_followed(x: Tensor, w: Tensor) -> Tensor:
    return x * w.mT


class Weights(NamedTuple):
    w: Tensor
    bias: Tensor


class Sums(NamedTuple):
    out: Tensor
    total: Tensor


@custom_op("faults_autocast::in_containers", reference=True)
def in_containers(x: Tensor, p: Weights) -> Tensor:
    return x @ p.w + p.bias


in_containers.register_autocast("cpu", "lower")


@custom_op("faults_autocast::from_containers", reference=True)
def from_containers(p: Weights, xs: dict[str, Tensor]) -> tuple[Sums, Tensor]:
    out = p.w @ xs["a"]
    return Sums(out, out.sum() + p.bias.sum()), xs["a"] * 2


from_containers.register_autocast("cpu", {"p_w": "lower", "p_bias": "float32", "xs": "lower"}, output="float32")


@custom_op("faults_autocast::hidden_from_containers", hidden=("total",), reference=True)
def hidden_from_containers(x: Tensor, p: Weights) -> Sums:
    return Sums(x @ p.w, p.bias.sum())


hidden_from_containers.register_autocast("cpu", "lower", output="float32")


@custom_op("faults_autocast::behind_a_star", reference=True)
def behind_a_star(x: Tensor, *xs: Tensor, scale: float = 1.0) -> Tensor:
    return torch.stack(xs).sum(0) * x * scale


behind_a_star.register_autocast("cpu", {"xs": "lower"})


@custom_op("faults_autocast::ignored_in_containers", reference=True)
def ignored_in_containers(x: Tensor, p: Weights) -> Tensor:
    return x * p.w.mT + p.bias.sum()


def _known_but_not_attached(op, casts, output=None):
    """A policy of which the dispatcher knows nothing."""
    policy = parse_policy(op._record.declaration, "cpu", casts, output)
    op._record.add(AutocastRule("nowhere", policy), replace=False)


_known_but_not_attached(not_followed, "lower")
_known_but_not_attached(ignored_in_containers, {"p_w": "lower"})
_known_but_not_attached(output_not_followed, "keep", output="lower")


@torch.library.custom_op("faults_autocast::unaware", mutates_args=())
def unaware(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


@unaware.register_fake
def _(x, w):
    return x.new_empty(x.shape[0], w.shape[1])


@torch.library.custom_op("faults_autocast::promotes", mutates_args=())
def promotes(x: Tensor, w: Tensor) -> Tensor:
    return x * w.mT


@promotes.register_fake
def _(x, w):
    return torch.empty_like(x)


@torch.library.custom_op("faults_autocast::refuses_mixed", mutates_args=())
def refuses_mixed(x: Tensor, w: Tensor) -> Tensor:
    if x.dtype != w.dtype:
        raise TypeError("'x' and 'w' have different dtypes")
    return x * w.mT


@refuses_mixed.register_fake
def _(x, w):
    return torch.empty_like(x)


LIBRARY = torch.library.Library("faults_autocast", "FRAGMENT")
LIBRARY.define("other_under_autocast(Tensor x, Tensor w) -> Tensor")
LIBRARY.impl("other_under_autocast", lambda x, w: x * w.mT, "CompositeExplicitAutograd")


def _zero_under_autocast(x, w):
    return torch.zeros_like(x)


LIBRARY.impl("other_under_autocast", _zero_under_autocast, "AutocastCPU")


OWN = [product, lowered, precise, refuses_mixed]


@each("op", OWN)
def test_op_whose_fake_knows_passes(op):
    assert ["passed"] * 5 == [result_of(op, seed=seed).status for seed in range(5)]


@each(("op", "policy"), [(not_followed, "'lower'"), (output_not_followed, "'keep', output 'lower'")])
def test_a_policy_that_is_not_followed_fails(op, policy):
    result = result_of(op)

    assert ("failed", "the policy is not applied") == (result.status, result.cause)
    assert f"under autocast, not what casts by hand give, as the policy {policy} says: output 0" in result.message


def _containers(make):
    yield Sample(make(4, 3), Weights(make(3, 4), make(4)))


def _from_containers(make):
    yield Sample(Weights(make(4, 3), make(4)), {"a": make(3, 4)})


@each(
    ("op", "samples"),
    [
        (in_containers, _containers),
        (hidden_from_containers, _containers),
        (from_containers, _from_containers),
    ],
)
def test_policy_of_an_op_with_containers_passes(op, samples):
    result = verdict("autocast", samples)(op)

    assert "passed" == result.status


def test_policy_of_arguments_behind_a_star_passes():
    sample = Sample(torch.rand(4), torch.rand(4), torch.rand(4), scale=2.0)
    result = verdict("autocast", [sample])(behind_a_star)

    assert "passed" == result.status


def test_policy_that_is_not_followed_in_a_container_fails():
    result = verdict("autocast", _containers)(ignored_in_containers)

    assert ("failed", "the policy is not applied") == (result.status, result.cause)


def test_refusal_of_mixed_dtypes_is_told():
    message = result_of(refuses_mixed).message

    assert (
        "not checked: the op does not take float32 together with bfloat16: TypeError: 'x' and 'w' have different dtypes"
        == message
    )


def test_fake_that_does_not_know_autocast_fails():
    result = result_of(unaware)

    assert "failed" == result.status
    assert (
        "under autocast the fake gives torch.float32 for output 0, the kernel returns torch.bfloat16" in result.message
    )
    assert "register_autocast" in result.cause


def test_fake_that_does_not_know_promotion_is_told():
    message = result_of(promotes).message

    assert (
        "no sample mixes dtypes, so this is advice: with bfloat16 for the first of every two tensors, "
        "the fake gives torch.bfloat16 for output 0, the kernel returns torch.float32"
    ) in message


@custom_op("faults_autocast::grads_in_float32", reference=True)
def grads_in_float32(x: Tensor, w: Tensor) -> Tensor:
    return x.float() * w.float().mT


@grads_in_float32.register_backward
def _(grad, x, w):
    return {"x": grad * w.float().mT, "w": (grad * x.float()).mT}


def test_a_backward_that_mixed_dtypes_end_is_told():
    message = result_of(grads_in_float32).message

    assert "with bfloat16 for the first of every two tensors, the backward raises GradientError: " in message


def test_other_values_under_autocast_fail():
    result = result_of(torch.ops.faults_autocast.other_under_autocast)

    assert "failed" == result.status
    assert "under autocast most of the values change: output 0[" in result.message


def test_composition_is_left_to_its_parts():
    assert "skipped" == result_of(torch.matmul).status


@custom_op("faults_autocast::for_another_device", reference=True)
def for_another_device(x: Tensor, w: Tensor) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        raise RuntimeError("it does not converge in bfloat16")
    return x * w.mT


for_another_device.register_autocast("cuda", "float32")


def test_an_op_whose_policies_are_for_other_device_types_is_advised():
    result = result_of(for_another_device)

    reason = "the op has an autocast policy for cuda, but not for cpu"
    assert ("passed", f"not checked: {reason}") == (result.status, result.message.splitlines()[0])
    assert f"{reason}: call register_autocast('cpu', ...)" == result.advice
