"""Sample and make: calls as values, and tensors that are the same on every run."""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tables import each

from custom_autograd.core.device_types import IMPORT_BACKEND
from custom_autograd.core.errors import CheckError
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.check import check


class Pair(NamedTuple):
    """Two values with names."""

    first: object
    second: object


def test_repr_shows_shapes_instead_of_data():
    sample = Sample(torch.zeros(4, 8), [torch.zeros(2, dtype=torch.int64)], eps=1e-3, mode="fast")

    assert "Sample(float32[4, 8], [int64[2]], eps=0.001, mode='fast')" == repr(sample)


def test_name_cannot_collide_with_a_keyword_of_the_op():
    sample = Sample(1, name="op's own").named("large")

    assert ("large", {"name": "op's own"}) == (sample.name, sample.kwargs)


def test_leaves_enter_containers_and_say_where_they_are():
    sample = Sample([torch.zeros(1), None], Pair(torch.zeros(2), 3), table={"a": torch.zeros(3)})

    found = [(leaf.argument, leaf.path, tuple(leaf.tensor.shape)) for leaf in sample.leaves()]
    assert [(0, "[0]", (1,)), (1, ".first", (2,)), ("table", "['a']", (3,))] == found


def test_with_tensors_replaces_them_in_order_and_keeps_the_rest():
    sample = Sample([torch.zeros(1), 5], Pair(torch.zeros(2), "text"), eps=2).named("kept")
    replaced = sample.with_tensors([torch.ones(1), torch.ones(2)])

    assert [1.0, 1.0] == [float(tensor[0]) for tensor in replaced.tensors()]
    assert ("kept", "text", 2) == (replaced.name, replaced.args[1].second, replaced.kwargs["eps"])


@given(st.integers(0, 2**31), st.lists(st.integers(0, 4), max_size=3))
def test_equal_seeds_make_equal_tensors(seed, shape):
    one, other = (TensorFactory(seed=seed)(*shape) for _ in range(2))

    assert torch.equal(one, other)
    assert tuple(shape) == tuple(one.shape)


def test_global_random_state_is_neither_read_nor_changed():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = TensorFactory(seed=1)(4)
    after = torch.get_rng_state()
    torch.manual_seed(4)

    assert torch.equal(before, after)
    assert torch.equal(first, TensorFactory(seed=1)(4))


@each("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.uint8, torch.bool])
def test_every_dtype_can_be_made_and_only_differentiable_ones_require_grad(dtype):
    tensor = TensorFactory()(3, 2, dtype=dtype)

    assert (dtype, dtype.is_floating_point or dtype.is_complex) == (tensor.dtype, tensor.requires_grad)


@pytest.mark.parametrize(("low", "high"), [(0.5, 0.75), (None, -10.0), (7.0, None)])
def test_values_lie_between_low_and_high(low, high):
    values = TensorFactory(dtype=torch.float64)(1000, low=low, high=high)

    assert low is None or bool((values >= low).all())
    assert high is None or bool((values < high).all())


def test_requires_grad_can_be_given_per_tensor_and_for_all():
    assert not TensorFactory()(3, requires_grad=False).requires_grad
    assert not TensorFactory(requires_grad=False)(3).requires_grad
    assert TensorFactory(requires_grad=False)(3, requires_grad=True).requires_grad


def test_empty_range_is_refused():
    with pytest.raises(CheckError, match=r"make\(\) is given an empty range"):
        TensorFactory()(3, low=1.0, high=1.0)


def test_integer_tensor_that_requires_grad_is_refused():
    with pytest.raises(CheckError, match=r"cannot give a .* tensor that requires grad"):
        TensorFactory()(3, dtype=torch.int64, requires_grad=True)


def test_a_tensor_of_given_values_is_on_the_device_and_has_the_dtype_under_test():
    make = TensorFactory(device="meta", dtype=torch.float64)

    found = [(made.device.type, made.dtype) for made in map(make.tensor, ([0, 2, 7], [0.5, 1], 3.0, [True], 1j))]
    dtypes = [torch.int64, torch.float64, torch.float64, torch.bool, torch.complex64]
    assert [("meta", dtype) for dtype in dtypes] == found
    assert make.tensor([0, 2], dtype=torch.int32).dtype == torch.int32


def test_a_tensor_of_given_values_holds_them_and_draws_nothing():
    make, other = TensorFactory(dtype=torch.float64), TensorFactory(dtype=torch.float64)

    assert [0.1, 1.0] == make.tensor([0.1, 1]).tolist()
    assert torch.equal(make(4), other(4))


@pytest.mark.parametrize(("on", "types"), [(None, ()), ("cpu", ("cpu",)), (("cpu", "xpu"), ("cpu", "xpu"))])
def test_raises_keeps_the_device_types_on_which_it_does(on, types):
    sample = Sample(torch.zeros(2)).raises(ValueError, on=on)

    assert types == sample.named("kept").error.device_types


@each(
    ("on", "advice"),
    [
        ("cud", f"did you mean 'cuda'? If not, {IMPORT_BACKEND}"),
        ("cuda:0", "name the device type, 'cuda', which all its devices share"),
        (["cpu", "gpu"], f"did you mean 'cuda'? If not, {IMPORT_BACKEND}"),
        ("npu_of_tomorrow", IMPORT_BACKEND),
        ([], None),
        (3, None),
        (["cpu", 3], None),
        (b"cpu", None),
    ],
)
def test_raises_takes_device_types_that_torch_knows(on, advice):
    """On a device type that does not exist the call is never made, and nothing fails."""
    with pytest.raises(CheckError) as raised:
        Sample(torch.zeros(2)).raises(ValueError, on=on)

    expected = (
        f"samples: raises() takes device types\n  expected   on='cpu' or on=['cuda', 'xpu']\n  found      on={on!r}"
    )
    assert expected + (f"\n  do         {advice}" if advice else "") == str(raised.value)


def test_a_tensor_of_given_values_is_a_copy_of_a_tensor_without_its_gradient():
    given = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    made = TensorFactory(dtype=torch.float32).tensor(given)
    same = TensorFactory(dtype=torch.float64).tensor(given)
    same.zero_()

    assert ([0.5, 2.0], torch.float32, False) == (made.tolist(), made.dtype, made.requires_grad)
    assert [0.5, 2.0] == given.tolist()


# -------------------------------------------------------------------------------------------------------- kept numbers


class Power(torch.autograd.Function):
    """x ** alpha for alpha above 1; below, whatever alpha is, the gradient is wrong."""

    @staticmethod
    def forward(ctx, x, alpha):
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        return x**alpha

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.alpha * x ** (ctx.alpha - 1) * (1 if ctx.alpha > 1 else 3), None


def power_sample():
    return Sample(torch.tensor([1.5, 2.0], dtype=torch.float64, requires_grad=True), 2.5)


def test_checks_try_other_numbers_unless_a_sample_keeps_them():
    found = [
        check(Power, [sample], checks=["directional"], raise_on_failure=False).ok
        for sample in (power_sample(), power_sample().keeping("alpha"), power_sample().keeping("alpha").named("kept"))
    ]

    assert [False, True, True] == found


def test_what_is_kept_is_an_argument():
    with pytest.raises(CheckError, match=r"keeping\(\) names 'alhpa', which is not an argument") as caught:
        check(Power, [power_sample().keeping("alhpa")], checks=["directional"])

    assert "did you mean 'alpha'" in str(caught.value)
