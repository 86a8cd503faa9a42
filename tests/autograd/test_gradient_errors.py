"""A gradient that is not what it should be is refused, and the message names op, input, rule and likely cause."""

import pickle
import traceback
from contextlib import nullcontext

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import GradientError, custom_op, through_dispatcher
from custom_autograd.values.user_code import add_note, causes_of


def rand(*shape, dtype=torch.float64, requires_grad=True):
    return torch.rand(*shape, dtype=dtype, requires_grad=requires_grad)


RETURNED = {}


@custom_op("gradient_errors::linear")
def linear(x: Tensor, weight: Tensor, n: int = 1) -> Tensor:
    return x @ weight.T


@linear.register_backward
def linear_backward(grad, x, weight):
    return RETURNED["what"](grad, x, weight)


@custom_op("gradient_errors::total")
def total(xs: list[Tensor]) -> Tensor:
    return sum(xs[1:], start=xs[0] * 1)


@total.register_backward
def _(grad):
    return RETURNED["what"](grad)


AS_LISTS = {
    "list": lambda g: [g, g],
    "dict": lambda g: {"xs": (g, None)},
    "callables": lambda g: [lambda: g] * 2,
    "callable": lambda g: {"xs": lambda: [g, g]},
    "tuple of a list": lambda g: ([g, g],),
}


@pytest.mark.parametrize("what", AS_LISTS.values(), ids=AS_LISTS)
def test_gradients_of_a_list_may_be_written_as(what):
    RETURNED["what"] = what
    total([rand(2), rand(2)]).sum().backward()


def test_a_gradient_that_is_not_needed_is_not_read():
    RETURNED["what"] = lambda g, x, w: {"x": g @ w, "weight": "whatever"}
    x = rand(5, 4)
    linear(x, rand(3, 4, requires_grad=False)).sum().backward()

    assert x.grad is not None


def test_errors_of_gradients_name_the_line_of_the_rule_and_pickle_with_their_message():
    RETURNED["what"] = lambda grad, x, weight: (grad.float(), None)
    with pytest.raises(GradientError) as caught:
        linear(rand(5, 4), rand(3, 4)).sum().backward()

    line = linear_backward.__code__.co_firstlineno
    assert f"test_gradient_errors.py:{line}, backward" in str(caught.value)
    assert str(caught.value) == str(pickle.loads(pickle.dumps(caught.value)))


# ------------------------------------------------------------------------------------ exceptions of the user's own


class MineError(Exception):
    """An exception with a constructor of its own, which cannot be made again."""

    def __init__(self, one, two):
        super().__init__(one, two)


RAISED = MineError(1, 2)


def fails(*args, **kwargs):
    raise RAISED


def notes_of(error):
    """The notes of an exception; on Python 3.10, which has none, its chain of causes."""
    return [*getattr(error, "__notes__", ()), *map(str, causes_of(error))]


def failing(slot):
    def body(x: Tensor) -> Tensor:
        return x * 1

    op = custom_op("gradient_errors::failing", body, replace=True)
    if slot == "reference":
        op.register_reference(lambda x: fails())
        return op
    if slot == "setup_context":
        op.register_autograd(lambda ctx, g: g, setup_context=lambda ctx, inputs, output: fails())
        return op
    register = {
        "backward": lambda: op.register_backward(lambda grad: fails()),
        "lazy backward": lambda: op.register_backward(lambda grad: {"x": fails}),
        "grad x": lambda: op.register_grad("x")(lambda grad: fails()),
        "jvp": lambda: op.register_jvp(lambda tangent_x: fails()),
        "autograd": lambda: op.register_autograd(lambda ctx, grad: fails()),
        "vmap": lambda: op.register_vmap(lambda info, in_dims, x: fails()),
        "fake": lambda: op.register_fake(lambda x: fails()),
    }
    register[slot]()
    return op


def use(op, slot):
    if slot == "jvp":
        torch.func.jvp(op, (torch.ones(2),), (torch.ones(2),))
    elif slot == "vmap":
        torch.vmap(op)(torch.ones(2, 2))
    elif slot == "fake":
        op(torch.empty(2, device="meta"))
    else:
        op(rand(2)).sum().backward()


