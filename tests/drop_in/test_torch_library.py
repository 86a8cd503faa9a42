"""Rules registered through torch.library, by object or by name, are adopted with every transform."""

import pytest
import torch
from tables import each
from torch import Tensor
from torch._library.custom_ops import CustomOpDef
from torch._library.effects import EffectType
from torch.testing._internal.optests.generate_tests import OpCheckError
from torch.utils._python_dispatch import TorchDispatchMode

from custom_autograd import RegistrationError, custom_op

pytestmark = pytest.mark.usefixtures("fresh_compiler")

X = torch.tensor([1.0, 2.0], dtype=torch.float64)
numbers = iter(range(1000))


def cube(name="cube", **options):
    """A new op without rules, under a name of its own."""

    def function(x: Tensor) -> Tensor:
        return x**3

    return custom_op(f"adopted::{name}_{next(numbers)}", function, mutates_args=(), **options)


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return 3 * x * x * grad


def by_object(op):
    return op


def by_name(op):
    return op.name


def by_overload(op):
    return op.overload


WAYS = {"object": by_object, "name": by_name, "overload": by_overload}
way_of = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
when = each("is_called_first", [False, True], ids=["before the first call", "after calls"])


def prepared(is_called_first):
    op = cube()
    for _ in range(3 if is_called_first else 0):
        op(X)
    return op


def test_an_op_is_a_custom_op_def():
    assert isinstance(cube(), CustomOpDef)
    assert isinstance(cube(), torch.library.CustomOpDef)


@way_of
@when
def test_a_backward_has_every_transform(way, is_called_first):
    op = prepared(is_called_first)
    torch.library.register_autograd(way(op), backward, setup_context=setup_context)
    x = X.clone().requires_grad_()
    op(x).sum().backward()

    expected = 3 * X * X
    torch.testing.assert_close(x.grad, expected)
    torch.testing.assert_close(torch.func.grad(lambda x: op(x).sum())(X), expected)
    torch.testing.assert_close(torch.func.jvp(op, (X,), (torch.ones_like(X),))[1], expected)
    torch.testing.assert_close(torch.func.hessian(lambda x: op(x).sum())(X), torch.diag(6 * X))
    torch.testing.assert_close(torch.vmap(torch.func.grad(lambda x: op(x)))(X), expected)
    assert op.capabilities()["backward"].startswith("registered: autograd")


def test_a_backward_that_is_registered_after_a_first_gradient_failed_is_used():
    op, x = cube(), X.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no backward is registered"):
        op(x).sum().backward()
    torch.library.register_autograd(op.name, backward, setup_context=setup_context)
    op(x).sum().backward()

    torch.testing.assert_close(x.grad, 3 * X * X)


@way_of
@each("is_decorator", [False, True])
def test_a_fake_is_adopted(way, is_decorator):
    op = cube()
    if is_decorator:
        torch.library.register_fake(way(op))(torch.empty_like)
    else:
        torch.library.register_fake(way(op), torch.empty_like)

    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(X), X**3)
    assert op._abstract_fn is torch.empty_like


def test_only_an_op_that_returns_nothing_new_has_a_fake_without_a_rule():
    write = custom_op("torch_library::write_", lambda x: None, mutates_args=("x",), schema="(Tensor(a!) x) -> ()")

    assert cube()._abstract_fn is None
    assert write._abstract_fn(torch.ones(1)) is None


class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def within(context, op, x=X):
    with context:
        return op(x)


ADOPTED = {
    "kernel": (
        lambda target: torch.library.register_kernel(target, "cpu", lambda x: x + 1),
        lambda op: (op(X), op.overload(X), *op.kernels),
        (X + 1, X + 1, "cpu", "default"),
    ),
    "vmap": (
        lambda target: torch.library.register_vmap(target, lambda info, in_dims, x: (x + 100, in_dims[0])),
        lambda op: (torch.vmap(op)(X),),
        (X + 100,),
    ),
    "autocast": (
        lambda target: torch.library.register_autocast(target, "cpu", torch.bfloat16),
        lambda op: (within(torch.autocast("cpu", torch.bfloat16), op, torch.ones(2)), op._autocast_dtype),
        (torch.ones(2).bfloat16(), {"cpu": torch.bfloat16}),
    ),
    "torch_dispatch": (
        lambda target: torch.library.register_torch_dispatch(
            target, Mode, lambda mode, func, types, args, kwargs: args[0] - 1
        ),
        lambda op: (within(Mode(), op),),
        (X - 1,),
    ),
}


@way_of
@when
@each(("register", "use", "expected"), ADOPTED.values(), ids=ADOPTED)
def test_another_rule_is_adopted(way, is_called_first, register, use, expected):
    op = prepared(is_called_first)
    register(way(op))

    for found, other in zip(use(op), expected, strict=True):
        assert torch.equal(found, other) if isinstance(other, Tensor) else found == other


