"""Which of several kernels runs: priority, condition, what is available, and who insists on one."""

import asyncio
import sys
import threading
import warnings

import pytest
import torch
from tables import each
from torch import Tensor

from custom_autograd import KernelError, RegistrationError, Sample, custom_op
from custom_autograd.kernels import KernelUnavailable, KernelWarning


def adding(amount):
    return lambda x: x + amount


def unavailable(x):
    raise KernelUnavailable("the kernel needs a compiler\n  do  install one")


def make(name="subject", amount=1, **options):
    op = custom_op(f"choosing::{name}", adding(amount), schema="(Tensor x) -> Tensor", replace=True, **options)
    op.register_fake(torch.empty_like)
    return op


def value(op, *shape):
    return op(torch.zeros(shape)).flatten()[0].item()


def three():
    """1 everywhere; on the CPU 10, and 20 for vectors."""
    op = make()
    op.register_kernel("cpu", adding(10), name="plain")
    op.register_kernel("cpu", adding(20), name="vectors", when=lambda x: x.dim() == 1, priority=1)
    return op


def is_vector(x):
    return x.dim() == 1


CHOICES = {
    "the highest priority that accepts": (
        [("cpu", 10, {"name": "plain"}), ("cpu", 20, {"name": "vectors", "when": is_vector, "priority": 1})],
        (20.0, 10.0),
    ),
    "a condition before none, and the first before later ones": (
        [("cpu", 10, {"name": "a"}), ("cpu", 20, {"name": "b"}), ("cpu", 30, {"name": "c", "when": is_vector})],
        (30.0, 10.0),
    ),
    "the default kernel last": ([("cpu", 10, {"when": is_vector, "priority": -5})], (10.0, 1.0)),
    "default kernels by their conditions": ([(None, 5, {"name": "vectors", "when": is_vector})], (5.0, 1.0)),
    "the one that replaced another of its name": (
        [("cpu", 10, {"name": "plain"}), ("cpu", 30, {"name": "plain", "replace": True})],
        (30.0, 30.0),
    ),
}


@each(("kernels", "expected"), CHOICES.values(), ids=CHOICES)
def test_the_kernel_that_runs_for_a_vector_and_for_a_matrix(kernels, expected):
    op = make()
    for device_type, amount, options in kernels:
        op.register_kernel(device_type, adding(amount), **options)

    assert (*expected, expected[0]) == (value(op, 1), value(op, 1, 1), value(op, 1))


def test_a_condition_names_what_it_needs():
    op = custom_op("choosing::scaled", schema="(Tensor x, int n=2, *, float by=1.0) -> Tensor", replace=True)(
        lambda x, n=2, *, by=1.0: x + 1
    )
    op.register_kernel("cpu", lambda x, n, *, by: x + 10, when=lambda by, n: by * n > 3)

    found = [op(torch.zeros(1)).item(), op(torch.zeros(1), 4).item(), op(torch.zeros(1), by=2.0).item()]

    assert [1.0, 10.0, 10.0] == found


def half(state: dict[str, Tensor], alpha: float) -> Tensor:
    """Half of an entry."""
    return state["x"] * 0.5


def test_a_condition_sees_containers():
    op = custom_op("choosing::half", half, replace=True, reference=True)
    op.register_kernel("cpu", lambda state, alpha: state["x"] * 5, when=lambda state: "y" in state)
    x = torch.ones(1)

    assert (0.5, 5.0) == (op({"x": x}, 1.0).item(), op({"x": x, "y": x}, 1.0).item())


def test_every_mode_chooses():
    """Through the dispatcher, compiled, and under transforms."""
    op = three()
    x = torch.zeros(2)

    found = [
        torch.ops.choosing.subject(x)[0].item(),
        torch.compile(op, fullgraph=True, backend="aot_eager")(x)[0].item(),
        torch.func.vmap(op)(torch.zeros(2, 3))[0, 0].item(),
        torch.func.vmap(op)(torch.zeros(2, 3, 4))[0, 0, 0].item(),
    ]

    assert [20.0, 20.0, 20.0, 10.0] == found


