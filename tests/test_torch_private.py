"""Each private name of torch that torch_private/ spells exists, and still does what its line there says."""

import enum
import functools
import inspect
import operator
import sys
import threading
import types
import zipfile

import pytest
import torch
from tables import each
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.source import ConstantSource
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function, forward_ad
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, free_unbacked_symbols
from torch.testing._internal.two_tensor import TwoTensor

from custom_autograd import custom_op
from custom_autograd.core.errors import KernelError
from custom_autograd.core.lazy import Lazy
from custom_autograd.native.loading import library as native
from custom_autograd.registration import dispatcher_library
from custom_autograd.torch_private import (
    awaited_modules,
    collectives,
    compiler,
    definitions,
    dispatch,
    fakes,
    flop_counter,
    functions,
    guards,
    nested,
    nodes,
    placements,
    saved_tensors,
    storages,
    symbols,
    thread_values,
    transforms,
    trees,
    verification,
    versions,
)
from custom_autograd.torch_private import definitions as registrations
from custom_autograd.torch_private import verification as compilation
from custom_autograd.verification.checks import CHECKS
from python_server import run_python


@pytest.fixture
def library():
    with torch.library._scoped_library("private", "FRAGMENT") as found:
        yield found


class Triple(Function):
    """A Function with everything that functorch asks of one."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad * 30  # not the derivative: shows that this backward ran


# ---------------------------------------------------------------------------------------------------------- dispatch


def test_below_autograd_leaves_autograd_out():
    x = torch.ones(2, requires_grad=True)
    with dispatch.below_autograd():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_an_overload_is_defined_from_its_definition_on(library):
    assert not dispatch.is_defined("private", "later", "by")
    library.define("later.by(Tensor x) -> Tensor")

    assert dispatch.is_defined("private", "later", "by")
    assert not dispatch.is_defined("private", "later", "")


def test_versions_of_a_list_with_none_are_counted():
    x = torch.ones(2)
    before = x._version
    dispatch.increment_version([None, x])

    assert before + 1 == x._version


def test_redispatch_continues_below_autograd(library):
    seen = []
    library.define("f(Tensor x) -> Tensor")
    op = torch.ops.private.f.default

    def autograd(keyset, x):
        seen.append("autograd")
        return dispatch.redispatch(op, keyset & dispatch.BELOW_AUTOGRAD, x)

    library.impl("f", autograd, "Autograd", with_keyset=True)
    library.impl("f", lambda x: (seen.append("kernel"), x.clone())[1], "CompositeExplicitAutograd")
    op(torch.ones(2))

    assert ["autograd", "kernel"] == seen


def test_versioning_comes_between_autograd_and_the_kernel(library):
    seen = []
    library.define("g(Tensor(a!) x) -> ()")
    op = torch.ops.private.g.default

    def versioning(keyset, x):
        seen.append("versioning")
        dispatch.redispatch(op, keyset & dispatch.BELOW_VERSIONING, x)
        dispatch.increment_version(x)

    library.impl("g", versioning, "ADInplaceOrView", with_keyset=True)
    library.impl("g", lambda x: seen.append("kernel"), "CPU")
    x = torch.ones(2)
    op(x)

    assert (["versioning", "kernel"], 1) == (seen, x._version)


def test_without_key_skips_one_key(library):
    library.define("h(Tensor x) -> Tensor")
    library.impl("h", lambda x: x * 100, "AutocastCPU")
    library.impl("h", lambda x: x * 1, "CPU")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert 100 == torch.ops.private.h(torch.ones(1)).item()
        with dispatch.without_key("AutocastCPU"):
            assert 1 == torch.ops.private.h(torch.ones(1)).item()


def test_autocast_is_noticed_whatever_its_device_type():
    assert not dispatch.is_any_autocast_enabled()
    with torch.autocast("cpu"):
        assert dispatch.is_any_autocast_enabled()


def test_autocast_is_off_without_its_key():
    with torch.autocast("cpu"):
        with dispatch.without_autocast("cpu"):
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


@each("heed", [dispatch._with_keys_restored, dispatch.with_keys_restored])
def test_lazy_bits_are_heeded_again_where_their_keys_are_left_out(heed):
    x = torch.tensor([1 + 2j])
    assert not dispatch.are_lazy_bits_ignored()
    with dispatch.without_key("Conjugate"):
        assert dispatch.are_lazy_bits_ignored()
        assert not heed(dispatch.are_lazy_bits_ignored)
        assert dispatch.are_lazy_bits_ignored()
        assert [3 + 0j] == heed(lambda: x.conj() + x.conj() * 0 + 2 + 2j).tolist()
        assert ("a", "b", 1) == heed(lambda *args, **kwargs: (*args, *kwargs, *kwargs.values()), "a", b=1)
        with pytest.raises(KeyError):
            heed({}.__getitem__, "absent")
        assert dispatch.are_lazy_bits_ignored()


@each("call", [dispatch._with_keys_restored, dispatch.with_keys_restored])
def test_transforms_work_again_where_their_keys_are_left_out(call):
    def squares_gradient(x):
        return torch.func.grad(lambda x: (x * x).sum())(x).tolist()

    left_out = functools.reduce(operator.or_, map(dispatch.KeySet, dispatch.TRANSFORMS))
    with torch._C._ExcludeDispatchKeyGuard(left_out):
        with pytest.raises(RuntimeError):
            squares_gradient(torch.ones(2))

        assert [2.0, 2.0] == call(squares_gradient, torch.ones(2))


def test_every_device_type_has_a_key():
    assert ["CPU", "CUDA", "MPS"] == [dispatch.key_of_device(device) for device in ("cpu", "cuda", "mps")]
    with pytest.raises(RuntimeError):
        dispatch.key_of_device("abacus")


def test_a_destroyed_library_takes_its_ops_along():
    library = torch.library.Library("private_gone", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    assert torch.ops.private_gone.f.default
    dispatch.destroy(library)

    assert not hasattr(torch.ops.private_gone, "f")


# --------------------------------------------------------------------------------------------------------- functions


def test_compiled_autograd_asks_a_node_for_its_key(fresh_compiler):
    class Asked(Triple):
        pass

    asked = []
    functions.call_when_compiled(Asked, lambda: asked.append(True))
    x = torch.ones(2, requires_grad=True)
    y = Asked.apply(x).sum()
    with compilation.compiled_backward():
        y.backward()

    assert [True] == asked
    assert [30.0, 30.0] == x.grad.tolist()


def test_direct_apply_records_one_node():
    x = torch.ones(2, requires_grad=True)
    y = functions.direct_apply(Triple)(x)

    assert "TripleBackward" == y.grad_fn.name()
    assert [30, 30] == torch.autograd.grad(y.sum(), x)[0].tolist()


def test_any_requires_grad_looks_into_lists():
    x, y = torch.ones(1), torch.ones(1, requires_grad=True)

    assert functions.any_requires_grad(x, [x, y])
    assert not functions.any_requires_grad(x, [x], None, 3)


@each("layout", functions.COMPRESSED)
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_a_compressed_tensor_counts_its_conversion_as_writes_below_autograd(layout):
    """If this fails, `COMPRESSED` is only needed to read their parts: versions tell of writes to them as well."""
    sizes = (1, 1) if "bs" in str(layout) else None
    x = torch.eye(2).to_sparse(layout=layout, blocksize=sizes)
    with torch._C._AutoDispatchBelowAutograd():
        x.to_dense()

    assert x._version > 0


def test_a_view_of_a_leaf_counts_as_a_leaf():
    x = torch.ones(2, requires_grad=True)

    assert functions.is_leaf_in_graph(x)
    assert functions.is_leaf_in_graph(x[0])
    assert not functions.is_leaf_in_graph(x * 1)
    assert not functions.is_leaf_in_graph(torch.ones(2))


# -------------------------------------------------------------------------------------------------------- transforms


def test_transforms_and_forward_mode_are_seen():
    seen = []

    def look(x):
        seen.append((transforms.is_transforming(), transforms.is_forward_mode()))
        return x.sum()

    look(torch.ones(2))
    torch.func.grad(look)(torch.ones(2))
    torch.func.jvp(look, (torch.ones(2),), (torch.ones(2),))
    with forward_ad.dual_level():
        look(torch.ones(2))

    assert [(False, False), (True, False), (True, True), (False, True)] == seen


def test_depth_counts_the_transforms_that_work_is_within():
    seen = [transforms.depth()]

    def look(x):
        seen.append(transforms.depth())
        return x.sum()

    torch.func.grad(look)(torch.ones(2))
    torch.vmap(torch.func.grad(look))(torch.ones(2, 2))

    assert [0, 1, 2] == seen


def test_tangents_are_seen_and_taken_off():
    x = torch.ones(2)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x)

        assert transforms.has_tangent(dual)
        assert not transforms.has_tangent(x)
        assert transforms.is_tracked(dual)
        assert not transforms.is_tracked(x)
        assert not transforms.has_tangent(transforms.primal_of(dual))


def test_a_tensor_can_be_made_to_require_a_gradient_under_a_transform():
    def f(x):
        seed = transforms.require_gradient(torch.zeros_like(x))
        return torch.autograd.grad((seed * x).sum(), seed, create_graph=True)[0].sum()

    assert [1, 1] == torch.func.grad(f)(torch.ones(2)).tolist()


def test_single_level_apply_is_allowed_under_transforms():
    assert [30, 30] == torch.func.grad(lambda x: functions.direct_apply(Triple)(x).sum())(torch.ones(2)).tolist()


def test_a_vmap_level_unwraps_and_wraps(library):
    seen = []
    library.define("v(Tensor x) -> Tensor")

    def batched(x):
        level = transforms.VmapLevel()
        value, dim = level.unwrap(x)
        seen.append((level.info.batch_size, level.info.randomness, tuple(value.shape), dim))
        return level.wrap(value * 2, dim)

    library.impl("v", batched, "FuncTorchBatched")
    found = torch.func.vmap(torch.ops.private.v, randomness="same")(torch.ones(3, 2))

    assert ([(3, "same", (3, 2), 0)], (3, 2)) == (seen, tuple(found.shape))


def test_the_innermost_batch_is_seen_through_other_transforms():
    seen = []

    def inner(x, y):
        batch = transforms.innermost_batch([x, y])
        seen.append((batch.size, batch.holds(x), batch.holds(y)))
        return (x * y * batch.index()).sum()

    found = torch.func.vmap(torch.func.vmap(torch.func.grad(inner), in_dims=(None, 0)), in_dims=(0, None))(
        torch.ones(2, 4), torch.ones(3, 4)
    )

    assert [(3, False, True)] == seen
    assert [[0.0, 1.0, 2.0]] * 2 == found[:, :, 0].tolist()
    assert transforms.innermost_batch([torch.ones(2)]) is None


# ----------------------------------------------------------------------------------------------------- and the others


def test_a_tuple_of_one_is_read_as_what_is_in_it():
    (result,) = definitions.parse_schema("f(Tensor x) -> ((Tensor))")[1]
    (other,) = definitions.parse_schema("f(Tensor x) -> (Tensor)")[1]

    assert ("Tensor", True) == (result.type, result.is_one_tuple)
    assert ("Tensor", False) == (other.type, other.is_one_tuple)


def test_the_dispatchers_parser_is_read():
    arguments, results = definitions.parse_schema(
        "f(Tensor(a!) x, Tensor?[] y, ScalarType? d=float32, *, SymInt n=3, MemoryFormat m=contiguous_format) "
        "-> Tensor out"
    )

    assert ["Tensor", "Tensor?[]", "ScalarType?", "int", "MemoryFormat"] == [a.type for a in arguments]
    numbers = definitions.constants_by_number("ScalarType", torch.dtype)
    formats = definitions.constants_by_number("MemoryFormat", torch.memory_format)
    assert [True, True, True] == [a.has_default for a in arguments[2:]]
    assert torch.float32 is numbers[arguments[2].default]
    assert torch.contiguous_format is formats[arguments[4].default]
    assert 3 == arguments[3].default
    assert [True, False, False, False, False] == [a.is_written for a in arguments]
    assert ["n", "m"] == [a.name for a in arguments if a.is_keyword_only]
    assert ("out", "Tensor") == (results[0].name, results[0].type)


@each("dtype", [torch.float32, torch.bool, torch.complex64])
def test_the_dtype_of_a_number_and_of_itself(dtype):
    text = f"f(ScalarType a={str(dtype).removeprefix('torch.')}) -> ()"
    number = torch._C.parse_schema(text).arguments[0].default_value

    assert isinstance(number, int)
    assert dtype is definitions.constant_of("ScalarType", torch.dtype, number)
    assert dtype is definitions.constant_of("ScalarType", torch.dtype, dtype)


def test_tags_of_ops_that_hand_back_what_they_wrote_to():
    assert {tag for tag in torch.Tag.__members__.values() if tag.name in ("inplace", "out")} == dispatch.HANDED_BACK


def test_trees_are_flattened_as_torch_does():
    leaves, structure = trees.flatten_tree({"a": [1, (2, None)], "b": 3})

    assert {"a": [1, (2, None)], "b": 3} == trees.unflatten_tree(leaves, structure)


def test_the_cache_tag_keeps_what_others_wrote():
    from torch.compiler import config

    before = config.cache_key_tag
    tag = compiler.CacheTag()
    try:
        config.cache_key_tag = "theirs"
        tag.update("a", 1)
        first = config.cache_key_tag
        tag.update("b", 2)
        tag.update("b", 0)
        assert first == config.cache_key_tag
        assert first.startswith("theirs|custom_autograd:")
    finally:
        config.cache_key_tag = before


def test_the_cache_tag_is_due_once_in_each_compilation():
    tag = compiler.CacheTag()

    def asked(names="aba"):
        return [tag.is_due(name) for name in names]

    assert [False, False, False] == asked()
    for _ in range(2):
        with torch._guards.tracing(torch._guards.TracingContext(None)):
            assert [True, True, False] == asked()


@compiler.constant_in_graphs
def spelled(value):
    return ", ".join([str(value)] * 2)  # more than Dynamo can trace


def test_a_function_is_constant_in_graphs(fresh_compiler):
    compiled = torch.compile(lambda x, n: x + len(spelled(n)), fullgraph=True, backend="eager", dynamic=False)

    assert [4.0, 6.0] == [compiled(torch.zeros(1), n).item() for n in (1, 12)]


class WithLazy:
    @Lazy
    def number(self):
        return object() and 2

    @Lazy
    def broken(self):
        raise ValueError


def test_dynamo_traces_no_write_of_a_lazy_attribute_that_is_computed_before(fresh_compiler):
    one, graphs = WithLazy(), []
    compute = compiler.computing_attributes(one)

    def f(x):
        compute("number")
        return x + one.number

    compiled = torch.compile(f, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)

    assert [2.0, 3.0] == [compiled(torch.full((1,), float(n))).item() for n in range(2)]
    assert 1 == len(graphs)
    assert compute("broken") is None


def test_dynamo_traces_a_function_in_place_of_another_and_guards_on_the_code_of_both(fresh_compiler):
    called = types.SimpleNamespace(f=compiler.traced_as(lambda x: x + 1)(lambda x: x - 1))
    compiled = torch.compile(lambda x: called.f(x), fullgraph=True, backend="eager")

    assert -1.0 == called.f(torch.zeros(1)).item()
    assert 1.0 == compiled(torch.zeros(1)).item()
    called.f = compiler.traced_as(lambda x: x + 2)(lambda x: x - 2)
    assert 2.0 == compiled(torch.zeros(1)).item()


def test_calling_an_op_does_not_load_the_compiler():
    program = """
