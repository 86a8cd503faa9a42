"""torch.autograd.gradcheck and torch.library.opcheck reject no honest op.

Every other op of the corpus is rejected by the check that it names (test_mutants_are_caught.py).

Both of torch's tools get every sample: gradcheck in float64 at its own tolerances, opcheck as the sample is. A crash of
theirs, which is any other exception than their own, says nothing.
"""

import warnings

import pytest
import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.testing._internal.optests.generate_tests import OpCheckError  # the class has no public name

from corpus import CORRECT
from custom_autograd.schema.samples import TensorFactory
from custom_autograd.verification.harness.differentiable import function_of
from custom_autograd.verification.harness.targets import target_of
from slow_cases import slow_but_every

LARGEST = 200
"""Inputs of a full Jacobian; above, one random projection stands for it."""


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


@pytest.mark.parametrize("op", slow_but_every(6, CORRECT), ids=lambda op: op.name)
def test_torch_rejects_no_honest_op(op, fresh_compiler):
    assert [] == rejections(op)
