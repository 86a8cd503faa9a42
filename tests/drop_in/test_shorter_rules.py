"""Vmap rules and fakes may leave out arguments with defaults, as in torch.library; a call that passes one raises."""

import pytest
import torch
from tables import each
from torch import Tensor, vmap
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from custom_autograd import KernelError, RegistrationError, custom_op

X, W, B = torch.rand(3, 2), torch.rand(3, 2), torch.rand(3, 2)
LIBRARIES = {"torch.library": torch.library.custom_op, "custom_autograd": custom_op}


def shifted(x: Tensor, w: Tensor, bias: Tensor | None = None, k: int = 2) -> Tensor:
    return x * w * k if bias is None else x * w * k + bias


def keyword(x: Tensor, w: Tensor, *, scale: float = 1.0, flip: bool = False) -> Tensor:
    return x * w * (-scale if flip else scale)


def sized(x: Tensor, w: Tensor, sizes: tuple[int, int] = (1, 2), limit: float = float("nan")) -> Tensor:
    return x * w * sum(sizes)


def boxed(xs: dict[str, Tensor], w: Tensor, extra: dict[str, Tensor] | None = None, k: int = 2) -> Tensor:
    return xs["a"] * w * k if extra is None else xs["a"] * w * k + extra["b"]


def short(info, in_dims, x, w):
    x_dim, w_dim = in_dims
    assert w_dim in (0, None)
    return x.movedim(x_dim, 0) * w * 2, 0


def declare(library, function, rule, name="vmap"):
    op = LIBRARIES[library](f"shorter_{library.replace('.', '_')}::{function.__name__}", function, mutates_args=())
    getattr(op, f"register_{name}")(rule)
    return op