def test_where_no_kernel_accepts_the_error_lists_each_with_its_reason():
    op = make(device_types="cuda")
    op.register_kernel("cpu", adding(10), name="vectors", when=lambda x: x.dim() == 1)
    op.register_kernel("cpu", unavailable, name="cpp", priority=1)
    with pytest.warns(KernelWarning), pytest.raises(KernelError) as caught:
        value(op, 1, 1)

    message = str(caught.value)
    assert "choosing::subject: no kernel for device type 'cpu' accepts these arguments" in message
    assert "cpu kernel 'cpp' (test_choosing_kernels.py:" in message
    assert "): the kernel needs a compiler" in message
    assert "cpu kernel 'vectors' (test_choosing_kernels.py:" in message
    assert "when=<lambda> (test_choosing_kernels.py:" in message


def test_a_condition_may_say_why():
    def on_tuesdays(x):
        raise KernelUnavailable("today is not a Tuesday")

    op = make(device_types="cuda")
    op.register_kernel("cpu", adding(10), when=on_tuesdays)

    with pytest.raises(KernelError, match="today is not a Tuesday"):
        value(op, 1)


def test_a_condition_that_returns_a_tensor_is_refused():
    """A bool of a tensor on a GPU would make the host wait for it, silently."""
    op = make()
    op.register_kernel("cpu", adding(10), when=lambda x: x.sum() > 0)

    with pytest.raises(KernelError, match="when= returns no bool") as caught:
        value(op, 1)
    assert "found      tensor(False)" in str(caught.value)


def test_a_kernel_that_is_not_available_is_passed_over_with_one_warning():
    op = make()
    op.register_kernel("cpu", unavailable, name="cpp")
    with pytest.warns(KernelWarning, match="cpu kernel 'cpp' of choosing::subject is passed over") as caught:
        found = [value(op, 1), value(op, 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.append(value(op, 1))

    assert [1.0, 1.0, 1.0] == found
    assert 1 == len(caught)


def test_the_only_kernel_that_is_not_available_says_why():
    op = custom_op("choosing::only", unavailable, schema="(Tensor x) -> Tensor", replace=True)

    with pytest.raises(KernelUnavailable, match="needs a compiler"):
        value(op, 1)


def test_somebody_can_insist_on_a_kernel():
    op = three()
    found = []
    with op.use_kernel("plain"):
        found.append(value(op, 1))
        with op.use_kernel("default"):
            found += [value(op, 1), torch.ops.choosing.subject(torch.zeros(1)).item()]
        found.append(value(op, 1))
    found.append(value(op, 1))

    assert [10.0, 1.0, 1.0, 10.0, 20.0] == found


def test_compiled_code_follows_without_compiling_again(fresh_compiler):
    op = three()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(op, fullgraph=True, backend=backend)
    found = [compiled(torch.zeros(1)).item()]
    with op.use_kernel("plain"):
        found.append(compiled(torch.zeros(1)).item())
    found.append(compiled(torch.zeros(1)).item())

    assert [20.0, 10.0, 20.0] == found
    assert 1 == len(graphs)


def test_insisting_concerns_one_op_in_one_thread():
    op, other = three(), make("other")
    other.register_kernel("cpu", adding(10), name="plain")
    found = []
    with op.use_kernel("default"):
        found += [value(op, 1), value(other, 1)]
        thread = threading.Thread(target=lambda: found.append(value(op, 1)))
        thread.start()
        thread.join()

    is_inherited = getattr(sys.flags, "thread_inherit_context", False)  # as in free-threaded Python
    assert [1.0, 10.0, 1.0 if is_inherited else 20.0] == found


def test_insisting_reaches_the_backward():
    """Also where autograd runs it in a thread of its own."""
    inner, outer = three(), make("outer")
    outer.register_backward(lambda grad: {"x": inner(grad)})
    x = torch.zeros(1, requires_grad=True)
    with inner.use_kernel("default"):
        outer(x).backward()

    assert 2.0 == x.grad.item()


def test_insisting_on_a_kernel_that_is_not_available_raises_its_reason():
    op = make()
    op.register_kernel("cpu", unavailable, name="cpp")

    with op.use_kernel("cpp"), pytest.raises(KernelUnavailable, match="needs a compiler"):
        value(op, 1)


@pytest.mark.parametrize(
    ("name", "problem", "do"),
    [
        ("vectors", "the kernel .vectors., which use_kernel", ""),
        ("triton", "there is no kernel 'triton'", "'triton' is a kernel for device type 'cuda'"),
    ],
    ids=["condition", "of another device"],
)
def test_insisting_on_a_kernel_that_cannot_run_raises(name, problem, do):
    op = three()
    op.register_kernel("cuda", adding(10), name="triton")

    with pytest.raises(KernelError, match=problem) as caught, op.use_kernel(name):
        value(op, 1, 1)
    assert do in str(caught.value)


def test_insisting_on_an_unknown_kernel_raises_at_once():
    with pytest.raises(KernelError, match="there is no kernel 'vector'") as caught, three().use_kernel("vector"):
        pass

    assert "did you mean 'vectors'?" in str(caught.value)


def test_insisting_ends_with_an_exception():
    op = three()
    with pytest.raises(ZeroDivisionError), op.use_kernel("plain"):
        raise ZeroDivisionError

    assert 20.0 == value(op, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("other::op=x, choosing::subject=default", 1.0), ("choosing::subject=plain", 10.0), ("other::op=x", 20.0)],
)
def test_the_environment_insists_for_a_process(monkeypatch, text, expected):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_KERNELS", text)

    assert expected == value(three(), 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("choosing::subject=plan", "there is no kernel 'plan' for device type 'cpu'"),
        ("subject=plain", "CUSTOM_AUTOGRAD_KERNELS: the environment variable cannot be read"),
        ("choosing::subject", "CUSTOM_AUTOGRAD_KERNELS: the environment variable cannot be read"),
        ("choosing::subject=plain,choosing::subject=default", "names two kernels for choosing::subject"),
    ],
)
def test_what_the_environment_cannot_mean_raises(monkeypatch, text, problem):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_KERNELS", text)

    with pytest.raises(KernelError, match=problem):
        value(three(), 1)


