"""vmap of an op whose reference cannot be batched: the op runs once for each sample, as without a reference."""

import pytest
import torch
from tables import each
from torch import Tensor
from torch.func import vmap

from custom_autograd import VmapUnavailable, custom_op


@custom_op("vmap_references::spread", reference=True)
def spread(x: Tensor, scale: Tensor) -> Tensor:
    """Return x between zeros, as the labels of CTC stand between blanks."""
    found = torch.zeros(2 * len(x) + 1, dtype=x.dtype)
    found[1::2] = x
    return found * scale.sum()


@custom_op("vmap_references::scaled", reference=True)
def scaled(x: Tensor, scale: Tensor) -> Tensor:
    return x * scale.max().item()


@custom_op("vmap_references::branch", reference=True)
def branch(x: Tensor, scale: Tensor) -> Tensor:
    return x * 2 if scale.sum() > 0 else x * 3


@custom_op("vmap_references::pair", reference=True)
def pair(x: Tensor, scale: Tensor) -> tuple[Tensor, int]:
    return x * scale.max().item(), len(x)


X, SCALE = torch.arange(6.0).reshape(2, 3), torch.tensor([[-1.0, -2.0], [3.0, 4.0]])
OPS = {op.overload.name(): op for op in (spread, scaled, branch)}


@each("in_dims", [(0, 0), (0, None), (None, 0)])
@each("op", OPS.values(), ids=OPS)
def test_values_of_a_reference_that_cannot_be_batched(op, in_dims):
    arguments = [value if dim == 0 else value[0] for value, dim in zip((X, SCALE), in_dims, strict=True)]
    samples = [[value[i] if dim == 0 else value for value, dim in zip(arguments, in_dims, strict=True)] for i in (0, 1)]

    assert torch.equal(torch.stack([op(*sample) for sample in samples]), vmap(op, in_dims)(*arguments))


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_gradients_of_a_batch(op):
    x, other = X.clone().requires_grad_(), X.clone().requires_grad_()

    vmap(op)(x, SCALE).sum().backward()
    torch.stack([op(*sample) for sample in zip(other, SCALE, strict=True)]).sum().backward()

    assert torch.equal(other.grad, x.grad)


def cubed(x):
    """Depend on x in every derivative that is tested."""
    return x**3 / x.detach().abs().max().item()


@custom_op("vmap_references::cube", reference=True)
def cube(x: Tensor) -> Tensor:
    return cubed(x)


@custom_op("vmap_references::listed", reference=True)
def listed(xs: list[Tensor], power: int) -> tuple[Tensor, Tensor]:
    """Write to a tensor that is not batched."""
    found = torch.zeros(len(xs[0]) + 1, dtype=xs[0].dtype)
    found[1:] = xs[0] ** power * xs[1]
    return found, xs[1] * 2


def by_list(x):
    written, doubled = listed([x, x], 2)
    return written[1:] + doubled


def total(f):
    return lambda x: f(x).sum()


DERIVATIVES = {
    "grad": lambda f: torch.func.grad(total(f)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x + 1,))[1],
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda f: torch.func.hessian(total(f)),
    "grad of grad": lambda f: torch.func.grad(total(torch.func.grad(total(f)))),
    "jvp of jvp": lambda f: DERIVATIVES["jvp"](DERIVATIVES["jvp"](f)),
    "vmap of grad": lambda f: lambda x: vmap(torch.func.grad(total(f)))(torch.stack([x, x + 1])),
}
FUNCTIONS = {"item": (cube, cubed), "in place": (by_list, lambda x: x**3 + 2 * x)}


@each("derivative", DERIVATIVES.values(), ids=DERIVATIVES)
@each(("function", "plain"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_derivatives_in_a_batch(function, plain, derivative):
    x = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, -0.5]], dtype=torch.float64)

    expected = (
        [derivative(plain)(sample) for sample in x]
        if derivative is not DERIVATIVES["vmap of grad"]
        else [torch.stack([torch.func.grad(total(plain))(one) for one in (sample, sample + 1)]) for sample in x]
    )

    torch.testing.assert_close(vmap(derivative(function))(x), torch.stack(expected))


def test_an_error_of_the_reference_is_not_hidden():
    @custom_op("vmap_references::broken", reference=True, replace=True)
    def broken(x: Tensor) -> Tensor:
        return x * (1 if x.is_leaf and not x.requires_grad else torch.ones(5))

    with pytest.raises(RuntimeError, match="size of tensor"):
        vmap(torch.func.grad(total(broken)))(X)


def test_vmap_of_vmap():
    nested = X.reshape(1, 2, 3), SCALE.reshape(1, 2, 2)

    assert torch.equal(vmap(spread)(X, SCALE)[None], vmap(vmap(spread))(*nested))


def test_several_outputs_one_of_them_a_number():
    values, count = vmap(pair, out_dims=(0, None))(X, SCALE)

    assert (3, True) == (count, torch.equal(vmap(scaled)(X, SCALE), values))


@custom_op("vmap_references::noisy", reference=True)
def noisy(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def test_random_numbers_are_refused_as_ever():
    """A loop would draw them without a word."""
    with pytest.raises((RuntimeError, VmapUnavailable), match="randomness"):
        vmap(noisy)(X)
    assert (2, 3) == vmap(noisy, randomness="different")(X).shape


def test_wrong_arguments_raise_the_error_of_the_op():
    with pytest.raises(RuntimeError, match="must match the size"):
        vmap(lambda x, y: torch.ops.vmap_references.summed(x, y))(X, SCALE)


@custom_op("vmap_references::summed", reference=True)
def summed(x: Tensor, y: Tensor) -> Tensor:
    return x + y
