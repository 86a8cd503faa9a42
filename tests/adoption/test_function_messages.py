"""What `from_function` is answered with when a Function cannot be an op."""

# ruff: noqa: E501 - a message is as long as it is

import re

import torch
from adoption.functions import Base, Sum, tensor
from expecttest import assert_expected_inline
from messages.shown import message, together
from torch.autograd import Function

from custom_autograd import from_function


def function_of(forward):
    """Return a Function with this forward, whose backward returns one gradient too many."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(lambda ctx, grad, *rest: (grad, None, grad))}
    return type(forward.__name__, (Function,), methods)


@function_of
def dirty(ctx, x):
    ctx.mark_dirty(x)
    return x.add_(1)


@function_of
def with_group(ctx, x, group):
    return x * 1


@function_of
def keeps_an_object(ctx, x):
    ctx.stream = slice(0, x.max().item())
    return x * 1


@function_of
def returns_text(ctx, x):
    return x * 1, "text"


@function_of
def keeps_sometimes(ctx, x, keep):
    if keep:
        ctx.save_for_backward(x)
    return x * 1


@function_of
def reads_its_kind(ctx, x):
    ctx.save_for_backward(x if x[0] > 0 else x * 1)
    ctx.kind = "positive" if x[0] > 0 else "negative"
    return x * 1


@function_of
def keeps_a_graph(ctx, x):
    with torch.enable_grad():
        ctx.x = x.detach().requires_grad_()
        ctx.y = ctx.x.sin()
    return ctx.y.detach()


def refused(function, *calls, name="refused::op"):
    text = message(lambda: from_function(function, name, samples=list(calls)))
    return re.sub(r"functions\.py:\d+", "FILE.py:LINE", text)


def test_functions_and_samples_that_cannot_become_an_op():
    assert_expected_inline(
        together(
            refused(dirty, (tensor(3),)),
            refused(keeps_a_graph, (tensor(3),)),
            refused(with_group, (tensor(3), slice(0, 3))),
            refused(keeps_an_object, (torch.ones(3),), (2 * torch.ones(3),)),
            refused(returns_text, (tensor(3),)),
            refused(keeps_sometimes, (tensor(3), True), (tensor(3), False)),
            message(lambda: from_function(with_group, "refused::op")),
            refused(Base),
            refused(Base, ()),
            refused(Base, (tensor(3), 5)),
            refused(Sum, (2.0, tensor(3)), (2.0, tensor(3), tensor(3))),
        ),
        """\
DeclarationError: refused::op
  declared   FILE.py:LINE
forward writes to 'x'
  expected   a forward that returns new tensors
  do         declare an op with mutates_args= and a backward of its own, or copy the argument before the call
forward records a graph, and keeps it on ctx for the backward
  expected   a forward that keeps tensors without a graph, because an op saves their values alone
  do         save the inputs, and compute under torch.enable_grad() in the backward
argument 'group' does not have a type that an op can take
  expected   tensors, numbers, text, constants of torch, lists of those, or functions that can be imported
  found      slice
  do         call it from a Function without this argument, such as one made for each value
ctx.stream cannot be computed again for the backward, and is not a tensor or a number
  expected   a value that follows from arguments and shapes
  found      slice(0, 1.0, None)
  do         let forward keep tensors or numbers, or run on tensors without data: it raises DataDependentOutputException there
forward returns what an op cannot return
  expected   tensors or numbers
  found      'text'
  do         return it from a function around the op
forward keeps different values on ctx in different calls
  expected   saved_tensors[0]
  found      nothing
  do         make one op for each kind of call, with samples= of that kind
the types of arguments, and the values that forward keeps on ctx, are not known without a call
  expected   samples=, or annotations of tensors and numbers
  found      no annotation of 'x', 'group'
  do         pass samples=[(tensor, ...)], the arguments of a call
samples= does not contain a call
  expected   a Sample, or a tuple of arguments
  do         pass at least one
a sample does not fit forward: missing a required argument: 'x'
  expected   (x, dim=-1)
  found      Sample()
  do         correct it
forward raises for a recorded call: IndexError('Dimension out of range (expected to be in range of [-1, 0], but got 5)')
  do         pass samples= that forward accepts
'*xs' differs in length from call to call
  expected   one number of arguments
  found      1, 2
  do         make one op for each number, with samples= of that number""",
    )


def test_not_a_function():
    assert_expected_inline(
        refused(int),
        """\
DeclarationError: refused::op: from_function takes a subclass of torch.autograd.Function
  found      <class 'int'>
  do         pass the class itself, without apply""",
    )


def test_call_of_another_kind():
    op = from_function(keeps_sometimes, "refused::kept", samples=[(tensor(3), True)])

    assert_expected_inline(
        message(lambda: op(tensor(3), False)),
        """\
KernelError: refused::kept: the list of values on ctx differs from the recorded calls
  expected   saved_tensors[0]
  found      nothing
  declared   FILE.py:LINE
  do         add a call like this one to samples= of from_function""",
    )


def test_value_that_differs_from_the_recorded_calls():
    op = from_function(reads_its_kind, "refused::kind", samples=[(torch.ones(3),)])

    assert_expected_inline(
        message(lambda: op(-torch.ones(3))),
        """\
KernelError: refused::kind: saved_tensors[0] differs from the recorded calls
  expected   the argument 'x'
  found      another tensor
  declared   FILE.py:LINE
  do         add a call like this one to samples= of from_function""",
    )


def test_gradient_of_an_argument_that_has_none():
    op = from_function(with_group, "refused::many", samples=[(tensor(3), 2.0)])

    assert_expected_inline(
        message(lambda: op(tensor(3).requires_grad_(), 2.0).sum().backward()),
        """\
GradientError: refused::many: the backward returns more gradients than there are differentiable arguments
  expected   2, with None for arguments that are not differentiable
  found      tensor([1., 1., 1.], dtype=torch.float64)
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         return None in its place""",
    )
