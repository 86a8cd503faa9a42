"""Where PyTorch believes a kernel, loses an argument or redefines in silence, an op declared here does not."""

import contextlib
import gc
import inspect
import os
import sys
import weakref

import numpy as np
import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import (
    DeclarationError,
    GradientError,
    KernelError,
    custom_op,
    through_dispatcher,
)
from python_server import run_python
from slow_cases import slow_but_every


def rand(*shape, dtype=torch.float64):
    return torch.rand(*shape, dtype=dtype, requires_grad=True)


def numpy_of(x):
    return x.detach().numpy()


# ------------------------------------------------------------------------------- K01, K02: what a kernel returns

TOO_MANY = """
import sys
import weakref
import torch
from torch import Tensor
from custom_autograd import KernelError, custom_op

@custom_op("traps::too_many")
def too_many(x: Tensor) -> tuple[Tensor, Tensor]:
    return x + 1, x + 2, x + 3

call = {"op": too_many, "overload": torch.ops.traps.too_many, "function": too_many.function.apply}[sys.argv[1]]
try:
    call(torch.ones(1, requires_grad=sys.argv[2] == "grad"))
except KernelError as error:
    print(error)
    sys.exit(17)
"""


@pytest.mark.parametrize("way", slow_but_every(3, ["op", "overload", "function"]))
@pytest.mark.parametrize("mode", ["plain", "grad"])
def test_too_many_outputs_are_an_error_and_no_crash(way, mode):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    finished = run_python("-c", TOO_MANY, way, mode, env=environment)

    assert finished.returncode == 17, finished.stderr
    assert "returns the wrong number of outputs" in finished.stdout