@each("slot", ["backward", "lazy backward", "grad x", "jvp", "autograd", "setup_context", "vmap", "fake"])
def test_an_exception_in_a_rule_keeps_its_identity_and_says_where_it_was_raised(slot):
    RAISED.__notes__ = []
    RAISED.__cause__ = None
    op = failing(slot)
    with pytest.raises(MineError) as caught:
        use(op, slot)

    name = {"lazy backward": "backward", "setup_context": "autograd"}.get(slot, slot)
    assert caught.value is RAISED
    assert any(
        f"the {name} rule of gradient_errors::failing, test_gradient_errors.py:" in note
        for note in notes_of(caught.value)
    )
    assert "fails" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@custom_op("gradient_errors::weighted_sum")
def weighted_sum(xs: list[Tensor], w: Tensor) -> Tensor:
    return xs[0] * w + xs[1]


@weighted_sum.register_jvp
def weighted_sum_jvp(xs, w, tangent_xs, tangent_w):
    return tangent_xs[0] * w + tangent_xs[1] + xs[0] * tangent_w


@pytest.mark.parametrize(
    ("point", "missing"),
    [
        (lambda x: weighted_sum([x, x], torch.ones(2)), "'tangent_w' is None, which means a tangent of zero"),
        (lambda x: weighted_sum([x, torch.ones(2)], x), "'tangent_xs' holds None, which means a tangent of zero"),
    ],
    ids=["tensor", "list"],
)
def test_an_exception_in_a_jvp_rule_says_which_tangents_are_none(point, missing):
    with pytest.raises(TypeError, match="NoneType") as caught:
        torch.func.jvp(point, (torch.ones(2),), (torch.ones(2),))

    assert any(missing in note for note in notes_of(caught.value))


@custom_op("gradient_errors::in_numpy", reference=True)
def in_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(x.numpy() * 2)


@pytest.mark.parametrize(
    "use_it",
    [
        lambda: in_numpy(rand(2)).sum().backward(),
        lambda: torch.func.grad(lambda x: in_numpy(x).sum())(torch.ones(2)),
        lambda: torch.func.jvp(in_numpy, (torch.ones(2),), (torch.ones(2),)),
    ],
    ids=["backward", "grad", "jvp"],
)
def test_an_exception_in_a_reference_says_that_it_must_use_pytorch(use_it):
    with pytest.raises(RuntimeError) as caught:
        use_it()

    note = next(note for note in notes_of(caught.value) if "raised in the reference" in note)
    assert "the reference of gradient_errors::in_numpy, test_gradient_errors.py:" in note
    assert note.endswith("are derived from it, so it must use differentiable PyTorch operations only")


def test_an_exception_in_a_kernel_keeps_its_identity():
    op = custom_op("gradient_errors::failing_kernel", lambda x: fails(), schema="(Tensor x) -> Tensor")
    with pytest.raises(MineError) as caught:
        op(torch.ones(2))

    assert caught.value is RAISED


def test_tracebacks_show_the_generated_source():
    op = failing("backward")
    with pytest.raises(MineError) as caught:
        use(op, "backward")

    text = "".join(traceback.format_exception(caught.type, caught.value, caught.value.__traceback__))
    assert "<custom_autograd gradient_errors::failing>" in text
    assert "result = rule_0(" in text


# ------------------------------------------------------------------------------------------- dtype of a leaf's gradient


def with_grad_dtype(grad_dtype):
    weight = torch.ones(1, dtype=torch.bfloat16, requires_grad=True)
    if not hasattr(weight, "grad_dtype"):
        pytest.skip("Tensor.grad_dtype came with torch 2.13")
    weight.grad_dtype = grad_dtype
    return weight


SAVED = custom_op("grad_dtype::saved", lambda x, w: x.float() * w.float(), schema="(Tensor x, Tensor w) -> Tensor")
SAVED.register_backward(lambda grad, x, w: {"x": None, "w": (grad * x.float()).sum().reshape(w.shape)})
UNSAVED = custom_op("grad_dtype::unsaved", lambda x, w: x.float() * w.float(), schema="(Tensor x, Tensor w) -> Tensor")
UNSAVED.register_backward(lambda grad, x: {"x": None, "w": (grad * x.float()).sum().reshape(1)})
LISTED = custom_op("grad_dtype::listed", lambda x, ws: x * ws[0].float(), schema="(Tensor x, Tensor[] ws) -> Tensor")
LISTED.register_backward(lambda grad, x: {"x": None, "ws": [(grad * x).sum().reshape(1)]})


