"""Feature-wise modulation, x * (1 + scale) + shift, with parameters in a dataclass; the shift is optional."""

from dataclasses import dataclass

from torch import Tensor

from custom_autograd import Sample, custom_op


@dataclass
class Film:
    scale: Tensor
    shift: Tensor | None = None


@custom_op("unseen::film")
def op(x: Tensor, film: Film) -> Tensor:
    y = x * (1 + film.scale)
    return (y if film.shift is None else y + film.shift).contiguous()


@op.register_fake
def _(x, film):
    return x.new_empty(x.shape)


@op.register_backward
def _(grad, x, film):
    return {
        "x": lambda: grad * (1 + film.scale),
        "film": {
            "scale": lambda: (grad * x).sum_to_size(film.scale.shape),
            "shift": None if film.shift is None else lambda: grad.sum_to_size(film.shift.shape),
        },
    }


@op.register_samples
def _(make):
    yield Sample(make(4, 3), Film(make(3), make(3)))
    yield Sample(make(2, 5), Film(make(5)))