def test_two_kernels_of_one_name_are_refused_with_both_places():
    op = three()
    with pytest.raises(RegistrationError, match="device type 'cpu' already has a kernel named 'plain'") as caught:
        op.register_kernel("cpu", adding(3), name="plain")

    assert 2 == str(caught.value).split("found")[1].split("\n")[0].count("test_choosing_kernels.py:")


def only_nothing(x):
    if x.numel() == 0:
        return torch.empty_like(x)
    raise KernelUnavailable("the kernel needs a compiler")


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("way", ["op", "dispatcher"])
def test_a_kernel_that_ran_before_it_was_not_available_is_passed_over(way, requires_grad):
    op = make()
    op.register_backward(lambda grad: grad)
    op.register_kernel("cpu", only_nothing)
    call = op if way == "op" else torch.ops.choosing.subject
    for _ in range(3):
        call(torch.zeros(0, requires_grad=requires_grad))
    with pytest.warns(KernelWarning, match="is passed over"):
        found = call(torch.zeros(1, requires_grad=requires_grad))

    assert 1.0 == found.item()
    assert requires_grad == found.requires_grad


def test_each_kernel_is_checked_in_full_when_it_first_runs():
    """Not only the one that ran when the direct call to them was proven."""
    op = custom_op("choosing::subject", lambda x: x.add_(1) * 1, schema="(Tensor x) -> Tensor", replace=True)
    op.register_kernel("cpu", adding(1), name="small", when=lambda x: bool(x[0] < 2))
    for _ in range(3):
        op(torch.ones(3))

    with pytest.raises(KernelError, match=r"the default kernel, .* writes to its input 'x'"):
        op(torch.full((3,), 5.0))


