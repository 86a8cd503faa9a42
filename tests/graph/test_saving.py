"""saving, and saving= of a backward: what is kept until the backward, with the checks that autograd makes itself."""

from __future__ import annotations

import weakref

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from custom_autograd import GradientError, custom_op, saving
from custom_autograd.graph import SavedTensor, cast, compressed, forbidden, offload, recorded
from custom_autograd.native.native_calls import NativeCalls
from custom_autograd.torch_private.definitions import changes

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.fixture(params=["native", "python"], autouse=True)
def nodes(request, monkeypatch):
    """Which nodes the op's calls record, when they are known."""
    monkeypatch.setattr(NativeCalls, "are_learnt", request.param == "native")
    changes.note()
    yield
    changes.note()


@custom_op("saving::square")
def square(x: Tensor) -> Tensor:
    return x * x


square.register_fake(torch.empty_like)
square.register_backward(lambda grad, x: 2 * grad * x)


@custom_op("saving::exponential", outputs=["out"])
def exponential(x: Tensor) -> Tensor:
    return x.exp()


exponential.register_fake(torch.empty_like)
exponential.register_backward(lambda grad_out, out: grad_out * out)


def body(x):
    return exponential(square(x))


def x():
    return torch.linspace(-1, 1, 6, dtype=torch.float64).requires_grad_()


def gradient(function):
    """The gradient of a call that is known by now."""
    for _ in range(3):
        leaf = x()
        y = function(leaf)
        (found,) = torch.autograd.grad(y.sum(), leaf)
    return found


def expected():
    leaf = x()
    return torch.autograd.grad(leaf.square().exp().sum(), leaf)[0]


def by(*policies):
    def function(x):
        with saving(*policies):
            return body(x)

    return function


def halve(tensor):
    return {"half": tensor.half(), "scale": 3}


def double(packed):
    assert 3 == packed["scale"]
    return packed["half"].double()


EXACT = {"offload": [offload()], "recorded": [recorded([])], "none": [], "two": [offload(), recorded([])]}
ROUNDED = {
    "cast": [cast(torch.float32)],
    "compressed": [compressed(halve, double)],
    "compressed and cast": [compressed(halve, double), cast(torch.bfloat16)],
    "cast and compressed": [cast(torch.bfloat16), compressed(lambda t: (t, t.dtype), lambda packed: packed[0])],
}


@each("name", EXACT)
def test_a_policy_that_keeps_values_keeps_gradients(name):
    assert torch.equal(gradient(body), gradient(by(*EXACT[name])))


@each("name", ROUNDED)
def test_a_policy_that_rounds_gives_near_gradients(name):
    found = gradient(by(*ROUNDED[name]))

    assert_close(expected(), found, rtol=0.05, atol=0.01)
    assert not torch.equal(expected(), found)


def test_contexts_stack():
    """The inner one packs first and unpacks last."""
    log = []

    def noted(name):
        return compressed(
            lambda tensor: (log.append(f"pack {name}"), tensor)[1],
            lambda packed: (log.append(f"unpack {name}"), packed)[1],
        )

    def function(x):
        log.clear()
        with (
            torch.autograd.graph.saved_tensors_hooks(lambda t: (log.append("pack hooks"), t)[1], lambda p: p),
            saving(noted("outer")),
            saving(noted("first"), noted("second")),
        ):
            return square(x)

    gradient(function)

    packed = ["pack first", "pack second", "pack outer", "pack hooks"]
    assert [*packed, "unpack outer", "unpack second", "unpack first"] == log


def test_a_context_may_be_entered_again():
    once = saving(cast(torch.float32))

    def function(x):
        with once:
            inner = square(x)
            with once:
                return exponential(inner)

    assert_close(expected(), gradient(function), rtol=1e-5, atol=0)


def test_recorded_notes_what_is_saved_without_keeping_it():
    found: list[SavedTensor] = []
    leaf = x()
    with saving(recorded(found)):
        middle = square(leaf)
        exponential(middle)
    gone = weakref.ref(middle)
    del middle

    assert [(6,), (6,)] == [tuple(one.shape) for one in found]
    assert [48, 48] == [one.nbytes for one in found]
    assert gone() is None


