"""What torch's FlopCounterMode counts for an op: in its forward and its backward, in every mode, by value."""

import contextlib
import shutil
import warnings
from dataclasses import dataclass

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from tables import each
from torch import Tensor
from torch._functorch.aot_autograd import aot_function, make_boxed_compiler
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from custom_autograd import custom_op
from custom_autograd.core.errors import KernelWarning
from custom_autograd.kernels import cpp_kernel, numpy_kernel
from custom_autograd.registration.registry import record_of
from custom_autograd.torch_private.dispatch import HANDED_BACK
from python_server import run_python


def flops_of(call) -> int:
    """What the counter counts in a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


def names_of(call) -> dict[str, int]:
    """The same by the name of what is counted."""
    with FlopCounterMode(display=False) as counter:
        call()
    return {str(name): flops for name, flops in counter.get_flop_counts().get("Global", {}).items()}


def product(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


derived = custom_op("flops::derived", product, reference=True)
derived.register_backward(lambda grad, x, weight: {"x": lambda: grad @ weight.mT, "weight": lambda: x.mT @ grad})
registered = custom_op("flops::registered", product)
registered.register_fake(product)
unknown = custom_op("flops::unknown", product)


@registered.register_flops
def registered_flops(x, weight):
    return 2 * x.numel() * weight[-1]


@pytest.fixture
def inputs():
    return torch.ones(2, 3, requires_grad=True), torch.ones(3, 4, requires_grad=True)


FORWARD = 2 * 2 * 3 * 4
ops = pytest.mark.parametrize("op", [derived, registered], ids=["derived", "registered"])


# ------------------------------------------------------------------------------------------------------- forward


def within(context, op):
    with context:
        x, weight = torch.ones(2, 3), torch.ones(3, 4)
        return flops_of(lambda: op(x, weight))


def after_direct_calls(op):
    """They must notice the mode."""
    x, weight = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4, requires_grad=True)
    for _ in range(3):
        op(x, weight)
    return flops_of(lambda: op(x, weight))


def within_another_counter(op):
    with FlopCounterMode(display=False) as outer:
        inner = within(contextlib.nullcontext(), op)
    return inner if inner == outer.get_total_flops() else None


def in_a_graph(op):
    compiled = aot_function(op, make_boxed_compiler(lambda graph, inputs: graph))
    x, weight = torch.ones(2, 3), torch.ones(3, 4)
    compiled(x, weight)
    return flops_of(lambda: compiled(x, weight))


MODES = {
    "no_grad": lambda op: within(torch.no_grad(), op),
    "inference mode": lambda op: within(torch.inference_mode(), op),
    "fake tensors": lambda op: within(FakeTensorMode(), op),
    "meta tensors": lambda op: within(torch.device("meta"), op),
    "direct calls before": after_direct_calls,
    "a counter within a counter": within_another_counter,
    "a graph": in_a_graph,
}


@ops
@each("mode", MODES)
def test_a_call_counts_once_in_every_mode(op, mode):
    assert FORWARD == MODES[mode](op)


@ops
def test_a_call_counts_under_the_name_of_the_op(op, inputs):
    assert {op.name.replace("::", "."): FORWARD} == names_of(lambda: op(*inputs))


@ops
def test_symbolic_sizes_count_as_a_symbolic_number(op):
    """The number holds for all sizes; that of the trace is its hint."""
    found = []

    def traced(x, weight):
        with FlopCounterMode(display=False) as counter:
            result = op(x, weight)
        found.append(counter.get_total_flops())
        return result

    make_fx(traced, tracing_mode="symbolic")(torch.ones(2, 3), torch.ones(3, 4))

    assert isinstance(found[0], torch.SymInt)
    assert FORWARD == int(found[0])


@ops
def test_modules_have_the_calls_in_them(op):
    class Layer(torch.nn.Module):
        def forward(self, x, weight):
            return op(x, weight)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Layer()

        def forward(self, x, weight):
            return self.first(x, weight) + op(x, weight)

    with FlopCounterMode(display=False) as counter:
        Model()(torch.ones(2, 3), torch.ones(3, 4))

    found = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    assert {"Global": 2 * FORWARD, "Model": 2 * FORWARD, "Model.first": FORWARD} == found


def test_an_op_without_a_reference_counts_as_zero(inputs):
    assert 0 == flops_of(lambda: unknown(*inputs))


def test_deriving_neither_computes_nor_takes_memory():
    """The reference would make a matrix of 4 TiB."""
    op = custom_op("flops::huge", lambda x: x.new_empty(1), schema="(Tensor x) -> Tensor")
    op.register_reference(lambda x: x @ x.mT)

    assert 2 * 2**60 == flops_of(lambda: op(torch.zeros(1).expand(2**20, 2**20)))


def test_deriving_runs_the_reference_once_for_each_kind_of_call():
    runs = []

    def reference(x, n):
        runs.append(n)
        return torch.cat([x @ x for _ in range(n)])

    op = custom_op("flops::cached", lambda x, n: torch.cat([x] * n), schema="(Tensor x, int n) -> Tensor")
    op.register_reference(reference)
    x, y = torch.ones(2, 2), torch.ones(3, 3)

    assert [16, 16, 32, 54, 16] == [
        flops_of(lambda x=x, n=n: op(x, n)) for x, n in ((x, 1), (x, 1), (x, 2), (y, 1), (x, 1))
    ]
    assert [1, 2, 1] == runs


def test_few_kinds_of_calls_are_remembered():
    from custom_autograd.capabilities import derived_flops

    op = custom_op("flops::bounded", product, reference=True)
    for n in range(derived_flops.MOST + 3):
        flops_of(lambda n=n: op(torch.ones(1, n), torch.ones(n, 1)))

    assert derived_flops.MOST == len(record_of(op).road.made["flops"]._derived._known)


def read_sizes(x: Tensor, sizes: Tensor) -> Tensor:
    return x[: sizes.tolist()[0]] @ x.mT


def test_a_reference_that_reads_data_runs_on_copies_of_the_tensors():
    op = custom_op("flops::reading", read_sizes, reference=True)
    x = torch.ones(4, 3)

    assert [24, 72] == [flops_of(lambda n=n: op(x, torch.tensor([n, 9]))) for n in (1, 3)]


def pulled_back(grad: Tensor, x: Tensor) -> Tensor:
    return torch.func.vjp(lambda x: x.T @ x, x)[1](grad)[0]


@pytest.mark.parametrize("transform", [lambda f: f, lambda f: lambda *xs: torch.func.vjp(f, *xs)[0]])
def test_a_reference_that_transforms_counts_what_runs(transform):
    op = custom_op("flops::transforming", pulled_back)
    op.register_reference(pulled_back)

    assert 3 * 2 * 2 * 3 * 3 == flops_of(lambda: transform(op)(torch.ones(3, 3), torch.ones(2, 3)))


def test_a_reference_that_reads_data_leaves_random_numbers_as_they_are():
    def noisy(x, n):
        return x @ torch.rand(3, int(n))

    op = custom_op("flops::noisy", lambda x, n: x.clone(), schema="(Tensor x, Tensor n) -> Tensor")
    op.register_reference(noisy)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)

    assert 2 * 2 * 3 * 5 == flops_of(lambda: op(torch.ones(2, 3), torch.tensor(5)))
    assert torch.equal(expected, torch.rand(1))


def test_the_rule_of_vmap_is_what_counts():
    """The reference batches itself; a loop runs the op for each element; a rule may do one larger product."""
    x, weight = torch.ones(5, 2, 3), torch.ones(3, 4)
    looped = custom_op("flops::looped", product)
    looped.register_flops(lambda x, weight: 2 * x.numel() * weight[-1])
    ruled = custom_op("flops::ruled", product)
    ruled.register_flops(lambda x, weight: 2 * x.numel() * weight[-1])
    ruled.register_vmap(lambda info, in_dims, x, weight: (ruled(x.reshape(-1, 3), weight).view(5, 2, 4), 0))

    for op, name in ((derived, "aten.mm"), (looped, "flops.looped"), (ruled, "flops.ruled")):
        found = names_of(lambda op=op: torch.vmap(op, (0, None))(x, weight))
        assert {name: 5 * FORWARD} == {one.replace("bmm", "mm"): flops for one, flops in found.items()}


# ------------------------------------------------------------------------------------------ arguments of every kind


def test_lists_arrive_as_lists_of_shapes_and_none_as_none():
    op = custom_op(
        "flops::lists",
        lambda xs, scale, bias: xs[0] * scale,
        schema="(Tensor[] xs, float scale, Tensor? bias=None) -> Tensor",
    )
    seen = []

    @op.register_flops
    def _(bias, xs, scale):
        seen.append((bias, xs, scale))
        return sum(x.numel() for x in xs)

    assert 7 == flops_of(lambda: op([torch.ones(3), torch.ones(2, 2)], 2.0))
    assert 7 == flops_of(lambda: op([torch.ones(3), torch.ones(2, 2)], 2.0, torch.ones(5)))
    assert [(None, [(3,), (2, 2)], 2.0), ((5,), [(3,), (2, 2)], 2.0)] == seen
    assert all(type(one) is torch.Size for _, xs, _ in seen for one in xs)


@dataclass
class Layer:
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0


def in_layer(x: Tensor, layer: Layer) -> Tensor:
    return x @ layer.weight * layer.scale


def test_containers_hold_shapes():
    op = custom_op("flops::contained", in_layer)
    op.register_flops(lambda x, layer: 2 * x.numel() * layer.weight[-1] + (0 if layer.bias is None else 1000))
    x, weight = torch.ones(2, 3), torch.ones(3, 4)

    assert FORWARD == flops_of(lambda: op(x, Layer(weight)))
    assert FORWARD + 1000 == flops_of(lambda: op(x, Layer(weight, torch.ones(4))))


def test_containers_are_derived():
    op = custom_op("flops::contained_derived", in_layer, reference=True)

    assert FORWARD == flops_of(lambda: op(torch.ones(2, 3), Layer(torch.ones(3, 4))))


def test_hidden_outputs_are_no_obstacle(inputs):
    def with_norm(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weight, x.norm()

    op = custom_op("flops::hidden", with_norm, outputs=("out", "norm"), hidden=("norm",), reference=True)

    assert FORWARD == flops_of(lambda: op(*inputs))


def test_an_op_that_writes_counts_and_writes_once():
    def add_product_(out: Tensor, x: Tensor, weight: Tensor) -> None:
        out.add_(x @ weight)

    op = custom_op("flops::add_product_", add_product_, mutates_args=("out",), reference=True)
    out = torch.zeros(2, 4)

    assert FORWARD == flops_of(lambda: op(out, torch.ones(2, 3), torch.ones(3, 4)))
    assert [3.0] == out.unique().tolist()


def test_a_tuple_of_one_counts():
    def one(x: Tensor, weight: Tensor) -> tuple[Tensor]:
        return (x @ weight,)

    op = custom_op("flops::one", one, reference=True)
    x, weight = torch.ones(2, 3), torch.ones(3, 4)

    assert FORWARD == flops_of(lambda: op(x, weight))
    assert FORWARD == flops_of(lambda: torch.func.grad(lambda x: op(x, weight)[0].sum())(x)) - 2 * 2 * 3 * 4 * 2


def test_variants_count_as_the_op_does():
    op = custom_op("flops::varied", lambda x, y: x @ y, schema="(Tensor x, Tensor y) -> Tensor", reference=True)
    x, y, out = torch.ones(3, 3), torch.ones(3, 3), torch.empty(3, 3)

    assert [54, 54] == [flops_of(lambda: op.inplace(x.clone(), y)), flops_of(lambda: op.out(x, y, out=out))]
    op.out.register_kernel("cpu", lambda x, y, *, out: torch.mm(x, y, out=out))
    op.inplace.register_kernel("cpu", lambda x, y: x.copy_(x @ y))
    counted = names_of(lambda: op.out(x, y, out=out)), names_of(lambda: op.inplace(x.clone(), y))
    names = ("flops.varied_out", "flops.varied_") if HANDED_BACK else ("flops.varied", "flops.varied")
    assert tuple({name: 54} for name in names) == counted  # without the tags a mode sees the op, then a copy


def test_overloads_of_one_name_count_each_by_its_own():
    of_tensor = custom_op("flops::pair.Tensor", lambda x, y: x @ y, schema="(Tensor x, Tensor y) -> Tensor")
    of_number = custom_op("flops::pair.Scalar", lambda x, y: x * y, schema="(Tensor x, float y) -> Tensor")
    of_tensor.register_flops(lambda x, y: 54)
    of_number.register_flops(lambda x, y: x.numel())
    x = torch.ones(3, 3)

    assert [54, 9] == [flops_of(lambda: of_tensor(x, x)), flops_of(lambda: of_number(x, 2.0))]


# -------------------------------------------------------------------------------------- the table of torch's counter


def test_ops_declared_before_the_counter_is_imported_count():
    program = """