@each("grad_dtype", [torch.float32, None])
@each("way", ["direct", "dispatcher"])
@each("op", [SAVED, UNSAVED, LISTED])
def test_a_gradient_of_the_grad_dtype_of_its_leaf_is_accepted(op, way, grad_dtype):
    weight = with_grad_dtype(grad_dtype)
    x = torch.full((4,), 1 + 2**-12)
    with through_dispatcher() if way == "dispatcher" else nullcontext():
        op(x, [weight] if op is LISTED else weight).sum().backward()

    assert (torch.float32, 4 + 2**-10) == (weight.grad.dtype, weight.grad.item())


def test_a_rule_reads_the_grad_dtype_of_an_input():
    weight = with_grad_dtype(torch.float32)
    op = custom_op("grad_dtype::asked", lambda x, w: x * w.float(), schema="(Tensor x, Tensor w) -> Tensor")
    op.register_backward(lambda grad, x, meta: {"x": None, "w": (grad * x).sum().reshape(1).to(meta.w.grad_dtype)})
    op(torch.ones(4), weight).sum().backward()

    assert torch.float32 == weight.grad.dtype


def test_a_gradient_of_another_dtype_than_the_grad_dtype_is_refused():
    weight = with_grad_dtype(torch.float64)
    with pytest.raises(GradientError, match="wrong dtype"):
        SAVED(torch.ones(4), weight).sum().backward()


# ------------------------------------------------------------------------------------- gradients of what can have none


IMPOSSIBLE = "(Tensor x, Tensor n, Tensor? w, Tensor?[] many) -> Tensor"
COUNTS = torch.tensor([2, 3])


def op_returning(rule):
    op = custom_op("gradient_errors::impossible", lambda x, n, w, many: x * n, schema=IMPOSSIBLE, replace=True)
    op.register_backward(rule)
    return op


def by_position(grad, n):
    return grad * n, grad, None, None


SURPLUS = {
    "an integer tensor": (lambda grad, n: {"x": grad * n, "n": grad, "w": None, "many": None}, (None, []), "'n'"),
    "None": (lambda grad, n: {"x": grad * n, "n": None, "w": grad, "many": None}, (None, []), "'w'"),
    "None in a list": (
        lambda grad, n: {"x": grad * n, "n": None, "w": None, "many": [None, grad]},
        (None, [torch.ones(2), None]),
        "'many[1]'",
    ),
    "by position": (by_position, (None, []), "'n'"),
}


@each("way", [nullcontext, through_dispatcher])
@each(("rule", "arguments", "name"), SURPLUS.values(), ids=SURPLUS)
def test_full_validation_refuses_a_gradient_of_what_can_have_none(rule, arguments, name, way):
    op = op_returning(rule)
    op.validation = "full"

    with way():
        for _ in range(3):
            with pytest.raises(GradientError, match="which has none in this call") as caught:
                op(rand(2), COUNTS, *arguments).sum().backward()
            assert f"a gradient for {name}," in str(caught.value)


@pytest.mark.parametrize(("rule", "arguments", "name"), SURPLUS.values(), ids=SURPLUS)
def test_the_default_validation_drops_a_gradient_of_what_can_have_none(rule, arguments, name):
    x = rand(2)
    op_returning(rule)(x, COUNTS, *arguments).sum().backward()

    assert [2.0, 3.0] == x.grad.tolist()


def test_full_validation_accepts_gradients_that_are_possible_but_not_needed():
    op = op_returning(lambda grad, n: {"x": grad * n, "n": None, "w": grad, "many": lambda: grad.nothing})
    op.validation = "full"
    x = rand(2)
    op(x, COUNTS, torch.ones(2), []).sum().backward()

    assert [2.0, 3.0] == x.grad.tolist()


class WithoutNotesError(Exception):
    """An exception as on Python 3.10."""

    add_note = None


def test_notes_without_notes_are_added_once_each():
    error = WithoutNotesError("own")
    for note in ("first", "second", "first", "second"):
        add_note(error, note)

    assert ["own", "first", "second"] == list(map(str, causes_of(error)))


def test_a_note_leaves_visible_what_an_exception_was_raised_in_the_midst_of():
    try:
        try:
            raise KeyError("before")
        except KeyError:
            raise WithoutNotesError("own")  # noqa: B904 - the point
    except WithoutNotesError as caught:
        error = caught
    add_note(error, "the note")

    shown = "".join(traceback.format_exception(error))
    assert shown.index("before") < shown.index("the note") < shown.index("own")


def test_an_exception_that_was_raised_from_itself_gets_a_note():
    error = WithoutNotesError("own")
    error.__cause__ = error
    add_note(error, "the note")

    assert ["own", "the note"] == list(map(str, causes_of(error)))
