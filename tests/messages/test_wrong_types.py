"""An option of the wrong type raises an error of this package, and no TypeError from inside."""

import inspect

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor

from custom_autograd import CustomAutogradError, CustomOp, DeclarationError, Sample, custom_op
from custom_autograd.graph import offload

WRONG = {
    "int": 3,
    "str": "no such words",
    "list": [3],
    "dict": {3: 3},
    "None": None,
    "dtype": torch.int64,
    "function": lambda: None,
    "object": object(),
}


def scaled(x: Tensor, n: int) -> Tensor:
    return x * n


def declare(**options):
    options = {"shapes": "x: *b [d] -> out: *b [d]", "replace": True, **options}
    return custom_op("wrong_types::op", scaled, **options)


def samples():
    return [Sample(torch.ones(2), 2)]


METHODS = {
    "register_kernel": {"device_types": "cpu", "fn": scaled},
    "use_kernel": {"name": "default"},
    "register_fake": {"fn": scaled},
    "register_reference": {"fn": scaled},
    "register_backward": {"fn": lambda grad, n: grad * n},
    "register_grad": {"inputs": "x"},
    "register_jvp": {"fn": lambda tangent_x, n: tangent_x * n},
    "register_autograd": {"backward": lambda ctx, grad: (grad, None)},
    "register_samples": {"fn": lambda make: samples()},
    "register_vmap": {"func": lambda info, in_dims, x, n: (x * n, in_dims[0])},
    "register_autocast": {"device_type": "cpu", "cast_inputs": "lower"},
    "register_effect": {"effect": None},
    "register_shapes": {"fn": "x: *b d -> out: *b d"},
    "register_sharding": {"dim": "d", "fn": lambda out: out},
    "register_flops": {"fn": lambda x: 1},
    "register_torch_dispatch": {"torch_dispatch_class": Tensor, "fn": lambda mode, func, types, args, kwargs: None},
    "set_kernel_enabled": {"device_type": "cpu"},
    "check": {"samples": samples(), "checks": ["schema"], "isolated": False},
}
SAMPLES = {
    "named": {"name": "n"},
    "raises": {},
    "xfail": {"checks": "schema", "reason": "r"},
    "keeping": {"arguments": "n"},
}


def options_of(owner, rows):
    """Return each parameter of some methods, with right arguments for the others."""
    return [
        pytest.param(method, right, parameter, id=f"{method}-{parameter}")
        for method, right in rows.items()
        for parameter in list(inspect.signature(getattr(owner, method)).parameters)[1:]
    ]


def call(function, arguments):
    """Call a function with arguments by name, and open the context that it returns."""
    positional, named = [], {}
    for name, parameter in inspect.signature(function).parameters.items():
        if name in arguments and parameter.kind is parameter.KEYWORD_ONLY:
            named[name] = arguments[name]
        elif name in arguments:
            positional.append(arguments[name])
    result = function(*positional, **named)
    if hasattr(result, "__enter__"):
        with result:
            pass
    return result


def check_error(run):
    """Run something: an error must be of this package, and say what is right."""
    try:
        run()
    except CustomAutogradError as error:
        assert error.do or (error.expected and error.found), error  # noqa: PT017 - some values are right


@each("wrong", WRONG)
@each("option", list(inspect.signature(custom_op).parameters)[2:])
def test_custom_op(option, wrong):
    check_error(lambda: declare(**{option: WRONG[wrong]}))


@each("wrong", WRONG)
@each(("method", "right", "option"), options_of(CustomOp, METHODS))
def test_methods_of_an_op(method, right, option, wrong):
    op = declare()

    check_error(lambda: call(getattr(op, method), {**right, option: WRONG[wrong]}))


def flags_of(function):
    """Return the options of a function that are on or off."""
    return [name for name, one in inspect.signature(function).parameters.items() if isinstance(one.default, bool)]


@each("wrong", WRONG)
@each("option", flags_of(custom_op))
def test_flags_of_custom_op(option, wrong):
    with pytest.raises(DeclarationError, match=f"the option '{option}' has the wrong type"):
        declare(**{option: WRONG[wrong]})


def decorate(decorator):
    """Register a backward by what `register_grad` returned."""
    decorator(lambda grad, n: grad * n)


@each("wrong", WRONG)
@each("method", METHODS)
def test_flags_of_methods(method, wrong):
    op = declare()

    for option in flags_of(getattr(CustomOp, method)):
        with pytest.raises(CustomAutogradError, match=f"the option '{option}' has the wrong type"):
            decorate(call(getattr(op, method), {**METHODS[method], option: WRONG[wrong]}))


@each("wrong", WRONG)
def test_flags_of_a_policy(wrong):
    with pytest.raises(CustomAutogradError, match="the option 'pin' has the wrong type"):
        offload(pin=WRONG[wrong])


@each("wrong", WRONG)
@each(("method", "right", "option"), options_of(Sample, SAMPLES))
def test_methods_of_a_sample(method, right, option, wrong):
    def run():
        sample = call(getattr(samples()[0], method), {**right, option: WRONG[wrong]})
        declare().check([sample], checks=["schema"], isolated=False, raise_on_failure=False)

    check_error(run)


def test_every_method_is_walked():
    assert {name for name in vars(CustomOp) if name.startswith("register_")} <= set(METHODS)


def test_the_messages():
    assert_expected_inline(
        message(lambda: declare(dtypes=torch.int64)),
        """\
DeclarationError: wrong_types::op: the option 'dtypes' has the wrong type
  expected   a dict by output
  found      torch.int64
  declared   FILE.py:LINE
  do         pass dtypes={'out': torch.int64}, for example""",
    )
    assert_expected_inline(
        message(lambda: declare(tags="pointwise")),
        """\
DeclarationError: wrong_types::op: the option 'tags' has the wrong type
  expected   dispatcher tags
  found      'pointwise'
  declared   FILE.py:LINE
  do         pass tags=(torch.Tag.pointwise,), for example""",
    )
    assert_expected_inline(
        message(lambda: declare().register_kernel(["cpu", 3], scaled)),
        """\
RegistrationError: wrong_types::op: the option 'device_types' has the wrong type
  expected   a string, or several
  found      3
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         pass device_types='cpu', for example""",
    )
    assert_expected_inline(
        message(lambda: declare().set_kernel_enabled("cpu", 3).__enter__()),
        """\
RegistrationError: wrong_types::op: the option 'enabled' has the wrong type
  expected   True or False
  found      3
  declared   FILE.py:LINE
  do         pass enabled=True, for example""",
    )
    assert_expected_inline(
        message(lambda: declare().check(samples(), checks=3)),
        """\
CheckError: check: the option 'checks' has the wrong type
  expected   names of checks
  found      3
  do         pass checks=['vmap'], for example""",
    )
    assert_expected_inline(
        message(lambda: declare().check(samples(), device="gpu")),
        """\
CheckError: wrong_types::op: the option 'device' is not a device
  expected   a device, such as 'cpu' or 'cuda:0'
  found      'gpu'
  declared   FILE.py:LINE
  do         pass device='cpu'""",
    )