import sys, torch
from custom_autograd import custom_op
op = custom_op("early::product", lambda x: x @ x, schema="(Tensor x) -> Tensor", reference=True)
gone = custom_op("early::gone", lambda x: x @ x, schema="(Tensor x) -> Tensor", reference=True)
gone = custom_op("early::gone", lambda x: x * 1, schema="(Tensor x) -> Tensor", replace=True)
print("torch.utils.flop_counter" in sys.modules)
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    op(torch.ones(2, 2)), gone(torch.ones(2, 2))
print(counter.get_total_flops())
"""
    finished = run_python("-c", program)

    assert "False\n16\n" == finished.stdout, finished.stderr


def test_a_replaced_op_keeps_its_numbers_and_the_new_one_has_its_own():
    x = torch.ones(2, 2)
    old = custom_op("flops::replaced", lambda x: x @ x, schema="(Tensor x) -> Tensor", reference=True)
    before = flops_of(lambda: old(x))
    new = custom_op("flops::replaced", lambda x: x @ x @ x, schema="(Tensor x) -> Tensor", reference=True, replace=True)

    assert [16, 16, 32] == [before, flops_of(lambda: old(x)), flops_of(lambda: new(x))]


def test_a_new_op_without_numbers_does_not_have_those_of_the_old_one():
    x = torch.ones(2, 2)
    old = custom_op("flops::lost", lambda x: x @ x, schema="(Tensor x) -> Tensor", reference=True)
    new = custom_op("flops::lost", lambda x: x @ x, schema="(Tensor x) -> Tensor", replace=True)

    assert [16, 0] == [flops_of(lambda: old(x)), flops_of(lambda: new(x))]
    assert new.overload._overloadpacket not in flop_registry


def test_a_later_registration_takes_the_place_of_what_was_derived(inputs):
    op = custom_op("flops::later", product, reference=True)
    before = flops_of(lambda: op(*inputs))
    op.register_flops(lambda: 7)
    after = flops_of(lambda: op(*inputs))
    op.register_flops(lambda: 8, replace=True)

    assert [FORWARD, 7, 8] == [before, after, flops_of(lambda: op(*inputs))]


def test_a_formula_that_the_user_gave_to_torch_stays(inputs):
    op = custom_op("flops::given", product)
    torch.utils.flop_counter.register_flop_formula(torch.ops.flops.given)(lambda *args, **kwargs: 11)
    op.register_reference(product)

    assert 11 == flops_of(lambda: op(*inputs))


@pytest.mark.parametrize(
    ("op", "expected"),
    [(derived, "derived from the reference"), (unknown, "none: FLOPs count as 0")],
    ids=["derived", "none"],
)
def test_capabilities_say_where_the_numbers_come_from(op, expected):
    assert expected == op.capabilities()["flops"]


def test_capabilities_say_where_registered_numbers_are():
    op = custom_op("flops::described", product)
    op.register_flops(registered_flops, backward=registered_flops)
    line = registered_flops.__code__.co_firstlineno

    assert f"registered (test_flops.py:{line})" == registered.capabilities()["flops"]
    place = f"registered (test_flops.py:{line})"
    assert f"{place}, backward: {place}" == op.capabilities()["flops"]


# ---------------------------------------------------------------------------------------------------- backward


def backward_of(op, x, weight, **options):
    y = op(x, weight).sum()
    return lambda: torch.autograd.grad(y, [one for one in (x, weight) if one.requires_grad], **options)


@pytest.mark.parametrize("calls", [1, 3], ids=["first call", "direct calls"])
def test_the_operations_of_a_rule_count_once(inputs, calls):
    for _ in range(calls):
        run = backward_of(derived, *inputs)

    assert {"aten.mm": 2 * FORWARD} == names_of(run)


def test_a_recorded_second_derivative_counts_once(inputs):
    assert 2 * FORWARD == flops_of(backward_of(derived, *inputs, create_graph=True))


def test_a_gradient_that_is_not_needed_does_not_count(inputs):
    assert FORWARD == flops_of(backward_of(derived, inputs[0], inputs[1].detach()))


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_backward_counts_once(inputs, backend):
    """PyTorch does not compile under a mode: the forward runs before."""
    compiled = torch.compile(derived, backend=backend)
    compiled(*inputs)

    assert 2 * FORWARD == flops_of(backward_of(compiled, *inputs))


@pytest.mark.usefixtures("fresh_compiler")
def test_a_backward_that_is_compiled_for_all_sizes_counts_the_sizes_of_the_call():
    compiled = torch.compile(derived, backend="aot_eager")
    for rows in (2, 5):
        x = torch.ones(rows, 3, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        run = backward_of(compiled, x, torch.ones(3, 4))
        assert 2 * rows * 3 * 4 == flops_of(run)


@numpy_kernel
def numpy_product(x, y):
    return x @ y


def declare_invisible(name):
    """An op whose rule calls a kernel that torch's counter cannot see, through a helper."""
    op = custom_op(f"flops::{name}", product, reference=True)
    op.register_backward(
        lambda grad, x, weight: {"x": lambda: helper(grad, weight.mT), "weight": lambda: helper(x.mT, grad)}
    )
    return op