import sys, torch
from torch import Tensor
from custom_autograd import custom_op

@custom_op("private::light")
def light(x: Tensor) -> Tensor:
    return x * 2

light.register_backward(lambda grad: grad * 2)
light(torch.ones(2, requires_grad=True)).sum().backward()
print("torch._dynamo.eval_frame" in sys.modules)
"""
    finished = run_python("-c", program)

    assert "False\n" == finished.stdout, finished.stderr


def test_modules_that_checks_make_torch_load():
    words = {word for _, words in verification.LOADED_BY for word in words.split()}
    verification.load_for(words)

    assert words <= {check.name for check in CHECKS} | {check.group for check in CHECKS}
    assert {module for module, _ in verification.LOADED_BY} <= set(sys.modules)


def test_fake_tensors_and_overloads_for_verification():
    with verification.fake_mode() as fake:
        x = fake(torch.ones(2, 3))
        assert (2, 3) == tuple((x * 2).shape)
    sine = verification.find_overload(torch.ops.aten.sin)

    assert torch.ops.aten.sin.default is sine
    assert "aten::sin" == verification.name_of_overload(sine)


# ------------------------------------------------------------------------------------------- guards, registrations


def test_modes_and_grad_mode_are_counted_and_set():
    with torch.device("cpu"):
        assert 1 == guards.torch_function_modes()
    assert 0 == guards.torch_function_modes() == guards.torch_dispatch_modes()
    guards.set_grad_enabled(False)
    assert not torch.is_grad_enabled()
    guards.set_grad_enabled(True)


def test_a_profiler_sets_the_flag_that_generated_source_reads():
    with torch.profiler.profile(acc_events=True):
        assert torch.autograd.profiler._is_profiler_enabled
    assert not torch.autograd.profiler._is_profiler_enabled


def test_every_registration_is_a_change_and_is_told_once():
    told = []

    class Listener:
        def hear(self):
            told.append(1)

    listener = Listener()
    registrations.changes.tell_once(listener.hear)
    registrations.changes.tell_once(listener.hear)
    before = registrations.changes.count
    library = torch.library.Library("private_changes", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")
    library._destroy()

    assert before + 2 <= registrations.changes.count
    assert [1] == told


def test_a_foreign_kernel_is_known_by_the_file_of_its_library():
    library = torch.library.Library("private_foreign", "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", lambda x: x, "CPU")

    assert {"CPU"} == registrations.foreign_keys("private_foreign::f", "elsewhere.py")
    assert frozenset() == registrations.foreign_keys("private_foreign::f", __file__)
    library._destroy()


@pytest.mark.skipif(native.module is None, reason=native.reason)
@pytest.mark.filterwarnings("ignore:Warning only once")
@each(
    "key",
    ["CPU", "CompositeExplicitAutograd", "Autograd", "AutogradCPU", "ADInplaceOrView", "CompositeImplicitAutograd"],
)
def test_native_code_knows_who_registered_what_the_dispatcher_runs(key):
    keys = frozenset({"CPU", "AutogradCPU", "ADInplaceOrView"})
    op = custom_op(f"private_own::at_{key}", lambda x: x + 1, schema="(Tensor x) -> Tensor")
    was_own = registrations.is_own(op.name, dispatcher_library.FILE, keys)
    library = torch.library.Library("private_own", "FRAGMENT")
    library.impl(f"at_{key}", lambda x: x, key, allow_override=True)  # torch 2.11 refuses a second kernel
    is_own = registrations.is_own(op.name, dispatcher_library.FILE, keys)
    library._destroy()

    assert (True, False) == (was_own, is_own)
    assert registrations.is_own(op.name, dispatcher_library.FILE, keys)


@pytest.mark.skipif(native.module is None, reason=native.reason)
def test_native_code_is_not_sure_of_an_op_that_is_not_there():
    assert not registrations.is_own("private_own::nowhere", __file__, frozenset({"CPU"}))


def test_the_ops_of_a_namespace_are_known_by_name():
    library = torch.library.Library("private_names", "FRAGMENT")
    library.define("f.first(Tensor x) -> Tensor")
    library.define("g(Tensor x) -> Tensor")

    assert ["f", "g"] == registrations.names_in("private_names")
    library._destroy()


def test_a_node_knows_shapes_dtypes_and_devices_of_its_outputs():
    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, number, x, y):
            ctx.to_save = (x,)
            ctx.materialize_grads = False
            return x.sum(), y.double()

        @staticmethod
        def backward(ctx, first, second):
            seen.append((functions.known_output(ctx, 1), functions.count_outputs(ctx)))
            seen.append((first, ctx.saved_tensors[0].shape))
            return None, None, second.float()

    seen = []
    y = torch.ones(3, 2, requires_grad=True)
    Node.apply(5, torch.ones(4), y)[1].sum().backward()

    assert [((torch.Size((3, 2)), torch.float64, torch.device("cpu")), 2), (None, torch.Size((4,)))] == seen


def test_a_node_knows_all_its_inputs_that_require_a_gradient_at_once():
    class Node(Function):
        @staticmethod
        def forward(ctx, number, fixed, first, second):
            return first * 2, second.double()

        @staticmethod
        def backward(ctx, first, second):
            seen.append((ctx.needs_input_grad, nodes.known_inputs(ctx, [False, True, True, True])))
            return None, None, first, second.float()

    seen = []
    x, y = torch.ones(2, requires_grad=True), torch.ones(3, 2, requires_grad=True)
    with torch.no_grad():
        view = y.view(6)
    for fixed in (torch.ones(4), view):
        first, second = Node.apply(5, fixed, x.sin(), y)
        (first.sum() + second.sum()).backward()

    cpu = torch.device("cpu")
    shapes = torch.Size((2,)), torch.Size((3, 2))
    known = [(shape, torch.float32, cpu, torch.float32) for shape in shapes]
    assert [
        ((False, False, True, True), [None, None, *known]),
        ((False, True, True, True), [None, None, *known]),  # the view reports that it requires one, and has no edge
    ] == seen


def test_a_backward_has_a_number_and_calls_what_is_queued_when_it_ends():
    seen = []
    x = torch.ones(2, requires_grad=True)
    y = x * 2

    def hook(grad):
        seen.append(nodes.current_task())
        nodes.queue_callback(lambda: seen.append("end"))

    y.register_hook(hook)
    y.sum().backward(retain_graph=True)
    y.sum().backward()

    assert nodes.NONE == nodes.current_task()
    assert ["end", "end"] == seen[1::2]
    assert 2 == len(set(seen[::2]) - {nodes.NONE})


def test_what_is_queued_is_dropped_with_a_backward_that_fails():
    class Queued:
        def __del__(self):
            seen.append("dropped")

        def __call__(self):
            seen.append("called")

    def hook(grad):
        nodes.queue_callback(Queued())
        raise ZeroDivisionError

    seen = []
    y = torch.ones(2, requires_grad=True) * 2
    y.register_hook(hook)
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()

    assert ["dropped"] == seen


def test_a_backward_that_is_recorded_says_so():
    from torch.fx.experimental.proxy_tensor import make_fx

    def function(x):
        return x * 2 if nodes.is_recorded() else x

    one = torch.ones(())
    compiled = torch.compile(function, backend="eager", fullgraph=True)

    assert [2, 2, 1] == [make_fx(function)(one)(one), compiled(one), function(one)]


def test_a_rule_that_dynamo_skips_runs_in_a_region_of_compiled_autograd():
    seen = []
    y = torch.ones(2, requires_grad=True) * 2
    y.register_hook(torch.compiler.disable(lambda grad: seen.append(nodes.is_recorded())))
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        y.sum().backward()

    assert [True] == seen
    assert not torch._dynamo.compiled_autograd.in_compiled_autograd_region


def test_allocations_are_noted():
    found = storages.allocations(lambda: (torch.ones(2**20) + 1).sum())

    assert [4 * 2**20] * 2 == [nbytes for nbytes in found if nbytes >= 2**20]
    assert [-4 * 2**20] * 2 == [nbytes for nbytes in found if nbytes <= -(2**20)]


def test_operators_are_known_by_name():
    names = dispatch.all_names()

    assert {"aten::mm", "aten::add.Tensor"} <= set(names)
    assert "aten::mm" == dispatch.name_of_packet(torch.ops.aten.mm) == torch.ops.aten.mm.default.name()
    assert [True, False] == list(map(dispatch.is_taken_apart, ["aten::matmul", "aten::mul.Tensor"]))
    assert [True, False, False] == list(map(dispatch.is_mutable, ["aten::add_.Tensor", "aten::add.Tensor", "aten::t"]))
    assert ["self", "other", "alpha"] == dispatch.argument_names("aten::add.Tensor")
    assert "aten::t(Tensor(a) self) -> Tensor(a)" == dispatch.schema_text("aten::t")


def test_a_node_knows_which_gradients_the_backward_in_progress_computes():
    class Node(Function):
        @staticmethod
        def forward(ctx, first, fixed, second):
            return first * second

        @staticmethod
        def backward(ctx, grad):
            seen.append((nodes.is_whole_backward(), nodes.needed_gradients(ctx)))
            with nodes.needs_set(ctx, (False, False, False)):
                seen.append(ctx.needs_input_grad)
            return grad, None, grad

    seen = []
    leaf, other = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    middle = other * 1
    number = Node.apply(leaf, torch.ones(2), middle).sum()
    for inputs in (leaf, middle, other):
        torch.autograd.grad(number, inputs, retain_graph=True)
    number.backward(inputs=[leaf], retain_graph=True)
    number.backward()

    needs = [(True, False, False), (False, False, True), (False, False, True), (True, False, False)]
    assert [(False, one) for one in needs] + [(True, (True, False, True))] == seen[::2]
    assert [(False, False, False)] * 5 == seen[1::2]
    assert nodes.is_whole_backward()  # outside of a backward


def test_a_backward_pass_runs_what_is_put_in_place_of_a_function_s_backward():
    class Node(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise AssertionError

    nodes.run_in_backward(Node, lambda ctx, grad: grad * 5)
    x = torch.ones(2, requires_grad=True)
    Node.apply(x).sum().backward()

    assert [5.0, 5.0] == x.grad.tolist()


def test_a_function_outside_compilation_is_not_compiled_nor_is_what_it_calls(fresh_compiler):
    graphs = []
    op = custom_op("private::outside", lambda x: helper(x), schema="(Tensor x) -> Tensor")
    op.register_fake(torch.empty_like)

    def broken(x):
        for _ in range(2):
            try:
                torch._dynamo.graph_break()
                x = op(x)
            finally:
                pass
        return x

    torch.compile(broken, backend=lambda graph, _: graphs.append(graph) or graph.forward)(torch.ones(3))

    assert not any("mul" in str(node.target) for graph in graphs for node in graph.graph.nodes)


def helper(x):
    return x * 2


# --------------------------------------------------------------------------------------------------------- observers


def test_watch_sees_each_op_with_what_it_returned():
    seen = []
    with verification.Watch(lambda overload, args, kwargs, found: seen.append((overload, args, found))):
        x = torch.ones(2) * 3

    assert seen[-1][0] is torch.ops.aten.mul.Tensor
    assert seen[-1][2] is x


def test_wrapped_runs_ops_on_what_it_holds_and_names_them():
    seen = []
    x = verification.Wrapped(torch.ones(2), seen)
    y = x * 3

    assert ["aten::mul.Tensor"] == seen
    assert torch.equal(torch.full((2,), 3.0), y.held)


def test_tensors_without_memory_have_no_address():
    """DLPack and native code would read at 0, which ends the process."""
    found = [verification.Wrapped(torch.ones(2), [])]
    with fakes.fakes_alone():
        found.append(torch.empty(2))
    with verification.fake_mode() as to_fake:
        found.append(to_fake(torch.ones(2)))
    with symbols.symbolic_mode() as sizes:
        found.append(sizes.fake(torch.ones(4), 0, {4}))
    for tensor in found:
        with pytest.raises(RuntimeError, match="Cannot access data pointer of Tensor"):
            tensor.data_ptr()


def test_wrapped_refuses_a_conjugate_view():
    with pytest.raises(NotImplementedError, match="conjugate view"):
        verification.Wrapped(torch.ones(2, dtype=torch.complex64).conj(), [])


# ---------------------------------------------------------------------------------------------- symbols, compilation


def test_symbolic_sizes_say_what_they_were_asked():
    real = torch.ones(4, 3)
    with symbols.symbolic_mode() as sizes:
        x = sizes.fake(real, 0, {4, 3})
        y = x.new_empty(x.shape[0] * 2, int(x.shape[1]))

    assert (10, 3) == tuple(sizes.size_at(size, {4: 5, 3: 6}) for size in y.shape)
    assert (False, True) == (sizes.is_fixed(4), sizes.is_fixed(3))
    assert (True, False) == (sizes.holds_for({4: 5}), sizes.holds_for({3: 6}))


def test_symbolic_sizes_reach_decompositions_in_python():
    real = torch.ones(4, 3)
    with symbols.symbolic_mode() as sizes:
        padded = torch.constant_pad_nd(sizes.fake(real, 0, {4, 3}), (0, 2))

    assert (5, 8) == tuple(sizes.size_at(size, {4: 5, 3: 6}) for size in padded.shape)


def test_a_size_that_depends_on_data_has_no_value_at_other_sizes():
    real = torch.ones(4)
    with symbols.symbolic_mode() as sizes:
        found = torch.nonzero(sizes.fake(real, 0, {4}))

    assert (None, 1) == tuple(sizes.size_at(size, {4: 5}) for size in found.shape)


def test_what_a_size_was_is_no_condition():
    real = torch.ones(4)
    with symbols.symbolic_mode() as sizes:
        size = sizes.fake(real, 0, {4}).shape[0]
        found = symbols.hint_of(size * 3)
        data = symbols.hint_of(torch.nonzero(sizes.fake(real, 1, {4})).shape[0])

    assert (12, 1, 7) == (found, data, symbols.hint_of(7))


def test_sizes_that_only_data_can_compare_are_asserted_to_be_equal():
    with symbols.symbolic_mode() as sizes:
        count = torch.nonzero(sizes.fake(torch.ones(4), 0, {4})).shape[0]

        assert symbols.are_asserted_equal((2, count), (2, 3))
        assert not symbols.are_asserted_equal((count, 2), (3, 5))
        assert 3 == count
    assert not sizes.is_fixed(4)
    assert sizes.holds_for({4: 5})


@pytest.mark.usefixtures("fresh_compiler")
def test_graphs_are_counted_with_their_backward():
    counter = compilation.GraphCounter()
    f = torch.compile(lambda x: (x * 2).sum(), backend=counter, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    f(x).backward()
    f(x)

    assert (1, [2, 2, 2]) == (counter.graphs, x.grad.tolist())


@pytest.mark.usefixtures("fresh_compiler")
def test_new_guards_are_not_timed(monkeypatch):
    timed = []
    monkeypatch.setattr(torch._dynamo.guards, "profile_guard_manager", lambda *_: timed.append(1) or 0.0)
    f = torch.compile(lambda x: x * 2, backend="eager")
    with compilation.untimed_guards():
        f(torch.ones(3))

    assert [] == timed
    f(torch.ones(3, 1))
    assert [1] == timed


@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_backward_runs():
    x = torch.ones(3, requires_grad=True)
    with compilation.compiled_backward():
        (x * 2).sum().backward()

    assert [2, 2, 2] == x.grad.tolist()


# ------------------------------------------------------------------------------------------------------- definitions


@torch.library.custom_op("private::defined", mutates_args=())
def defined(x: Tensor) -> Tensor:
    return x * 2


defined.register_autograd(lambda ctx, grad: grad * 2)


def test_definition_is_found_by_its_name():
    assert definitions.find_definition("private::defined") is defined
    assert definitions.find_definition("private::undefined") is None
    assert "private::defined" in definitions.names_of_definitions()


def test_backward_of_a_definition_is_looked_up_whenever_it_runs():
    before, x = definitions.backward_of(defined), torch.ones(1, requires_grad=True)
    y = defined(x)
    definitions.set_backward(defined, lambda ctx, grad: grad * 5)
    try:
        y.backward()
    finally:
        definitions.set_backward(defined, before)

    assert x.grad.item() == 5


def test_kernel_of_a_definition_is_looked_up_at_every_call():
    kernels = definitions.kernels_of(defined)
    before, kernels[None] = kernels[None], lambda x: x * 7
    try:
        found = defined(torch.ones(1))
    finally:
        kernels[None] = before

    assert found.item() == 7


class Own(definitions.OwnDefinition):
    """A definition that torch's constructor did not register."""

    _namespace, _name = "private", "own"


