"""Which kernel runs, and what a kernel or a fake may return."""

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import KernelError, custom_op, through_dispatcher


def add(amount):
    return lambda x: x + amount


def make(name="subject", **options):
    return custom_op(f"kernels::{name}", add(1), schema="(Tensor x) -> Tensor", replace=True, **options)


def value(op, device="cpu"):
    return op(torch.zeros(1, device=device)).item()


def test_the_kernel_of_the_device_runs_and_the_default_elsewhere():
    op = make()
    op.register_kernel("cpu", add(10))

    assert 10.0 == value(op)
    assert 10.0 == value(torch.ops.kernels.subject)


def test_a_kernel_may_come_after_the_first_call():
    op = make()
    assert 1.0 == value(op)
    op.register_kernel("cpu", add(10))

    assert 10.0 == value(op)


def test_a_default_kernel_can_be_replaced():
    op = make()
    op.register_kernel(None, add(5), replace=True)

    assert 5.0 == value(op)


def test_the_function_serves_only_the_device_types_it_was_declared_for():
    op = make(device_types="cuda")
    with pytest.raises(KernelError, match="there is no kernel for device type 'cpu'") as caught:
        value(op)

    assert "tensors on 'cuda'" in str(caught.value)
    assert "register_kernel('cpu')" in str(caught.value)


def test_a_missing_kernel_lists_all_device_types_there_are():
    op = make(device_types=("cuda", "mps"))
    with pytest.raises(KernelError, match="tensors on 'cuda', 'mps'"):
        value(op)


CALLS = {
    "op": lambda op, x: op(x),
    "torch.ops": lambda op, x: torch.ops.kernels.raising(x),
    "dispatcher": lambda op, x: through_dispatcher()(op)(x),
    "recorded": lambda op, x: op(x.requires_grad_()),
    "vmap": lambda op, x: torch.func.vmap(op)(x.view(1, -1)),
}


@each("is_known", [False, True], ids=["first call", "known call"])
@each("call", CALLS.values(), ids=CALLS)
def test_an_exception_of_a_kernel_has_a_note_on_the_kernel_and_the_op(call, is_known):
    def double(x):
        if not x.any():
            raise ValueError("all zero")
        return x * 2

    op = make("raising", device_types="cuda")
    op.register_kernel("cpu", double)
    op.register_backward(lambda grad: grad * 2)
    for _ in range(3 * is_known):
        call(op, torch.ones(1))
    with pytest.raises(ValueError, match="all zero") as caught:
        call(op, torch.zeros(1))

    notes = getattr(caught.value, "__notes__", [str(caught.value.__cause__)])
    location = f"test_kernels.py:{double.__code__.co_firstlineno}"
    assert [f"raised in the cpu kernel, {location}, of kernels::raising"] == notes


def test_switching_kernels_nests():
    op = make()
    op.register_kernel("cpu", add(10))
    seen = []
    with op.set_kernel_enabled("cpu", False):
        seen.append(value(op))
        with op.set_kernel_enabled("cpu", True):
            seen.append(value(op))
            with op.set_kernel_enabled("cpu", False):
                seen.append(value(op))
            seen.append(value(op))
        seen.append(value(op))
    seen.append(value(op))

    assert [1.0, 10.0, 1.0, 10.0, 1.0, 10.0] == seen


def test_switching_is_undone_by_an_exception():
    op = make()
    op.register_kernel("cpu", add(10))
    with pytest.raises(ZeroDivisionError), op.set_kernel_enabled("cpu", False):
        _ = 1 / 0

    assert 10.0 == value(op)


def test_switching_another_device_type_changes_nothing():
    op = make()
    op.register_kernel("cpu", add(10))
    with op.set_kernel_enabled("cuda", False), op.set_kernel_enabled("mps", True):
        assert 10.0 == value(op)


def test_an_op_without_tensors_goes_where_its_device_says():
    op = custom_op(
        "kernels::full",
        lambda n, device=None: torch.full((n,), 1.0, device=device),
        schema="(int n, Device? device=None) -> Tensor",
    )
    op.register_kernel("cpu", lambda n, device=None: torch.full((n,), 2.0, device=device))

    assert [2.0, 2.0] == op(2).tolist() == op(2, device=torch.device("cpu")).tolist()


def test_meta_tensors_ask_the_fake():
    op = make()
    with pytest.raises(KernelError, match="no fake is registered"):
        op(torch.zeros(2, device="meta"))
    op.register_fake(lambda x: torch.empty_like(x))

    assert "meta" == op(torch.zeros(2, device="meta")).device.type


def test_kernels_run_outside_autograd():
    states = []

    @custom_op("kernels::outside")
    def outside(x: Tensor) -> Tensor:
        states.append((torch.is_grad_enabled(), x.requires_grad))
        return x * 2

    outside.register_backward(lambda grad: grad * 2)
    x = torch.ones(2, requires_grad=True)
    y = outside(x)
    with torch.no_grad():
        outside(x)

    assert y.requires_grad
    assert {False} == {enabled for enabled, _ in states}


