"""op.out: results are written into tensors of the caller, by the rules of PyTorch: size, dtype, gradients, memory."""

# ruff: noqa: E501 - a message is as long as it is

import pickle
from typing import NamedTuple

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from ways import Calls

from custom_autograd import DeclarationError, GradientError, KernelError, Sample, custom_op
from custom_autograd.torch_private.dispatch import HANDED_BACK


@custom_op("out::scaled", reference=True)
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


class Parts(NamedTuple):
    whole: Tensor
    rest: Tensor


@custom_op("out::split", reference=True)
def split(x: Tensor, *, step: float = 1.0) -> Parts:
    return Parts(x // step, x % step)


@custom_op("out::normed", outputs=("normed", "total", "scale"), hidden=("scale",), reference=True)
def normed(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scale = 1 / x.norm()
    return x * scale, x.sum(), scale


@custom_op("out::flipped", reference=True)
def flipped(x: Tensor) -> Tensor:
    return x.flip(0)


@custom_op("out::range", schema="(int n) -> Tensor", reference=True)
def counted(n):
    return torch.arange(n)


CALLS = []
TIMES = 1


def times():
    return TIMES


@custom_op("out::repeated")
def repeated(x: Tensor) -> Tensor:
    return x.repeat(times())


@repeated.register_fake
def _(x):
    return x.new_empty(x.shape[0] * times())


@repeated.out.register_kernel("cpu")
def _(x, *, out):
    CALLS.append("repeated")
    out.view(-1, len(x)).copy_(x.expand(times(), -1)[: len(out) // len(x)])


@custom_op("out::halved", reference=True)
def halved(x: Tensor) -> Tensor:
    return x / 2


@halved.out.register_kernel("cpu")
def _(x, *, out):
    CALLS.append("halved")
    torch.div(x, 2, out=out)


@flipped.out.register_kernel("cpu")
def _(x, *, out):
    CALLS.append("flipped")
    for index in range(len(x)):
        out[index] = x[len(x) - 1 - index]


@normed.out.register_kernel("cpu")
def _(x, *, normed, total):
    CALLS.append("normed")
    torch.div(x, x.norm(), out=normed)
    torch.sum(x, (0,), out=total)


@pytest.fixture
def no_calls():
    CALLS.clear()


def x():
    return torch.tensor([1.0, 2.0, 2.0])


CASES = {"derived": (scaled, [2.0, 4.0, 4.0]), "kernel": (flipped, [2.0, 2.0, 1.0])}
every = each(("op", "expected"), CASES.values(), ids=CASES)


@every
def test_the_result_is_written_to_the_callers_tensor_which_is_returned(op, expected):
    out = torch.empty(3)

    assert op.out(x(), out=out) is out
    assert expected == out.tolist()


@every
def test_an_empty_tensor_is_resized(op, expected):
    out = torch.empty(0)

    assert expected == op.out(x(), out=out).tolist()
    assert (3,) == tuple(out.shape)


@every
def test_the_result_is_cast_to_a_dtype_that_holds_its_kind(op, expected):
    out = torch.empty(3, dtype=torch.complex64)
    op.out(x(), out=out)

    assert expected == out.real.tolist()


@every
def test_gaps_between_elements_stay_as_they_are(op, expected):
    memory = torch.full((6,), 7.0)
    op.out(x(), out=memory[::2])

    assert expected == memory[::2].tolist()
    assert [7.0] * 3 == memory[1::2].tolist()


@every
def test_the_tensor_may_be_the_argument(op, expected):
    out = x()
    op.out(out, out=out)

    assert expected == out.tolist()


def test_the_tensor_may_overlap_the_argument(no_calls):
    memory = torch.tensor([1.0, 2.0, 3.0, 4.0])
    flipped.out(memory[:3], out=memory[1:])

    assert [1.0, 3.0, 2.0, 1.0] == memory.tolist()
    assert [] == CALLS


def test_parts_of_one_memory_that_do_not_overlap_are_left_to_the_kernel(no_calls):
    memory = torch.tensor([1.0, 2.0, 0.0, 0.0])
    flipped.out(memory[:2], out=memory[2:])

    assert [1.0, 2.0, 2.0, 1.0] == memory.tolist()
    assert ["flipped"] == CALLS


def test_the_version_is_counted():
    out = torch.empty(3)
    before = out._version
    scaled.out(x(), out=out)

    assert before + 1 == out._version


@pytest.mark.parametrize("given", ["a tuple", "names"])
def test_several_outputs_are_given_as_a_tuple_or_by_name(given):
    whole, rest = torch.empty(3), torch.empty(0)
    keywords = {"out": (whole, rest)} if given == "a tuple" else {"rest": rest, "whole": whole}
    found = split.out(x(), step=1.5, **keywords)

    assert isinstance(found, Parts)
    assert found.whole is whole
    assert found.rest is rest
    assert ([0.0, 1.0, 1.0], [1.0, 0.5, 0.5]) == (whole.tolist(), rest.tolist())


def test_hidden_outputs_need_no_tensor(no_calls):
    found = normed.out(x(), out=(torch.empty(3), torch.empty(())))

    assert torch.allclose(x() / 3, found[0])
    assert 5.0 == found[1].item()
    assert ["normed"] == CALLS


def test_an_op_without_tensors_has_it_too():
    out = torch.empty(3, dtype=torch.int64)
    counted.out(3, out=out)

    assert [0, 1, 2] == out.tolist()


# ----------------------------------------------------------------------------------------------------------- modes


@every
def test_without_grad_mode_tensors_may_require_a_gradient(op, expected):
    out = torch.empty(3, requires_grad=True)
    with torch.no_grad():
        op.out(x().requires_grad_(), out=out)

    assert expected == out.tolist()


@every
def test_inference_mode_is_right(op, expected):
    with torch.inference_mode():
        assert expected == op.out(x(), out=torch.empty(3)).tolist()
        assert expected == op.out.overload(x(), out=torch.empty(3)).tolist()


@every
def test_tangents_are_right(op, expected):
    tangent = torch.tensor([1.0, 10.0, 100.0])
    found = torch.func.jvp(lambda x: op.out(x, out=torch.empty_like(x)), (x(),), (tangent,))

    assert expected == found[0].tolist()
    assert torch.equal(op(tangent), found[1])


def vjp(function):
    return lambda x: torch.func.vjp(function, x)


@each("derive", [torch.func.grad, torch.func.jacrev, vjp])
@every
def test_functional_gradients_are_refused(op, expected, derive):
    with pytest.raises(GradientError, match="do not support automatic differentiation"):
        derive(lambda x: op.out(x, out=torch.empty_like(x)).sum())(x())


@every
def test_a_batch_is_right(op, expected):
    batch = torch.stack([x(), x() + 1])

    assert torch.equal(torch.vmap(op)(batch), torch.vmap(lambda x: op.out(x, out=torch.empty_like(x)))(batch))
    out = torch.empty(2, 3)
    torch.vmap(lambda x, out: op.out(x, out=out))(batch, out)
    assert torch.equal(torch.vmap(op)(batch), out)


@every
@each("backend", ["aot_eager", "inductor"])
def test_compiled_calls_are_right(op, expected, backend, fresh_compiler):
    compiled = torch.compile(lambda x, out: op.out(x, out=out) + 1, backend=backend, fullgraph=True)
    out = torch.empty(3)

    assert [one + 1 for one in expected] == compiled(x(), out).tolist()
    assert expected == out.tolist()


@every
def test_a_tensor_made_in_the_graph_is_right(op, expected, fresh_compiler):
    compiled = torch.compile(lambda x: op.out(x, out=torch.empty_like(x)), backend="inductor", fullgraph=True)

    assert expected == compiled(x()).tolist()


@every
def test_a_resize_is_no_part_of_a_graph(op, expected, fresh_compiler):
    def f(x):
        return op.out(x, out=x.new_empty(0)) + 1

    assert [one + 1 for one in expected] == torch.compile(f, backend="aot_eager")(x()).tolist()
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"resize_|Shape mismatch with out="):
        torch.compile(f, backend="aot_eager", fullgraph=True)(x())


def test_the_kernel_runs_in_a_compiled_graph_where_torch_has_the_tags(no_calls, fresh_compiler):
    torch.compile(lambda x: flipped.out(x, out=torch.empty_like(x)), backend="inductor", fullgraph=True)(x())

    assert (["flipped"] if HANDED_BACK else []) == CALLS


@every
@pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")  # torch itself, in run_decompositions
def test_an_exported_program_is_right(op, expected):
    program = torch.export.export(Calls(lambda x: op.out(x * 1, out=torch.empty_like(x))), (x(),))

    assert expected == program.module()(x()).tolist()
    assert expected == program.run_decompositions().module()(x()).tolist()


@every
def test_functionalization_is_right(op, expected):
    found = torch.func.functionalize(lambda x: op.out(x, out=torch.empty_like(x)))(x())

    assert expected == found.tolist()


# ------------------------------------------------------------------------------------------------ the dispatcher's op


def test_it_is_an_op_of_the_dispatcher():
    assert split.out.overload is torch.ops.out.split_out.default
    assert "(Tensor x, *, float step=1.0, Tensor(o0!) whole, Tensor(o1!) rest) -> (Tensor(o0!), Tensor(o1!))" == str(
        split.out.schema
    )
    assert {tag for tag in HANDED_BACK if tag.name == "out"} <= set(split.out.overload.tags)


def test_the_overload_does_the_same():
    whole, rest = torch.empty(3), torch.empty(3)
    assert split.out.overload is not None  # it is declared when it is first asked for
    found = torch.ops.out.split_out(x(), step=1.5, whole=whole, rest=rest)

    assert found[0] is whole
    assert ([0.0, 1.0, 1.0], [1.0, 0.5, 0.5]) == (whole.tolist(), rest.tolist())


def test_the_overload_refuses_gradients():
    with pytest.raises(GradientError, match="do not support automatic differentiation"):
        scaled.out.overload(x().requires_grad_(), out=torch.empty(3))


def test_it_can_be_pickled():
    restored = pickle.loads(pickle.dumps(scaled.out))

    assert [2.0, 4.0, 4.0] == restored(x(), out=torch.empty(3)).tolist()


def test_coverage_says_what_is_derived():
    assert "derived: the op, then a copy" == scaled.capabilities()["out"]
    assert flipped.capabilities()["out"].startswith("registered: cpu (test_out.py:")


def test_check_compares_it_with_the_op():
    flipped.register_samples(lambda make: [Sample(make(4)), Sample(make(3, 2))])

    assert flipped.out.check().ok


@custom_op("out::selected", schema="(Tensor x) -> Tensor")
def selected(x):
    return x[x > 1]


@selected.register_fake
def _(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@selected.out.register_kernel("cpu")
def _(x, *, out):
    CALLS.append("selected")


def test_a_kernel_does_not_run_where_the_size_depends_on_data(no_calls):
    assert [2.0, 2.0] == selected.out(x(), out=torch.empty(2)).tolist()
    assert [] == CALLS


# ------------------------------------------------------------------------------------------------------------ messages


@every
def test_another_shape(op, expected):
    with pytest.raises(KernelError, match="'out' has another shape than the result"):
        op.out(x(), out=torch.empty(2))


def test_what_is_refused():
    def refusal(**keywords):
        return message(lambda: scaled.out(x(), **keywords))

    assert_expected_inline(
        together(
            refusal(out=torch.empty(3, 1)),
            refusal(out=torch.empty(3, dtype=torch.int64)),
            refusal(out=torch.empty(3, device="meta")),
            refusal(out=torch.empty(1).expand(3)),
            refusal(),
            refusal(out=3.0),
        ),
        """\
KernelError: out::scaled.out
  declared   FILE.py:LINE
'out' has another shape than the result
  expected   shape (3,), or an empty tensor, which is resized
  found      shape (3, 1)
  do         give 'out' that shape, or resize it to zero elements
a result of torch.float32 cannot be cast to the dtype of 'out'
  expected   torch.float32, or a dtype that it can be cast to without losing its kind
  found      torch.int64
  do         give 'out' that dtype
'out' is on another device than the result
  expected   cpu
  found      meta
  do         move 'out', or the other arguments, to one device
several elements of 'out' have one place in memory
  expected   a tensor that is not expanded
  found      strides (0,) for shape (3,)
  do         clone() 'out' before the call
the call does not say where each output is to be written
  expected   out=tensor
  do         give one tensor per output
'out' is not a tensor
  expected   a tensor
  found      float""",
    )


def test_what_is_refused_for_several_outputs():
    out = torch.empty(3)
    assert_expected_inline(
        together(
            message(lambda: split.out(x(), out=(out, out))),
            message(lambda: split.out(x(), out=out)),
        ),
        """\
KernelError: out::split.out
  declared   FILE.py:LINE
'whole' and 'rest' share memory
  expected   memory of its own for each output
  do         give each output a tensor of its own
the call does not say where each output is to be written
  expected   out= 2 tensors, or by keyword 'whole', 'rest'
  do         give one tensor per output""",
    )


@pytest.mark.parametrize("which", ["argument", "out"])
def test_a_tensor_that_requires_a_gradient(which):
    tensors = x().requires_grad_(which == "argument"), torch.empty(3, requires_grad=which == "out")
    assert_expected_inline(
        message(lambda: scaled.out(tensors[0], out=tensors[1])),
        """\
GradientError: out::scaled.out: functions with out=... do not support automatic differentiation, and a tensor requires a gradient
  declared   FILE.py:LINE
  do         call it under torch.no_grad(), or call the op itself""",
    )


class Plain(Tensor):
    """A subclass that holds its own data."""


@each("size", [0, 3])
@each(
    "second",
    [lambda out: out, lambda out: out[:], lambda out: out.as_subclass(Plain)],
    ids=["same", "view", "subclass"],
)
def test_outputs_in_one_memory_are_refused_whatever_its_size(size, second):
    out = torch.empty(size)
    with pytest.raises(KernelError, match="'whole' and 'rest' share memory"):
        split.out(x(), out=(out, second(out)))


@pytest.mark.parametrize("op", [split, normed], ids=["derived", "kernel"])
def test_outputs_that_are_one_tensor_are_refused_in_a_graph_too(op, fresh_compiler):
    compiled = torch.compile(lambda x, a, b: op.out(x, out=(a, b)), backend="aot_eager", fullgraph=True)
    out = torch.empty(3)
    with pytest.raises((KernelError, torch._dynamo.exc.Unsupported), match="share memory"):
        compiled(x(), out, out)


def test_a_kernel_whose_result_nobody_knows():
    op = custom_op("out::unknown", lambda x: x + 1, schema="(Tensor x) -> Tensor")
    op.out.register_kernel("cpu", lambda x, *, out: out)
    assert_expected_inline(
        message(lambda: op.out(x(), out=torch.empty(3))),
        """\
KernelError: out::unknown: a kernel of a variant runs only where the result fits, and nothing tells the shape of the result
  expected   a fake or a reference of the op
  declared   FILE.py:LINE
  do         register_fake for the op""",
    )


NONE = {
    "(Tensor x) -> ()": "it returns nothing",
    "(Tensor x) -> Tensor[]": "its output 'output' is not a tensor: Tensor[]",
    "(Tensor x) -> (Tensor, int)": "its output 'output_1' is not a tensor: int",
    "(Tensor out) -> Tensor": "it has an argument 'out' already",
    "(Tensor(a!) x) -> ()": "it writes to 'x' itself",
    "(Tensor(a) x) -> Tensor(a)": "it returns a view, which is not new memory",
}


@each("schema", NONE)
def test_an_op_that_can_have_none_says_why(schema):
    mutates = ("x",) if "!" in schema else ()
    name = f"out::none_{list(NONE).index(schema)}"
    function = (lambda out: out) if "Tensor out" in schema else (lambda x: x)
    op = custom_op(name, function, schema=schema, mutates_args=mutates)
    with pytest.raises(DeclarationError, match="the op can have no out variant") as caught:
        op.out  # noqa: B018 - reading it is the question

    assert NONE[schema] in str(caught.value)
    assert f"none: {NONE[schema]}" == op.capabilities()["out"]


def test_outputs_may_be_parts_of_one_memory():
    memory = torch.empty(6)
    split.out(x(), step=1.5, whole=memory[:3], rest=memory[3:])

    assert [0.0, 1.0, 1.0, 1.0, 0.5, 0.5] == memory.tolist()


def test_a_fake_that_reads_another_number_gives_another_shape(monkeypatch):
    """A kernel of the variant does not get a tensor that fits what the fake returned before."""
    x, small, large = torch.arange(2.0), torch.empty(2), torch.empty(4)
    repeated.out(x, out=small)
    monkeypatch.setitem(globals(), "TIMES", 2)
    CALLS.clear()
    with pytest.raises(KernelError, match=r"'out' has another shape than the result\n  expected   shape \(4,\)"):
        repeated.out(x, out=small)
    repeated.out(x, out=large)

    assert [0, 1, 0, 1] == large.tolist()
    assert ["repeated"] == CALLS


def test_another_default_dtype_gives_another_result():
    x, single, double = torch.arange(2), torch.empty(2), torch.empty(2, dtype=torch.float64)
    halved.out(x, out=single)
    CALLS.clear()
    torch.set_default_dtype(torch.float64)
    try:
        halved.out(x, out=single)
        halved.out(x, out=double)
    finally:
        torch.set_default_dtype(torch.float32)

    assert ["halved"] == CALLS  # the other call is the op and a copy
