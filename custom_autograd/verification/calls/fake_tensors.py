"""The fake kernel of an op in one call, compared with the real one."""

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness.agreement import copied
from custom_autograd.verification.harness.base import find_refusal, first_line, root_cause
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.records import output_names
from custom_autograd.verification.harness.targets import Target, call_on


def fake_outputs(target: Target, sample: Sample) -> tuple[Tensor, ...]:
    """Return what the fake kernel gives of a call."""
    with verification.fake_mode() as to_fake:
        return call_on(target.full, sample.map(to_fake))


def find_false_fake(target: Target, sample: Sample) -> str | None:
    """Return how the results of the fake kernel differ from the real ones; None if they agree, or there is no fake."""
    if target.overload is None or any(x.is_conj() or x.is_neg() for x in sample.tensors()):  # torch fakes no such view
        return None
    written = target.written_positions(sample)
    tensors = [copied(x) if i in written else x.detach() for i, x in enumerate(sample.tensors())]
    with torch.no_grad():
        real = call_on(target.full, sample.with_tensors(tensors))
        try:
            said = fake_outputs(target, sample)
        except Exception as error:  # noqa: BLE001 - whatever the fake raises where the kernel does not
            return None if find_refusal(error) else f"the fake kernel raises {first_line(root_cause(error))}"
    untruth = find_untruth(said, real, output_names(target, len(real)))
    return None if untruth is None else untruth[1]
