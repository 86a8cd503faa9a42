"""Generators as arguments: drawn from once per call, never again by what is derived."""

# ruff: noqa: E501 - a message is as long as it is

import io

import pytest
import torch
from expecttest import assert_expected_inline
from messages.shown import message
from torch import Generator, Tensor
from torch.testing import assert_close

from custom_autograd import Sample, custom_op


@custom_op("generators::dropout", outputs=("out", "mask"), hidden=("mask",))
def dropout(x: Tensor, p: float = 0.5, *, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
    mask = (torch.rand(x.shape, generator=generator, device=x.device) > p).to(x.dtype) / (1 - p)
    return x * mask, mask


@dropout.register_fake
def _(x, p, *, generator):
    return torch.empty_like(x), x.new_empty(x.shape)


@dropout.register_backward
def _(grad, mask):
    return {"x": grad * mask}


@dropout.register_samples
def _(make):
    yield Sample(make(5), generator=Generator().manual_seed(3))
    yield Sample(make(2, 3), 0.1, generator=Generator().manual_seed(4))


@custom_op("generators::noise", reference=True)
def noise(x: Tensor, generator: Generator) -> Tensor:
    return x * torch.rand(x.shape, generator=generator, dtype=x.dtype)


X = torch.ones(64, dtype=torch.float64)


def seeded():
    return Generator().manual_seed(7)


def masked(seed_of, x=X):
    return x * (torch.rand(x.shape, generator=seed_of) > 0.5) * 2


def test_eager():
    generator, same = seeded(), seeded()

    assert_close(dropout(X, generator=generator), masked(same))
    assert_close(dropout(X, generator=generator), masked(same))


def test_backward_does_not_draw():
    generator, same = seeded(), seeded()
    x = X.clone().requires_grad_()
    out = dropout(x, generator=generator)
    expected = masked(same)

    assert_close(torch.autograd.grad(out.sum(), x), (expected,))
    assert torch.equal(generator.get_state(), same.get_state())


def test_gradcheck():
    assert torch.autograd.gradcheck(lambda x: dropout(x, generator=seeded()), X.clone().requires_grad_(),
                                    check_forward_ad=True)  # fmt: skip


def test_torch_func():
    assert_close(torch.func.grad(lambda x: dropout(x, generator=seeded()).sum())(X), masked(seeded()))
    assert_close(torch.func.jvp(lambda x: dropout(x, generator=seeded()), (X,), (X,))[1], masked(seeded()))


def test_vmap_draws_anew_for_each_sample():
    generator, same = seeded(), seeded()
    actual = torch.vmap(lambda x: dropout(x, generator=generator), randomness="different")(torch.stack([X, X]))

    assert_close(actual, torch.stack([masked(same), masked(same)]))


def test_vmap_draws_once_for_all_samples():
    generator, same = seeded(), seeded()
    actual = torch.vmap(lambda x: dropout(x, generator=generator), randomness="same")(torch.stack([X, X]))

    assert_close(actual, masked(same).expand(2, -1))
    assert torch.equal(generator.get_state(), same.get_state())


def test_a_reference_is_not_run_again():
    out = noise(X.clone().requires_grad_(), seeded())

    assert_expected_inline(
        message(lambda: out.sum().backward()),
        """\
GradientUnavailable: generators::noise: a gradient is requested, but no backward is registered
  declared   FILE.py:LINE
  do         register one with register_backward, register_grad or register_autograd, from what was drawn, returned as a (hidden) output: a reference would draw again""",
    )


def test_no_generator():
    assert_expected_inline(
        message(lambda: dropout(X, generator=3)),
        """\
KernelError: generators::dropout: argument 'generator': expected a torch.Generator, found 3
  declared   FILE.py:LINE
  do         pass torch.Generator(), for example""",
    )


def test_compile_without_a_generator(fresh_compiler):
    torch.manual_seed(0)
    actual = torch.compile(lambda x: dropout(x), fullgraph=True, backend="aot_eager")(X)
    torch.manual_seed(0)

    assert_close(actual, masked(None))


def test_compile_with_a_generator_is_refused(fresh_compiler):
    generator = seeded()
    compiled = torch.compile(lambda x: dropout(x, generator=generator), fullgraph=True, backend="aot_eager")

    with pytest.raises(Exception, match=r"torch.compile cannot trace a torch.Generator: call the op outside"):
        compiled(X)


def test_compile_leaves_a_graph_break(fresh_compiler):
    generator = seeded()
    compiled = torch.compile(lambda x: dropout(x + 1, generator=generator) + 1, backend="aot_eager")

    assert_close(compiled(X), masked(seeded(), X + 1) + 1)


class Module(torch.nn.Module):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.generator = seeded()

    def forward(self, x):
        return dropout(x, generator=self.generator)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="a generator is a constant of an exported program since 2.13")
def test_export():
    file = io.BytesIO()
    program = torch.export.export(Module(), (X,))
    torch.export.save(program, file)
    file.seek(0)

    assert_close(program.module()(X), masked(seeded()))
    assert (X * 2).sum() >= torch.export.load(file).module()(X).sum() > 0


def test_check():
    report = dropout.check()

    assert report.ok