def test_a_definition_that_is_published_is_found_by_torch_library_alone():
    own = Own()
    definitions.publish("private::own", own)
    try:
        assert torch.library._maybe_get_opdef("private::own") is own
        assert definitions.find_definition("private::own") is None
        assert "private::own" not in definitions.names_of_definitions()
    finally:
        definitions.withdraw("private::own")

    assert torch.library._maybe_get_opdef("private::own") is None


def test_a_fake_is_known_by_where_it_was_written_and_goes_with_its_library():
    entry = definitions.singleton.find("private::faked")
    with torch.library._scoped_library("private", "FRAGMENT") as found:
        found.define("faked(Tensor x) -> Tensor")
        definitions.register_fake(found, "private::faked", lambda x: x.new_empty(5), "kernels.py:12")

        assert torch.ops.private.faked(torch.ones(2, device="meta")).shape == (5,)
        assert "kernels.py:12" == entry.fake_impl.kernel.source

    assert entry.fake_impl.kernel is None


def test_withdrawing_leaves_the_definitions_of_torch_library():
    definitions.withdraw("private::defined")

    assert definitions.find_definition("private::defined") is defined


def test_definitions_of_torch_library_are_foreign():
    assert definitions.is_foreign(defined)
    assert not definitions.is_foreign(Own())


