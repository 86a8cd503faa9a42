"""Native nodes of `register_autograd`: what a ctx holds, saves and shows is as with the nodes of generated Python."""

import functools
import gc
import threading
import weakref

import pytest
import torch
from tables import each
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from custom_autograd import custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


def declare(name, setup_context=None, backward=None, kernel=None):
    """An op of two tensors and a number, whose calls are native from the second on."""

    def product(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return x * y * scale

    op = custom_op(f"native_contexts::{name}", kernel or product)
    op.register_autograd(backward or gradients, setup_context=setup_context or save)
    return op


def save(ctx, inputs, output):
    x, y, ctx.scale = inputs
    ctx.save_for_backward(x, y)


def gradients(ctx, grad):
    x, y = ctx.saved_tensors
    return grad * y * ctx.scale, grad * x * ctx.scale, None


def drawn(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype, requires_grad=True)


def is_native(tensor):
    return isinstance(tensor.grad_fn, library.module.Node)


def called(op, *args):
    """The result of the third call: the first makes a proof, and a node of Python may take its place meanwhile."""
    for _ in range(3):
        result = op(*args)
    return result


product = declare("product")


def test_a_node_is_native_and_shows_what_ctx_shows():
    x, y = drawn(3), drawn(3)

    node = called(product, x, y, 2.0).grad_fn

    assert isinstance(node, library.module.Node)
    assert "native_contexts::productBackward" == node.name()
    assert (True, True, False) == node.needs_input_grad
    assert 2.0 == node.scale
    assert [x.data_ptr(), y.data_ptr()] == [tensor.data_ptr() for tensor in node.saved_tensors]
    with pytest.raises(AttributeError, match="missing"):
        _ = node.missing


USES = {
    "register_hook": lambda ctx: ctx.register_hook(lambda *_: None),
    "name": lambda ctx: ctx.name().endswith("Backward") or 1 / 0,
    "next_functions": lambda ctx: ctx.next_functions[0][0].name() or 1 / 0,
    "_sequence_nr": lambda ctx: ctx._sequence_nr(),
    "metadata": lambda ctx: ctx.metadata.update(seen=True),
    "mark_dirty": lambda ctx: ctx.mark_dirty(),
    "isinstance": lambda ctx: isinstance(ctx, torch.autograd.function.FunctionCtx) or 1 / 0,
    "others": lambda ctx: (ctx.saved_for_forward, ctx.dirty_tensors, ctx.non_differentiable),
}


@each("use", USES.values(), ids=USES)
@each("place", ["setup_context", "backward"])
def test_a_ctx_has_what_that_of_torch_has_for_helpers_too(use, place):
    def setup_context(ctx, inputs, output):
        save(ctx, inputs, output)
        if place == "setup_context":
            use(ctx)

    def backward(ctx, grad):
        if place == "backward":
            use(ctx)
        return gradients(ctx, grad)

    op, x, y = declare(f"uses_{place}", setup_context, backward), drawn(3), drawn(3)
    result = called(op, x, y, 2.0)

    assert is_native(result)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 2 * y)


def test_metadata_and_hooks_that_setup_context_sets_are_those_of_the_node():
    seen = []

    def setup_context(ctx, inputs, output):
        save(ctx, inputs, output)
        vars(ctx)  # as debuggers ask
        ctx.metadata["place"] = "here"
        ctx.register_hook(lambda gradients, incoming: seen.append(gradients))

    op, x, y = declare("metadata", setup_context), drawn(3), drawn(3)
    result = called(op, x, y, 2.0)

    assert is_native(result)
    assert {"place": "here"} == result.grad_fn.metadata
    torch.autograd.grad(result.sum(), x)
    assert 1 == len(seen)


def test_a_helper_may_set_what_is_to_be_saved():
    def setup_context(ctx, inputs, output):
        *tensors, ctx.scale = inputs
        setattr(ctx, "to_save", tensors)  # noqa: B010  # what a helper does that knows only names

    op, x, y = declare("to_save", setup_context), drawn(3), drawn(3)
    result = called(op, x, y, 2.0)

    assert is_native(result)
    torch.testing.assert_close(torch.autograd.grad(result.sum(), x)[0], 2 * y)


def test_a_tensor_marked_as_dirty_by_a_helper_raises():
    def setup_context(ctx, inputs, output):
        getattr(ctx, "mark_" + "dirty")(inputs[0])

    op = declare("dirty", setup_context, lambda ctx, grad: (grad, grad, None))
    with pytest.raises(RuntimeError, match=r"ctx.mark_dirty is called where native code cannot see it"):
        called(op, drawn(3), drawn(3), 2.0)


