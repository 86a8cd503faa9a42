"""Calls that native code recognises: the same as those of generated Python, in values, graphs and errors."""

import gc
import threading
import weakref
from typing import Literal, NamedTuple

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import KernelError, custom_op, through_dispatcher
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.execution.generated import generated_code_of
from custom_autograd.native.loading import library
from custom_autograd.torch_private.verification import GraphCounter
from slow_cases import slow_but_every

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


@custom_op("native::product")
def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


@product.register_backward
def _(grad, x, y):
    return grad * y, grad * x


@custom_op("native::norm", outputs=["out", "rstd", "count"], hidden=["rstd"], non_differentiable=["count"])
def norm(
    x: Tensor, weight: Tensor | None, index: Tensor, eps: float = 1e-6, *, scale: int = 2, kind: str = "rms"
) -> tuple[Tensor, Tensor, Tensor]:
    rstd = torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    out = x * rstd * scale
    return out if weight is None else out * weight, rstd, index + 1


@norm.register_backward
def _(grad_out, x, weight, rstd, scale, needs):
    normal = x * rstd
    weighted = grad_out if weight is None else grad_out * weight
    weighted = weighted * scale
    of_x = rstd * (weighted - normal * (weighted * normal).mean(-1, keepdim=True))
    of_weight = (grad_out * normal * scale).reshape(-1, x.shape[-1]).sum(0) if needs.weight else None
    return {"x": of_x, "weight": of_weight}


