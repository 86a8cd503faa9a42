"""Functions as they are written elsewhere: what they keep on ctx, and how."""

import functools

import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Intermediate(Function):
    """Saves an input and an intermediate, and keeps a parameter."""

    @staticmethod
    def forward(ctx, x, beta):
        s = torch.sigmoid(beta * x)
        ctx.save_for_backward(x, s)
        ctx.beta = beta
        return x * s

    @staticmethod
    def backward(ctx, grad):
        x, s = ctx.saved_tensors
        return grad * (s + ctx.beta * x * s * (1 - s)), None


class WithSetupContext(Function):
    """Keeps its output, in a `setup_context`."""

    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, grad):
        (output,) = ctx.saved_tensors
        return grad * output


def contiguous(function):
    @functools.wraps(function)
    def wrapper(ctx, *args):
        return function(ctx, *[one.contiguous() if isinstance(one, torch.Tensor) else one for one in args])

    return wrapper


class Base(Function):
    """Has the backward of its subclasses."""

    @classmethod
    def power(cls):
        return 2

    @classmethod
    def forward(cls, ctx, x, dim=-1):
        ctx.dim = dim % x.ndim
        ctx.shape = x.shape
        ctx.save_for_backward(x)
        return (x ** cls.power()).sum(dim)

    @classmethod
    def backward(cls, ctx, grad):
        (x,) = ctx.saved_tensors
        return cls.power() * grad.unsqueeze(ctx.dim).expand(ctx.shape) * x ** (cls.power() - 1), None, None


class Inherited(Base):
    """Inherits both methods, and returns a surplus None."""

    @classmethod
    def power(cls):
        return 3


class Contiguous(Function):
    """Saves a copy of an input that is not contiguous."""

    @staticmethod
    @contiguous
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    @contiguous
    def backward(ctx, grad):
        x, y = ctx.saved_tensors
        return grad * y, grad * x


class Sum(Function):
    """Takes `*args`, and returns gradients for those that need one."""

    @staticmethod
    def forward(ctx, scale, *xs):
        ctx.scale, ctx.count = scale, len(xs)
        return scale * sum(xs)

    @staticmethod
    def backward(ctx, grad):
        needs = ctx.needs_input_grad[1:]
        return None, *(grad * ctx.scale if need else None for need in needs)


class Split(Function):
    """Returns several outputs, one without a gradient, and takes undefined gradients."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        order = x.argsort(-1)
        rank = order.to(x.dtype)
        ctx.mark_non_differentiable(order, rank)
        ctx.save_for_backward(x)
        return x.sin(), x.cos(), order, rank

    @staticmethod
    def backward(ctx, sine, cosine, order, rank):
        (x,) = ctx.saved_tensors
        assert order is None
        assert rank is None
        found = torch.zeros_like(x)
        if sine is not None:
            found = found + sine * x.cos()
        if cosine is not None:
            found = found - cosine * x.sin()
        return found


class Once(Function):
    """Says that it can be differentiated once."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 3 * grad * x**2


class DependsOnData(Function):
    """Keeps a number, rows of numbers and a text that depend on data."""

    @staticmethod
    def forward(ctx, x, mode):
        ctx.largest = x.max().item()
        ctx.row, ctx.row_of_one = tuple(x.flatten().tolist()), (ctx.largest,)
        ctx.mode = mode
        ctx.save_for_backward(x)
        return x * ctx.largest if mode == "scale" else x.clone()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        assert (ctx.row, ctx.row_of_one) == (tuple(x.flatten().tolist()), (x.max().item(),))
        return grad * ctx.largest if ctx.mode == "scale" else grad, None


class Identity(Function):
    """Returns its argument, and reverses the gradient."""

    @staticmethod
    def forward(ctx, x, strength: float = 1.0):
        ctx.strength = strength
        return x

    @staticmethod
    def backward(ctx, grad):
        return -ctx.strength * grad, None


class Bias(Function):
    """Takes an optional bias, whose gradient the engine sums."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        output = x @ weight
        return output if bias is None else output + bias

    @staticmethod
    def backward(ctx, grad):
        x, weight, bias = ctx.saved_tensors
        return grad @ weight.T, x.T @ grad, grad if bias is not None else None


class Mask(Function):
    """Keeps tensors and a list of them as attributes, and its dtype."""

    @staticmethod
    def forward(ctx, grad, sizes):
        ctx.mask = grad > 0
        ctx.both = [grad.sign(), ctx.mask]
        ctx.dtype = grad.dtype
        ctx.sizes = sizes
        return torch.cat([one.relu() for one in grad.split(sizes)])

    @staticmethod
    def backward(ctx, grad):
        assert ctx.sizes == [1, 2]
        assert isinstance(ctx.sizes, list)
        return grad.to(ctx.dtype) * ctx.mask * ctx.both[0] * ctx.both[1], None


class Apply(Function):
    """Takes a function."""

    @staticmethod
    def forward(ctx, x, function):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = function(x)
        ctx.save_for_backward(x)
        ctx.function = function
        return y.detach()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(ctx.function(x), x, grad)[0], None


def tensor(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2 - 0.7


CALLS = {
    "intermediate": (Intermediate, (tensor(3, 4), 2.0)),
    "setup_context": (WithSetupContext, (tensor(3),)),
    "base": (Base, (tensor(3, 4), 0)),
    "inherited": (Inherited, (tensor(3, 4),)),
    "contiguous": (Contiguous, (tensor(3, 4), tensor(3, 4, seed=1))),
    "args": (Sum, (2.0, tensor(3), tensor(3, seed=1), tensor(3, seed=2))),
    "several_outputs": (Split, (tensor(3, 4),)),
    "once": (Once, (tensor(3),)),
    "data": (DependsOnData, (tensor(3), "scale")),
    "returns_its_argument": (Identity, (tensor(3), 0.5)),
    "optional": (Bias, (tensor(3, 4), tensor(4, 2), tensor(2))),
    "without_bias": (Bias, (tensor(3, 4), tensor(4, 2))),
    "attributes": (Mask, (tensor(3, 4), [1, 2])),
    "function": (Apply, (tensor(3), torch.sin)),
}
"""A Function and the arguments of a call, by what is special."""