def test_values_of_each_call_are_its_own():
    x, y = drawn(3), drawn(3)
    first, second = called(product, x, y, 2.0), called(product, x, y, 3.0)

    first.sum().backward()
    grad, x.grad = x.grad, None
    second.sum().backward()

    torch.testing.assert_close(grad, 2 * y)
    torch.testing.assert_close(x.grad, 3 * y)


def test_a_second_backward_is_right_if_the_rule_reads_nothing():
    op = declare("reads_nothing", backward=lambda ctx, grad: (grad, grad, None))
    x = drawn(3)
    out = called(op, x, drawn(3))

    out.sum().backward()
    out.sum().backward()

    torch.testing.assert_close(x.grad, torch.full_like(x, 2))


def test_an_output_is_saved_without_a_cycle():
    def setup(ctx, inputs, output):
        ctx.save_for_backward(output)

    op = declare("saves_output", setup, lambda ctx, grad: (grad * ctx.saved_tensors[0], None, None))
    x = drawn(3)
    out = called(op, x, drawn(3))
    gc.collect()
    seen = weakref.ref(out)

    (grad,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(grad, out.detach())
    gc.disable()
    try:
        del out
        assert seen() is None
    finally:
        gc.enable()


def test_undefined_gradients_are_zeros_unless_the_rule_asks_for_none():
    found = []

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, torch.stack([x, x])

    def backward(ctx, *grads):
        found.append(grads)
        return grads[0]

    def ask(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    zeros, nones = declare("zeros", lambda *_: None, backward, two), declare("nones", ask, backward, two)
    x = drawn(3)
    called(zeros, x)[0].sum().backward()
    called(nones, x)[0].sum().backward()

    torch.testing.assert_close(found[0][1], torch.zeros(2, 3, dtype=torch.float64))
    assert found[1][1] is None


@pytest.mark.parametrize("materializes", [True, False])
def test_an_output_that_is_marked_has_no_graph(materializes):
    found = []

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, torch.stack([x, x])

    def setup(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(materializes)

    def backward(ctx, *grads):
        found.append(grads)
        return grads[0]

    op = declare(f"marked_{materializes}", setup, backward, two)
    x = drawn(3)
    one, other = called(op, x)
    one.sum().backward()

    assert is_native(one)
    assert other.grad_fn is None
    assert not other.requires_grad
    if materializes:
        torch.testing.assert_close(found[0][1], torch.zeros(2, 3, dtype=torch.float64))
    else:
        assert found[0][1] is None


@pytest.mark.parametrize("keeps", [None, [1]], ids=["simple", "packed"])
def test_an_output_of_integers_is_zeros_of_its_own_shape(keeps):
    found = []

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x.argsort()[None].expand(2, -1).clone()

    def setup(ctx, inputs, output):
        ctx.keeps = keeps

    def backward(ctx, *grads):
        found.append((grads[1].shape, grads[1].dtype))
        return grads[0]

    op = declare("integers_" + ("packed" if keeps else "simple"), setup, backward, two)
    x = drawn(3)
    for _ in range(4):
        op(x)[0].sum().backward()

    assert [((2, 3), torch.int64)] * 4 == found


def test_a_ctx_is_one_object_from_the_call_to_the_backward():
    seen = {}

    def setup(ctx, inputs, output):
        seen[ctx] = inputs[2]
        assert () == ctx.saved_tensors

    def backward(ctx, grad):
        assert ("native_contexts::oneBackward", True) == (ctx.name(), ctx.needs_input_grad[0])
        ctx.needs_input_grad = (False,)
        assert (False,) == ctx.needs_input_grad
        return grad * seen[ctx] * ctx.later, None, None

    op = declare("one", setup, backward)
    x = drawn(3)
    out = called(op, x, drawn(3), 2.0)
    list(seen)[-1].later = 5.0
    out.sum().backward()

    torch.testing.assert_close(x.grad, torch.full_like(x, 10))
    contexts = [weakref.ref(ctx) for ctx in seen]
    seen.clear()
    del out
    gc.collect()
    assert [None] * 3 == [ctx() for ctx in contexts]


def test_what_a_backward_sets_on_ctx_is_collected():
    def backward(ctx, grad):
        ctx.me, ctx.read = ctx, lambda: ctx.saved_tensors
        return gradients(ctx, grad)

    op = declare("sets", save, backward)

    def run():
        x = drawn(3)
        called(op, x, drawn(3)).sum().backward(retain_graph=True)
        return weakref.ref(x)

    seen = run()
    gc.collect()
    assert seen() is None


def test_a_backward_sets_how_undefined_gradients_arrive_next():
    found = []

    def two(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 1, x * 2

    def backward(ctx, *grads):
        found.append(grads[1] is None)
        ctx.set_materialize_grads(value=False)
        return grads[0]

    out, _ = called(declare("sets_materialize", lambda *_: None, backward, two), drawn(3))
    out.sum().backward(retain_graph=True)
    out.sum().backward()

    assert [False, True] == found


def test_a_function_that_is_kept_reads_numbers_on_ctx():
    def setup(ctx, inputs, output):
        ctx.factor = 5.0
        ctx.apply = lambda tensor: tensor * ctx.factor

    op = declare("closure", setup, lambda ctx, grad: (ctx.apply(grad), None, None))
    for _ in range(4):
        x = drawn(3)
        op(x, drawn(3)).sum().backward()
        torch.testing.assert_close(x.grad, torch.full_like(x, 5))


def test_a_second_backward_that_reads_what_was_not_saved_raises():
    op = declare("unsaved", lambda *_: None, lambda ctx, grad: (grad, None, None) if ctx.saved_tensors == () else None)
    out = called(op, drawn(3), drawn(3))
    out.sum().backward()

    with pytest.raises(RuntimeError, match="a second time"):
        out.sum().backward()


def test_a_graph_of_inputs_and_outputs_is_recorded_while_the_context_is_set_up():
    def setup(ctx, inputs, output):
        assert torch.is_grad_enabled()
        assert output.requires_grad
        assert output.is_leaf
        ctx.save_for_backward(inputs[0] * 2)

    op = declare("quiet", setup, lambda ctx, grad: (grad * ctx.saved_tensors[0], None, None))
    x = drawn(3)
    called(op, x, drawn(3)).sum().backward()

    torch.testing.assert_close(x.grad, 2 * x)


def in_another_order(ctx, output, inputs):
    save(ctx, inputs, output)


@functools.wraps(save)
def decorated(**given):
    save(**given)


@pytest.mark.parametrize("setup", [in_another_order, decorated])
def test_a_setup_context_is_called_by_keyword_and_a_rule_may_leave_out_gradients(setup):
    op = declare("by_keyword", setup, lambda ctx, grad: gradients(ctx, grad)[:2])
    x, y = drawn(3), drawn(3)
    called(op, x, y, 2.0).sum().backward()

    torch.testing.assert_close(x.grad, 2 * y)


@pytest.mark.parametrize(
    "kept", [lambda x: x * 2, lambda x: [x * 2], lambda x: {"it": (x * 2,)}], ids=["tensor", "list", "dict"]
)
def test_tensors_that_are_attributes_are_saved_and_later_calls_keep_nodes_of_python(kept, request):
    def setup(ctx, inputs, output):
        ctx.kept = kept(inputs[0].detach())

    def backward(ctx, grad):
        return grad * torch.utils._pytree.tree_leaves(ctx.kept)[0], None, None

    op = declare(f"attributes_{request.node.callspec.id}", setup, backward)
    x = drawn(3)
    results = [op(x, drawn(3)) for _ in range(6)]

    assert [False] * 3 == [is_native(out) for out in results[3:]]
    for out in results:
        x.grad = None
        out.sum().backward()
        torch.testing.assert_close(x.grad, 2 * x)


def test_an_attribute_that_leads_to_the_result_is_collected():
    class Anything:
        pass

    def setup(ctx, inputs, output):
        ctx.anything = Anything()

    op = declare("cycles", setup, lambda ctx, grad: (grad, None, None))
    x = drawn(3)
    called(op, x, drawn(3))
    out = op(x, drawn(3))
    anything = out.grad_fn.custom_autograd_parcel.leaves[0]
    anything.out, seen = out, weakref.ref(anything)
    del anything, out
    gc.collect()

    assert seen() is None


def test_tuples_of_numbers_are_kept_natively():
    def setup(ctx, inputs, output):
        ctx.shape, ctx.sizes, ctx.name = inputs[0].shape, (1, (2.0, None)), "a"

    def backward(ctx, grad):
        assert ((3,), (1, (2.0, None)), "a") == (ctx.shape, ctx.sizes, ctx.name)
        return grad, None, None

    out = called(declare("tuples", setup, backward), drawn(3), drawn(3))
    out.sum().backward()

    assert is_native(out)


def test_an_attribute_that_a_backward_sets_is_there_in_the_next():
    def backward(ctx, grad):
        ctx.count = getattr(ctx, "count", 0) + 1
        return grad * ctx.count, None, None

    x = drawn(3)
    out = called(declare("counts", lambda *_: None, backward), x, drawn(3))
    out.sum().backward(retain_graph=True)
    out.sum().backward()

    torch.testing.assert_close(x.grad, torch.full_like(x, 3))
    assert 2 == out.grad_fn.count


def test_what_cannot_be_saved_raises():
    def setup(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[2])

    op = declare("unsavable", setup)
    for _ in range(3):
        with pytest.raises(TypeError, match="argument 1 is of type float"):
            op(drawn(3), drawn(3))


@pytest.mark.parametrize("stage", ["setup_context", "backward"])
def test_an_error_of_a_rule_has_a_note_and_leaves_nothing_behind(stage):
    is_failing = []

    def setup(ctx, inputs, output):
        if is_failing and stage == "setup_context":
            raise ValueError("on purpose")
        save(ctx, inputs, output)

    def backward(ctx, grad):
        if is_failing and stage == "backward":
            raise ValueError("on purpose")
        return gradients(ctx, grad)

    op = declare(f"raises_{stage}", setup, backward)
    x, y = drawn(3), drawn(3)
    called(op, x, y)
    is_failing.append(True)
    with pytest.raises(ValueError, match="on purpose") as caught:
        op(x, y).sum().backward()
    is_failing.clear()
    op(x, y).sum().backward()

    notes = getattr(caught.value, "__notes__", [str(caught.value.__cause__)])  # Python 3.10 has causes only
    assert any(f"native_contexts::raises_{stage}" in note for note in notes)
    torch.testing.assert_close(x.grad, y)


@pytest.mark.parametrize(
    "returned",
    [lambda x: (x,), lambda x: (x, x, x), lambda x: (x, 1, None), lambda x: (x, x, None, x), lambda x: "text"],
    ids=["too few", "for a number", "a number", "too many", "a text"],
)
def test_a_wrong_result_of_a_backward_raises_as_through_the_dispatcher(returned, request):
    def backward(ctx, grad):
        return returned(grad)

    op = declare("wrong_" + request.node.callspec.id.replace(" ", "_"), save, backward)
    x, y = drawn(3), drawn(3)
    out = called(op, x, y)
    errors = []
    for result in (out, torch.ops.native_contexts.__getattr__(op.name.split("::")[1])(x, y)):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the two are compared
            result.sum().backward()
        errors.append((type(caught.value), str(caught.value)))

    assert is_native(out)
    assert errors[0] == errors[1]


def test_a_gradient_of_another_shape_or_dtype_is_what_the_engine_makes_of_it():
    op = declare("engine", save, lambda ctx, grad: (grad.float().expand(2, 3), grad.float(), None))
    x, y = drawn(3), drawn(3)
    called(op, x, y).sum().backward()

    torch.testing.assert_close(x.grad, torch.full_like(x, 2))
    assert torch.float64 == y.grad.dtype


def test_saved_tensor_hooks_see_each_tensor_once_and_when_it_is_read():
    events = []
    x, y = drawn(3), drawn(3)
    called(product, x, y)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: events.append("pack") or tensor, lambda tensor: events.append("unpack") or tensor
    ):
        out = product(x, y)
    assert ["pack"] * 2 == events
    out.sum().backward()

    assert ["pack"] * 2 + ["unpack"] * 2 == events


def test_checkpoint_recomputes_what_was_saved():
    x, y = drawn(3), drawn(3)
    called(product, x, y)
    checkpoint(lambda x, y: product(product(x, y), y), x, y, use_reentrant=False).sum().backward()

    torch.testing.assert_close(x.grad, y * y)


def test_lazy_gradients_are_resolved():
    op = declare("lazy", save, lambda ctx, grad: (torch.view_as_real(grad).sum() * ctx.saved_tensors[0], None, None))
    x, y = drawn(3, dtype=torch.complex128), drawn(3, dtype=torch.complex128)
    out = called(op, x, y)
    out.backward(torch.ones(3, dtype=torch.complex128).conj())

    torch.testing.assert_close(x.grad, 3 * x)


def test_a_ctx_that_is_kept_reads_what_its_node_saved():
    kept = []

    def backward(ctx, grad):
        kept.append(ctx)
        return gradients(ctx, grad)

    x, y = drawn(3), drawn(3)
    out = called(declare("stashed", save, backward), x, y)
    out.sum().backward()
    del out

    assert 1.0 == kept[0].scale
    with pytest.raises(RuntimeError, match="a second time"):
        _ = kept[0].saved_tensors


def test_nothing_leaks():
    op = declare("leaks")
    x, y = drawn(3), drawn(3)
    called(op, x, y).sum().backward()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        op(x, y).sum().backward()
    gc.collect()

    assert len(gc.get_objects()) - before < 50


def test_threads_have_contexts_of_their_own():
    op = declare("threads")
    errors = []

    def work(scale):
        for _ in range(200):
            x, y = drawn(4), drawn(4)
            op(x, y, scale).sum().backward()
            if not torch.allclose(x.grad, y * scale):
                errors.append(scale)

    threads = [threading.Thread(target=work, args=(float(scale),)) for scale in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [] == errors