@custom_op("native::add_", mutates_args=["x"])
def add_(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return y * 2


@custom_op("native::power")
def power(x: Tensor, kind: Literal["square", "the cube", None] = "square") -> Tensor:
    return x * x if kind == "square" else x * x * x if kind else x.clone()


@power.register_backward
def _(grad, x, kind):
    return 2 * grad * x if kind == "square" else 3 * grad * x * x if kind else grad


@custom_op("native::in_context")
def in_context(x: Tensor, w: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return x * w * scale, x * 2


def save(ctx, inputs, output):
    x, w, ctx.scale = inputs
    ctx.save_for_backward(x, w)


def gradients_in_context(ctx, grad, other):
    x, w = ctx.saved_tensors
    return grad * w * ctx.scale + other, grad * x * ctx.scale, None


in_context.register_autograd(gradients_in_context, setup_context=save)


def drawn(*shape, grad=False, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, requires_grad=grad)


def known(op):
    """How many kinds of calls native code knows."""
    return op._native.count_kinds()


def check_error(call, words):
    """Compare the error of a native call with that of the same call through the dispatcher."""
    with pytest.raises(Exception, match=words) as native:
        call()
    with through_dispatcher(), pytest.raises(type(native.value)) as other:
        call()
    assert str(native.value) == str(other.value)
    assert getattr(native.value, "__notes__", []) == getattr(other.value, "__notes__", [])


def test_a_call_is_native_once_it_is_proven():
    for _ in range(3):
        product(drawn(3), drawn(3, grad=True))
    assert known(product) > 0


CALLS = [
    lambda x, w, i: norm(x, w, i),
    lambda x, w, i: norm(x, None, i),
    lambda x, w, i: norm(x, w, i, 1e-3),
    lambda x, w, i: norm(x, w, i, eps=1e-3, scale=3),
    lambda x, w, i: norm(x, w, index=i, kind="other"),
    lambda x, w, i: norm(index=i, weight=w, x=x),
]


@each("call", CALLS)
def test_values_and_gradients_are_those_of_the_dispatcher(call):
    i = torch.arange(3)
    found = []
    for _ in range(3):
        torch.manual_seed(1)
        x, w = drawn(2, 4, grad=True), drawn(4, grad=True)
        out, count = call(x, w, i)
        out.square().sum().backward()
        found.append((out, count, x.grad, w.grad, count.requires_grad, out.grad_fn.name()))
    assert type(out.grad_fn).__module__ == "custom_autograd.native"
    torch.manual_seed(1)
    x, w = drawn(2, 4, grad=True), drawn(4, grad=True)
    with through_dispatcher():
        out, count = call(x, w, i)
        out.square().sum().backward()
    expected = (out, count, x.grad, w.grad, count.requires_grad, out.grad_fn.name())
    for one in found:
        for value, other in zip(one, expected, strict=True):
            assert torch.equal(value, other) if isinstance(value, Tensor) else value == other, (value, other)


@each(
    ("call", "words"),
    [
        (lambda x, i: norm(x, None, i, 1e-6, 2), "positional arguments"),
        (lambda x, i: norm(x, None), "index"),
        (lambda x, i: norm(x, None, i, epsilon=1), "epsilon"),
        (lambda x, i: norm(x, None, i, eps="1"), "eps"),
        (lambda x, i: norm(x, None, i, x=x), "x"),
        (lambda x, i: norm(x, None, i, scale=2**70), "."),
        (lambda x, i: norm(None, None, i), "."),
    ],
)
def test_wrong_calls_raise_what_the_dispatcher_way_raises(call, words):
    x, i = drawn(2, 4), torch.arange(3)
    for _ in range(3):
        norm(x, None, i)
    check_error(lambda: call(x, i), words)


@pytest.mark.parametrize("kind", ["square", " ".join(["the", "cube"]), None])  # a text that is not the Literal's own
def test_a_choice_of_texts_is_native(kind):
    for _ in range(3):
        x = drawn(3, grad=True)
        out = power(x, kind)
        (gradient,) = torch.autograd.grad(out.sum(), x)

    assert type(out.grad_fn).__module__ == "custom_autograd.native"
    with through_dispatcher():
        expected = torch.autograd.grad(power(x, kind).sum(), x)
    assert torch.equal(gradient, *expected)


@pytest.mark.parametrize("kind", ["cube", "Square", "", 2])
def test_another_text_than_the_choices_raises_what_the_dispatcher_way_raises(kind):
    for _ in range(3):
        power(drawn(3), "square")

    check_error(lambda: power(drawn(3), kind), "expected one of 'square', 'the cube', None")


def test_the_same_tensor_twice():
    x = drawn(3, grad=True)
    for _ in range(3):
        x.grad = None
        product(x, x).sum().backward()
        assert torch.equal(x.grad, 2 * x.detach())


def node_of(x, y):
    for _ in range(3):
        z = product(x, y)
    return z.grad_fn


def test_a_node_shows_what_it_saved_and_where_it_leads():
    x, y = drawn(3, grad=True), drawn(3)
    node = node_of(x, y)
    assert node.name() == "native::productBackward"
    assert [tensor is not None for tensor in node.saved_tensors] == [True, True]
    assert torch.equal(node._saved_y, y)
    assert node.next_functions[0][0].variable is x
    assert node.next_functions[1] == (None, 0)
    assert node.needs_input_grad == (True, False)
    assert node._forward_cls is product.function
    node.metadata["note"] = 1
    assert node.metadata == {"note": 1}
    for name in ("unknown", "_saved_unknown", "\ud800"):
        assert not hasattr(node, name)
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = node.unknown


def test_what_is_not_needed_is_not_saved():
    @custom_op("native::partly")
    def partly(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    partly.register_grad("x")(lambda grad, y: grad * y)
    partly.register_grad("y")(lambda grad, x: grad * x)
    x, y = drawn(3, grad=True), drawn(3)
    for _ in range(3):
        z = partly(x, y)
    assert z.grad_fn._saved_x is None
    assert torch.equal(z.grad_fn._saved_y, y)
    z.sum().backward()
    assert torch.equal(x.grad, y)


def test_hooks_of_a_node():
    x = drawn(3, grad=True)
    node = node_of(x, drawn(3))
    seen = []
    node.register_hook(lambda inputs, outputs: seen.append("after"))
    node.register_prehook(lambda outputs: seen.append("before"))
    torch.autograd.backward(node_outputs(node, x), torch.ones(3))
    assert seen == ["before", "after"]


def node_outputs(node, x):
    """An edge to the node stands for its output."""
    return torch.autograd.graph.GradientEdge(node, 0)


MULTIPLY = pytest.mark.parametrize(
    "multiply", [product, lambda x, y: in_context(x, y)[0]], ids=["by name", "register_autograd"]
)


@MULTIPLY
def test_a_second_backward_is_refused_and_a_retained_one_is_right(multiply):
    x, y = drawn(3, grad=True), drawn(3, grad=True)
    for _ in range(3):
        z = multiply(x, y)
    z.sum().backward(retain_graph=True)
    z.sum().backward()
    assert torch.equal(x.grad, 2 * y.detach())
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        _ = z.grad_fn.saved_tensors


@MULTIPLY
def test_a_write_to_what_was_saved_is_an_error(multiply):
    x, y = drawn(3, grad=True), drawn(3)
    for _ in range(3):
        z = multiply(x, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_anomaly_mode_says_where_the_forward_was():
    @custom_op("native::fails_late")
    def fails_late(x: Tensor) -> Tensor:
        return x * 2

    @fails_late.register_backward
    def _(grad):
        raise ValueError("no gradient today")

    x = drawn(3, grad=True)
    for _ in range(3):
        fails_late(x)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        z = fails_late(x)
        with pytest.warns(UserWarning, match="test_native_calls"), pytest.raises(ValueError, match="no gradient today"):
            z.sum().backward()


MISTAKES = {
    "gradient": (lambda xs, is_wrong: xs[0] * 2, lambda grad: [grad[:1], None], "has the wrong shape"),
    "gradient in a list": (lambda xs, is_wrong: xs[0] + xs[1], lambda grad: [grad, grad[:1]], "has the wrong shape"),
    "output": (lambda xs, is_wrong: xs[0] if is_wrong else xs[0] * 1, lambda grad: [grad, None], "shares memory"),
}


@pytest.mark.parametrize(("kernel", "rule", "words"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_raises_what_the_dispatcher_way_raises(kernel, rule, words):
    op = custom_op("native::mistaken", kernel, schema="(Tensor[] xs, bool is_wrong) -> Tensor", replace=True)
    op.register_backward(rule)
    for _ in range(3):
        op([drawn(3, grad=True), drawn(3)], False)

    assert known(op) > 0
    check_error(lambda: op([drawn(3, grad=True), drawn(3, grad=True)], True).sum().backward(), words)


def test_a_callable_gradient_is_called_where_it_is_needed():
    @custom_op("native::lazy")
    def lazy(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @lazy.register_backward
    def _(grad, x, y):
        return {"x": lambda: grad * y, "y": lambda: 1 / 0}

    x, y = drawn(3, grad=True), drawn(3)
    for _ in range(3):
        x.grad = None
        lazy(x, y).sum().backward()
        assert torch.equal(x.grad, y)


def test_a_written_input_gets_a_new_version():
    x, y = drawn(3), drawn(3)
    for _ in range(4):
        before = x._version
        doubled = add_(x, y)
        assert x._version > before
        assert torch.equal(doubled, 2 * y)
    assert known(add_) > 0


@custom_op("native::scale_all_", mutates_args=["xs", "scale"])
def scale_all_(xs: list[Tensor], factor: float, scale: Tensor | None = None) -> Tensor:
    for x in xs:
        x.mul_(factor)
    if scale is not None:
        scale.fill_(factor)
    return sum(xs) * 1


@pytest.mark.parametrize("has_scale", [True, False])
def test_written_lists_and_optionals_get_new_versions(has_scale):
    xs, scale = [drawn(3), drawn(3)], drawn(1) if has_scale else None
    for _ in range(4):
        before = [x._version for x in xs]
        expected = sum(xs) * 2
        assert torch.equal(scale_all_(xs, 2.0, scale), expected)
        assert all(x._version > version for x, version in zip(xs, before, strict=True))
    assert known(scale_all_) > 0


@custom_op("native::accumulate_", mutates_args=["total"])
def accumulate_(total: Tensor, x: Tensor) -> None:
    total.add_(x)
    return x if x[0] < 0 else None  # a negative number: the mistake of a kernel


def test_an_op_without_outputs_is_native():
    total, x = torch.zeros(3), torch.ones(3)
    for count in range(1, 5):
        before = total._version

        assert accumulate_(total, x) is None
        assert total._version > before
        assert torch.equal(torch.full((3,), float(count)), total)
    assert known(accumulate_) > 0


def test_an_output_of_an_op_without_outputs_is_refused_as_ever():
    for _ in range(3):
        accumulate_(torch.zeros(3), torch.ones(3))

    check_error(lambda: accumulate_(torch.zeros(3), -torch.ones(3)), "wrong number of outputs")


def test_an_op_without_outputs_records_nothing_and_refuses_to_write_to_a_leaf():
    total, x = torch.zeros(3), drawn(3, grad=True).detach().abs().requires_grad_()
    for _ in range(3):
        accumulate_(torch.zeros(3), torch.ones(3))

    check_error(lambda: accumulate_(x, total), "leaf|which would be wrong")


def test_a_kernel_that_turns_out_to_be_unavailable_is_replaced():
    @custom_op("native::fallible")
    def fallible(x: Tensor) -> Tensor:
        return x * 2

    is_there = True

    @fallible.register_kernel("cpu", name="fast")
    def _(x):
        if not is_there:
            raise KernelUnavailable("fast", "gone")
        return x * 2

    x = drawn(3)
    for _ in range(3):
        fallible(x)
    is_there = False
    with pytest.warns(UserWarning, match="gone"):
        assert torch.equal(fallible(x), 2 * x)


def test_a_new_rule_is_used_at_once():
    @custom_op("native::changing")
    def changing(x: Tensor) -> Tensor:
        return x * 2

    changing.register_backward(lambda grad: grad * 2)
    x = drawn(3, grad=True)
    for _ in range(3):
        z = changing(x)
    assert known(changing) == 1
    changing.register_backward(lambda grad: grad * 5, replace=True)
    assert known(changing) == 0
    z.sum().backward()
    assert x.grad.tolist() == [2.0] * 3  # of the rule at the time of the call
    for _ in range(3):
        x.grad = None
        changing(x).sum().backward()
        assert x.grad.tolist() == [5.0] * 3


def test_threads_call_while_rules_change():
    @custom_op("native::threads")
    def op(x: Tensor) -> Tensor:
        return x * 2

    op.register_backward(lambda grad: grad * 2)
    failures = []
    is_over = threading.Event()

    def call():
        x = torch.ones(3, requires_grad=True)
        while not is_over.is_set():
            x.grad = None
            op(x).sum().backward()
            if x.grad.tolist() != [2.0] * 3:
                failures.append(x.grad)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        op.register_backward(lambda grad: grad + grad, replace=True)
    is_over.set()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("grad", [False, True])
def test_a_tensor_is_held_while_a_kernel_runs_and_no_longer(grad):
    """Without that reference, each copy of the tensor would wait for the GIL: see held_tensors.h."""
    counts = []

    def counting(x: Tensor) -> Tensor:
        counts.append(x._use_count())
        if len(counts) > 3:
            raise ValueError("enough")
        return x * 2

    op = custom_op(f"native::counting_{grad}", counting)
    op.register_backward(lambda grad: grad * 2)
    x = drawn(3, grad=grad)
    for _ in range(3):
        op(x)
    alone = x._use_count()
    with pytest.raises(ValueError, match="enough"):
        op(x)

    assert known(op) == 1
    assert [alone + 1 + grad] * 2 == counts[2:]  # the node of a leaf has one, too
    assert alone == x._use_count()


def test_nothing_is_kept_after_calls():
    x, y = drawn(3, grad=True), drawn(3)
    dead = []
    for _ in range(5):
        kept = drawn(3, grad=True)
        z = product(kept, y)
        dead += [weakref.ref(kept), weakref.ref(z)]
        z.sum().backward()
        del kept, z
    gc.collect()
    assert [one() for one in dead] == [None] * len(dead)
    del x


@custom_op("native::weighted")
def weighted(xs: list[Tensor], bias: Tensor | None, fixed: list[Tensor], scale: float = 1.0) -> tuple[Tensor, Tensor]:
    xs.reverse()  # the list is the kernel's own
    total = sum(xs) * scale + sum(fixed)
    return (total if bias is None else total + bias), total * 2


@weighted.register_backward
def _(grad_output_0, grad_output_1, xs, bias, fixed, scale):
    grad = grad_output_0 + 2 * grad_output_1
    return {
        "xs": [grad * scale for _ in xs],
        "bias": grad_output_0,
        "fixed": lambda: [grad * 1 for _ in fixed],
    }


@each("has_bias", [True, False])
@each("kind", ["all", "some", "none in list", "fixed too", "no tensors", "tuple"])
def test_lists(kind, has_bias):
    def inputs():
        torch.manual_seed(3)
        count = 0 if kind == "no tensors" else 3
        xs = [drawn(4, grad=kind != "none in list" and (kind != "some" or i == 1)) for i in range(count)]
        fixed = [drawn(4, grad=kind == "fixed too") for _ in range(2)]
        return (tuple(xs) if kind == "tuple" else xs), drawn(4, grad=True) if has_bias else None, fixed

    def run():
        xs, bias, fixed = inputs()
        before = list(xs)
        out, double = weighted(xs, bias, fixed, scale=2.0)
        assert all(one is other for one, other in zip(xs, before, strict=True))
        leaves = [t for t in (*xs, bias, *fixed) if t is not None and t.requires_grad]
        found = [out, double]
        if leaves:
            found += torch.autograd.grad([out, double], leaves, [drawn(4), drawn(4)], allow_unused=True)
        return found

    runs = [run() for _ in range(3)]
    assert known(weighted) > 0 or kind == "fixed too"
    with through_dispatcher():
        expected = run()
    for found in runs:
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_list_is_differentiated_twice_and_checked():
    xs = [drawn(3, grad=True, dtype=torch.float64) for _ in range(2)]
    fixed = [drawn(3, dtype=torch.float64)]
    for _ in range(3):
        out, _ = weighted(xs, None, fixed)

    def call(*tensors):
        return weighted(list(tensors), None, fixed)

    assert torch.autograd.gradcheck(call, xs)
    assert torch.autograd.gradgradcheck(call, xs)
    assert type(out.grad_fn).__module__ == "custom_autograd.native"
    assert [len(out.grad_fn._saved_xs), len(out.grad_fn._saved_fixed)] == [2, 1]
    assert out.grad_fn.needs_input_grad == weighted_needs(xs, fixed)


def weighted_needs(xs, fixed):
    with through_dispatcher():
        return weighted(xs, None, fixed)[0].grad_fn.needs_input_grad


@pytest.fixture
def native_again():
    """Afterwards calls are native again: of an op that compiled autograd has met, the dispatcher keeps them."""
    yield
    for op in (product, norm, weighted, in_context):
        generated_code_of(op._record).keeps_dispatcher = False
        op._record.road.native.forget()


COMPILED = {
    "by name": lambda x, w, scale: product(x, w) * scale,
    "hidden output": lambda x, w, scale: norm(x, w[0], torch.arange(3))[0] * scale,
    "list": lambda x, w, scale: weighted([x, w], None, [torch.ones(2, 4)], scale=scale)[0],
    "register_autograd": lambda x, w, scale: sum(in_context(x, w, scale)),
    "register_autograd, a gradient that is not there": lambda x, w, scale: in_context(x, w, scale)[0],
}


def graphs_and_gradients(call):
    """How many graphs compiled autograd makes for three backward passes, and their gradients."""
    torch.compiler.reset()
    counter, gradients = GraphCounter(), []
    for scale in (2.0, 3.0, 4.0):
        torch.manual_seed(0)
        x, w = drawn(2, 4, grad=True), drawn(2, 4, grad=True)
        for _ in range(2):
            out = call(x, w, scale)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=counter, fullgraph=True)):
            out.sum().backward()
        gradients.append((x.grad, w.grad))
    return counter.graphs, gradients


@pytest.mark.usefixtures("fresh_compiler", "native_again")
@pytest.mark.parametrize("name", slow_but_every(3, COMPILED))
def test_compiled_autograd_compiles_as_often_as_without_native_nodes(name):
    graphs, found = graphs_and_gradients(COMPILED[name])
    with through_dispatcher():
        expected_graphs, expected = graphs_and_gradients(COMPILED[name])

    assert expected_graphs == graphs
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("count", [20, 60])
def test_an_op_of_many_arguments(count):
    """TensorRT-LLM has ops of 51."""
    numbers = ", ".join(f"float s{index} = {index}.0" for index in range(count - 2))

    def weigh(x, y, *scales):
        return x * y * sum(scales)

    op = custom_op(f"native::many_{count}", weigh, schema=f"(Tensor x, Tensor y, {numbers}) -> Tensor")
    names = ", ".join(f"s{index}" for index in range(count - 2))
    namespace: dict[str, object] = {}
    exec(
        f"def rule(grad, x, y, {names}):\n    s = {names.replace(', ', ' + ')}\n    return grad * y * s, grad * x * s",
        namespace,
    )
    op.register_backward(namespace["rule"])
    x, y = drawn(3, grad=True), drawn(3, grad=True)
    for _ in range(3):
        out = op(x, y, 7.0)
    found = torch.autograd.grad(out.sum(), (x, y))

    total = sum(range(count - 2)) + 7.0
    assert isinstance(out.grad_fn, library.module.Node)
    torch.testing.assert_close(found, (y * total, x * total))


def test_a_new_kind_is_learnt_after_many_calls_of_unknown_ones():
    op = custom_op("native::many_misses", lambda x: x * 2, schema="(Tensor x) -> Tensor")
    x = drawn(3)
    op(x)
    with through_dispatcher():
        for _ in range(100):
            op(x)
    before = known(op)
    op(x)

    assert (0, 1) == (before, known(op))


def test_an_op_of_too_many_arguments_keeps_python():
    numbers = ", ".join(f"float s{index} = 1.0" for index in range(63))
    op = custom_op("native::too_many", lambda x, *scales: x * sum(scales), schema=f"(Tensor x, {numbers}) -> Tensor")
    for _ in range(3):
        assert torch.equal(torch.full((3,), 63.0), op(torch.ones(3)))

    assert op._record.road.native is None


def test_a_list_among_many_arguments():
    numbers = ", ".join(f"int s{index} = 1" for index in range(30))
    op = custom_op(
        "native::many_list", lambda xs, *scales: sum(xs) * sum(scales), schema=f"(Tensor[] xs, {numbers}) -> Tensor"
    )
    op.register_backward(lambda grad, xs: [grad * 30 for _ in xs])
    xs = [drawn(3, grad=True) for _ in range(20)]
    for _ in range(3):
        out = op(xs)
    found = torch.autograd.grad(out.sum(), xs)

    assert isinstance(out.grad_fn, library.module.Node)
    torch.testing.assert_close(found, tuple(torch.full((3,), 30.0) for _ in xs))


class Pair(NamedTuple):
    """What a kernel may return in place of a tuple."""

    first: Tensor
    second: Tensor


class Turned(tuple):
    """A tuple that gives its items from the end."""

    def __iter__(self):
        return reversed(tuple(self[i] for i in range(len(self))))


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (lambda x: torch.aminmax(x * 1), [1.0, 3.0]),
        (lambda x: Pair(x[0] * 1, x[1] * 1), [1.0, 2.0]),
        (lambda x: Turned((x[0] * 1, x[1] * 1)), [2.0, 1.0]),
    ],
    ids=["torch.return_types", "named tuple", "tuple with an order of its own"],
)
def test_a_kernel_may_return_a_named_tuple(kernel, expected):
    op = custom_op("native_calls::named", kernel, schema="(Tensor x) -> (Tensor, Tensor)", replace=True)
    op.register_backward(lambda grad_output_0, x: grad_output_0 * x)
    for x in (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0], requires_grad=True)):
        for _ in range(4):
            found = op(x)
            assert tuple is type(found)
            assert expected == [one.item() for one in found]


class Longer(tuple):
    """A tuple that says that it has three items."""

    def __len__(self):
        return 3


def test_a_tuple_with_a_length_of_its_own_is_refused_in_every_call():
    op = custom_op("native_calls::longer", lambda x: Longer((x * 1, x * 2)), schema="(Tensor x) -> (Tensor, Tensor)")
    for _ in range(4):
        with pytest.raises(KernelError, match="wrong number of outputs"):
            op(torch.ones(2))