# ------------------------------------------------------------------------------------------------------------ results


def _of(kind):
    def function(x):
        ones = x.new_ones(2)
        return {
            "good": (ones, [x + 1, x + 2], 3, 0.5, True, None),
            "good too": [ones, (x + 1,), 3, 2, False, x.new_ones(1)],
            "too few": (ones, [ones], 3, 0.5),
            "too many": (ones, [x + 1], 3, 0.5, True, None, None),
            "no tuple": ones,
            "none": None,
            "number for a tensor": (1.0, [x + 1], 3, 0.5, True, None),
            "none for a tensor": (None, [x + 1], 3, 0.5, True, None),
            "tensor for a list": (ones, x + 1, 3, 0.5, True, None),
            "none in a list": (ones, [x + 1, None], 3, 0.5, True, None),
            "tensor for an int": (ones, [x + 1], torch.tensor(3), 0.5, True, None),
            "float for an int": (ones, [x + 1], 3.0, 0.5, True, None),
            "string for a float": (ones, [x + 1], 3, "0.5", True, None),
            "int for a bool": (ones, [x + 1], 3, 0.5, 1, None),
            "number for an optional": (ones, [x + 1], 3, 0.5, True, 3),
            "alias": (x, [x + 1], 3, 0.5, True, None),
            "alias in a list": (ones, [x + 1, x[1:]], 3, 0.5, True, None),
            "aliases in a list": (ones, [ones, x + 1], 3, 0.5, True, None),
            "alias as optional": (ones, [x + 1], 3, 0.5, True, x.view(-1)),
        }[kind]

    return function


SCHEMA = "(Tensor x) -> (Tensor a, Tensor[] b, int c, float d, bool e, Tensor? f)"
WRONG = {
    "too few": "returns the wrong number of outputs",
    "too many": "returns the wrong number of outputs",
    "no tuple": "returns the wrong number of outputs",
    "none": "returns the wrong number of outputs",
    "number for a tensor": "returns the wrong type as output 'a'",
    "none for a tensor": "returns the wrong type as output 'a'",
    "tensor for a list": "returns no list of tensors as output 'b'",
    "none in a list": "returns no list of tensors as output 'b'",
    "tensor for an int": "returns the wrong type as output 'c'",
    "float for an int": "returns the wrong type as output 'c'",
    "string for a float": "returns the wrong type as output 'd'",
    "int for a bool": "returns the wrong type as output 'e'",
    "number for an optional": "returns the wrong type as output 'f'",
}
ALIASES = {
    "alias": "an output 'a' that shares memory with input 'x'",
    "alias in a list": "an output 'b' that shares memory with input 'x'",
    "aliases in a list": "an output 'b' that shares memory with output 'a'",
    "alias as optional": "an output 'f' that shares memory with input 'x'",
}


@each(("kind", "problem"), (WRONG | ALIASES).items(), ids=WRONG | ALIASES)
def test_a_wrong_result_of_a_kernel_is_refused(kind, problem):
    op = custom_op("kernels::result", _of(kind), schema=SCHEMA, replace=True)
    with pytest.raises(KernelError, match=f"kernels::result: the default kernel, test_kernels.py:[0-9]+, .*{problem}"):
        op(torch.ones(3))


@each(("kind", "problem"), WRONG.items(), ids=WRONG)
def test_a_wrong_result_of_a_fake_is_refused(kind, problem):
    op = custom_op("kernels::fake_result", _of("good"), schema=SCHEMA, replace=True)
    op.register_fake(_of(kind))
    with pytest.raises(KernelError, match=f"the fake, test_kernels.py:[0-9]+, {problem}"):
        op(torch.ones(3, device="meta"))


@pytest.mark.parametrize("kind", ["good", "good too"])
def test_a_right_result_is_handed_on(kind):
    op = custom_op("kernels::right_result", _of(kind), schema=SCHEMA, replace=True)
    a, b, c, d, e, f = op(torch.ones(3))

    assert [1.0, 1.0] == a.tolist()
    assert isinstance(b, list)
    assert (3, {"good": 0.5, "good too": 2.0}[kind], kind == "good") == (c, d, e)
    assert (f is None) == (kind == "good")


def test_empty_tensors_share_nothing():
    op = make("empty")
    op.register_kernel(None, lambda x: x[:0].clone(), replace=True)

    assert (0,) == tuple(op(torch.ones(3)).shape)


def test_an_op_may_return_nothing():
    op = custom_op("kernels::nothing", lambda x: None, schema="(Tensor x) -> ()")

    assert op(torch.ones(1)) is None


def test_an_op_that_returns_nothing_may_not_return_something():
    op = custom_op("kernels::something", lambda x: x + 1, schema="(Tensor x) -> ()")
    with pytest.raises(KernelError, match="returns the wrong number of outputs"):
        op(torch.ones(1))
