"""Changes of a call go together: two that are made one after the other fit, or say that they do not."""

import itertools

import pytest
import torch
from torch import Tensor

from custom_autograd import Sample, custom_op
from custom_autograd.extend import target_of
from custom_autograd.schema.samples import TensorFactory
from custom_autograd.verification.calls.call import Call
from custom_autograd.verification.calls.changes import changes_of
from slow_cases import slow_but_every


@custom_op("changes::everything", reference=True)
def everything(
    x: Tensor,
    weight: Tensor,
    index: Tensor | None = None,
    mask: Tensor | None = None,
    others: list[Tensor] | None = None,
    *,
    scale: float = 1.0,
    steps: int = 2,
    is_mean: bool = False,
) -> Tensor:
    out = x * weight * scale * steps
    out = out if index is None else out + index.sum()
    out = out if mask is None else torch.where(mask.any(), out, 2 * out)
    out = sum(others or [], out)
    return out.mean(-1, keepdim=True) if is_mean else out


MAKE = TensorFactory()
SAMPLES = {
    "one of everything": Sample(MAKE(1), MAKE(1)),
    "scalars": Sample(MAKE(), MAKE()),
    "rows": Sample(MAKE(4, 3), MAKE(3), scale=0.5, is_mean=True),
    "nothing": Sample(MAKE(0, 3), MAKE(3)),
    "index and mask": Sample(MAKE(2, 3), MAKE(3), MAKE.tensor([0, 1, 1]), MAKE.tensor([True, False])),
    "list": Sample(MAKE(2, 3), MAKE(1, 3), others=[MAKE(3), MAKE(2, 1)]),
    "dtypes": Sample(MAKE(2, 3, dtype=torch.bfloat16), MAKE(3, dtype=torch.float64)),
    "complex": Sample(MAKE(2, 3, dtype=torch.complex64), MAKE(3)),
}


@pytest.mark.parametrize("name", slow_but_every(3, SAMPLES))
def test_two_changes_fit_or_say_that_they_do_not(name: str) -> None:
    target, sample = target_of(everything), SAMPLES[name].map(lambda x: x.detach().clone())
    needs = frozenset(i for i, x in enumerate(sample.tensors()) if x.is_floating_point())
    changes = list(changes_of(target, sample, needs))
    assert len(changes) > 20

    for one, other in itertools.combinations(sorted(changes, key=lambda change: change.stage), 2):
        call = Call(sample, needs)
        for change in (one, other) if one.key != other.key else ():  # a case has one of each
            changed = change.apply(call)
            call = call if changed is None else changed
        assert len(sample.tensors()) == len(call.sample.tensors()), (one.text, other.text)