def test_an_effect_is_registered(library):
    from torch._higher_order_ops.effects import _get_effect
    from torch._library.effects import EffectType

    library.define("effectful(Tensor x) -> Tensor")
    definitions.register_effect(library, "private::effectful", EffectType.ORDERED)

    assert EffectType.ORDERED == _get_effect(torch.ops.private.effectful.default)


def test_fakes_of_profiles_say_where_they_are_from():
    from torch._library.fake_profile import _generate_fake_kernel

    assert definitions.is_of_profile(_generate_fake_kernel("private::defined", set()))
    assert not definitions.is_of_profile(torch.empty_like)


# ------------------------------------------------------------------------------------------------------------ nested


def jagged(values: Tensor, **options) -> Tensor:
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 5]), **options)


def test_what_torch_makes_with_the_jagged_layout_is_a_nested_tensor():
    assert nested.NestedTensor is type(jagged(torch.ones(5)))


def test_a_jagged_tensor_is_made_of_values_and_of_where_its_components_lie():
    tensor = jagged(torch.ones(3, 5), jagged_dim=2, lengths=torch.tensor([1, 2]), min_seqlen=1, max_seqlen=2)
    raggedness = nested.raggedness_of(tensor)
    again = nested.make_nested(nested.values_of(tensor) * 2, raggedness)

    assert (2, tensor.offsets(), tensor.lengths()) == (raggedness.dim, raggedness.offsets, raggedness.lengths)
    assert tensor.shape == again.shape
    assert raggedness.known == nested.raggedness_of(again).known
    assert torch.equal(2 * tensor.values(), again.values())


