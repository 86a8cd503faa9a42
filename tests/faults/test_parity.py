"""The check `parity` fails variants whose kernels do not do what the op does, and passes those that do."""

import torch
from tables import each
from torch import Tensor
from verdicts import verdict

from corpus.siblings import cube_in_place, cube_out
from custom_autograd import Sample, custom_op

KERNELS = {
    "honest": (cube_in_place, cube_out),
    "another value": (lambda x: x.copy_(x**2), None),
    "only contiguous memory": (lambda x: x.as_strided((x.numel(),), (1,)).pow_(3), None),
    "not everywhere": (None, lambda x, *, out: out[:1].copy_(x[:1] ** 3)),
    "another argument": (None, lambda x, *, out: (out.copy_(x**3), x.numpy().fill(0))),
}


def cube(x: Tensor) -> Tensor:
    return x**3


def declared(name):
    """An op with these kernels."""
    op = custom_op(f"parity::op_{list(KERNELS).index(name)}", cube, reference=True, replace=True)
    inplace, out = KERNELS[name]
    if inplace is not None:
        op.inplace.register_kernel("cpu", lambda x: [inplace(x), None][1])
    if out is not None:
        op.out.register_kernel("cpu", lambda x, *, out=None, kernel=out: [kernel(x, out=out), None][1])
    return op


def result_of(op, sample=None):
    return verdict("parity", [sample or Sample(torch.rand(4, 3))])(op)


@each(
    ("name", "expected"),
    {
        "another value": "op.inplace, as given: output 0",
        "only contiguous memory": "op.inplace, with gaps: output 0",
        "not everywhere": "op.out, as given: output 0",
        "another argument": "op.out, as given: the op writes to 'x', which it does not declare",
    }.items(),
)
def test_a_kernel_that_does_something_else_fails(name, expected):
    result = result_of(declared(name))

    assert "failed" == result.status
    assert result.message.startswith(expected)


def test_findings_use_the_names_of_outputs():
    """An op of two outputs, of which a kernel of op.out writes the second one wrongly."""

    @custom_op("parity::named", outputs=("rounded", "rest"), reference=True, replace=True)
    def named(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.round(), x - x.round()

    @named.out.register_kernel("cpu")
    def _(x, *, rounded, rest):
        rounded.copy_(x.round())
        rest.copy_(x)

    assert result_of(named).message.startswith("op.out, as given: 'rest'[")


@each("shape", [(4, 3), (3,), (), (0, 2)])
def test_honest_kernels_pass(shape):
    assert "passed" == result_of(declared("honest"), Sample(torch.rand(shape))).status


def test_integers_pass_too():
    assert "passed" == result_of(declared("honest"), Sample(torch.arange(3))).status


def test_an_op_without_such_kernels_has_nothing_to_check():
    result = result_of(custom_op("parity::without", cube, reference=True))

    assert ("skipped", "no variant of the op has a kernel of its own") == (result.status, result.message)


def grown(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def test_a_result_that_does_not_fit_is_no_finding():
    op = custom_op("parity::grown", grown, reference=True)
    op.inplace.register_kernel("cpu", lambda x, y: x.add_(y))
    result = result_of(op, Sample(torch.ones(1), torch.ones(2, 3)))

    assert "skipped" == result.status
    assert "the result does not fit into the first argument" in result.message