@custom_op("traps::returns")
def returns(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    return {"none": None, "few": (x + 1,), "single": x + 1, "wrong": (x + 1, 3), "hole": (None, x + 1)}[kind]


@each("kind", ["none", "few", "single", "wrong", "hole"])
@each("call", [returns, torch.ops.traps.returns], ids=["op", "overload"])
def test_wrong_outputs_are_an_error(kind, call):
    with pytest.raises(KernelError, match="traps::returns: the default kernel"):
        call(torch.ones(2), kind)


# ---------------------------------------------------------------------------------- K03: several device types at once


def test_a_kernel_for_one_of_several_device_types_replaces_only_that_one():
    @custom_op("traps::both_devices", device_types=["cpu", "cuda"])
    def both(x: Tensor) -> Tensor:
        return x + 1

    both.register_kernel("cpu", lambda x: x + 100, replace=True)

    assert 100.0 == both(torch.zeros(1)).item()
    assert both.kernels["cuda"] != both.kernels["cpu"]


def test_disabling_one_of_several_device_types_leaves_the_others():
    @custom_op("traps::both_kernels")
    def both(x: Tensor) -> Tensor:
        return x + 1

    both.register_kernel(["cpu", "cuda"], lambda x: x + 100)

    with both.set_kernel_enabled("cuda", False):
        assert 100.0 == both(torch.zeros(1)).item()
    with both.set_kernel_enabled("cpu", False):
        assert 1.0 == both(torch.zeros(1)).item()


# ---------------------------------------------------------------------------------- K05: defaults that are left out


@custom_op("traps::bias")
def with_bias(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    return x + w if b is None else x + w + b


NEEDED = []


def _setup(ctx, inputs, output):
    NEEDED.append((len(inputs), ctx.needs_input_grad))


def _backward(ctx, grad):
    NEEDED.append(ctx.needs_input_grad)
    return grad, grad, grad if ctx.needs_input_grad[2] else None


with_bias.register_autograd(_backward, setup_context=_setup)


@pytest.mark.parametrize("bias", ["omitted", "none", "given"])
def test_needs_has_one_entry_per_argument_of_the_schema(bias):
    NEEDED.clear()
    args = {"omitted": (), "none": (None,), "given": (rand(3),)}[bias]
    with_bias(rand(3), rand(3), *args).sum().backward()

    needs = (True, True, bias == "given")
    assert [(3, needs), needs] == NEEDED


# -------------------------------------------------------------------------------------------- K06: arity in user terms


@custom_op("traps::scale_list")
def scale_list(x: Tensor, y: int) -> Tensor:
    return x * y


scale_list.register_autograd(lambda ctx, grad: [grad * 5, None])


def test_a_list_of_gradients_is_as_good_as_a_tuple():
    x = rand(3)
    scale_list(x, 5).sum().backward()

    assert torch.equal(torch.full((3,), 5.0, dtype=x.dtype), x.grad)


# ------------------------------------------------------------------------------------- K07, K08: memory that is shared


@custom_op("traps::alias")
def alias(x: Tensor, y: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    both = x + 1
    return {
        "itself": (both, y),
        "view": (both, y[1:]),
        "numpy": (both, torch.from_numpy(numpy_of(y))),
        "numpy view": (both, torch.from_numpy(numpy_of(y)[1:])),
        "each other": (both, both),
        "each other, numpy": (both, torch.from_numpy(numpy_of(both)[::2])),
    }[kind]


INPUT, OUTPUT = "input 'y'", "output 'output_0'"


@each(
    ("kind", "other"),
    [
        *((kind, INPUT) for kind in ("itself", "view", "numpy", "numpy view")),
        *((kind, OUTPUT) for kind in ("each other", "each other, numpy")),
    ],
)
def test_an_output_that_shares_memory_is_named(kind, other):
    with pytest.raises(KernelError, match=f"returns an output 'output_1' that shares memory with {other}"):
        alias(torch.zeros(3), torch.zeros(3), kind)


# ---------------------------------------------------------------------------------- K10: redefinition and namespaces


def test_declaring_twice_raises_with_both_locations():
    def first(x: Tensor) -> Tensor:
        return x + 1

    def second(x: Tensor) -> Tensor:
        return x + 2

    custom_op("traps::twice", first)
    with pytest.raises(DeclarationError, match="already declared") as caught:
        custom_op("traps::twice", second)

    for function in (first, second):
        assert f"test_kernel_traps.py:{inspect.getsourcelines(function)[1]}" in str(caught.value)
    assert "replace=True" in str(caught.value)


# ------------------------------------------------------------------------------------------ K12: no rule, no gradient


@custom_op("traps::no_backward")
def no_backward(x: Tensor) -> Tensor:
    return torch.from_numpy(numpy_of(x) * 2)


def test_without_a_backward_the_functional_gradient_raises():
    with pytest.raises(GradientError, match="no backward is registered"):
        torch.func.grad(lambda t: no_backward(t).sum())(torch.ones(3))


# ---------------------------------------------------------------------------------------- V05: conj and neg bits

BITS = []


def _bits(place, *values):
    BITS.append((place, any(v is not None and (v.is_conj() or v.is_neg()) for v in values)))


@custom_op("traps::lazy")
def lazy(x: Tensor) -> Tensor:
    _bits("kernel", x)
    return torch.from_numpy(np.array(numpy_of(x)) * 2)


@lazy.register_backward
def _(grad, x):
    _bits("backward", grad, x)
    return grad * 2


@lazy.register_jvp
def _(tangent_x, x):
    _bits("jvp", tangent_x, x)
    return tangent_x * 2


@custom_op("traps::lazy_drop_in")
def lazy_drop_in(x: Tensor) -> Tensor:
    _bits("kernel", x)
    return torch.from_numpy(np.array(numpy_of(x)) * 2)


def _lazy_setup(ctx, inputs, output):
    _bits("setup_context", inputs[0])
    ctx.save_for_backward(inputs[0])
    ctx.parked = inputs[0]


def _lazy_backward(ctx, grad):
    _bits("backward", grad, ctx.saved_tensors[0], ctx.parked)
    return grad * 2


lazy_drop_in.register_autograd(_lazy_backward, setup_context=_lazy_setup)


def _conj(z):
    return z.conj()


def _neg(z):
    return z.conj().imag


@pytest.mark.parametrize("bit", [_conj, _neg], ids=["conj", "neg"])
@pytest.mark.parametrize("op", [lazy, lazy_drop_in], ids=["by name", "drop-in"])
def test_user_code_sees_resolved_tensors_in_reverse_mode(op, bit):
    BITS.clear()
    z = rand(3, dtype=torch.complex128)
    x = bit(z)
    assert x.is_conj() or x.is_neg()
    y = op(x)
    cotangent = bit(torch.rand(3, dtype=torch.complex128))
    (found,) = torch.autograd.grad(y, z, cotangent)
    (expected,) = torch.autograd.grad(bit(z) * 2, z, cotangent)

    assert torch.equal(bit(z) * 2, y)
    assert torch.equal(expected, found)
    assert not [place for place, is_lazy in BITS if is_lazy]
    assert {"kernel", "backward"} <= {place for place, _ in BITS}


@pytest.mark.parametrize("bit", [_conj, _neg], ids=["conj", "neg"])
def test_user_code_sees_resolved_tensors_in_forward_mode(bit):
    BITS.clear()
    z, t = torch.rand(3, dtype=torch.complex128), torch.rand(3, dtype=torch.complex128)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(bit(z), bit(t))
        found = torch.autograd.forward_ad.unpack_dual(lazy(dual)).tangent

    assert torch.equal(bit(t) * 2, found)
    assert not [place for place, is_lazy in BITS if is_lazy]
    assert "jvp" in {place for place, _ in BITS}


# ---------------------------------------------------------------------------------------------- E07: autocast state


def test_backward_runs_in_the_autocast_state_of_the_backward_call_as_documented():
    states = []

    @custom_op("traps::autocast_state")
    def op(x: Tensor) -> Tensor:
        return x * 1

    @op.register_backward
    def _(grad):
        states.append(torch.is_autocast_enabled("cpu"))
        return grad

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = op(rand(3))
    y.sum().backward()

    assert [False] == states


# -------------------------------------------------------------------- an error that is caught leaves nothing behind


class Held:
    """Something that a caller holds."""


@custom_op("traps::picky")
def picky(x: Tensor, scale: float) -> Tensor:
    if x.numel() == 0:
        raise ValueError("empty")
    return x * scale


picky.register_fake(lambda x, scale: torch.empty_like(x))
picky.register_backward(lambda grad, scale: grad * scale)
BAD_CALLS = {
    "an array": (np.ones(2), 1.0),
    "None": (None, 1.0),
    "text": (torch.ones(2), "1"),
    "one too many": (torch.ones(2), 1.0, 2),
    "the kernel raises": (torch.ones(0), 1.0),
    "the kernel raises, recorded": (torch.ones(0, requires_grad=True), 1.0),
}


@each("bad, is_direct", [(bad, is_direct) for bad in BAD_CALLS for is_direct in (True, False)])
def test_an_error_does_not_keep_the_frames_of_its_callers(bad, is_direct):

    def call():
        held = Held()
        alive.append(weakref.ref(held))
        with contextlib.nullcontext() if is_direct else through_dispatcher():
            picky(*BAD_CALLS[bad])

    alive = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with contextlib.suppress(Exception):
                call()
        assert [None, None, None] == [one() for one in alive]
    finally:
        gc.enable()