def test_insisting_does_not_leave_anything_behind():
    op = three()
    with op.use_kernel("plain"):
        value(op, 1)
    before = op._record.kernels.choose("cpu")
    with op.use_kernel("default"):
        value(op, 1)

    assert op._record.kernels.choose("cpu") is before


def test_each_asyncio_task_insists_for_itself():
    op = three()

    async def task(name, awaited, done):
        with op.use_kernel(name):
            await awaited.wait()
            found = value(op, 1)
            done.set()
            return found

    async def both():
        entered, left = asyncio.Event(), asyncio.Event()
        entered.set()  # the second task calls while the first insists on another kernel
        return [*await asyncio.gather(task("plain", left, left), task("default", entered, left)), value(op, 1)]

    assert [10.0, 1.0, 20.0] == asyncio.run(both())


def test_what_a_thread_insists_on_comes_before_the_environment(monkeypatch):
    monkeypatch.setenv("CUSTOM_AUTOGRAD_KERNELS", "choosing::subject=default")
    op = three()
    with op.use_kernel("plain"):
        assert 10.0 == value(op, 1)
    assert 1.0 == value(op, 1)


def test_switches_that_do_not_nest_are_each_undone():
    op = three()
    first, second = op.set_kernel_enabled("cpu", False), op.set_kernel_enabled("cpu", True)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert 20.0 == value(op, 1)


def test_kernels_are_listed_in_the_order_of_their_turns():
    listed = three().kernels

    assert ["cpu", "default"] == list(listed)
    assert ["vectors", "plain"] == [part.split(" ")[0] for part in listed["cpu"].split("; ")]
    assert "priority 1, when test_choosing_kernels.py:" in listed["cpu"]


def test_a_single_kernel_is_called_as_it_is():
    """Choosing costs nothing where there is one, or where the first has no condition and has run once."""
    op = make()
    function = adding(10)
    op.register_kernel("cpu", function)
    value(op, 1)

    assert op._record.kernels.choose("cpu") is function


def test_messages_name_the_kernel_that_ran():
    op = make()
    op.register_kernel("cpu", adding(10), name="plain", when=lambda x: x.dim() == 2)
    op.register_kernel("cpu", lambda x: None, name="broken", when=lambda x: x.dim() == 1)
    value(op, 1, 1)

    with pytest.raises(KernelError, match=r"the cpu kernel 'broken', test_choosing_kernels\.py"):
        value(op, 1)


def transposed():
    return torch.arange(6.0).view(2, 3).t()


def seen_by(op_schema, layouts, *args):
    """The strides with which a kernel gets its arguments, and what the op wrote and returned."""
    strides = []

    def kernel(*values):
        strides.extend(value.stride() for value in values if isinstance(value, Tensor))
        return values[0] * 2

    op = custom_op("choosing::laid", lambda *values: values[0] * 2, schema=op_schema, replace=True)
    op.register_kernel("cpu", kernel, layouts=layouts)
    return strides, op(*args)


def test_what_a_kernel_relies_on_is_copied_into_place():
    layouts = {"x": "contiguous", "z": "contiguous"}
    strides, result = seen_by("(Tensor x, Tensor y, Tensor? z) -> Tensor", layouts, transposed(), transposed(), None)

    assert [(2, 1), (1, 3)] == strides
    assert torch.equal(transposed() * 2, result)


ROWS = torch.zeros(5, 5, 4).transpose(0, 1)


@pytest.mark.parametrize(
    ("layout", "x", "expected"),
    [
        ("contiguous", ROWS, (20, 4, 1)),
        ("contiguous_rows", ROWS, (4, 20, 1)),
        ("channels_last", torch.zeros(2, 3, 4, 5), (60, 1, 15, 3)),
    ],
)
def test_one_layout_for_all_tensors(layout, x, expected):
    strides, _ = seen_by("(Tensor x) -> Tensor", layout, x)

    assert [expected] == strides