def test_the_values_of_a_jagged_tensor_have_no_history():
    tensor = jagged(torch.ones(5, requires_grad=True))

    assert not nested.values_of(tensor).requires_grad
    assert tensor.requires_grad


# ----------------------------------------------------------------------------------------------------- thread_values


def test_a_value_belongs_to_its_thread():
    thread_values.put("private", 1)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(thread_values.get("private", 0)))
    thread.start()
    thread.join()

    assert [0, 1] == [*seen, thread_values.get("private", 0)]


def test_a_thread_keeps_a_value_alive_and_lets_it_go():
    """Torch 2.11 took no reference: the value was freed while it was kept, and memory was overwritten."""
    value = object()
    before = sys.getrefcount(value)
    thread_values.put("kept", value)
    while_kept = sys.getrefcount(value)
    thread_values.put("kept", None)

    assert [before + 1, before] == [while_kept, sys.getrefcount(value)]


def test_a_value_reaches_a_backward():
    seen = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2
    y.register_hook(lambda grad: seen.append(thread_values.get("of_backward", 0)))
    thread_values.put("of_backward", 1)
    y.backward()

    assert [1] == seen


# ---------------------------------------------------------------------------------------------------------- versions


@each("version", ["2.11.0", "2.13.0+cpu", "2.15.1", torch.__version__])
def test_a_tested_torch_is_met_without_a_warning(version):
    assert not versions.warn_if_untested(version)


@each("version", ["2.16.0", "2.99.0.dev20270101+cpu", "3.0.0a0+git1234567"])
def test_an_untested_torch_is_met_with_one_warning(version):
    with pytest.warns(UserWarning, match="was tested with torch 2.11 to 2.15, and this is torch") as found:
        assert versions.warn_if_untested(version)
    assert 1 == len(found)


def test_an_untested_torch_can_be_trusted(monkeypatch):
    monkeypatch.setenv(versions.TRUST, "1")

    assert not versions.warn_if_untested("2.99.0")


