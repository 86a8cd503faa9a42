"""op.inplace: the result is written into the first argument, right in every mode, and refused as PyTorch refuses."""

import copy
import enum
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message, together
from tables import each
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx
from ways import Calls, all_of, every_eager_way, every_graph

from custom_autograd import CustomAutogradError, DeclarationError, GradientError, KernelError, Sample, custom_op
from custom_autograd.torch_private.dispatch import HANDED_BACK


def of_numpy(array):
    return torch.from_numpy(np.array(array))


@custom_op("inplace::cube")
def cube(x: Tensor, w: Tensor, scale: float = 1.0) -> Tensor:
    return of_numpy(x.numpy() ** 3 * w.numpy() * scale)


@cube.register_fake
def _(x, w, scale=1.0):
    return torch.empty_like(x)


@cube.register_backward
def _(grad, x, w, scale):
    """Saves `x`, which the in-place variant writes to."""
    return {"x": 3 * grad * x * x * w * scale, "w": grad * x**3 * scale}


@custom_op("inplace::clamp", reference=True, outputs=("out", "count"), hidden=("count",))
def clamp(x: Tensor, low: float) -> tuple[Tensor, Tensor]:
    return x.clamp(min=low), (x < low).sum()


@custom_op("inplace::doubled", reference=True)
def doubled(x: Tensor) -> Tensor:
    """The kernel of its variants is NumPy."""
    return 2 * x


CALLS = []


@doubled.inplace.register_kernel("cpu")
def _(x):
    CALLS.append("inplace")
    x.numpy()[...] *= 2


OPS = {
    "derived": lambda x: cube.inplace(x, torch.full_like(x, 2.0), 0.5),
    "hidden": lambda x: clamp.inplace(x, 0.5) * x,
    "kernel": lambda x: doubled.inplace(x) * x,
}
PLAIN = {
    "derived": lambda x: x**3,
    "hidden": lambda x: x.clamp(min=0.5) ** 2,
    "kernel": lambda x: (2 * x) ** 2,
}


def rand(*shape, requires_grad=False):
    generator = torch.Generator().manual_seed(5)
    return torch.rand(shape or (4,), dtype=torch.float64, generator=generator).requires_grad_(requires_grad)


def through(name):
    """The variant on a copy, and what it should be."""
    return lambda x: OPS[name](x * 1)


every = each("name", OPS)


@pytest.fixture
def no_calls():
    CALLS.clear()


def test_the_first_argument_is_written_to_and_returned():
    x, w = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 10.0])

    assert cube.inplace(x, w) is x
    assert [1.0, 80.0] == x.tolist()


def test_it_may_be_given_by_name():
    x = torch.tensor([2.0])
    cube.inplace(w=torch.ones(1), x=x, scale=0.5)

    assert [4.0] == x.tolist()


def test_the_version_is_counted_once():
    x = rand()
    before = x._version
    cube.inplace(x, x)

    assert before + 1 == x._version


@every
@every_eager_way
def test_values_and_derivatives_are_right_in_every_way(name, way, plainly):
    torch.testing.assert_close(way(through(name), rand()), plainly(PLAIN[name], rand()))


@every_graph
def test_values_and_gradients_are_right_in_graphs(way, plainly):
    torch.testing.assert_close(way(all_of(map(through, PLAIN)), rand()), plainly(all_of(PLAIN.values()), rand()))


