"""The fake kernel of an op in one call, compared with the real one."""

import torch
from torch import Tensor

from custom_autograd.schema.samples import Sample
from custom_autograd.torch_private import verification
from custom_autograd.verification.harness.agreement import copied
from custom_autograd.verification.harness.base import find_refusal, first_line, root_cause
from custom_autograd.verification.harness.comparison import find_untruth
from custom_autograd.verification.harness.records import output_names
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on
from custom_autograd.verification.harness.variants import is_within_domain


def fake_outputs(target: Target, sample: Sample) -> tuple[Tensor, ...]:
    """Return what the fake kernel gives of a call."""
    with verification.fake_mode() as to_fake:
        return call_on(target.full, sample.map(to_fake))


def find_real(target: Target, sample: Sample, like: Sample) -> tuple[Tensor, ...] | None:
    """Return what the op returns for a variant of a sample; None if its fake or real kernel refuses it."""
    if not is_within_domain(target, like, sample):
        return None
    with torch.no_grad():
        try:
            if target.overload is not None:
                fake_outputs(target, sample)
            return call_on(target.full, copy(sample))
        except Exception:  # noqa: BLE001 - an op need not take every call, and may raise any error
            return None


def takes(target: Target, sample: Sample, like: Sample) -> bool:
    """Return True if an op takes a variant of a sample, its fake kernel too, and returns as many tensors."""
    found = find_real(target, sample, like)
    with torch.no_grad():
        return found is not None and len(found) == len(call_on(target.full, copy(like)))


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
