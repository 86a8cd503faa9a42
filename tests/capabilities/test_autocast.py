"""Autocast: what an op with a policy computes, in which dtypes, and what its gradients are, in plain calls."""

import contextlib
import enum

import pytest
import torch
from capabilities.autocast_ops import (
    BY_HAND,
    LOW,
    add_product,
    derived,
    halves,
    joined,
    moments,
    precise,
    scaled,
    torch_style,
    two_devices,
)
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close

from custom_autograd import custom_op
from custom_autograd.capabilities.compile_cache import fingerprint

CASES = pytest.mark.parametrize(("op", "by_hand"), BY_HAND.values(), ids=BY_HAND.keys())


def lowered():
    return torch.autocast("cpu", LOW)


def tensors(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 3), (3, 5), (5,)]
    return [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]


def gradients(output, inputs):
    return torch.autograd.grad(output.float().square().sum(), inputs)


@CASES
def test_values_are_those_of_casts_by_hand(op, by_hand):
    inputs = tensors()
    with lowered():
        found = op(*inputs)

    assert_close(found, by_hand(*inputs), rtol=0, atol=0)


@CASES
def test_gradients_arrive_in_the_dtypes_of_the_inputs(op, by_hand):
    inputs = tensors()
    with lowered():
        output = op(*inputs)

    assert_close(gradients(output, inputs), gradients(by_hand(*inputs), inputs), rtol=0.02, atol=0.02)


@CASES
def test_a_backward_within_autocast_runs_without_it(op, by_hand):
    inputs = tensors()
    with lowered():
        output = op(*inputs)
        found = torch.autograd.grad(output, inputs, torch.ones_like(output))

    assert_close(found, torch.autograd.grad(op_outside(op, inputs), inputs, torch.ones_like(output)), rtol=0, atol=0)


def op_outside(op, inputs):
    with lowered():
        return op(*inputs)


@CASES
@each(
    ("contexts", "dtype"),
    [
        ([], torch.float32),
        ([lowered, lambda: torch.autocast("cpu", enabled=False)], torch.float32),
        ([lowered], torch.float64),
    ],
    ids=["without autocast", "switched off within autocast", "float64"],
)
def test_nothing_is_cast(op, by_hand, contexts, dtype):
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context())

        assert dtype == op(*tensors(dtype)).dtype


@CASES
def test_gradcheck_passes_under_autocast(op, by_hand):
    with lowered():
        assert torch.autograd.gradcheck(op, tensors(torch.float64))


@pytest.mark.parametrize("is_caching", [True, False])
def test_the_cache_of_autocast_does_not_matter(is_caching):
    inputs = tensors()
    with torch.autocast("cpu", LOW, cache_enabled=is_caching):
        found = gradients(scaled(*inputs) + scaled(*inputs), inputs)

    assert_close(found, tuple(4 * g for g in gradients(op_outside(scaled, inputs), inputs)), rtol=0.02, atol=0.02)


def test_lower_follows_the_dtype_that_autocast_is_set_to():
    x = torch.ones(2, 2)
    with torch.autocast("cpu", torch.float16):
        assert torch.float16 == torch.ops.autocast.halves(x)[0].to(torch.float16).dtype
        assert torch.float16 == moments(x).mean.dtype


def test_a_list_and_a_keyword_only_optional_are_promoted_together():
    low, wide = torch.ones(2, dtype=LOW), torch.full((1,), 1 / 3)
    with lowered():
        found = joined([low, wide], bias=torch.zeros(3, dtype=torch.float16))

    assert_close(found, torch.tensor([1, 1, 1 / 3]), rtol=0, atol=0)


@each("other", [LOW, torch.int64])
def test_promotion_casts_nothing_of_equal_dtypes_and_leaves_integers_out(other):
    with lowered():
        assert LOW == joined([torch.ones(2, dtype=LOW), torch.ones(1, dtype=other)]).dtype


def test_an_output_is_cast_by_its_name():
    with lowered():
        found = moments(torch.full((2, 3), 1 / 3, dtype=LOW))

    assert [LOW, torch.float32] == [found.mean.dtype, found.square.dtype]
    assert "Moments" == type(found).__name__


def test_every_tensor_of_an_output_list_is_cast():
    x = torch.full((4,), 1 / 3, requires_grad=True)
    with lowered():
        found = halves(x)

    assert_close(found, [torch.full((2,), 1 / 3).to(LOW).float() * n for n in (2, 3)], rtol=0.01, atol=0)
    assert_close(torch.autograd.grad(sum(map(torch.sum, found)), x)[0], torch.tensor([2.0, 2.0, 3.0, 3.0]))


def test_a_written_argument_keeps_its_dtype_and_is_written():
    total, (x, weight, _) = torch.zeros(4, 5), tensors()
    with lowered(), torch.no_grad():
        add_product(total, x, weight)

    assert_close(total, (x.to(LOW) @ weight.to(LOW)).float().detach(), rtol=0, atol=0)


