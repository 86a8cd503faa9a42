"""An op is a good citizen: it introspects, pickles and copies like the function it was declared with."""

import copy
import inspect
import typing

import pytest
import torch
from torch import Tensor

from custom_autograd import (
    CheckError,
    CustomAutogradError,
    CustomOp,
    DeclarationError,
    GradientError,
    KernelError,
    RegistrationError,
    custom_op,
)


@custom_op("citizen::scale", outputs=("out", "twice"), hidden=("twice",))
def scale(x: Tensor, n: int = 2, *, s: float = 1.5) -> tuple[Tensor, Tensor]:
    """Scales a tensor."""
    return x * n * s, x * 2


@custom_op("citizen::plain")
def plain(x: Tensor, n: int = 2, *, s: float = 1.5) -> Tensor:
    return x * n * s


@custom_op("citizen::with_containers")
def with_containers(x: dict[str, Tensor]) -> Tensor:
    return x["a"] + x["b"]


def test_the_name_and_the_docstring_are_the_functions():
    assert "scale" == scale.__name__
    assert "Scales a tensor." == scale.__doc__
    assert __name__ == scale.__module__
    assert "scale" == scale.__qualname__


def test_the_wrapped_function_is_there():
    assert [3.0, 2.0] == [one.item() for one in scale.__wrapped__(torch.ones(1))]


def test_the_wrapped_function_of_an_op_with_containers_takes_containers():
    assert 3.0 == with_containers.__wrapped__({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}).item()
    assert inspect.signature(with_containers) == inspect.signature(inspect.unwrap(with_containers))


def test_the_signature_of_a_call_is_the_functions():
    assert "(x: torch.Tensor, n: int = 2, *, s: float = 1.5) -> torch.Tensor" == str(inspect.signature(plain))


def test_the_signature_of_a_call_does_not_return_hidden_outputs():
    assert "(x: torch.Tensor, n: int = 2, *, s: float = 1.5) -> torch.Tensor" == str(inspect.signature(scale))


def test_annotations_are_the_functions():
    assert {"x": Tensor, "n": int, "s": float, "return": Tensor} == typing.get_type_hints(plain)


def test_annotations_can_be_read_from_the_op_itself():
    assert {"x": Tensor, "n": int, "s": float, "return": Tensor} == plain.__annotations__
    assert plain.__wrapped__.__annotations__ == inspect.get_annotations(plain)


def test_the_class_of_ops_has_no_annotations_that_an_op_could_take_for_its_own():
    assert {} == inspect.get_annotations(CustomOp)


def test_the_name_is_the_qualified_one_and_the_repr_shows_the_schema():
    assert "citizen::scale" == scale.name
    assert "<CustomOp citizen::scale(Tensor x, SymInt n=2, *, float s=1.5) -> (Tensor, Tensor)>" == repr(scale)


def test_torch_library_users_find_their_names():
    assert torch.ops.citizen.scale.default is scale.overload is scale._opoverload
    assert "citizen::scale" == scale._qualname


def test_copies_are_the_op_itself():
    assert copy.copy(scale) is scale
    assert copy.deepcopy(scale) is scale
    assert copy.deepcopy({"op": [scale]})["op"][0] is scale


def test_errors_are_what_their_catchers_expect():
    assert issubclass(CustomAutogradError, RuntimeError)
    assert issubclass(DeclarationError, ValueError)
    assert issubclass(CheckError, AssertionError)
    subclasses = {DeclarationError, RegistrationError, KernelError, GradientError, CheckError}
    assert subclasses <= set(CustomAutogradError.__subclasses__())


def test_calling_wrongly_is_a_type_error():
    for args, kwargs in [((), {}), ((torch.ones(1), 1, 2), {}), ((torch.ones(1),), {"t": 1})]:
        with pytest.raises(TypeError):
            scale(*args, **kwargs)


def test_the_function_is_an_autograd_function_that_is_not_to_be_called():
    assert issubclass(scale.function, torch.autograd.Function)
    with pytest.raises(TypeError, match="call the op"):
        scale.function()


def test_apply_of_the_function_is_the_op():
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)

    assert torch.equal(plain(x, 3, s=2.0), plain.function.apply(x, 3, 2.0))


def biased(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, scale: float = 1.0) -> Tensor:
    return x * weight * scale if bias is None else x * weight * scale + bias


def test_apply_of_the_function_fills_in_defaults_as_that_of_a_function_with_setup_context():
    op = custom_op("citizen::biased", biased)
    op.register_backward(
        lambda grad, x, weight, scale: {
            "x": grad * weight * scale,
            "weight": lambda: grad * x * scale,
            "bias": lambda: grad,
        }
    )
    x, weight = torch.tensor([2.0], requires_grad=True), torch.tensor([3.0])

    for arguments, expected in [((), 6.0), ((torch.ones(1),), 7.0), ((None, 2.0), 12.0)]:
        assert [expected] == op.function.apply(x, weight, *arguments).tolist()
    assert [3.0] == torch.autograd.grad(op.function.apply(x, weight), x)[0].tolist()
    for arguments in [(x,), (x, weight, None, 1.0, 2)]:
        with pytest.raises(TypeError, match=r"biased\.apply\(\)"):
            op.function.apply(*arguments)


def test_apply_takes_a_default_only_behind_arguments_that_have_one():
    op = custom_op("citizen::scaled", lambda x, n, s: x * n * s, schema="(Tensor x, int n=2, *, float s) -> Tensor")

    assert [6.0] == op.function.apply(torch.ones(1), 2, 3.0).tolist()
    with pytest.raises(TypeError, match="'s'"):
        op.function.apply(torch.ones(1), 2)


def test_kernels_say_where_they_are():
    plain.register_kernel("cpu", lambda x, n=2, *, s=1.5: x * n * s)
    line = inspect.getsourcelines(test_kernels_say_where_they_are)[1] + 1

    assert f"test_citizenship.py:{line}" == plain.kernels["cpu"]
    assert {"cpu", "default"} == set(plain.kernels)


def test_capabilities_say_where_each_comes_from():
    op = custom_op("citizen::covered", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    before = op.capabilities()
    op.register_reference(lambda x: x * 2)
    after = op.capabilities()

    assert after == op.coverage()  # the name of the first release
    assert before["fake"].startswith("missing")
    assert before["backward"].startswith("missing")
    assert "derived from the reference" == after["fake"] == after["backward"] == after["jvp"]
    assert "derived from the reference, else a loop over the batch" == after["vmap"]