UNTESTED = """
import sys, warnings
import torch
torch.__version__ = "2.99.0"
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    from custom_autograd import custom_op

    @custom_op("untested::triple", reference=True)
    def triple(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    x = torch.ones(2, requires_grad=True)
    for _ in range(3):
        triple(x).sum().backward()
warned = [w for w in found if "was tested with torch" in str(w.message)]
print(len(warned), x.grad.tolist(), triple._record.road.native)
"""


def test_calls_are_not_native_on_an_untested_torch():
    finished = run_python("-c", UNTESTED)

    assert "1 [9.0, 9.0] None\n" == finished.stdout, finished.stderr


# -------------------------------------------------------------------------------------------------- python dispatch


@pytest.mark.skipif(
    not hasattr(torch._ops.OpOverload, "_enable_pyobj_dispatch"), reason="PyObject dispatch came with torch 2.15"
)
def test_python_dispatch_hides_an_op_from_profilers(library):
    """Why calls that a profiler is to see go past it, although it spares a call a third of its time."""
    library.define("p(Tensor x) -> Tensor")
    library.impl("p", lambda x: x * 2, "CPU")
    op, seen = torch.ops.private.p.default, []
    for is_enabled in (False, True):
        op._enable_pyobj_dispatch(is_enabled)
        with torch.profiler.profile() as profile:
            op(torch.ones(2))
        seen.append("private::p" in {event.key for event in profile.key_averages()})

    assert [True, False] == seen


def test_a_fake_without_symbols():
    def fake(x):
        return x.new_empty(torch.library.get_ctx().new_dynamic_size())

    assert (2,) == fakes.call_without_symbols(torch.empty_like, torch.ones(2)).shape
    with pytest.raises(fakes.SizeDependsOnDataError):
        fakes.call_without_symbols(fake, torch.ones(2))


def test_an_overload_calls_its_function(library):
    library.define("function(Tensor x) -> Tensor")
    library.impl("function", lambda x: x * 2, "CPU")
    overload, seen = torch.ops.private.function.default, []
    original = dispatch.function_of(overload)

    class Function:
        def __call__(self, *args, **kwargs):
            seen.append((args, kwargs))
            return original(*args, **kwargs)

        def __hash__(self):
            return hash(original)

    before = hash(overload)
    dispatch.set_function(overload, Function())
    result = overload(torch.ones(2))
    overload(x=torch.ones(2))

    assert [2.0, 2.0] == result.tolist()
    assert [1, 0] == [len(args) for args, _ in seen]
    assert before == hash(overload)
    dispatch.set_function(overload, original)


# ----------------------------------------------------------------------------------------------------------- classes


def test_registered_classes_have_a_name():
    class Plain:
        pass

    assert definitions.class_name_of(Plain) is None
    assert definitions.class_name_of(int) is None
    assert definitions.class_name_of("Plain") is None
    assert "enum.Enum" == (definitions.class_name_of(enum.Enum) or "enum.Enum")  # torch 2.11 does not register it


# ---------------------------------------------------------------------------------------------------------- storages


def share(one, other):
    return bool(storages.storages_of(one) & storages.storages_of(other))


def seen_under(transform):
    """What `share` returns under a transform, for a view and for a copy."""
    found = []
    transform(lambda x: (found.extend([share(x, x.t()), share(x, x.clone())]), x.sum())[1])(torch.ones(2, 3, 4))
    return found


@each("transform", [torch.vmap, lambda f: torch.vmap(torch.func.grad(lambda x: f(x)))])
def test_views_share_storages_under_transforms_and_copies_do_not(transform):
    assert [True, False] == seen_under(transform)


def test_views_share_storages_where_tensors_are_fake_or_functional():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with FakeTensorMode():
        x = torch.ones(2, 3)
        assert share(x, x.t())
        assert not share(x, x.clone())
    plain = torch.ones(2, 3)
    with FunctionalTensorMode():
        x = FunctionalTensor.to_functional(plain)
        assert share(x, x.t())
        assert not share(x, x.clone())


def test_the_storages_of_a_wrapper_are_those_of_its_parts():
    a, b = torch.ones(2), torch.ones(2)
    assert storages.storages_of(TwoTensor(a, b)) == storages.storages_of(a) | storages.storages_of(b)


def test_the_storages_of_a_sparse_tensor_are_unknown():
    assert storages.storages_of(torch.ones(2, 2).to_sparse()) is None


# ----------------------------------------------------------------------------------------------------- checkpointing


def caching_mode(policy):
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    return create_selective_checkpoint_contexts(policy)[0]


def test_the_caching_modes_in_effect_are_known():
    assert [] == saved_tensors.caching_modes()
    with (mode := caching_mode([])):
        assert [type(mode)] == saved_tensors.caching_modes()


def test_what_selective_checkpointing_saved_is_known():
    x = torch.ones(2)
    with (mode := caching_mode([torch.ops.aten.mul.Tensor])):
        y = x * 3
        x + 1

    assert [[3.0, 3.0]] == [tensor.tolist() for tensor in saved_tensors.saved_tensors(mode)]
    assert storages.storages_of(y) == storages.storages_of(saved_tensors.saved_tensors(mode)[0])


def test_hooks_can_be_hidden_from_selective_checkpointing():
    hooks_of_user = getattr(torch.utils.checkpoint, "_current_user_saved_tensors_hooks", None)
    if hooks_of_user is None:
        pytest.skip("before torch 2.15, selective checkpointing does not look for hooks")
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        outer = saved_tensors.top_hooks()
        pack = saved_tensors.hidden_from_checkpoints(kept.append, outer)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None):
            assert outer == hooks_of_user()
            torch.ones(1, requires_grad=True).square()
    with torch.autograd.graph.saved_tensors_hooks(
        saved_tensors.hidden_from_checkpoints(kept.append, None), kept.append
    ):
        assert hooks_of_user() is None

    assert [1.0] == [tensor.item() for tensor in kept]


def test_an_op_can_be_given_another_policy():
    from torch.utils.checkpoint import CheckpointPolicy

    x, func = torch.ones(2), torch.ops.aten.mul.Tensor
    mode = caching_mode([func])
    given = mode.policy_fn
    recompute = lambda policy: lambda *args, **kwargs: CheckpointPolicy.PREFER_RECOMPUTE  # noqa: E731
    found = saved_tensors.dispatch_with_policy(recompute, mode, func, (), (x, x * 2))

    assert [2.0, 2.0] == found.tolist()
    assert [] == saved_tensors.saved_tensors(mode)
    assert given is mode.policy_fn


@pytest.mark.usefixtures("fresh_compiler")
def test_a_text_that_is_raised_reaches_whoever_compiles():
    def refused(x: Tensor) -> Tensor:
        if x.dim() == 1:
            compiler.raise_text(KernelError, "one dimension is too few")
        return x

    with pytest.raises(KernelError, match="one dimension is too few"):
        refused(torch.ones(2))
    with pytest.raises(Exception, match="one dimension is too few"):
        torch.compile(refused, backend="eager", fullgraph=True)(torch.ones(2))