def helper(x, y):
    return numpy_product(x.detach(), y.detach())


invisible = declare_invisible("invisible")


def test_kernels_that_the_counter_cannot_see_count_as_the_reference_does(inputs):
    def run():
        invisible(*inputs).sum().backward()

    assert {"flops.invisible": FORWARD, "flops::invisible backward": 2 * FORWARD} == names_of(run)


CPP = """
#include <custom_autograd/kernel.h>
#include <tuple>
using namespace custom_autograd;

std::tuple<Tensor, Tensor> product_grad(const Tensor& grad, const Tensor& x, const Tensor& weight) {
  return {allocate_like(x), allocate_like(weight)};
}

STABLE_TORCH_LIBRARY_FRAGMENT(KERNEL_NAMESPACE, m) {
  m.def("product_grad(Tensor grad, Tensor x, Tensor weight) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(KERNEL_NAMESPACE, CPU, m) { m.impl("product_grad", TORCH_BOX(&product_grad)); }
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_a_rule_in_cpp_counts_as_the_reference_does(inputs, tmp_path):
    source = tmp_path / "product_grad.cpp"
    source.write_text(CPP)
    op = custom_op("flops::in_cpp", product, reference=True)
    op.register_backward(cpp_kernel(source, "product_grad"))
    for _ in range(3):  # native code then calls the function by itself, but not under a mode
        op(*inputs).sum().backward()

    assert 3 * FORWARD == flops_of(lambda: op(*inputs).sum().backward())


def test_an_invisible_gradient_that_is_not_needed_does_not_count(inputs):
    assert 2 * FORWARD == flops_of(lambda: invisible(inputs[0], inputs[1].detach()).sum().backward())


def test_an_invisible_backward_counts_each_time_it_runs(inputs):
    def run():
        y = invisible(*inputs).sum()
        y.backward(retain_graph=True)
        y.backward()

    assert 5 * FORWARD == flops_of(run)


def test_what_an_invisible_rule_runs_in_operations_does_not_count_twice(inputs):
    op = custom_op("flops::half_seen", product, reference=True)
    op.register_backward(lambda grad, x, weight: {"x": grad @ weight.mT, "weight": numpy_product(x.mT, grad)})

    assert 3 * FORWARD == flops_of(lambda: op(*inputs).sum().backward())


def test_an_invisible_backward_leaves_the_other_counts_alone(inputs):
    x, weight = inputs

    def run():
        (invisible(x, weight) @ torch.ones(4, 5)).sum().backward()

    others = 2 * 2 * 4 * 5
    assert 3 * FORWARD + 2 * others == flops_of(run)


def test_a_registered_backward_counts_in_place_of_what_runs(inputs):
    op = custom_op("flops::both", product, reference=True)
    op.register_backward(lambda grad, x, weight: {"x": grad @ weight.mT, "weight": x.mT @ grad})
    op.register_flops(lambda: 5, backward=lambda x, needs: 100 * x[0] + 10 * needs.x + needs.weight)
    x, weight = inputs

    assert {"flops.both": 5, "flops::both backward": 211} == names_of(lambda: op(x, weight).sum().backward())
    assert 5 + 210 == flops_of(lambda: op(x, weight.detach()).sum().backward())


def test_a_view_of_the_result_does_not_hide_the_backward(inputs):
    op = custom_op("flops::unchanged", lambda x: x, schema="(Tensor x) -> Tensor", aliases={"output": "x"})
    op.register_backward(lambda grad: grad)
    op.register_flops(lambda: 0, backward=lambda x: x.numel())

    assert 6 == flops_of(lambda: op(inputs[0]).sum().backward())


@pytest.mark.parametrize("is_reentrant", [False, True], ids=["saved tensors", "reentrant"])
def test_what_a_checkpoint_computes_again_counts_again(inputs, is_reentrant):
    """It is computed while the node of the op runs, and is not the backward of the op; nothing is known of it yet."""
    from torch.utils.checkpoint import checkpoint

    x, weight = inputs
    op = declare_invisible(f"checkpointed_{is_reentrant}")

    def run():
        checkpoint(op, x, weight, use_reentrant=is_reentrant).sum().backward()

    assert 4 * FORWARD == flops_of(run)


def test_a_backward_is_derived_where_hooks_of_saved_tensors_are_refused(inputs):
    op = declare_invisible("without_hooks")
    with torch.autograd.graph.disable_saved_tensors_hooks("no hooks"):
        assert 3 * FORWARD == flops_of(lambda: op(*inputs).sum().backward())


def test_an_input_that_is_a_result_of_the_op_has_its_own_backward():
    x = torch.ones(3, 3, requires_grad=True)
    y = torch.ones(3, 3)

    def run():
        invisible(torch.relu(invisible(x, y)), y).sum().backward()

    assert 2 * (54 + 54) == flops_of(run)


def test_a_transform_counts_what_runs(inputs):
    op = custom_op("flops::transformed", product, reference=True)
    op.register_backward(lambda grad, x, weight: {"x": grad @ weight.mT, "weight": x.mT @ grad})
    op.register_flops(lambda: 5, backward=lambda: 1000)
    x, weight = (one.detach() for one in inputs)

    found = names_of(lambda: torch.func.grad(lambda x: op(x, weight).sum())(x))
    assert {"flops.transformed": 5, "aten.mm": 2 * FORWARD} == found


def test_a_write_counts_its_registered_backward():
    def add_square_(out: Tensor, x: Tensor) -> None:
        out.add_(x @ x)

    op = custom_op("flops::add_square_", add_square_, mutates_args=("out",))
    op.register_backward(lambda grad_out, x: {"out": grad_out, "x": grad_out @ x.mT + x.mT @ grad_out})
    op.register_flops(lambda: 3, backward=lambda x: 100 * x[0])
    x = torch.ones(2, 2, requires_grad=True)

    def run():
        out = torch.zeros(2, 2)
        op(out, x)
        out.sum().backward()

    assert {"flops.add_square_": 3, "flops::add_square_ backward": 200} == names_of(run)


def test_counting_does_not_warn(inputs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flops_of(lambda: invisible(*inputs).sum().backward())


def test_a_reference_that_reads_data_that_is_not_there():
    op = custom_op("flops_words::reading", lambda x: x[: int(x[0])], schema="(Tensor x) -> Tensor", reference=True)
    op.register_fake(lambda x: x.new_empty(2))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert 0 == flops_of(lambda: op(torch.ones(3, device="meta")))

    assert_expected_inline(
        message(lambda: raise_(caught[0]), KernelWarning),
        """\
KernelWarning: flops_words::reading: FLOPs count as 0: the reference reads data that is not there
  rule       FILE.py:LINE
  declared   FILE.py:LINE
  do         register_flops a function of the shapes""",
    )


def raise_(warning) -> None:
    raise warning.message
