"""Ops whose writes PyTorch cannot functionalize: in graphs a second op returns what they write."""

import pytest
import torch
from torch import Tensor

from custom_autograd import KernelError, custom_op
from custom_autograd.programs import modules_of


def compiled(function, **options):
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, **{"backend": "aot_eager", **options})


@custom_op("functional_ops::add_", schema="(Tensor(a!) x, Tensor y) -> Tensor(a!)", mutates_args=("x",))
def add_(x, y):
    return x.add_(y)


add_.register_backward(lambda grad: (grad, grad))


@custom_op(
    "functional_ops::step",
    schema="(Tensor(a!) x, Tensor(b!)?[] parts, Tensor? w, *, str mode='a') -> (Tensor(a!), Tensor[], Tensor?, SymInt)",
    mutates_args=("x", "parts"),
)
def step(x, parts, w, *, mode="a"):
    x.add_(1 if w is None else w)
    for part in parts:
        if part is not None:
            part.mul_(2)
    return x, [x * 2, x * 3], None if w is None else w * 5, x.shape[0]


@step.register_fake
def _(x, parts, w, *, mode="a"):
    return x, [torch.empty_like(x), torch.empty_like(x)], None if w is None else torch.empty_like(w), x.shape[0]


@custom_op("functional_ops::accumulate_", mutates_args=("total",))
def accumulate_(total: Tensor, x: Tensor) -> list[Tensor]:
    total.add_(x * x)
    return [total * 2]


accumulate_.register_fake(lambda total, x: [torch.empty_like(total)])


@accumulate_.register_backward
def _(grad_total, x, grad_output=None):
    grad = grad_total if grad_output is None else grad_total + 2 * grad_output[0]
    return {"total": grad, "x": 2 * x * grad}


@custom_op("functional_ops::scale_", mutates_args=("x",))
def scale_(x: Tensor, mode: str) -> None:
    x.mul_({"twice": 2, "thrice": 3}[mode])


def run_step(x, parts, w):
    x, parts = x * 1, parts * 1
    y, (double, triple), scaled, size = step(x, [None, parts[0], parts[1]], w, mode="b")
    return x + y + double + triple + size, parts, 0 if scaled is None else scaled


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("w", [torch.full((3,), 2.0), None], ids=["given", "absent"])
def test_writes_and_all_kinds_of_outputs_reach_a_graph(w, is_dynamic):
    inputs = torch.ones(3), torch.ones(2, 4), w

    torch.testing.assert_close(compiled(run_step, dynamic=is_dynamic)(*inputs), run_step(*inputs))


@pytest.mark.slow
def test_inductor_compiles_it():
    inputs = torch.ones(3), torch.ones(2, 4), None

    torch.testing.assert_close(compiled(run_step, backend="inductor")(*inputs), run_step(*inputs))


def test_inputs_of_a_graph_are_written_to():
    x, part = torch.ones(3), torch.ones(2)
    compiled(lambda x, part: step(x, [part], None)[3])(x, part)

    assert ([2.0] * 3, [2.0] * 2) == (x.tolist(), part.tolist())


def test_an_argument_may_be_called_mode():
    def f(x):
        y = x * 1
        scale_(y, "thrice")
        return y

    assert [3.0, 3.0] == compiled(f)(torch.ones(2)).tolist()


def test_gradients_of_a_graph_see_the_writes():
    def f(x):
        total = torch.zeros_like(x)
        (doubled,) = accumulate_(total, x)
        accumulate_(total[:2], x[:2])
        return add_(total, x).sum() + doubled.sin().sum()

    def plain(x):
        total = x * x
        return (total + x).sum() + (x[:2] * x[:2]).sum() + (total * 2).sin().sum()

    x = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    (expected,) = torch.autograd.grad(plain(x), x)

    torch.testing.assert_close(torch.autograd.grad(compiled(f)(x), x)[0], expected)
    torch.testing.assert_close(compiled(torch.func.grad(f))(x.detach()), expected)


def test_written_views_of_one_tensor_do_not_interfere():
    def f(cache):
        cache = cache * 1
        accumulate_(cache[0], cache[1] + 1)
        accumulate_(cache[1], cache[0])
        return cache

    for cache in (torch.ones(2, 3), torch.ones(3, 5)):
        torch.testing.assert_close(compiled(f, dynamic=True)(cache), f(cache))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_written_tensor_that_overlaps_another_argument_is_refused_in_a_graph(is_dynamic):
    def f(x):
        x = x * 1
        return add_(x[:4], x[2:])

    with pytest.raises(Exception, match="writes to 'x', which shares memory with 'y', in a graph"):
        compiled(f, dynamic=is_dynamic)(torch.ones(6))


def test_functionalize_of_torch_func_refuses_an_overlap_with_our_error():
    with pytest.raises(KernelError, match="shares memory"):
        torch.func.functionalize(lambda x: add_(x, x))(torch.ones(2))


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(3))

    def forward(self, x):
        count, outputs, _, size = step(self.count, [x * 2], x)
        return count + outputs[1] + size


@pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")  # torch itself, decomposing
def test_a_decomposed_program_writes_to_its_buffers():
    program = torch.export.export(Counting(), (torch.ones(3),)).run_decompositions()
    exported, eager = program.module(), Counting()
    found, expected = [exported(torch.ones(3)) for _ in range(2)], [eager(torch.ones(3)) for _ in range(2)]

    assert "functional_ops.step__functional.default" in [str(node.target) for node in program.graph.nodes]
    assert {"functional_ops::step__functional": [__name__]} == modules_of(program)
    torch.testing.assert_close((found, exported.count), (expected, eager.count))


def test_the_second_op_is_differentiable():
    functional = torch.ops.functional_ops.accumulate___functional
    x = torch.tensor([1.0, 2.0])

    found = torch.func.jvp(lambda x: functional(torch.zeros(2), x)[1][0], (x,), (torch.ones(2),))
    torch.testing.assert_close(found, (x * x, 2 * x))
    leaf = x.clone().requires_grad_()
    functional(torch.zeros(2), leaf)[0][0].sum().backward()
    torch.testing.assert_close(leaf.grad, 4 * x)


def test_a_replaced_op_keeps_its_second_op():
    def declare(number):
        @custom_op("functional_ops::replaced_", mutates_args=("x",), replace=True)
        def replaced_(x: Tensor) -> list[Tensor]:
            x.add_(number)
            return []

        replaced_.register_fake(lambda x: [])
        return replaced_

    ops = declare(1), declare(10)

    for op, expected in zip(ops, (1.0, 10.0), strict=True):
        x = torch.zeros(1)
        compiled(lambda x, op=op: op(x))(x)
        assert expected == x.item()
