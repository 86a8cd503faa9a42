"""A call counts the tensors that it holds by hand: a tensor and its object live as long as PyTorch would let them."""

import contextlib
import gc
import sys
import threading
import weakref

import pytest
import torch
from torch import Tensor

from custom_autograd import custom_op
from custom_autograd.native.loading import library

pytestmark = pytest.mark.skipif(library.module is None, reason=library.reason)


class Tag:
    """Something whose end can be seen."""


def tagged(**options):
    """Return a tensor with an attribute, which goes when the object in Python goes, and a reference to that."""
    tensor = torch.randn(4, **options)
    tensor.tag = Tag()
    return tensor, weakref.ref(tensor.tag)


def declare(name, kernel):
    def saved(grad, x, y):
        return grad * y, grad * x

    op = custom_op(f"held::{name}", kernel, replace=True)
    op.register_backward(saved)
    op(torch.randn(4), torch.randn(4))
    op(torch.randn(4, requires_grad=True), torch.randn(4))
    assert 2 == op._native.count_kinds()
    return op


def product(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def counts(*tensors):
    return [(tensor._use_count(), sys.getrefcount(tensor)) for tensor in tensors]


def product_or_error(x: Tensor, y: Tensor) -> Tensor:
    if x.shape != y.shape:
        raise ZeroDivisionError
    return x * y


@pytest.mark.parametrize("way", ["plain", "recorded", "raises", "one tensor given twice"])
def test_a_call_leaves_the_counts_as_they_were(way):
    op = declare("counts", product_or_error)
    x, y = torch.randn(4, requires_grad=way != "plain"), torch.randn(5 if way == "raises" else 4)
    y = x if way == "one tensor given twice" else y
    before = counts(x, y)

    for _ in range(1000):
        with pytest.raises(ZeroDivisionError) if way == "raises" else contextlib.nullcontext():
            op(x, y)

    assert before == counts(x, y)


def test_the_object_of_a_saved_tensor_stays_and_goes_with_the_node():
    op = declare("saved", product)
    x, tag = tagged(requires_grad=True)

    out = op(x, torch.randn(4))
    del x
    gc.collect()
    is_kept, is_shown = tag() is not None, out.grad_fn._saved_x.tag is tag()
    del out
    gc.collect()

    assert (True, True, None) == (is_kept, is_shown, tag())


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_kernel_keeps_in_the_graph_keeps_the_object(grad):
    kept = []

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        kept.append(x.view(2, 2))  # whose base is x, which nothing in Python holds
        return x * y

    op = declare(f"keeps_{grad}", kernel)
    kept.clear()
    x, tag = tagged(requires_grad=grad)

    op(x, torch.randn(4))
    del x
    gc.collect()
    is_kept, is_same = tag() is not None, kept[0]._base.tag is tag()
    kept.clear()
    gc.collect()

    assert (True, True, None) == (is_kept, is_same, tag())


@pytest.mark.parametrize("grad", [False, True])
def test_what_a_kernel_lets_go_of_lets_the_object_go(grad):
    kept = []

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        kept.clear()  # the last reference of C++ besides that of the call
        return x * y

    op = declare(f"lets_go_{grad}", kernel)
    x, tag = tagged(requires_grad=grad)
    with torch.no_grad():
        kept.append(x.view(2, 2))
    two = x._use_count()

    op(x, torch.randn(4))
    one = x._use_count()
    del x
    gc.collect()

    assert (2, 1, None) == (two, one, tag())


def call_while_others_refer(op, x):
    """Return which of three threads that call the op hang, while two others take and drop references to its input."""
    y, stop = torch.randn(4), threading.Event()

    def take_and_drop():
        while not stop.is_set():
            x.view(2, 2)
            x.detach()
            torch.stack([x, x])

    def call():
        for _ in range(3000):
            op(x, y)

    others = [threading.Thread(target=take_and_drop, daemon=True) for _ in range(2)]
    callers = [threading.Thread(target=call, daemon=True) for _ in range(3)]
    for thread in others + callers:
        thread.start()
    for thread in callers:
        thread.join(timeout=120)
    found = [thread.is_alive() for thread in callers]
    stop.set()
    if not any(found):
        for thread in others:
            thread.join()
    return found


def test_threads_that_take_and_drop_references_meanwhile():
    op = declare("threads", product)
    x, tag = tagged(requires_grad=True)

    are_hanging = call_while_others_refer(op, x)
    gc.collect()
    alone = x._use_count()
    del x
    gc.collect()

    assert [False] * 3 == are_hanging  # see NOTE [the lock of a leaf]
    assert (1, None) == (alone, tag())


def test_a_tensor_that_nothing_else_holds_goes_after_the_call():
    op = declare("alone", product)
    tags = []

    def fresh():
        tensor, tag = tagged()
        tags.append(tag)
        return tensor

    for _ in range(10):
        op(fresh(), torch.randn(4))
    gc.collect()

    assert [None] * 10 == [tag() for tag in tags]
