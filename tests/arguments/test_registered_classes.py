"""An argument may be an instance of a class that is registered with torch, which passes it on as it is."""

import pytest
import torch
from torch import Tensor
from torch._library import opaque_object

from custom_autograd import CustomAutogradError, DeclarationError, Sample, custom_op

try:
    from torch._custom_class_base import CustomClassBase as Base  # torch 2.15
except ImportError:
    from torch._opaque_base import OpaqueBase as Base

register = getattr(opaque_object, "register_custom_class", None)
CONSTANT = "value" if register is None else "constant"  # torch 2.15 has other names for both
register = opaque_object.register_opaque_type if register is None else register


class Scale(Base):
    """A constant: compared by value, and written into graphs."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Scale) and self.factor == other.factor

    def __hash__(self) -> int:
        return hash(self.factor)

    def __fx_repr__(self) -> tuple[str, dict[str, type]]:
        return f"Scale({self.factor})", {"Scale": Scale}


register(Scale, typ=CONSTANT)


@custom_op("registered_classes::cube", reference=True)
def cube(x: Tensor, scale: Scale, other: Scale | None = None) -> Tensor:
    return x**3 * scale.factor * (1.0 if other is None else other.factor)


@cube.register_backward
def _(grad, x, scale, other):
    return 3 * x**2 * grad * scale.factor * (1.0 if other is None else other.factor)


@cube.register_samples
def _(make):
    yield Sample(make(3), Scale(2.0))
    yield Sample(make(2, 2), Scale(0.5), Scale(3.0))


X = torch.tensor([0.5, -2.0], dtype=torch.float64)


def test_values_and_gradients():
    x = X.clone().requires_grad_()
    for _ in range(3):
        y = cube(x, Scale(2.0), Scale(3.0))

        torch.testing.assert_close(y, 6 * X**3)
        torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], 18 * X**2)


def test_transforms():
    def f(x):
        return cube(x, Scale(2.0)).sum()

    torch.testing.assert_close(torch.func.hessian(f)(X), torch.diag(12 * X))
    torch.testing.assert_close(torch.func.jvp(f, (X,), (torch.ones_like(X),))[1], (6 * X**2).sum())
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(f))(X), 6 * X**2)


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled():
    x = X.clone().requires_grad_()
    compiled = torch.compile(lambda x: cube(x, Scale(4.0)).sum(), backend="aot_eager", fullgraph=True)

    torch.testing.assert_close(torch.autograd.grad(compiled(x), x)[0], 12 * X**2)


def test_something_else_is_refused():
    with pytest.raises(CustomAutogradError, match=r"'scale'[\s\S]*expected an instance of Scale, found 3"):
        cube(X, 3)


def test_a_list_of_instances_is_refused():
    def f(x: Tensor, scales: list[Scale]) -> Tensor:
        return x.clone()

    with pytest.raises(DeclarationError, match="'scales' has an annotation that is not supported"):
        custom_op("registered_classes::listed", f)


def test_a_class_that_is_not_registered_is_refused():
    class Other:
        pass

    def f(x: Tensor, other: Other) -> Tensor:
        return x.clone()

    f.__annotations__["other"] = Other
    with pytest.raises(DeclarationError, match="classes registered with torch"):
        custom_op("registered_classes::other", f)


@pytest.mark.slow
def test_every_check_passes():
    cube.check()