def test_parameters_are_left_as_they_are():
    layer = torch.nn.Linear(3, 3)
    packed = []
    data = torch.randn(2, 3, requires_grad=True)
    with saving(compressed(lambda t: (packed.append(tuple(t.shape)), t)[1], lambda p: p)):
        layer(data).sum().backward()

    assert [(2, 3)] == packed


def test_a_write_to_what_shares_memory_is_an_error():
    def function():
        tensor = x() * 1
        with saving(offload()):
            y = square(tensor)
        tensor.mul_(2)
        y.sum().backward()

    assert_expected_inline(
        message(function, GradientError),
        """\
GradientError: saving: a tensor was written to after it was saved for the backward
  expected   version 0, as it was saved
  found      version 1
  do         write to a copy of it, or save one""",
    )


def test_a_write_to_what_was_copied_does_not_matter():
    leaf = x()
    tensor = leaf * 1
    with saving(cast(torch.float32)):
        y = square(tensor)
    tensor.detach().mul_(2)
    y.sum().backward()

    assert_close(2 * leaf.detach(), leaf.grad, rtol=1e-5, atol=1e-6)


def test_a_policy_that_returns_another_kind_of_tensor_is_an_error():
    wrong = {"dtype": lambda p: p.float(), "shape": lambda p: p[1:], "kind": lambda p: None}

    def call(unpack):
        with saving(compressed(lambda t: t, unpack)):
            square(x()).sum().backward()

    assert_expected_inline(
        together(*(message(lambda unpack=unpack: call(unpack)) for unpack in wrong.values())),
        """\
GradientError: saving
the policy compressed(<lambda>, <lambda>) does not return a tensor as it was saved
  expected   shape (6,), torch.float64, on cpu
  found      shape (6,), torch.float32, on cpu
  do         return a tensor of that shape and dtype, on that device, from its unpack function
the policy compressed(<lambda>, <lambda>) does not return a tensor as it was saved
  expected   shape (6,), torch.float64, on cpu
  found      shape (5,), torch.float64, on cpu
  do         return a tensor of that shape and dtype, on that device, from its unpack function
the policy compressed(<lambda>, <lambda>) does not return a tensor as it was saved
  expected   shape (6,), torch.float64, on cpu
  found      NoneType
  do         return a tensor of that shape and dtype, on that device, from its unpack function""",
    )


def test_what_is_forbidden_is_an_error_and_what_saves_nothing_is_not():
    with saving(forbidden("the encoder is frozen")), torch.no_grad():
        square(x())

    def call():
        with saving(forbidden("the encoder is frozen")):
            square(x())

    assert_expected_inline(
        message(call, GradientError),
        """\
GradientError: saving: a tensor is saved for a backward, which is forbidden here: the encoder is frozen
  found      shape (6,), torch.float64, on cpu
  do         use torch.no_grad() or detach() where no gradient is meant, or leave the context""",
    )


def test_no_graph_keeps_itself_alive():
    class Noted:
        pass

    for op in (square, exponential):
        with saving(recorded([]), offload()):
            y = op(x())
        noted = Noted()
        y.grad_fn.metadata["noted"] = noted
        gone = weakref.ref(noted)
        del noted, y
        assert gone() is None