def test_gradients_of_an_op_that_writes_arrive_in_the_dtypes_of_the_inputs():
    start, (x, weight, _) = torch.zeros(4, 5, requires_grad=True), tensors()
    with lowered():
        total = start.clone()
        add_product(total, x, weight)
    found = gradients(total, (start, x, weight))
    expected = gradients(start + (x.to(LOW) @ weight.to(LOW)).float(), (start, x, weight))

    assert_close(found, expected, rtol=0.02, atol=0.02)


def test_each_device_type_has_its_own_policy():
    x = torch.full((2,), 1 / 3)
    with lowered():
        assert LOW == two_devices(x).dtype
    with torch.autocast("cpu", torch.float16):
        assert LOW == two_devices(x).dtype


def test_tensors_on_other_devices_are_left_alone():
    with lowered():
        assert torch.float32 == two_devices(torch.empty(2, device="meta")).dtype


STATES = []


@custom_op("autocast::looking")
def looking(x: Tensor) -> Tensor:
    STATES.append(torch.is_autocast_enabled("cpu"))
    return x * 1


@looking.register_backward
def _(grad):
    STATES.append(torch.is_autocast_enabled("cpu"))
    return grad


looking.register_autocast("cpu", "keep")


def test_kernels_and_rules_of_an_op_with_a_policy_see_no_autocast():
    STATES.clear()
    with lowered():
        looking(torch.ones(2, requires_grad=True)).sum().backward()

        assert torch.is_autocast_enabled("cpu")
    assert [False, False] == STATES


def test_a_policy_is_replaced():
    op = custom_op("autocast::replaced", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    op.register_autocast("cpu", LOW)
    with lowered():
        before = op(torch.ones(2)).dtype
        op.register_autocast("cpu", "keep", replace=True)
        after = op(torch.ones(2)).dtype

    assert (LOW, torch.float32) == (before, after)


def test_a_replaced_policy_is_compiled_anew():
    op = custom_op("autocast::recompiled", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    op.register_fake(lambda x: torch.empty_like(x))
    op.register_autocast("cpu", LOW)
    before, compiled = fingerprint(op._record), torch.compile(lambda x: op(x) + 0, backend="aot_eager")
    with lowered():
        dtypes = [compiled(torch.ones(2)).dtype]
        op.register_autocast("cpu", "keep", replace=True)
        dtypes.append(compiled(torch.ones(2)).dtype)

    assert [LOW, torch.float32] == dtypes
    assert before != fingerprint(op._record)


class Side(enum.Enum):
    LEFT = 1
    RIGHT = -1


@custom_op("autocast::sided", reference=True)
def sided(x: Tensor, side: Side = Side.RIGHT, *, factors: tuple[float, ...] = (1.0, 2.0)) -> Tensor:
    return x * side.value * factors[1]


sided.register_autocast("cpu", "lower")


@pytest.mark.parametrize(("arguments", "value"), [((), -2.0), ((Side.LEFT,), 2.0)])
def test_other_arguments_and_defaults_arrive_as_they_are(arguments, value):
    x = torch.ones(3)
    with lowered():
        found = sided(x, *arguments), torch.vmap(lambda row: sided(row, *arguments))(x)

    assert_close(found, (torch.full((3,), value, dtype=LOW),) * 2)


def test_an_exception_leaves_autocast_as_it_was():
    with lowered():
        with pytest.raises(RuntimeError):
            scaled(torch.ones(2, 3), torch.ones(4, 4), torch.ones(4))

        assert torch.is_autocast_enabled("cpu")
        assert torch.float32 == scaled(torch.ones(2, 3), torch.ones(3, 4), torch.ones(4)).dtype


def test_inference_and_forward_mode_cast_too():
    x, weight, scale = tensors()
    with torch.inference_mode(), lowered():
        assert LOW == derived(x, weight, scale).dtype
    with forward_ad.dual_level(), lowered():
        found = forward_ad.unpack_dual(scaled(forward_ad.make_dual(x, torch.ones_like(x)), weight, scale))

    assert [torch.float32] * 2 == [found.primal.dtype, found.tangent.dtype]
    assert_close(found.tangent, (torch.ones(4, 3) @ weight) * scale, rtol=0.03, atol=0.05)


def test_coverage_tells_the_policy():
    found = "\n".join(op.capabilities()["autocast"] for op in (scaled, two_devices, moments))

    assert_expected_inline(
        found,
        """\
registered: cpu: {'x': 'lower', 'weight': 'lower', 'scale': 'float32'}, output 'input'
registered: cpu: torch.bfloat16; cuda: torch.float16
registered: cpu: 'float32', output {'mean': 'lower'}""",
    )


@pytest.mark.slow
@pytest.mark.parametrize("op", [add_product, scaled, derived, torch_style, precise], ids=lambda op: op.__name__)
def test_every_check_passes(op):
    report = op.check(raise_on_failure=False)

    assert [] == [(r.check, r.message) for r in report.results if r.status in ("failed", "error")]