@every
def test_gradients_of_all_orders_and_tangents_are_right(name):
    assert gradcheck(through(name), (rand(requires_grad=True),), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(through(name), (rand(requires_grad=True),))


def test_a_batch_that_the_argument_is_not_part_of_is_refused():
    x = torch.ones(2)
    with pytest.raises(RuntimeError, match="vmap: inplace arithmetic"):
        torch.vmap(lambda w: cube.inplace(x, w))(torch.ones(3, 2))


@pytest.mark.slow
@every
def test_values_and_gradients_are_right_in_compiled_machine_code(name):
    compiled = torch.compile(through(name), backend="inductor", fullgraph=True)
    x = rand(requires_grad=True)
    (expected,) = torch.autograd.grad(PLAIN[name](x).sum(), x)

    assert torch.allclose(PLAIN[name](rand()), compiled(rand()))
    assert torch.allclose(expected, torch.autograd.grad(compiled(x).sum(), x)[0])


@every
def test_a_compiled_write_to_an_argument_is_seen_by_the_caller(name, fresh_compiler):
    expected, found = rand(), rand()
    OPS[name](expected)
    torch.compile(OPS[name], backend="aot_eager", fullgraph=True)(found)

    assert torch.allclose(expected, found)


@every
def test_a_strictly_exported_program_is_right(name, fresh_compiler):
    program = torch.export.export(Calls(through(name)), (rand(),), strict=True)

    assert torch.allclose(PLAIN[name](rand()), program.module()(rand()))


@pytest.mark.parametrize("strict", [False, True])
@every
def test_an_exported_program_is_differentiated_as_the_call_is(name, strict, fresh_compiler):
    """It is exported with tensors that need no gradient, and may be trained."""
    program = torch.export.export(Calls(through(name)), (rand(),), strict=strict).module()
    x = rand(requires_grad=True)
    (expected,) = torch.autograd.grad(PLAIN[name](x).sum(), x)

    assert torch.allclose(expected, torch.autograd.grad(program(x).sum(), x)[0])


@pytest.mark.parametrize(
    "record",
    [
        lambda function, x: make_fx(function)(x),
        lambda function, x: torch.jit.trace(function, (x,), check_trace=False),
    ],
    ids=["make_fx", "trace"],
)
@every
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*torch.jit.trace")
def test_a_recorded_program_is_differentiated_as_the_call_is(name, record):
    """It is recorded with tensors that need no gradient."""
    program = record(through(name), rand())
    x = rand(requires_grad=True)
    (expected,) = torch.autograd.grad(PLAIN[name](x).sum(), x)

    assert torch.allclose(expected, torch.autograd.grad(program(x).sum(), x)[0])


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return cube.inplace(grad * 1, grad)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo does so
def test_a_compiled_backward_may_call_it(fresh_compiler):
    x = rand(requires_grad=True)
    compiled = torch.compile(lambda x: Written.apply(x).sum() * 3, backend="aot_eager", fullgraph=True)

    assert [81.0] * 4 == torch.autograd.grad(compiled(x), x)[0].tolist()


def test_an_exported_program_holds_the_op_itself_where_the_variant_is_derived():
    graph = torch.export.export(Calls(through("derived")), (rand(),)).graph
    names = [str(node.target) for node in graph.nodes if node.op == "call_function"]

    assert "inplace.cube.default" in names
    assert not any("cube_" in name for name in names)


@every
def test_a_write_to_a_view_is_seen_through_its_base(name):
    def f(x):
        base = x * 1
        OPS[name](base[1:])
        return base * 2

    assert gradcheck(f, (rand(requires_grad=True),))


def test_a_value_that_autograd_saved_before_the_write_is_missed():
    x = rand(requires_grad=True) * 1
    y = x * x
    cube.inplace(x, torch.ones_like(x))

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_argument_may_be_another_one_too():
    def f(x):
        y = x * 1
        return cube.inplace(y, y)

    assert gradcheck(f, (rand(requires_grad=True),))


def test_a_leaf_may_be_written_to_without_grad_mode():
    x = rand(requires_grad=True)
    with torch.no_grad():
        cube.inplace(x, torch.ones_like(x))

    assert torch.allclose(rand() ** 3, x.detach())


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_modes_without_gradients_are_right(mode):
    with mode():
        assert torch.allclose(rand() ** 3, cube.inplace(rand(), torch.ones(4, dtype=torch.float64)))
        assert torch.allclose(rand() ** 3, cube.inplace.overload(rand(), torch.ones(4, dtype=torch.float64)))


def test_a_wider_result_is_cast_as_pytorch_casts_it():
    x = torch.tensor([1.5, 2.0], dtype=torch.float16)
    widening = custom_op("inplace::widening", lambda x: x.double() * 2, schema="(Tensor x) -> Tensor")
    widening.inplace(x)

    assert torch.float16 == x.dtype
    assert [3.0, 4.0] == x.tolist()


@custom_op("inplace::lowered", reference=True)
def lowered(x: Tensor) -> Tensor:
    return x / 3


lowered.register_autocast("cpu", torch.bfloat16)


def test_autocast_leaves_it_alone_as_pytorch_does():
    expected, x = torch.ones(3) / 3, torch.ones(3)
    with torch.autocast("cpu", torch.bfloat16):
        lowered.inplace(x)

    assert torch.allclose(expected, x)


def test_meta_tensors_keep_their_shape():
    x = torch.empty(3, device="meta")

    assert cube.inplace(x, x) is x


# ------------------------------------------------------------------------------------------------- the dispatcher's op


def test_it_is_an_op_of_the_dispatcher():
    assert cube.inplace.overload is torch.ops.inplace.cube_.default
    assert "inplace::cube_" == cube.inplace.name
    assert "(Tensor(a!) x, Tensor w, float scale=1.0) -> Tensor(a!)" == str(cube.inplace.schema)
    assert {tag for tag in HANDED_BACK if tag.name == "inplace"} <= set(cube.inplace.overload.tags)


@pytest.mark.parametrize("requires_grad", [False, True], ids=["plain", "with a gradient"])
def test_the_overload_does_the_same(requires_grad):
    x, w = rand(requires_grad=requires_grad), torch.ones(4, dtype=torch.float64)
    y, overload = x * 1, cube.inplace.overload

    assert overload is torch.ops.inplace.cube_.default
    assert torch.ops.inplace.cube_(y, w) is y
    assert torch.allclose(rand() ** 3, y.detach())
    if requires_grad:
        assert torch.allclose(3 * rand() ** 2, torch.autograd.grad(y.sum(), x)[0])


def test_the_overload_can_be_batched_and_compiled(fresh_compiler):
    overload, w = cube.inplace.overload, torch.ones(4, dtype=torch.float64)

    def f(x):
        return overload(x * 1, w)

    assert torch.allclose(rand(3, 4) ** 3, torch.vmap(f)(rand(3, 4)))
    assert torch.allclose(rand() ** 3, torch.compile(f, backend="aot_eager", fullgraph=True)(rand()))


def test_it_can_be_pickled_and_copied():
    restored = pickle.loads(pickle.dumps(cube.inplace))

    assert torch.allclose(rand() ** 3, restored(rand(), torch.ones(4, dtype=torch.float64)))
    assert "<InplaceVariant inplace::cube_>" == repr(copy.copy(cube.inplace))


def replaced_variant():
    old = custom_op("inplace::superseded", lambda x: x + 1, schema="(Tensor x) -> Tensor", replace=True)
    custom_op("inplace::superseded", lambda x: x + 2, schema="(Tensor x) -> Tensor", replace=True)
    return old.inplace


def test_a_variant_of_an_op_that_was_replaced_does_not_pickle_as_its_successor():
    with pytest.raises(DeclarationError, match="inplace::superseded: the op was replaced by another one of its name"):
        pickle.dumps(replaced_variant())


def test_a_variant_of_an_op_that_was_replaced_can_be_copied():
    old = replaced_variant()

    assert copy.deepcopy(old) is old


def test_a_variant_of_a_function_of_another_module_pickles_with_the_modules_of_its_op():
    op = custom_op("inplace::relu", torch.nn.functional.relu, schema="(Tensor x) -> Tensor", replace=True)
    _, (_, *found) = op.inplace.__reduce__()

    assert ["inplace::relu", ("torch.nn.functional", __name__)] == found


def test_the_dispatchers_op_is_declared_by_the_modules_of_its_op():
    assert cube._record.declaration.modules == cube.inplace._record.declaration.modules


DECLARING = """
import torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("elsewhere::tripled", reference=True)
def tripled(x: Tensor) -> Tensor:
    return 3 * x

@custom_op("elsewhere::squared", reference=True)
def squared(x: Tensor) -> Tensor:
    return x * x

@squared.inplace.register_kernel("cpu")
def _(x):
    x.numpy()[...] **= 2

class Module(torch.nn.Module):
    def forward(self, x):
        return squared.inplace(tripled.inplace(x * 1))
"""


@pytest.mark.slow
def test_a_saved_program_is_loaded_by_another_process(tmp_path):
    (tmp_path / "declaring.py").write_text(DECLARING)
    save = "import torch, declaring; x = torch.ones(2); m = declaring.Module()"
    save += "; torch.export.save(torch.export.export(m, (x,)), 'p.pt2')"
    load = "import torch, declaring; print(torch.export.load('p.pt2').module()(torch.ones(2)).tolist())"
    for program in (save, load):
        finished = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert 0 == finished.returncode, finished.stderr

    assert "[9.0, 9.0]" == finished.stdout.strip()


def test_an_op_that_is_replaced_brings_its_variants():
    first = custom_op("inplace::replaced", lambda x: x + 1, schema="(Tensor x) -> Tensor")
    before = first.inplace.overload
    second = custom_op("inplace::replaced", lambda x: x + 2, schema="(Tensor x) -> Tensor", replace=True)

    assert before is not second.inplace.overload
    assert [3.0] == torch.ops.inplace.replaced_(torch.ones(1)).tolist()
    assert [2.0] == first.inplace(torch.ones(1)).tolist()


# ----------------------------------------------------------------------------------------------- kernels of its own


def test_a_kernel_runs_where_no_gradient_is_recorded(no_calls):
    x = torch.tensor([1.0, 2.0])

    assert doubled.inplace(x) is x
    assert [2.0, 4.0] == x.tolist()
    assert ["inplace"] == CALLS


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_graph_calls_the_kernel_where_torch_has_the_tags(backend, no_calls):
    found = torch.compile(lambda x: doubled.inplace(x + 1), backend=backend, fullgraph=True)(torch.ones(2))

    assert [4.0, 4.0] == found.tolist()
    assert (["inplace"] if HANDED_BACK else []) == CALLS


@pytest.mark.parametrize("x", [torch.ones(2, requires_grad=True) * 1, torch.ones(4)[::2]], ids=["gradient", "strided"])
def test_a_kernel_may_be_left_out_but_the_values_stay(x):
    assert [2.0, 2.0] == doubled.inplace(x).tolist()


def test_the_kernel_counts_the_version():
    x = torch.ones(2)
    before = x._version
    doubled.inplace(x)
    doubled.inplace(x)

    assert before + 2 == x._version


@custom_op("inplace::added", reference=True)
def added(x: Tensor, y: Tensor) -> Tensor:
    return x + y.flip(0)


@added.inplace.register_kernel("cpu")
def _(x, y):
    CALLS.append("added")
    for index in range(len(x)):
        x[index] += y[len(y) - 1 - index]


class Plain(Tensor):
    """A subclass that holds its own data."""


def plain(x):
    return x.as_subclass(Plain)


SHARED = {
    "same": lambda x: added.inplace(x, x),
    "view": lambda x: added.inplace(x, x[:]),
    "read through a subclass": lambda x: added.inplace(x, plain(x)),
    "written through a subclass": lambda x: added.inplace(plain(x), x),
}


@each("call", SHARED.values(), ids=SHARED)
def test_a_kernel_does_not_run_where_it_would_read_what_it_writes(call, no_calls):
    x = torch.tensor([1.0, 2.0, 4.0])
    call(x)

    assert [5.0, 4.0, 5.0] == x.tolist()
    assert [] == CALLS


def test_a_kernel_runs_where_a_subclass_has_memory_of_its_own(no_calls):
    x = torch.tensor([1.0, 2.0, 4.0])
    added.inplace(x, plain(torch.ones(3)))

    assert [2.0, 3.0, 5.0] == x.tolist()
    assert ["added"] == CALLS


def test_a_kernel_does_not_run_where_the_result_has_another_shape(no_calls):
    with pytest.raises(KernelError, match="the result has another shape than 'x'"):
        added.inplace(torch.ones(1), torch.ones(3))

    assert [] == CALLS


def test_coverage_says_what_is_derived():
    place = doubled.inplace.kernels["cpu"]

    assert "derived: the op, then a copy" == cube.capabilities()["inplace"]
    expected = f"registered: cpu ({place}); with gradients derived: the op, then a copy"
    assert expected == doubled.capabilities()["inplace"]
    assert {} == cube.inplace.kernels


def test_a_default_kernel_may_be_registered_once():
    op = custom_op("inplace::default", lambda x: x + 1, schema="(Tensor x) -> Tensor", reference=True)
    op.inplace.register_kernel(None, lambda x: x.add_(1))

    assert [2.0] == op.inplace(torch.ones(1)).tolist()
    with pytest.raises(CustomAutogradError, match="already has a kernel"):
        op.inplace.register_kernel(None, lambda x: x.add_(1))


def test_check_compares_it_with_the_op():
    added.register_samples(lambda make: [Sample(make(4), make(4))])

    assert added.inplace.check().ok


# ------------------------------------------------------------------------------------------------------------- messages


def test_a_leaf():
    assert_expected_inline(
        message(lambda: cube.inplace(rand(requires_grad=True), rand())),
        """\
GradientError: inplace::cube.inplace: 'x' is a leaf that requires a gradient, or a view of one, and is written to
  declared   FILE.py:LINE
  do         call it under torch.no_grad(), on a copy, or call the op itself""",
    )


def test_a_view_of_a_leaf():
    with pytest.raises(GradientError, match="a leaf that requires a gradient, or a view of one"):
        cube.inplace(rand(requires_grad=True)[1:], rand(3))


quotient = custom_op("inplace::quotient", lambda x, y: x / y, schema="(Tensor x, Tensor y) -> Tensor")


def test_what_is_refused():
    assert_expected_inline(
        together(
            message(lambda: quotient.inplace(torch.ones(1), torch.ones(3))),
            message(lambda: quotient.inplace(torch.ones(2, dtype=torch.int64), 2 * torch.ones(2))),
            message(lambda: quotient.inplace(torch.ones(1).expand(3), torch.ones(3))),
            message(lambda: quotient.inplace(2.0, torch.ones(3))),
        ),
        """\
KernelError: inplace::quotient.inplace
  declared   FILE.py:LINE
the result has another shape than 'x', into which it is written
  expected   shape (1,)
  found      shape (3,)
  do         call the op itself, or give 'x' the shape of the result
a result of torch.float32 cannot be cast to the dtype of 'x'
  expected   torch.float32, or a dtype that it can be cast to without losing its kind
  found      torch.int64
  do         give 'x' that dtype
several elements of 'x' have one place in memory
  expected   a tensor that is not expanded
  found      strides (0,) for shape (3,)
  do         clone() 'x' before the call
'x' is not a tensor to write to
  expected   a tensor
  found      2.0""",
    )


NONE = {
    "(Tensor x) -> (Tensor, Tensor)": "it returns 2 values, and one tensor can hold one",
    "(int n, Tensor x) -> Tensor": "its first argument is not a tensor",
    "(*, Tensor x) -> Tensor": "its first argument is not a tensor",
    "(Tensor[] x) -> Tensor": "its first argument is not a tensor",
    "(Tensor x) -> Tensor[]": "its output 'output' is not a tensor: Tensor[]",
    "(Tensor x) -> int": "its output 'output' is not a tensor: int",
    "(Tensor(a!) x) -> ()": "it writes to 'x' itself",
    "(Tensor(a) x) -> Tensor(a)": "it returns a view, which is not new memory",
}


@each("schema", NONE)
def test_an_op_that_can_have_none_says_why(schema):
    function = (lambda *, x: x) if "*" in schema else (lambda n, x: x) if "int n" in schema else (lambda x: x)
    mutates = ("x",) if "!" in schema else ()
    name = f"inplace::none_{list(NONE).index(schema)}"
    op = custom_op(name, function, schema=schema, mutates_args=mutates)
    with pytest.raises(DeclarationError, match="the op can have no in-place variant") as caught:
        op.inplace  # noqa: B018 - reading it is the question

    assert NONE[schema] in str(caught.value)
    assert f"none: {NONE[schema]}" == op.capabilities()["inplace"]


def test_a_name_that_is_taken_is_refused():
    custom_op("inplace::taken_", lambda x: None, schema="(Tensor(a!) x) -> ()", mutates_args=("x",))
    op = custom_op("inplace::taken", lambda x: x + 1, schema="(Tensor x) -> Tensor")
    with pytest.raises(DeclarationError, match="inplace::taken_: the op is already declared"):
        op.inplace.overload  # noqa: B018 - reading it is the question


# ---------------------------------------------------------------------------------------------- arguments of all kinds


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


@custom_op("inplace::joined", reference=True)
def joined(x: Tensor, others: list[Tensor], mode: Mode = Mode.ADD, *, bias: Tensor | None = None) -> Tensor:
    for other in others:
        x = x + other if mode is Mode.ADD else x * other
    return x if bias is None else x + bias


@joined.inplace.register_kernel("cpu")
def _(x, others, mode, *, bias):
    CALLS.append(mode)
    for other in others:
        x.add_(other) if mode is Mode.ADD else x.mul_(other)
    if bias is not None:
        x.add_(bias)


def multiply_all(x):
    return joined.inplace(x * 1, [x * 2, x + 1], Mode.MULTIPLY, bias=x)


def test_a_kernel_gets_arguments_as_the_op_does(no_calls):
    x = rand()

    assert torch.allclose(x * x * 2 * (x + 1) + x, multiply_all(x))
    assert [Mode.MULTIPLY] == CALLS


def test_lists_enums_and_keywords_are_right_in_every_mode(fresh_compiler):
    x = rand()
    expected = x * x * 2 * (x + 1) + x

    assert gradcheck(multiply_all, (rand(requires_grad=True),), check_forward_ad=True)
    assert torch.allclose(expected, torch.compile(multiply_all, backend="aot_eager", fullgraph=True)(x))
    assert torch.allclose(expected[None], torch.vmap(multiply_all)(x[None]))


@custom_op("inplace::product")
def product(x: Tensor, others: list[Tensor]) -> Tensor:
    return x * others[0]


product.register_fake(lambda x, others: torch.empty_like(x))


@product.register_backward
def _(grad, x, others):
    return {"x": grad * others[0], "others": [grad * x]}


@custom_op("inplace::weighted")
def weighted(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    return x * weights["w"]


weighted.register_fake(lambda x, weights: torch.empty_like(x))


@weighted.register_backward
def _(grad, x, weights):
    return {"x": grad * weights["w"], "weights": {"w": grad * x}}


@custom_op("inplace::one_sided")
def one_sided(x: Tensor, y: Tensor) -> Tensor:
    return x + y * y


one_sided.register_fake(lambda x, y: torch.empty_like(x))


@one_sided.register_backward
def _(grad, y):
    """Saves `y`, and not `x`."""
    return {"x": grad, "y": 2 * grad * y}


TWICE = {
    "list": lambda y: product.inplace(y, [y]),
    "dict": lambda y: weighted.inplace(y, {"w": y}),
    "other name": lambda y: one_sided.inplace(y, y),
}
TWICE_PLAIN = {"list": lambda y: y * y, "dict": lambda y: y * y, "other name": lambda y: y + y * y}


@pytest.mark.parametrize("name", TWICE)
def test_the_argument_may_be_a_part_of_another_one(name):
    def f(x):
        return TWICE[name](x * 1)

    assert torch.allclose(TWICE_PLAIN[name](rand()), f(rand()))
    assert gradcheck(f, (rand(requires_grad=True),))


@pytest.mark.parametrize("name", TWICE)
def test_the_argument_may_be_a_part_of_another_one_in_a_graph(name, fresh_compiler):
    compiled = torch.compile(lambda x: TWICE[name](x * 1), backend="aot_eager", fullgraph=True)
    x = rand(requires_grad=True)
    (expected,) = torch.autograd.grad(TWICE_PLAIN[name](x).sum(), x)

    assert torch.allclose(expected, torch.autograd.grad(compiled(x).sum(), x)[0])


@pytest.mark.parametrize("variant", [lambda x: cube.inplace(x * 1, x), lambda x: doubled.inplace(x * 1)])
def test_nine_sizes_take_two_compilations_at_most(variant, fresh_compiler):
    counts = []
    compiled = torch.compile(variant, backend=lambda graph, _: [counts.append(1), graph][1], fullgraph=True)
    for size in range(2, 11):
        assert torch.allclose(variant(rand(size)), compiled(rand(size)))

    assert len(counts) <= 2


def test_a_lazily_conjugated_tensor_is_written_to_through_its_conjugate():
    spun = custom_op("inplace::spun", lambda x: x * 1j, schema="(Tensor x) -> Tensor", reference=True)
    spun.inplace.register_kernel("cpu", lambda x: x.mul_(1j))
    x = torch.tensor([1 + 2j])
    spun.inplace(x.conj())

    assert [2 - 1j] == x.tolist()


@custom_op("inplace::dropped_in")
def dropped_in(x: Tensor) -> Tensor:
    return x**3


dropped_in.register_fake(torch.empty_like)
dropped_in.register_autograd(
    lambda ctx, grad: 3 * grad * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_rules_in_the_style_of_torch_library_are_right():
    assert gradcheck(lambda x: dropped_in.inplace(x * 1), (rand(requires_grad=True),))