def test_lists_and_what_stands_behind_a_star_are_laid_out_too():
    strides = []

    def kernel(xs):
        strides.extend(x.stride() for x in xs)
        return xs[0] + 0

    op = custom_op("choosing::lists", kernel, schema="(Tensor[] xs) -> Tensor", replace=True)
    op.register_kernel("cpu", kernel, layouts="contiguous")
    op([transposed(), transposed()])

    assert [(2, 1), (2, 1)] == strides


def double_(x):
    x.mul_(2)


def test_what_is_written_to_a_copy_reaches_the_argument():
    contiguous = []

    def kernel(x):
        contiguous.append(x.is_contiguous())
        x.mul_(2)

    op = custom_op("choosing::double_", double_, mutates_args=("x",), schema="(Tensor(a!) x) -> ()", replace=True)
    op.register_kernel("cpu", kernel, layouts="contiguous")
    x = transposed()
    version = x._version
    op(x)

    assert [True] == contiguous
    assert torch.equal(transposed() * 2, x)
    assert x._version > version


def test_an_expanded_argument_cannot_be_written_back():
    op = custom_op("choosing::double_", double_, mutates_args=("x",), schema="(Tensor(a!) x) -> ()", replace=True)
    op.register_kernel("cpu", double_, layouts="contiguous")

    with pytest.raises(KernelError, match="argument 'x' is written to, and is expanded"):
        op(torch.ones(1, 3).expand(2, 3))


def test_a_written_copy_must_not_lie_in_the_memory_of_another_argument():
    op = custom_op("choosing::add_", add_, mutates_args=("x",), schema="(Tensor(a!) x, Tensor y) -> ()", replace=True)
    op.register_kernel("cpu", add_, layouts="contiguous")
    x = torch.ones(3, 2)
    op(x, x)

    assert torch.equal(torch.full((3, 2), 2.0), x)
    with pytest.raises(KernelError, match="argument 'x' is written to, has to be copied, and lies in the memory"):
        op(x.t(), x.t())


def add_(x, y):
    x.add_(y)


def test_a_copy_that_a_kernel_returns_stands_for_the_argument():
    schema = "(Tensor(a!) x) -> Tensor(a!)"
    op = custom_op("choosing::returning_", lambda x: x.add_(1), mutates_args=("x",), schema=schema, replace=True)
    op.register_kernel("cpu", lambda x: x.add_(1), layouts="contiguous")
    x = torch.zeros(2, 3).t()

    assert op(x) is x
    assert torch.equal(torch.ones(3, 2), x)


@each(
    ("options", "problem"),
    [
        ({"name": "a b"}, "a kernel cannot have this name"),
        ({"name": ""}, "a kernel cannot have this name"),
        ({"name": 3}, "a kernel cannot have this name"),
        ({"priority": 1.5}, "the priority of a kernel is an int"),
        ({"priority": True}, "the priority of a kernel is an int"),
        ({"when": 3}, "when= takes a function of some of the op's arguments"),
        ({"when": lambda y: True}, "when= has a parameter 'y', which is not an argument of the op"),
        ({"when": lambda *args: True}, "when= has a parameter '\\*args', which is not an argument of the op"),
        ({"layouts": 3}, "layouts= takes a layout, or a dict of layouts by argument"),
        ({"layouts": {"y": "contiguous"}}, "layouts= names 'y', which is not a tensor argument"),
        ({"layouts": "contigous"}, "layouts= names a layout for 'x' that is none"),
    ],
)
def test_a_term_that_cannot_be_kept_is_refused(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        make().register_kernel("cpu", adding(1), **options)


def test_check_compares_every_kernel_with_the_default_one():
    op = make()
    op.register_samples(lambda make: [Sample(make(3))])
    op.register_kernel("cpu", adding(1), name="right")
    op.register_kernel("cpu", adding(2), name="wrong")

    report = op.check(checks=["kernels"], raise_on_failure=False)

    (found,) = (result for result in report.results if result.status == "failed")
    assert "cpu kernel 'wrong'" in found.message
    assert "'right'" not in found.message
