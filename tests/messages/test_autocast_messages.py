"""What `register_autocast` is answered with when it does not fit."""

# ruff: noqa: E501 - a message is as long as it is

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch import Tensor

from custom_autograd import RegistrationError, custom_op


@custom_op("casts::scaled", outputs=("out", "rstd"), hidden=("rstd",))
def scaled(x: Tensor, weight: Tensor, *, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    return x * weight, x * 1


@custom_op("casts::write_", mutates_args=("total",))
def write_(total: Tensor, x: Tensor) -> None:
    total.add_(x)


view = custom_op("casts::view", lambda x: x[:2], schema="(Tensor(a) x) -> Tensor(a)")


def refused(*args, op=scaled, **kwargs):
    return message(lambda: op.register_autocast(*args, **kwargs))


def test_device_types():
    assert_expected_inline(
        together(
            refused("gpu", "lower"),
            refused("meta", "lower"),
            refused(torch.device("cpu"), "lower"),
            refused("cpu:0", torch.bfloat16),
        ),
        """\
RegistrationError: casts::scaled
  declared   FILE.py:LINE
the device type has no autocast
  expected   'cpu', 'cuda', ...
  found      'gpu'
  rule       register_autocast('gpu', 'lower')
  do         did you mean 'cuda'? If not, import the package that makes the device type known to torch first
the device type has no autocast
  expected   'cpu', 'cuda', ...
  found      'meta'
  rule       register_autocast('meta', 'lower')
  do         leave the policy out; an out-of-tree backend has autocast if its module defines get_amp_supported_dtype
the device type has no autocast
  expected   'cpu', 'cuda', ...
  found      device(type='cpu')
  rule       register_autocast(device(type='cpu'), 'lower')
  do         give the name of a device type, such as 'cuda'
the device type has no autocast
  expected   'cpu', 'cuda', ...
  found      'cpu:0'
  rule       register_autocast('cpu:0', torch.bfloat16)
  do         name the device type, 'cpu', which all its devices share""",
    )


def test_what_is_refused_for_one_device_leaves_the_op_as_it_was():
    op = custom_op("casts::left", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)
    with pytest.raises(RegistrationError):
        op.register_autocast("cuda:0", torch.bfloat16)
    op.register_autocast("cpu", torch.bfloat16)

    with torch.autocast("cpu"):
        assert torch.bfloat16 == op(torch.ones(1)).dtype


def test_names():
    assert_expected_inline(
        together(
            refused("cpu", {"wieght": "lower"}),
            refused("cpu", {"eps": "float32"}),
            refused("cpu", {0: "lower"}),
            refused("cpu", "lower", output={"oot": "input"}),
            refused("cpu", "lower", output={"rstd": "float32"}),
        ),
        """\
RegistrationError: casts::scaled
  declared   FILE.py:LINE
autocast names 'wieght', which is not a name of the op
  expected   'x', 'weight'
  found      'wieght'
  rule       register_autocast('cpu', {'wieght': 'lower'})
  do         did you mean 'weight'?
autocast names 'eps', which is not a tensor argument
  expected   'x', 'weight'
  found      'eps'
  rule       register_autocast('cpu', {'eps': 'float32'})
autocast names 0, which is not a name of the op
  expected   'x', 'weight'
  found      0
  rule       register_autocast('cpu', {0: 'lower'})
autocast names 'oot', which is not a name of the op
  expected   'out'
  found      'oot'
  rule       register_autocast('cpu', 'lower', output {'oot': 'input'})
  do         did you mean 'out'?
autocast names 'rstd', which is not a tensor that the call creates
  expected   'out'
  found      'rstd'
  rule       register_autocast('cpu', 'lower', output {'rstd': 'float32'})""",
    )


def test_words():
    assert_expected_inline(
        together(
            refused("cpu", "loewr"),
            refused("cpu", {"x": "half"}),
            refused("cpu", {"x": "bfloat16"}),
            refused("cpu", {"x": torch.int64}),
            refused("cpu", None),
            refused("cpu", {"x": "input"}),
        ),
        """\
RegistrationError: casts::scaled
  declared   FILE.py:LINE
autocast casts all arguments to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      'loewr'
  rule       register_autocast('cpu', 'loewr')
  do         did you mean 'lower'?
autocast casts 'x' to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      'half'
  rule       register_autocast('cpu', {'x': 'half'})
  do         write torch.half
autocast casts 'x' to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      'bfloat16'
  rule       register_autocast('cpu', {'x': 'bfloat16'})
  do         write torch.bfloat16
autocast casts 'x' to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      torch.int64
  rule       register_autocast('cpu', {'x': torch.int64})
autocast casts all arguments to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      None
  rule       register_autocast('cpu', None)
autocast casts 'x' to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'promote'
  found      'input'
  rule       register_autocast('cpu', {'x': 'input'})""",
    )


def test_words_for_outputs():
    assert_expected_inline(
        together(
            refused("cpu", "lower", output="promote"),
            refused("cpu", "lower", output={"out": 3}),
        ),
        """\
RegistrationError: casts::scaled
  declared   FILE.py:LINE
autocast casts the output to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'input'
  found      'promote'
  rule       register_autocast('cpu', 'lower', output 'promote')
autocast casts output 'out' to a floating-point dtype, or as a word declares
  expected   torch.bfloat16, ..., 'lower', 'float32', 'keep', 'input'
  found      3
  rule       register_autocast('cpu', 'lower', output {'out': 3})""",
    )


def test_written_and_viewed_arguments():
    assert_expected_inline(
        together(
            refused("cpu", {"total": "lower"}, op=write_),
            refused("cpu", {"x": "lower"}, op=view),
        ),
        """\
RegistrationError
  declared   FILE.py:LINE
casts::write_: autocast cannot cast 'total', which the op writes to: it would write to a copy
  expected   'total': 'keep'
  found      'total': 'lower'
  rule       register_autocast('cpu', {'total': 'lower'})
  do         leave 'total' out
casts::view: autocast cannot cast 'x', which an output is a view of: it would be a view of a copy
  expected   'x': 'keep'
  found      'x': 'lower'
  rule       register_autocast('cpu', {'x': 'lower'})
  do         leave 'x' out""",
    )


def test_second_policy():
    scaled.register_autocast("cpu", {"x": "lower"}, output="input", replace=True)

    assert_expected_inline(
        refused("cpu", torch.float16),
        """\
RegistrationError: casts::scaled: the autocast cpu rule is already registered
  found      one at register_autocast('cpu', {'x': 'lower'}, output 'input'), another at register_autocast('cpu', torch.float16)
  declared   FILE.py:LINE
  do         pass replace=True if that is meant""",
    )