def test_an_effect_keeps_calls_in_order():
    op = cube()
    op.register_fake(torch.empty_like)
    op.register_effect(EffectType.ORDERED)
    graphs = []

    def forward(x):
        op(x)  # without an effect, a compiler drops a call whose result is not used
        return x + 1

    from torch._dynamo.backends.common import aot_autograd

    torch.compile(forward, backend=aot_autograd(fw_compiler=lambda graph, inputs: graphs.append(graph) or graph))(X)

    assert "with_effects" in graphs[0].code
    assert "registered (register_effect(EffectType.ORDERED))" == op.capabilities()["effect"]


def test_opcheck_takes_the_op():
    op = cube(reference=True)

    found = torch.library.opcheck(op, (X.clone().requires_grad_(),))

    assert {"SUCCESS"} == set(found.values())
    wrong = cube()
    wrong.register_fake(lambda x: x.new_empty(3))
    with pytest.raises(OpCheckError):
        torch.library.opcheck(wrong, (X,))


def test_a_second_rule_by_name_raises_as_by_object():
    op = cube()
    op.register_fake(torch.empty_like)
    with pytest.raises(RegistrationError, match="the fake rule is already registered"):
        torch.library.register_fake(op.name, torch.zeros_like)


def test_a_replaced_op_adopts_rules_too():
    first = custom_op("adopted::replaced", lambda x: x**3, schema="(Tensor x) -> Tensor")
    second = custom_op("adopted::replaced", lambda x: x**2, schema="(Tensor x) -> Tensor", replace=True)
    torch.library.register_autograd(first.overload, backward, setup_context=setup_context)

    torch.testing.assert_close(torch.func.jvp(first, (X,), (torch.ones_like(X),))[1], 3 * X * X)
    assert "missing: register_backward" == second.capabilities()["backward"]


def test_an_op_whose_handle_is_dropped_adopts_rules():
    name = cube().name
    torch.library.register_autograd(name, backward, setup_context=setup_context)
    call = getattr(torch.ops.adopted, name.partition("::")[2])

    torch.testing.assert_close(torch.func.jvp(call, (X,), (torch.ones_like(X),))[1], 3 * X * X)


def test_a_kernel_of_a_library_is_used_and_withdrawn():
    op = cube()
    op(X)
    with torch.library._scoped_library("adopted", "FRAGMENT") as library:
        library.impl(op._name, lambda x: x + 7, "CPU")
        torch.testing.assert_close(op(X), X + 7)

    torch.testing.assert_close(op(X), X**3)


def test_a_fake_profile_replaces_the_fake_for_a_while():
    from torch._library.fake_profile import OpProfile, TensorMetadata, unsafe_generate_fake_kernels

    op = cube()
    op.register_fake(torch.empty_like)
    metadata = TensorMetadata(1, torch.float64, torch.device("cpu"), torch.strided)
    with unsafe_generate_fake_kernels({f"adopted.{op._name}.default": {OpProfile((metadata,), metadata)}}):
        assert op._abstract_fn is not torch.empty_like

    assert op._abstract_fn is torch.empty_like


def make_theirs():
    def function(x: Tensor) -> Tensor:
        return x**3

    return torch.library.custom_op("adopted::theirs", function, mutates_args=())


THEIRS = make_theirs()


@pytest.mark.skipif(torch.__version__ < "2.13", reason="members that torch 2.13 no longer has are not copied")
def test_every_member_of_torchs_object_is_there():
    ours = cube()

    members = {*dir(THEIRS)} - {"__weakref__", "__dict__", "__annotations__", "__static_attributes__"}
    assert members <= {*dir(ours)}
    for name in members:
        getattr(ours, name)


@each("name", ["_schema", "_tags", "_is_inplace", "_is_out", "_out_kwarg_names", "_used_triton_kernels"])
def test_a_member_has_the_value_that_torchs_object_has(name):
    if not hasattr(THEIRS, name):
        pytest.skip(f"the object of this torch has no {name}")

    expected, found = getattr(THEIRS, name), getattr(cube(), name)
    assert (tuple(expected) if name == "_tags" else expected) == found


def test_members_name_the_op():
    op = cube("named")

    assert "adopted" == op._namespace
    assert op.name == op._qualname == f"adopted::{op._name}"
    assert op.overload is op._opoverload
    assert op.__wrapped__ is op._init_fn
    assert isinstance(op._lib, torch.library.Library)


def test_members_show_what_is_registered():
    op = cube()
    op.register_autograd(backward, setup_context=setup_context)

    assert (backward, setup_context) == (op._backward_fn, op._setup_context_fn)
    assert [None] == list(op._backend_fns)
    with op.set_kernel_enabled("cpu", False):
        assert {"cpu"} == op._disabled_kernel


@pytest.mark.parametrize("name", ["_backward_fn", "_abstract_fn", "_vmap_fn", "_opoverload"])
def test_a_rule_cannot_be_put_past_the_methods(name):
    with pytest.raises(AttributeError):
        setattr(cube(), name, backward)


def test_kernels_cannot_be_put_past_the_methods():
    with pytest.raises(TypeError):
        cube()._backend_fns[None] = backward
