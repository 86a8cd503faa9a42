"""A rule, kernel or fake that does not fit its op is refused when it is registered, with the places of both."""

import functools
import inspect
import re

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import RegistrationError, custom_op
from custom_autograd.registration.rule_types import FakeRule


def body(x: Tensor, w: Tensor, n: int = 2, *, s: float = 1.5) -> tuple[Tensor, Tensor]:
    return x * n, w * s


def stack(x: Tensor, *xs: Tensor, scale: float = 1.0) -> Tensor:
    return torch.stack([x, *xs]).sum(0) * scale


def make_op(name, function=body, **options):
    return custom_op(f"registering::{name}", function, replace=True, **options)


@pytest.fixture
def op():
    return make_op("subject")


def place(function):
    return f"test_registering.py:{inspect.getsourcelines(function)[1]}"


# --------------------------------------------------------------------------------- parameters that do not fit


def too_few(x, w, n):
    return x, w


def too_many(x, w, n, extra, *, s):
    return x, w


def no_keyword(x, w, n=2):
    return x, w


def swapped(w, x, n=2, *, s=1.5):
    return x, w


def unknown_keyword(x, w, n=2, *, s=1.5, t):
    return x, w


def fits(x, w, n=2, *, s=1.5):
    return x * n, w * s


def fits_by_catching_all(*args, **kwargs):
    return body(*args, **kwargs)


def fits_with_other_names(a, b, c=2, *, s=1.5):
    return a * c, b * s


def fits_with_an_extra_default(x, w, n=2, more=None, *, s=1.5):
    return x * n, w * s


CALLED_LIKE_THE_OP = {
    "kernel": lambda op, f: op.register_kernel("cpu", f),
    "default kernel": lambda op, f: op.register_kernel(None, f, replace=True),
    "fake": lambda op, f: op.register_fake(f),
    "reference": lambda op, f: op.register_reference(f),
}


WITH_ALL = [name for name in CALLED_LIKE_THE_OP if name != "fake"]
"""What has to take all arguments; see tests/drop_in/test_shorter_rules.py for the others."""


@each(
    ("name", "function"),
    [(name, function) for name in CALLED_LIKE_THE_OP for function in (too_many, swapped, unknown_keyword)]
    + [(name, function) for name in WITH_ALL for function in (too_few, no_keyword)],
)
def test_what_is_not_called_like_the_op_is_refused(name, function):
    op = make_op("subject")
    register = CALLED_LIKE_THE_OP[name]
    with pytest.raises(RegistrationError, match="registering::subject: the ") as caught:
        register(op, function)

    message = str(caught.value)
    assert place(function) in message
    assert place(body) in message
    assert "(x, w, n" in message


@each("register", CALLED_LIKE_THE_OP.values(), ids=CALLED_LIKE_THE_OP)
@each(
    "function", [fits, fits_by_catching_all, fits_with_other_names, fits_with_an_extra_default, functools.partial(fits)]
)
def test_what_is_called_like_the_op_is_taken(register, function):
    op = make_op("subject")
    register(op, function)


@each("function", [lambda ctx: None, lambda ctx, inputs: None, lambda a, b, c, d: None])
def test_a_setup_context_takes_what_torch_gives_it(function):
    op = make_op("subject")
    with pytest.raises(RegistrationError, match="the setup_context does not fit the schema"):
        op.register_autograd(lambda ctx, *grads: None, setup_context=function)


@each(
    "function",
    [
        lambda ctx, inputs, output: None,
        lambda ctx, inputs, keyword_only_inputs, output: None,
        lambda ctx, inputs, output, keyword_only_inputs: None,
        lambda *, output, inputs, ctx: None,
        lambda c, i, o: None,
        lambda **everything: None,
    ],
)
def test_a_setup_context_may_be_written_in_several_ways(function):
    op = make_op("subject")
    op.register_autograd(lambda ctx, *grads: (grads[0], None, None), setup_context=function)
    x = torch.ones(2, requires_grad=True)
    op(x, torch.ones(2))[0].sum().backward()

    assert [1.0, 1.0] == x.grad.tolist()


@each("function", [lambda x: x, lambda info, in_dims, x: x, lambda info, in_dims, x, w, n, more: x])
def test_a_vmap_rule_takes_info_dimensions_and_the_arguments(function):
    op = make_op("subject")
    with pytest.raises(RegistrationError, match=r"the vmap rule does not fit the schema") as caught:
        op.register_vmap(function)

    assert "(info, in_dims, x, w, n, *, s)" in str(caught.value)