@pytest.mark.parametrize("policy", [offload(), cast(torch.float32)], ids=str)
def test_second_derivatives(policy):
    leaf = x()
    with saving(policy):
        y = body(leaf)
        (grad,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
    (found,) = torch.autograd.grad(grad.sum(), leaf)

    y = (leaf * leaf).exp()
    assert_close(((2 + 4 * leaf * leaf) * y).detach(), found, rtol=1e-5, atol=1e-5)


def test_around_and_within_checkpointing():
    def within(x):
        with saving(cast(torch.bfloat16)):
            return body(x)

    around = gradient(lambda x: checkpoint(within, x, use_reentrant=False))
    with saving(cast(torch.bfloat16)):
        outside = gradient(lambda x: checkpoint(body, x, use_reentrant=False))

    assert_close(expected(), around, rtol=0.05, atol=0.01)
    assert_close(expected(), outside, rtol=0.05, atol=0.01)


def test_compiled_code():
    found: list[SavedTensor] = []
    compiled = torch.compile(body, backend="aot_eager", fullgraph=True)

    def function(x):
        with saving(cast(torch.float32), recorded(found)):
            return compiled(x)

    assert_close(expected(), gradient(function), rtol=1e-5, atol=1e-6)
    assert {torch.float32} == {one.dtype for one in found}


def test_what_is_no_policy_is_refused():
    with pytest.raises(TypeError, match=r"saving takes policies such as .*, and not torch.bfloat16"):
        saving(torch.bfloat16)
    with pytest.raises(TypeError, match="cast takes a floating-point dtype"):
        cast(torch.int8)
    with pytest.raises(TypeError, match="compressed takes two functions"):
        compressed(halve, None)


class TestByName:
    """saving= of register_backward."""

    @staticmethod
    def declare(name, saving, **options):
        @custom_op(f"saving::{name}", outputs=["product", "sum"], replace=True, **options)
        def op(x: Tensor, y: Tensor | None, rest: list[Tensor]) -> tuple[Tensor, Tensor]:
            return (x.clone() if y is None else x * y), sum(rest, x * 0)

        @op.register_fake
        def _(x, y, rest):
            return torch.empty_like(x), torch.empty_like(x)

        @op.register_backward(saving=saving)
        def _(grad_product, grad_sum, x, y, rest, product, needs):
            # product stands for 1: rest and it are saved to be packed
            same = (product - (x if y is None else x * y)).sum() + sum((one - one).sum() for one in rest)
            return {
                "x": (grad_product if y is None else grad_product * y) + same,
                "y": None if y is None else grad_product * x,
                "rest": [grad_sum * 1 for _ in rest],
            }

        return op

    @each("has_y", [True, False])
    @each("names", ["x", "product", "rest", "y product", "x y rest product"])
    def test_only_what_is_named_is_packed(self, names, has_y):
        names, packed = names.split(), []
        policies = {
            name: compressed(lambda t, name=name: (packed.append(name), t.clone())[1], lambda p: p) for name in names
        }
        op = self.declare("named", policies)
        for _ in range(3):
            packed.clear()
            x, y, first, second = (torch.rand(3, dtype=torch.float64).requires_grad_() for _ in range(4))
            product, total = op(x, y if has_y else None, [first, second])
            (product.sum() + 2 * total.sum()).backward()

        expected = {"x": 1, "y": int(has_y), "rest": 2, "product": 1}
        assert [name for name in expected if name in names for _ in range(expected[name])] == packed
        assert_close(y.detach() if has_y else torch.ones_like(x), x.grad)
        assert_close(torch.full_like(x, 2), second.grad)

    def test_a_context_packs_afterwards(self):
        log = []
        op = self.declare(
            "stacked", {"x": compressed(lambda t: (log.append("named"), t)[1], lambda p: (log.append("unnamed"), p)[1])}
        )
        outer = compressed(lambda t: (log.append("context"), t)[1], lambda p: p)
        for _ in range(3):
            log.clear()
            with saving(outer):
                product, _ = op(x(), None, [])
            product.sum().backward()

        assert ["named", "context", "context", "unnamed"] == log

    def test_transforms_save_as_it_is(self):
        op = self.declare("transformed", {"x": forbidden("never")})

        assert torch.equal(torch.ones(3), torch.func.grad(lambda x: op(x, None, [])[0].sum())(torch.ones(3)))

    def test_compiled(self):
        op = self.declare("compiled", {"x": cast(torch.float32)})
        leaf = x()
        product, _ = torch.compile(lambda x: op(x, x, []), backend="aot_eager", fullgraph=True)(leaf)
        product.sum().backward()

        assert_close(2 * leaf.detach(), leaf.grad, rtol=1e-5, atol=1e-6)

    def test_second_derivatives_and_no_leak(self):
        op = custom_op("saving::cube", lambda x: x**3, schema="(Tensor x) -> Tensor out", replace=True)
        op.register_backward(lambda grad, x: 3 * grad * x * x, saving={"x": offload()})
        leaf = x()
        (grad,) = torch.autograd.grad(op(leaf).sum(), leaf, create_graph=True)
        (found,) = torch.autograd.grad(grad.sum(), leaf)

        assert_close(6 * leaf.detach(), found)

    def test_errors_name_the_op_and_the_tensor(self):
        op = custom_op("saving::wrong", lambda x: x**2, schema="(Tensor x) -> Tensor out", replace=True)
        op.register_backward(lambda grad, x: 2 * grad * x, saving={"x": compressed(lambda t: t, lambda p: p.float())})

        assert_expected_inline(
            message(lambda: op(x()).sum().backward(), GradientError),
            """\
GradientError: saving::wrong: the policy compressed(<lambda>, <lambda>) does not return 'x' as it was saved
  expected   shape (6,), torch.float64, on cpu
  found      shape (6,), torch.float32, on cpu
  declared   FILE.py:LINE
  do         return a tensor of that shape and dtype, on that device, from its unpack function""",
        )

    def test_refusals(self):
        def register(saving):
            op = custom_op("saving::refused", lambda x, n: x, schema="(Tensor x, int n) -> Tensor out", replace=True)
            op.register_backward(lambda grad, x, n: grad * x, saving=saving)

        calls = ({"n": offload()}, {"grad": offload()}, {"x": torch.float16}, offload())
        assert_expected_inline(
            together(*(message(lambda saving=saving: register(saving)) for saving in calls)),
            """\
RegistrationError: saving::refused
  rule       FILE.py:LINE
  declared   FILE.py:LINE
saving= names 'n', which is not a tensor that the backward saves
  expected   'x'
  found      'n'
  do         name an input or an output that is a parameter of the backward
saving= names 'grad', which is not a tensor that the backward saves
  expected   'x'
  found      'grad'
  do         name an input or an output that is a parameter of the backward
saving= takes policies by name
  expected   {'x': custom_autograd.graph.offload()}
  found      {'x': torch.float16}
saving= takes policies by name
  expected   {'x': custom_autograd.graph.offload()}
  found      offload(pin=True)""",
        )

    def test_capabilities_and_containers(self):
        @custom_op("saving::containers", replace=True)
        def op(x: dict[str, Tensor]) -> Tensor:
            return x["a"] * x["b"]

        packed = []
        note = compressed(lambda t: (packed.append(1), t)[1], lambda p: p)
        op.register_backward(lambda grad, x: {"x": {"a": grad * x["b"], "b": grad * x["a"]}}, saving={"x": note})
        a, b = x(), x()
        op({"a": a, "b": b}).sum().backward()

        assert [1, 1] == packed
        assert torch.equal(a.detach(), b.grad)

    @each("nesting", ["of a leaf", "hessian", "jacfwd of jacrev", "jvp of grad"])
    def test_below_and_between_transforms(self, nesting):
        """PyTorch refuses hooks at the level below transforms, too."""
        op = custom_op("saving::below", lambda x: x**2, schema="(Tensor x) -> Tensor out", reference=True, replace=True)
        op.register_backward(lambda grad, x: 2 * grad * x, saving={"x": offload()})
        one, func = torch.ones(2), torch.func

        def function(x):
            return op(x).sum()

        calls = {
            "of a leaf": lambda: func.grad(function)(one.clone().requires_grad_()),
            "hessian": lambda: func.hessian(function)(one),
            "jacfwd of jacrev": lambda: func.jacfwd(func.jacrev(function))(one),
            "jvp of grad": lambda: func.jvp(func.grad(function), (one,), (one,))[1],
        }
        expected = 2 * torch.eye(2) if nesting in ("hessian", "jacfwd of jacrev") else 2 * one
        assert_close(expected, calls[nesting]())


class Own:
    def __init__(self, tensor):
        self.tensor = tensor


@pytest.mark.parametrize(
    ("pack", "unpack"),
    [(lambda t: t.numpy(), torch.from_numpy), (Own, lambda own: own.tensor)],
    ids=["NumPy", "an object"],
)
def test_a_write_to_what_may_share_memory_is_an_error(pack, unpack):
    tensor = x() * 1
    with saving(compressed(pack, unpack)):
        y = square(tensor)
    tensor.detach().mul_(2)

    with pytest.raises(GradientError, match="was written to after it was saved"):
        y.sum().backward()
