"""What torch.autograd.gradcheck or torch.library.opcheck rejects, `check` rejects: every fault and every honest op.

Both of torch's tools get every sample: gradcheck in float64 at its own tolerances, opcheck as the sample is. A crash of
theirs, which is any other exception than their own, says nothing.
"""

import warnings

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.testing._internal.optests.generate_tests import OpCheckError  # the class has no public name

from corpus import CORRECT, MUTANTS
from custom_autograd.schema.samples import TensorFactory
from custom_autograd.verification.check import all_checks, case_of
from custom_autograd.verification.harness import runner
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.targets import target_of
from slow_cases import slow_but_every

LARGEST = 200
"""Inputs of a full Jacobian; above, one random projection stands for it."""

FIRST = ("gradcheck", "contract", "opcheck", "fake", "schema", "directional")
"""The checks that find most of it, and run first: any finding of any check will do."""


def samples_of(op):
    return [sample for sample in op.samples(TensorFactory()) if sample.error is None]


def rejects_as_gradcheck(target, sample):
    try:
        function = function_of(target, sample)
        is_large = sum(value.numel() for value in function.inputs) > LARGEST
        gradcheck(function, function.inputs, fast_mode=is_large)
    except GradcheckError:
        return True
    except Exception:  # noqa: BLE001 - a crash, or nothing to check
        return False
    return False


def rejects_as_opcheck(target, sample):
    if target.overload is None:
        return False
    legal = [x.detach().clone().requires_grad_(x.requires_grad) for x in sample.tensors()]
    for position in target.written_positions(sample):
        legal[position].requires_grad_(False)  # a leaf that requires grad cannot be written to
    call = target.to_dispatcher(sample.with_tensors(legal))
    try:
        torch.library.opcheck(target.overload, call.args, call.kwargs)
    except OpCheckError:
        return True
    except Exception:  # noqa: BLE001 - a crash
        return False
    return False


def rejections(op):
    target = target_of(op.make())
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in samples_of(op):
            torch.manual_seed(0)
            found += ["gradcheck"] if rejects_as_gradcheck(target, sample) else []
            found += ["opcheck"] if rejects_as_opcheck(target, sample) else []
    return found


def is_rejected(op):
    checks = sorted(all_checks(), key=lambda check: check.name not in FIRST)
    case = case_of(op.make(), op.samples)
    return any(not runner.run([case], [check], is_explained=False).ok for check in checks)


@pytest.mark.parametrize("op", slow_but_every(12, [*MUTANTS, *CORRECT]), ids=lambda op: op.name)
def test_what_torch_rejects_is_rejected(op, fresh_compiler):
    rejected_by = rejections(op)

    assert not rejected_by or is_rejected(op), f"{rejected_by} reject it"