def test_a_rule_for_the_functional_mode_takes_an_op_apart_in_a_graph(fresh_compiler):
    """As `torch.library.triton_op` does: see capabilities/inlining.py."""
    names = []

    def note(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return make_boxed_func(graph.forward)

    with torch.library._scoped_library("functional_rules", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")

        def rule(mode, function, types, args=(), kwargs=None):
            with mode:
                return args[0] + args[0]

        dispatch.register_torch_dispatch(library, "twice", dispatch.FunctionalTensorMode, rule)
        torch.compile(torch.ops.functional_rules.twice, backend=aot_autograd(fw_compiler=note), fullgraph=True)(
            torch.ones(2)
        )

    assert "aten.add.Tensor" in names
    assert not any("twice" in name for name in names)


# ----------------------------------------------------------------------------------------------------- flop counter


@pytest.fixture
def counted_op(library):
    library.define("counted(Tensor x) -> Tensor")
    library.define("counted.scaled(Tensor x, float by) -> Tensor")
    library.impl("counted", lambda x: x.clone(), "CompositeExplicitAutograd")
    library.impl("counted.scaled", lambda x, by: x * by, "CompositeExplicitAutograd")
    packet = torch.ops.private.counted
    yield packet
    for name in packet.overloads():
        flop_counter.withdraw(getattr(packet, name))


def test_a_formula_of_an_overload_is_in_the_table_until_it_is_withdrawn(counted_op):
    from torch.utils.flop_counter import FlopCounterMode, flop_registry

    flop_counter.register(counted_op.default, lambda x: 3)
    flop_counter.register(counted_op.scaled, lambda x, by: 4)
    with FlopCounterMode(display=False) as counter:
        counted_op(torch.ones(1))
        assert 3 == counter.get_total_flops()
        counted_op(torch.ones(1), 2.0)
        assert 7 == counter.get_total_flops()
    flop_counter.withdraw(counted_op.default)
    assert counted_op in flop_registry
    flop_counter.withdraw(counted_op.scaled)
    assert counted_op not in flop_registry


def test_the_counters_in_effect_are_known():
    from torch.utils.flop_counter import FlopCounterMode

    assert [] == flop_counter.counters()
    with FlopCounterMode(display=False) as counter:
        assert [counter] == flop_counter.counters()
        with flop_counter.without_modes():
            assert [] == flop_counter.counters()


def test_counts_can_be_replaced():
    from torch.utils.flop_counter import FlopCounterMode

    x = torch.ones(2, 2)
    with FlopCounterMode(display=False) as counter:
        x @ x
        before = flop_counter.snapshot(counter)
        x @ x
        flop_counter.replace_since(counter, before, "mine", 5)

    assert {"Global": {torch.ops.aten.mm: 16, "mine": 5}} == counter.get_flop_counts()


def test_the_flops_of_tensors_without_data_are_counted():
    mode, is_theirs = flop_counter.mode_of([torch.ones(1)])
    x = torch.zeros(1).expand(2**20, 2**20)
    with mode, flop_counter.counted() as total:
        fake = flop_counter.without_data(x)
        fake @ fake

    assert not is_theirs
    assert 2 * 2**60 == total()
    assert (mode, True) == flop_counter.mode_of([torch.ones(1), fake])


def test_a_node_is_known_by_its_function():
    class Other(Triple):
        pass

    node = Triple.apply(torch.ones(1, requires_grad=True)).grad_fn
    assert functions.is_node_of(node, Triple)
    assert not functions.is_node_of(node, Other)
    assert not functions.is_node_of(None, Triple)


# -------------------------------------------------------------------------------------------------------------- nodes


def test_the_saved_attributes_of_a_built_in_node_are_known_and_which_of_them_are_tensors():
    node = (torch.ones(2, requires_grad=True) * 2).sum(0).grad_fn

    assert {"dim": False, "keepdim": False, "self_sym_sizes": False} == nodes.names_of_saved(node)
    assert {"other": True, "self": True} == nodes.names_of_saved(node.next_functions[0][0])


def test_members_of_nodes_are_seen_on_each_node_and_in_its_name():
    class Renamed(Triple):
        pass

    nodes.set_members_of_nodes(Renamed, {"__name__": "ns::renamed", "fact": 3})
    y = Renamed.apply(torch.ones(2, requires_grad=True))
    node = y.grad_fn

    assert ("ns::renamed", 3) == (node.name(), node.fact)
    assert nodes.class_of_nodes(Renamed) is nodes.class_of_function_nodes(node) is type(node)
    assert nodes.class_of_function_nodes(torch.ones(2, requires_grad=True).exp().grad_fn) is None


def test_the_node_that_was_recorded_last_has_the_highest_number_and_a_leaf_a_higher_one():
    x = torch.ones(2, requires_grad=True)
    first = x.exp()
    second = first.sin()
    (accumulate, _), *_ = nodes.next_nodes(first.grad_fn)

    assert nodes.sequence_number(first.grad_fn) < nodes.sequence_number(second.grad_fn)
    assert nodes.sequence_number(second.grad_fn) < nodes.sequence_number(accumulate)


def test_inside_vmap_the_node_is_that_of_the_tensor_below():
    found = []
    torch.vmap(lambda x: found.append(nodes.node_of(x.exp())) or x)(torch.ones(2, 3, requires_grad=True))

    assert "ExpBackward0" == found[0].name()


def test_saved_tensors_are_read_or_the_reason_is_given():
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True) * 1
    held, modified, freed = x.exp(), y.sin(), x.cos()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, pytest.fail):
        packed = x.sin()
    with torch.no_grad():
        y.add_(1)
    freed.sum().backward()
    requests = [(held, "_saved_result"), (modified, "_saved_self"), (freed, "_saved_self"), (packed, "_saved_self")]
    found = nodes.read_saved([(tensor.grad_fn, name) for tensor, name in requests])

    assert torch.equal(held, found[0])
    assert [nodes.Unread.MODIFIED, nodes.Unread.FREED, nodes.Unread.PACKED] == found[1:]


def test_a_saved_tensor_of_a_subclass_is_not_taken_for_one_with_hooks():
    x = TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_()
    y = x.exp()
    (found,) = nodes.read_saved([(y.grad_fn, "_saved_result")])

    assert isinstance(found, TwoTensor)


def test_the_parts_of_a_tensor_are_those_that_have_memory():
    sparse = torch.eye(2).to_sparse()
    wrapper = TwoTensor(torch.ones(2), torch.ones(3)[:2])

    assert [(2, 2), (2,)] == [tuple(part.shape) for part in storages.parts_of(sparse)]
    assert [8, 12] == list(storages.sizes_of_storages(wrapper).values())


def test_a_symbolic_size_is_shown_by_its_name_and_counts_no_bytes():
    x = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False).from_tensor(torch.ones(4, 3))

    assert all(isinstance(size, str) for size in storages.shape_of(x))
    assert storages.bytes_of(x) is None
    assert (4, 3) == storages.shape_of(torch.ones(4, 3))
    assert 48 == storages.bytes_of(torch.ones(4, 3))


