"""Mutants that no sample shows are wrong where they say: in nestings, threads, hooks, autocast, subclasses."""

import gc
import threading
import weakref

import pytest
import torch
import torch.utils.checkpoint
from torch.func import grad, jacrev, jvp, vmap

from corpus import CORRECT, MUTANTS
from custom_autograd.verification.harness.targets import target_of

OPS = {row.name: row for row in (*MUTANTS, *CORRECT)}
X, Y = torch.tensor([0.5, -1.0, 2.0]), torch.tensor([1.5, 0.3, -2.0])


def call(name, *arguments):
    return target_of(OPS[name].make()).call(*arguments)


def of_batches(name):
    batch = torch.stack([X, 2 * X])
    return vmap(vmap(lambda x: call(name, x, Y)))(torch.stack([batch, batch]))


def gradient_of_batch(name):
    return grad(lambda x: vmap(lambda row: call(name, row, Y))(x).sum())(torch.stack([X, 2 * X]))


def gradient_of_tangent(name):
    return jacrev(lambda x: jvp(lambda z: call(name, z, Y), (x,), (torch.ones(3),))[1])(X)


def under_autocast(name):
    with torch.autocast("cpu"):
        return call(name, X)


def gradient_of_checkpoint(name):
    x = X.clone().requires_grad_()
    out = torch.utils.checkpoint.checkpoint(lambda z: call(name, z), x, use_reentrant=False)
    return torch.autograd.grad(out.sum(), x)[0]


def second_gradient(name):
    x = X.clone().requires_grad_()
    out = call(name, x).sum()
    torch.autograd.grad(out, x, retain_graph=True)
    return torch.autograd.grad(out, x)[0]


def gradient_after_another_call(name):
    x = X.clone().requires_grad_()
    out = call(name, x).sum()
    call(name, Y.clone().requires_grad_())
    return torch.autograd.grad(out, x)[0]


def in_half(name):
    x = X.half().requires_grad_()
    return torch.autograd.grad(call(name, x).sum(), x)[0]


def of_large(name):
    x = (10 * X).requires_grad_()
    return torch.autograd.grad(call(name, x).sum(), x)[0]


def of_long(name):
    x = torch.ones(300, requires_grad=True)
    return torch.autograd.grad(call(name, x).sum(), x)[0]


def of_transposed(name):
    x = torch.arange(6.0).reshape(2, 3).mT.requires_grad_()
    weights = torch.arange(6.0).reshape(3, 2)
    return torch.autograd.grad((call(name, x) * weights).sum(), x)[0]


def without_grad_mode(name):
    with torch.no_grad():
        return call(name, X)


class Tagged(torch.Tensor):
    """A subclass that adds nothing."""


def of_subclass(name):
    return call(name, X.as_subclass(Tagged), Y.as_subclass(Tagged)).as_subclass(torch.Tensor)


WRONG = {
    "nesting_vmap_of_vmap": (of_batches, "growth"),
    "nesting_vmap_detached": (gradient_of_batch, "growth"),
    "nesting_jvp_detached": (gradient_of_tangent, "growth"),
    "autocast_mode": (under_autocast, "cube"),
    "autocast_kernel": (under_autocast, "square"),
    "state_second_backward": (second_gradient, "square"),
    "state_saved_overwritten": (second_gradient, "square"),
    "state_last_call": (gradient_after_another_call, "square"),
    "grad_mode": (without_grad_mode, "composite"),
    "dtype_only_half_gradient": (in_half, "cube"),
    "value_rare_gradient": (of_large, "cube"),
    "size_past_block_gradient": (of_long, "cube"),
    "layout_saved": (of_transposed, "cube"),
    "subclass_zeroed": (of_subclass, "plain_sine"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mutant_is_wrong_where_it_says(name):
    measure, base = WRONG[name]

    assert not torch.allclose(measure(base).float(), measure(name).float())


def test_a_checkpoint_gives_another_address():
    assert not torch.allclose(X.exp(), gradient_of_checkpoint("hooks_address"))


def test_a_thread_of_its_own_has_no_factor():
    x = X.clone().requires_grad_()
    results = []
    steps = (
        lambda: results.append(call("race_thread_local", x).sum()),
        lambda: results.append(torch.autograd.grad(results[0], x)[0]),
    )
    for step in steps:  # a new thread each: the test's own may have called the op before
        thread = threading.Thread(target=step)
        thread.start()
        thread.join()

    assert torch.equal(torch.zeros(3), results[1])


def test_threads_pick_up_what_others_laid_down():
    barrier, found = threading.Barrier(4), {}

    def work(number):
        x = torch.full((3,), float(number))
        barrier.wait()
        found[number] = [call("race_scratch", x) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert any(not torch.equal(torch.full((3,), float(n**3)), out) for n, outs in found.items() for out in outs)


@pytest.mark.parametrize(("name", "is_kept"), {"leak_output": True, "written_product": False}.items())
def test_a_cycle_lives_until_the_garbage_collector_comes(name, is_kept):
    gc.collect()
    gc.disable()
    try:
        out = call(name, X.clone().requires_grad_(), Y)
        node = weakref.ref(out.grad_fn)
        del out

        assert is_kept == (node() is not None)
    finally:
        gc.enable()
        gc.collect()
