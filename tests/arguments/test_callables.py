"""Whatever can be called can be an op's function, its kernel, its fake and its rule."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pickle

import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from torch.testing import assert_close
from ways import every_way

import custom_autograd
from custom_autograd import custom_op

X = torch.tensor([1.0, 2.0], dtype=torch.float64)


def scaled(factor: float, x: Tensor, n: int = 2, *, m: int = 1) -> Tensor:
    return x * factor * n * m


@dataclasses.dataclass
class Scale:
    """Callable, with methods of every kind; it is not hashable."""

    factor: float
    func: object = None

    def __call__(self, x: Tensor, n: int = 2) -> Tensor:
        return x * self.factor * n

    def method(self, x: Tensor) -> Tensor:
        return x * self.factor

    @classmethod
    def of_class(cls, x: Tensor) -> Tensor:
        return x * 5

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x * 6

    def fake(self, x):
        return torch.empty_like(x)

    def backward(self, grad):
        return grad * self.factor

    def jvp(self, tangent_x):
        return tangent_x * self.factor

    def vmap(self, info, in_dims, x):
        return x * self.factor, in_dims[0]


OBJECT = custom_op("callables::object", Scale(2.0))
METHOD = custom_op("callables::method", Scale(3.0).method)
OPS = {
    "object": (OBJECT, 4, "(Tensor x, SymInt n=2) -> Tensor"),
    "method": (METHOD, 3, "(Tensor x) -> Tensor"),
    "class method": (custom_op("callables::of_class", Scale.of_class), 5, "(Tensor x) -> Tensor"),
    "static method": (custom_op("callables::static", Scale.__dict__["static"]), 6, "(Tensor x) -> Tensor"),
    "partial": (custom_op("callables::partial", functools.partial(scaled, 4.0)), 8,
                "(Tensor x, SymInt n=2, *, SymInt m=1) -> Tensor"),
    "partial by keyword": (custom_op("callables::keyword", functools.partial(scaled, 4.0, n=5)), 20,
                           "(Tensor x, *, SymInt m=1) -> Tensor"),
    "partial of a method": (custom_op("callables::both", functools.partial(Scale(2.0).__call__, n=1)), 2,
                            "(Tensor x) -> Tensor"),
    "builtin": (custom_op("callables::builtin", torch.exp, schema="(Tensor x) -> Tensor"), None,
                "(Tensor x) -> Tensor"),
}  # fmt: skip

WITH_RULES = custom_op("callables::ruled", Scale(1.0).method)
WITH_RULES.register_kernel("cpu", functools.partial(torch.mul, other=torch.tensor(7.0, dtype=torch.float64)))
WITH_RULES.register_fake(Scale(7.0).fake)
WITH_RULES.register_backward(Scale(7.0).backward)
WITH_RULES.register_jvp(functools.partial(Scale.jvp, Scale(7.0)))
WITH_RULES.register_vmap(Scale(7.0).vmap)


@each(("op", "factor", "schema"), OPS.values(), ids=OPS)
def test_declared(op, factor, schema):
    assert schema == op.schema.text
    assert_close(op(X), X.exp() if factor is None else X * factor)
    with custom_autograd.validation("full"):
        assert_close(op(X), X.exp() if factor is None else X * factor)


def test_what_is_bound_is_no_parameter():
    assert ["x", "m"] == list(inspect.signature(OPS["partial by keyword"][0]).parameters)
    assert ["x"] == list(inspect.signature(OPS["builtin"][0]).parameters)


def test_the_location_is_that_of_the_function_behind():
    place = f"test_callables.py:{inspect.getsourcelines(scaled)[1]}"

    assert {"default": place} == OPS["partial"][0].kernels
    assert {"default": "builtin_function_or_method exp"} == OPS["builtin"][0].kernels


@each("name", OPS)
def test_pickled(name):
    op = OPS[name][0]

    assert op._record is pickle.loads(pickle.dumps(op))._record


def test_rules_that_are_methods_by_value():
    x = X.clone().requires_grad_()

    assert torch.autograd.gradcheck(WITH_RULES, x, check_forward_ad=True, check_batched_grad=True)


@every_way
def test_rules_that_are_methods_in_every_way(way, plainly):
    assert_close(way(WITH_RULES, X), plainly(lambda x: x * 7, X))


def test_a_kernel_that_cannot_be_hashed():
    METHOD.register_kernel("cpu", functools.partial(Scale(3.0), n=1))

    with custom_autograd.validation("full"):
        assert_close(METHOD(X), X * 3)


def linear(grad, x, factor):
    return grad * factor


def test_what_a_rule_has_bound_is_not_asked_for():
    OBJECT.register_backward(functools.partial(linear, x=None, factor=4.0))

    assert torch.autograd.gradcheck(OBJECT, X.clone().requires_grad_())


def test_a_rule_without_a_signature_and_an_object_with_the_wrong_parameters():
    assert_expected_inline(
        together(
            message(lambda: WITH_RULES.register_backward(max, replace=True)),
            message(lambda: WITH_RULES.register_kernel("cuda", Scale(1.0).backward.__func__)),
        ),
        """\
RegistrationError: callables::ruled
  declared   FILE.py:LINE
the backward has no signature to bind by
  expected   'x', 'output', 'needs', 'meta', 'grad', 'grad_output'
  rule       builtin_function_or_method max
  do         wrap it in a function whose parameters are the names it needs
the cuda kernel does not fit the schema: nothing is passed for its parameter 'grad'
  expected   (x)
  found      (self, grad)
  rule       FILE.py:LINE
  do         give it these parameters""",
    )


def test_partial_whose_rest_has_no_annotation():
    assert_expected_inline(
        message(lambda: custom_op("callables::bare", functools.partial(linear, 1))),
        """\
DeclarationError: callables::bare: arguments 'x', 'factor' have no type annotation
  expected   a type, such as Tensor, int, float, str, list[Tensor] or Tensor | None
  declared   FILE.py:LINE
  do         annotate each, or pass schema=; a function or a class takes static=('x',)""",
    )