def test_a_node_frees_what_it_saved_unless_the_graph_is_retained():
    freed = []

    class Squared(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            functions.free_saved(ctx)
            try:
                freed.append(not ctx.saved_tensors)
            except RuntimeError:
                freed.append(True)
            return 2 * grad * x

    y = Squared.apply(torch.ones(1, requires_grad=True))
    y.backward(retain_graph=True)
    y.backward()

    assert [False, True] == freed


def test_a_module_that_is_imported_later_is_acted_on_then(tmp_path, monkeypatch):
    (tmp_path / "awaited_by_a_test.py").write_text("value = 3")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", finders)
    found = []
    awaited = awaited_modules.AwaitedModule("awaited_by_a_test")
    awaited.when_imported(lambda: found.append(awaited.module.value))

    assert [] == found
    import awaited_by_a_test  # noqa: F401

    assert [3] == found
    awaited.when_imported(lambda: found.append(awaited.module.value))
    assert [3, 3] == found
    assert awaited.module is awaited_modules.AwaitedModule("awaited_by_a_test").module


def test_a_module_in_the_midst_of_its_import_has_not_arrived(tmp_path, monkeypatch):
    (tmp_path / "awaited_for_long.py").write_text("import sys\nsys.seen.append(sys.awaited.module)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "seen", [], raising=False)
    awaited = awaited_modules.AwaitedModule("awaited_for_long")
    monkeypatch.setattr(sys, "awaited", awaited, raising=False)
    found = []
    awaited.when_imported(lambda: found.append(awaited.module))
    import awaited_for_long

    assert [None] == sys.seen
    assert [awaited_for_long, awaited_for_long] == [*found, awaited.module]


def test_an_awaited_module_has_its_own_loader_and_other_modules_of_that_loader_are_left_alone(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "both.zip", "w") as archive:  # one loader for all modules of an archive
        archive.writestr("awaited_in_a_zip.py", "value = 3")
        archive.writestr("other_in_a_zip.py", "other = 5")
    monkeypatch.syspath_prepend(tmp_path / "both.zip")
    finders = list(sys.meta_path)
    monkeypatch.setattr(sys, "meta_path", finders)
    awaited = awaited_modules.AwaitedModule("awaited_in_a_zip")
    import awaited_in_a_zip
    import other_in_a_zip

    assert awaited_in_a_zip is awaited.module
    assert awaited_in_a_zip.__loader__ is awaited_in_a_zip.__spec__.loader is other_in_a_zip.__loader__
    assert "value = 3\n" == inspect.getsource(awaited_in_a_zip)


@pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")
def test_a_strategy_is_asked_again_for_another_value_in_its_key_and_can_be_taken_back(library):
    library.define("placed(Tensor x, float scale, str mode) -> Tensor")
    library.impl("placed", lambda x, scale, mode: x * scale, "CompositeExplicitAutograd")
    torch.library.register_fake("private::placed", lambda x, scale, mode: torch.empty_like(x), lib=library)
    overload, seen = torch.ops.private.placed.default, []

    def rule(args, kwargs, mesh):
        seen.append((args[0].shape, args[1:], mesh))
        return [[((0,), (0,))]]

    with collectives.played(2) as mesh:
        from torch.distributed.tensor import Shard, distribute_tensor

        placements.register(overload, rule, 2, ())
        with collectives.one():
            whole = torch.ones(4)
        x = distribute_tensor(whole, mesh, [Shard(0)])
        found = [overload(x, *values) for values in ((2.0, "a"), (3.0, "a"), (2.0, "b"))]
        assert not placements.has_other_rule(overload)
        placements.withdraw(overload)
        with pytest.raises(NotImplementedError):
            overload(x, 2.0, "a")

    assert [((4,), [2.0, "a"], [2]), ((4,), [2.0, "b"], [2])] == [(tuple(s), list(a), list(m)) for s, a, m in seen]
    assert all(one.placements == (Shard(0),) for one in found)


@pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")
def test_wrapped_kernels_of_triton_are_launched_directly():
    kernel = object()
    with compiler.launching_directly():
        assert not torch._library.triton.is_wrap_triton_enabled()
        pytest.importorskip("triton")
        with pytest.raises(RuntimeError, match="triton"):  # it looks at the kernel first
            torch.library.wrap_triton(kernel)
    assert torch._library.triton.is_wrap_triton_enabled()


def test_ranks_are_played_and_left():
    with collectives.played(2) as mesh:
        local = collectives.on_all_ranks(torch.ones(2), 2)
        with collectives.one():
            plain = torch.rand(2)
        assert 2 == mesh.size()
        assert torch.equal(torch.ones(2), collectives.whole(local))

    assert type(plain) is Tensor
    assert type(local) is not Tensor
    assert not torch.distributed.is_initialized()
    assert collectives.is_unplayable(AssertionError("LocalIntNode({0: 2, 1: 1})"))


@pytest.mark.skipif(collectives.why_not() is not None, reason=f"{collectives.why_not()}")
@pytest.mark.parametrize("size", [5, 2], ids=["uneven", "fewer elements than ranks"])
def test_slices_of_played_ranks_are_joined_as_full_tensor_joins_them(size):
    with collectives.played(3) as mesh:
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

        with collectives.one():
            whole = torch.arange(2.0 * size).view(2, size)
        placed = [distribute_tensor(whole, mesh, [placement]) for placement in (Replicate(), Shard(0), Shard(1))]
        local = collectives.on_all_ranks(whole, 3)
        placed += [DTensor.from_local(local, mesh, [Partial(how)], run_check=False) for how in ("sum", "max")]
        found = [collectives.whole(tensor) for tensor in placed]
        full = [collectives.whole(tensor.full_tensor()) for tensor in placed]

    assert [type(tensor) for tensor in found] == [Tensor] * 5
    assert all(torch.equal(one, other) for one, other in zip(found, full, strict=True))
    assert torch.equal(found[3], 3 * whole)


def test_numbers_that_depend_on_data_are_pending_until_an_output_has_them():
    environment = ShapeEnv()
    with FakeTensorMode(shape_env=environment) as mode:
        x = mode.from_tensor(torch.ones(3))
        assert frozenset() == fakes.pending_symbols([x])
        found = x.nonzero()
        x.sum().item()
        pending = fakes.pending_symbols([torch.ones(2), x])

    assert symbols.symbols_in((found, x)) < pending
    assert (1, 2) == (len(symbols.symbols_in(found)), len(pending))
    assert frozenset() == fakes.pending_symbols([torch.ones(3)])


def test_a_number_that_dynamo_knows_is_one_that_depends_on_data():
    with FakeTensorMode(shape_env=ShapeEnv()):
        known, unknown = (torch.empty((), dtype=torch.int64) for _ in range(2))  # one of a number has it as a constant
        size = unknown.item()
        known.item_memo = number = known.fake_mode.shape_env.create_unspecified_symint_and_symbol(
            2, ConstantSource("n"), DimDynamic.DYNAMIC
        )

        with fakes.without_known_numbers([torch.ones(2), known, unknown]):
            assert 1 == len(free_unbacked_symbols(known.item()))
            assert str(size) == str(unknown.item())
        assert str(number) == str(known.item())


def test_errors_about_data_are_known():
    for mode in (FakeTensorMode(), FakeTensorMode(shape_env=ShapeEnv())):
        with mode, pytest.raises(RuntimeError) as caught:
            bool(mode.from_tensor(torch.ones(3)).sum() > 0)
        assert symbols.needs_data(caught.value)
    for read in (Tensor.item, Tensor.tolist, Tensor.numpy):
        with pytest.raises((RuntimeError, TypeError, NotImplementedError)) as found:
            read(torch.ones(1, device="meta"))
        assert symbols.needs_data(found.value)
    assert not symbols.needs_data(RuntimeError("another"))


def test_dynamo_breaks_a_graph_at_such_an_error(library):
    def fake(x):
        raise symbols.GraphBreakError(None, "why")

    library.define("broken(Tensor x) -> Tensor")
    library.impl("broken", lambda x: x * 2, "CPU")
    torch.library.register_fake("private::broken", fake, lib=library)

    def call(x):
        return torch.ops.private.broken(x) + 1

    torch.compiler.reset()
    assert 3 == torch.compile(call, backend="eager")(torch.ones(()))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.UserError, match="why"):
        torch.compile(call, backend="eager", fullgraph=True)(torch.ones(()))
