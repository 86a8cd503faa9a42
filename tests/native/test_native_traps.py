"""What an attack on native calls found: each once gave a wrong number, a crash, a hang or a lost error."""

import gc
import threading

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from custom_autograd import custom_op
from custom_autograd.core.errors import KernelUnavailable
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


def ones(grad=True):
    return torch.ones(3, requires_grad=grad)


def warm(op, *args):
    """Call an op until its kind is known."""
    for _ in range(3):
        result = op(*args)
    assert op._native.count_kinds() > 0
    return result


@custom_op("ntraps::double")
def double(x: Tensor) -> Tensor:
    return x * 2


@double.register_backward
def _(grad, x):
    return grad * 2 + 0 * x


def test_a_callable_gradient_may_change_the_dict_that_it_was_in():
    @custom_op("ntraps::cleared")
    def cleared(x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @cleared.register_backward
    def _(grad, x, y):
        found = {"x": lambda: (found.clear(), gc.collect(), grad * y)[2], "y": grad * x}
        return found

    x, y = ones(), ones()
    warm(cleared, x, y).sum().backward()
    assert (x.grad.tolist(), y.grad.tolist()) == ([1.0] * 3, [1.0] * 3)


def test_a_node_whose_forward_did_not_end_has_no_backward():
    kept = []

    @custom_op("ntraps::half")
    def half(x: Tensor, y: Tensor) -> Tensor:
        kept.append(x * y)
        return kept[-1]

    @half.register_backward
    def _(grad, x, y):
        return grad * y, grad * x

    x, y = ones(), ones()
    warm(half, x, y)

    def fails(tensor):
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"), saved_tensors_hooks(fails, lambda tensor: tensor):
        half(x, y)
    with pytest.raises(RuntimeError, match="did not end"):
        kept[-1].sum().backward()


def test_hooks_that_unpack_may_ask_the_node_for_what_it_saved():
    x = ones()
    warm(double, x)
    nodes, depth = [], []

    def unpack(tensor):
        if not depth:
            depth.append(1)
            assert len(nodes[0].saved_tensors) == 1
        return tensor

    with saved_tensors_hooks(lambda tensor: tensor, unpack):
        z = double(x)
    nodes.append(z.grad_fn)
    z.sum().backward()
    assert x.grad.tolist() == [2.0] * 3


def test_one_thread_reads_what_is_saved_while_another_is_in_backward():
    x = ones()
    warm(double, x)
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor * 1):
        z = double(x)
    is_over = threading.Event()

    def read():
        while not is_over.is_set():
            assert len(z.grad_fn.saved_tensors) == 1

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(300):
        z.sum().backward(retain_graph=True)
    is_over.set()
    thread.join(60)
    assert not thread.is_alive()


def test_without_validation_an_input_that_is_returned_keeps_its_history():
    @custom_op("ntraps::off")
    def off(x: Tensor, is_copied: bool) -> Tensor:
        return x * 1 if is_copied else x

    off.register_backward(lambda grad: grad * 10)
    off.validation = "off"
    w = ones()
    warm(off, w, True)
    h = w * 2
    (h.sum() + off(h, False).sum()).backward()
    assert w.grad.tolist() == [22.0] * 3


def test_a_view_that_a_kernel_made_of_its_own_memory_is_not_written_to():
    @custom_op("ntraps::view")
    def view(x: Tensor) -> Tensor:
        with torch.enable_grad():
            return torch.empty(6).copy_(x.detach().repeat(2) * 2)[:3]

    @view.register_backward
    def _(grad, x):
        return grad * 2

    x = ones()
    z = warm(view, x)
    z._base.mul_(3)
    with pytest.raises(RuntimeError, match="inplace"):
        z.sum().backward()


def test_an_output_without_a_gradient_that_requires_one_is_cut_off():
    @custom_op("ntraps::fixed", outputs=["out", "fixed"], non_differentiable=["fixed"])
    def fixed(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, torch.ones(3, requires_grad=True)

    fixed.register_backward(lambda grad_out: grad_out * 2)
    assert not warm(fixed, ones())[1].requires_grad


def test_another_number_of_dimensions_is_another_kind():
    x = ones(grad=False)
    warm(double, x)
    before = double._native.count_kinds()
    warm(double, x.reshape(1, 3))
    assert double._native.count_kinds() == before + 1


def test_a_second_backward_is_refused_where_all_that_was_saved_is_none():
    @custom_op("ntraps::again")
    def again(x: Tensor, w: Tensor | None) -> Tensor:
        return x * 2 if w is None else x * w

    @again.register_backward
    def _(grad, w):
        return {"x": grad * 2 if w is None else grad * w, "w": None}

    z = warm(again, ones(), None)
    z.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        z.sum().backward()


def test_a_tensor_shows_the_name_of_its_node():
    z = warm(double, ones())
    assert repr(z) == "tensor([2., 2., 2.], grad_fn=<doubleBackward>)"
    assert isinstance(z.grad_fn, torch.autograd.graph.Node)


def test_a_parameter_that_is_given_by_position_only_has_no_name():
    @custom_op("ntraps::positional")
    def positional(x: Tensor, /, y: float = 1.0) -> Tensor:
        return x * y

    x = ones()
    warm(positional, x)
    for name in ("", "x", "x, by position"):
        with pytest.raises(TypeError):
            positional(**{name: x})


def test_forward_mode_is_off_in_a_kernel_whose_call_is_recorded():
    @custom_op("ntraps::forward")
    def forward(x: Tensor) -> Tensor:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x.detach().clone(), torch.ones(3))
            tangent = forward_ad.unpack_dual(dual * dual).tangent
            return torch.zeros(3) if tangent is None else tangent.clone()

    forward.register_backward(lambda grad: grad * 2)
    x = ones()
    assert len({tuple(forward(x).tolist()) for _ in range(4)}) == 1


def test_an_error_of_another_kernel_says_which_was_not_available():
    is_there = True

    @custom_op("ntraps::gone")
    def gone(x: Tensor) -> Tensor:
        raise ValueError("second")

    @gone.register_kernel("cpu", name="fast")
    def _(x):
        if not is_there:
            raise KernelUnavailable("fast", "gone")
        return x * 2

    warm(gone, ones())
    is_there = False
    with pytest.warns(UserWarning, match="gone"), pytest.raises(ValueError, match="second") as caught:
        gone(ones())
    assert isinstance(caught.value.__context__, KernelUnavailable)


def test_another_instance_of_the_class_of_an_op_is_called_as_in_python():
    warm(double, ones())
    other = object.__new__(type(double))
    other._record = double._record
    assert other(ones()).tolist() == [2.0] * 3