@each("library", LIBRARIES)
@each("rest", [(), (None,), (None, 2)])
def test_a_call_that_leaves_defaults_out(library, rest):
    op = declare(library, shifted, short)

    assert_close(vmap(lambda x, w: op(x, w, *rest))(X, W), X * W * 2)
    assert_close(vmap(op, (1, None))(X.T, W[0]), X * W[0] * 2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_by_name_and_by_object(library):
    op = declare(library, shifted, short)
    for target in (op, op._opoverload._name if library == "torch.library" else op.overload._name):
        if library == "custom_autograd":
            op.register_vmap(short, replace=True)
        torch.library.register_vmap(target, short)

        assert_close(vmap(op)(X, W), X * W * 2)


PASSED = {
    "batched tensor": (shifted, lambda op: vmap(op)(X, W, B), "'bias'", "None", "a tensor of shape (3, 2)"),
    "tensor": (shifted, lambda op: vmap(op, (0, 0, None))(X, W, B[0]), "'bias'", "None", "a tensor of shape (2,)"),
    "number": (shifted, lambda op: vmap(lambda x, w: op(x, w, k=3))(X, W), "'k'", "2", "3"),
    "keyword": (keyword, lambda op: vmap(lambda x, w: op(x, w, scale=2.5))(X, W), "'scale'", "1.0", "2.5"),
    "list": (sized, lambda op: vmap(lambda x, w: op(x, w, (3, 4)))(X, W), "'sizes'", "(1, 2)", "(3, 4)"),
}


@pytest.mark.parametrize(("function", "call", "name", "default", "found"), PASSED.values(), ids=PASSED)
def test_a_call_that_passes_what_the_rule_does_not_take(function, call, name, default, found):
    op = declare("custom_autograd", function, short)
    with pytest.raises(KernelError) as caught:
        call(op)

    parts = [
        f"shorter_custom_autograd::{function.__name__}: the vmap rule does not take {name}, and the call passes",
        f"  expected   {default}, the default of {name}",
        f"  found      {found}",
        f"  rule       test_shorter_rules.py:{short.__code__.co_firstlineno}",
        "  do         give the vmap rule a parameter for each argument of the op: 'x', 'w', ",
    ]
    for part in parts:
        assert part in str(caught.value).replace("[", "(").replace("]", ")")


def test_the_same_values_as_the_defaults():
    op = declare("custom_autograd", sized, lambda info, in_dims, x, w: (x * w * 3, 0))

    assert_close(vmap(lambda x, w: op(x, w, [1, 2], float("nan")))(X, W), X * W * 3)


def test_a_rule_that_takes_some_of_the_rest():
    seen = []

    def rule(info, in_dims, x, w, bias):
        seen.append((in_dims, bias is None))
        return x * w * 2, 0

    op = declare("custom_autograd", shifted, rule)
    vmap(op)(X, W)
    vmap(op, (0, 0, None))(X, W, B[0])

    assert [((0, 0, None), True), ((0, 0, None), False)] == seen


def test_a_rule_that_takes_one_of_two_keywords():
    op = declare("custom_autograd", keyword, lambda info, in_dims, x, w, *, scale: (x * w * scale, 0))

    assert_close(vmap(lambda x, w: op(x, w, scale=2.5))(X, W), X * W * 2.5)
    with pytest.raises(KernelError, match="does not take 'flip'"):
        vmap(lambda x, w: op(x, w, flip=True))(X, W)


def test_a_rule_that_takes_everything_gets_everything():
    seen = []

    def rule(info, in_dims, *args, **kwargs):
        seen.append((in_dims, len(args), kwargs))
        return args[0] * args[1], 0

    vmap(declare("custom_autograd", shifted, rule))(X, W)
    vmap(declare("custom_autograd", keyword, rule))(X, W)

    assert [((0, 0, None, None), 4, {}), ((0, 0), 2, {"scale": 1.0, "flip": False})] == seen


@each(
    "rule",
    [lambda info, in_dims, x: x, lambda info, in_dims: None, lambda x: x, lambda info, in_dims, x, w, *, other: x,
     lambda info, in_dims, x, w, k: x, lambda info, in_dims, x, w, bias, k, more: x],
    ids=["argument without a default", "no arguments", "no info", "unknown keyword", "another argument's name", "more"],
)  # fmt: skip
def test_a_rule_that_fits_no_call_is_refused_at_once(rule):
    with pytest.raises(RegistrationError, match="the vmap rule does not fit the schema"):
        declare("custom_autograd", shifted, rule)


def test_an_op_with_containers():
    def rule(info, in_dims, xs, w):
        xs_dim, w_dim = in_dims
        assert w_dim is None
        return xs["a"].movedim(xs_dim["a"], 0) * w * 2, 0

    op = declare("custom_autograd", boxed, rule)

    assert_close(vmap(lambda x: op({"a": x}, W[0]))(X), X * W[0] * 2)
    with pytest.raises(KernelError, match=r"does not take 'extra'.*\n.*default of 'extra'\n"):
        vmap(lambda x: op({"a": x}, W[0], {"b": x}))(X)
    with pytest.raises(KernelError, match="does not take 'k'"):
        vmap(lambda x: op({"a": x}, W[0], k=3))(X)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("function", [shifted, keyword])
def test_a_fake_that_takes_less(library, function):
    op = declare(library, function, lambda x, w: torch.empty_like(x), "fake")
    with FakeTensorMode():
        found = op(torch.empty(3), torch.empty(3))

    assert (3,) == found.shape


def test_a_fake_and_a_call_that_passes_what_it_does_not_take():
    op = declare("custom_autograd", shifted, lambda x, w: torch.empty_like(x), "fake")

    with FakeTensorMode(), pytest.raises(KernelError, match="the fake does not take 'k'"):
        op(torch.empty(3), torch.empty(3), None, 3)
    compiled = torch.compile(lambda x: op(x, x) + 1, backend="eager", fullgraph=True)
    assert_close(compiled(X), X * X * 2 + 1)


def test_a_kernel_takes_all_arguments():
    op = custom_op("shorter_custom_autograd::kernels", shifted)

    with pytest.raises(RegistrationError, match="the cpu kernel does not fit the schema"):
        op.register_kernel("cpu", lambda x, w: x * w)