@each(
    ("function", "problem"),
    [
        (lambda: 0, "it takes 0 of 3 positional arguments"),
        (lambda x, w: x, "it takes 2 of 3 positional arguments"),
        (lambda x, w, n: x, "it does not take the keyword argument 's'"),
        (lambda x, w, n, *s: x, "it does not take the keyword argument 's'"),
        (lambda x, w, s: x, "its parameter 's' is not keyword-only, and a positional argument takes its place"),
        (lambda x, w, n, more, *, s: x, "nothing is passed for its parameter 'more'"),
        (lambda x, w, n, *, s, more: x, "nothing is passed for its parameter 'more'"),
    ],
)
def test_what_does_not_fit_is_told_in_the_parameters_of_the_function(function, problem):
    op = make_op("subject")
    with pytest.raises(RegistrationError, match=re.escape(f"the cpu kernel does not fit the schema: {problem}\n")):
        op.register_kernel("cpu", function)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda x, xs, *, scale: x, "it has no parameter like '*xs'"),
        (lambda x, y, *xs, scale: x, "nothing is passed for its parameter 'y'"),
        (lambda x, scale=1, *xs: x, "its parameter 'scale' is not keyword-only, and a positional argument takes its"),
    ],
)
def test_what_does_not_fit_an_op_with_any_number_of_arguments(function, problem):
    several = custom_op("registering::several", stack, replace=True)
    with pytest.raises(RegistrationError, match=re.escape(f"the cpu kernel does not fit the schema: {problem}")):
        several.register_kernel("cpu", function)


@each(("device_type", "meant"), [("cup", "cpu"), ("gpu", "cuda"), ("cdua", "cuda")])
def test_the_nearest_device_type_is_suggested(device_type, meant):
    op = make_op("subject")
    with pytest.raises(RegistrationError, match=rf"did you mean '{meant}'\?"):
        op.register_kernel(device_type, fits)

    assert ["default"] == list(op.kernels)


# -------------------------------------------------------------------------------------------- names that name nothing


def _bind_backward(op, function):
    op.register_backward(function)


def _bind_grad(op, function):
    op.register_grad("x")(function)


def _bind_jvp(op, function):
    op.register_jvp(function)


BOUND_BY_NAME = {"backward": _bind_backward, "grad": _bind_grad, "jvp": _bind_jvp}


@each("register", BOUND_BY_NAME.values(), ids=BOUND_BY_NAME)
@each(
    ("function", "advice"),
    [
        (lambda ww: None, "the incoming "),
        (lambda output_2: None, "did you mean 'output_"),
        (lambda need: None, "did you mean 'needs'?"),
        (lambda something_else: None, "the incoming "),
        (lambda ctx: None, "register_autograd"),
        (lambda *args: None, "the incoming "),
        (lambda **kwargs: None, "the incoming "),
    ],
)
def test_a_parameter_that_names_nothing_is_refused_with_advice(register, function, advice):
    op = make_op("subject")
    with pytest.raises(RegistrationError, match="names nothing") as caught:
        register(op, function)

    message = str(caught.value)
    assert advice in message
    assert "'x', 'w', 'n', 's', 'output_0', 'output_1', 'needs', 'meta'" in message
    assert "test_registering.py:" in message


def test_a_gradient_is_no_name_of_a_jvp_and_a_tangent_none_of_a_backward(op):
    with pytest.raises(RegistrationError, match="names nothing"):
        op.register_jvp(lambda grad_output_0: None)
    with pytest.raises(RegistrationError, match="names nothing"):
        op.register_backward(lambda tangent_x: None)


def test_a_parameter_with_a_default_may_have_any_name(op):
    @op.register_backward
    def _(grad_output_0, grad_output_1, n, s, factor=3.0):
        return {"x": grad_output_0 * n * factor, "w": grad_output_1 * s * factor}

    x = torch.ones(2, requires_grad=True)
    op(x, torch.ones(2))[0].sum().backward()

    assert [6.0, 6.0] == x.grad.tolist()


# ---------------------------------------------------------------------------------------------- filling a slot twice


def first(x, w, n=2, *, s=1.5):
    return x, w


def second(x, w, n=2, *, s=1.5):
    return x, w


def jvp_first(tangent_x):
    return None


def jvp_second(tangent_w, x):
    return None


def rule_first(grad_output_0, x):
    return None


def rule_second(grad_output_1, x):
    return None


def drop_in(ctx, grad_0, grad_1):
    return grad_0, grad_1, None


def vmap_first(info, in_dims, x, w, n, *, s):
    return (x, w), in_dims[:2]


def vmap_second(info, in_dims, x, w, n, *, s):
    return (x, w), in_dims[:2]


def dispatch_first(cls, func, types, args, kwargs):
    return None


def dispatch_second(cls, func, types, args, kwargs):
    return None


def samples_first(make):
    yield from ()


def samples_second(make):
    yield from ()


def flops_first(x):
    return 0


def flops_second(x):
    return 1


TWICE = {
    "kernel": (lambda op, f, **r: op.register_kernel("cpu", f, **r), first, second),
    "fake": (lambda op, f, **r: op.register_fake(f, **r), first, second),
    "reference": (lambda op, f, **r: op.register_reference(f, **r), first, second),
    "backward": (lambda op, f, **r: op.register_backward(f, **r), rule_first, rule_second),
    "backward, then drop-in": (
        lambda op, f, **r: op.register_autograd(f, **r) if f is drop_in else op.register_backward(f, **r),
        rule_first,
        drop_in,
    ),
    "drop-in, then grad": (
        lambda op, f, **r: op.register_autograd(f, **r) if f is drop_in else op.register_grad("x", **r)(f),
        drop_in,
        rule_second,
    ),
    "grad": (lambda op, f, **r: op.register_grad("x", **r)(f), rule_first, rule_second),
    "grad of two, then of one": (
        lambda op, f, **r: op.register_grad("x", "w", **r)(f) if f is rule_first else op.register_grad("w", **r)(f),
        rule_first,
        rule_second,
    ),
    "jvp": (lambda op, f, **r: op.register_jvp(f, **r), jvp_first, jvp_second),
    "vmap": (lambda op, f, **r: op.register_vmap(f, **r), vmap_first, vmap_second),
    "torch_dispatch": (lambda op, f, **r: op.register_torch_dispatch(Tensor, f, **r), dispatch_first, dispatch_second),
    "samples": (lambda op, f, **r: op.register_samples(f, **r), samples_first, samples_second),
    "flops": (lambda op, f, **r: op.register_flops(f, **r), flops_first, flops_second),
}


TITLES = {"kernel": "device type 'cpu' already has a kernel", "samples": "the samples rule is already registered"}
TITLES |= {name: f"the {name} rule is already registered" for name in ("fake", "reference", "jvp", "vmap", "flops")}


@each("name", TWICE)
def test_filling_a_slot_twice_raises_with_both_places(name):
    op, (register, one, other) = make_op("subject"), TWICE[name]
    register(op, one)
    with pytest.raises(RegistrationError, match=TITLES.get(name, "already registered")) as caught:
        register(op, other)

    assert f"found      one at {place(one)}, another at {place(other)}\n" in str(caught.value)
    assert "replace=True" in str(caught.value)


@each(("register", "one", "other"), TWICE.values(), ids=TWICE)
def test_replace_means_it(register, one, other):
    op = make_op("subject")
    register(op, one)
    register(op, other, replace=True)

    registered = [function for rule in op._record.registrations.all() for function in rule.functions]
    registered += [kernel.function for kernel in op._record.kernels.values()]
    assert other in registered
    assert one not in registered


def test_a_refused_second_rule_leaves_the_first(op):
    op.register_fake(first)
    with pytest.raises(RegistrationError):
        op.register_fake(second)

    assert first is op._record.registrations.get(FakeRule).function


def test_gradients_of_different_inputs_stand_beside_each_other(op):
    op.register_grad("x")(lambda grad_output_0, n: grad_output_0 * n)
    op.register_grad("w")(lambda grad_output_1, s: grad_output_1 * s)
    x, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    (op(x, w)[0] + op(x, w)[1]).sum().backward()

    assert [2.0, 2.0] == x.grad.tolist()
    assert [1.5, 1.5] == w.grad.tolist()


def test_every_register_method_returns_the_function_it_decorates(op):
    for register, one, _ in TWICE.values():
        subject = make_op("returned")
        result = register(subject, one)
        assert result is one or (result is None and one is drop_in), register


@pytest.mark.parametrize("wrong", ["fn", "func", "replaces"])
def test_a_wrong_keyword_is_refused_before_there_is_a_function(op, wrong):
    with pytest.raises(TypeError, match=rf"register_fake\(\): .*'{wrong}'"):
        op.register_fake(**{wrong: body})
    with pytest.raises(TypeError, match=rf"register_kernel\(\): .*'{wrong}'"):
        op.register_kernel("cpu", **{wrong: body})


def test_what_is_missing_is_named_as_the_method_names_it(op):
    with pytest.raises(TypeError, match=r"register_kernel\(\): .*'device_types'"):
        op.register_kernel()
