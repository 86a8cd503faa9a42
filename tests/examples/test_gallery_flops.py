"""FLOPs of the gallery: torch's counter finds as many in each op as in its reference, without a line in the gallery."""

from collections.abc import Callable

import pytest
import torch
from expecttest import assert_expected_inline
from tables import each
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from custom_autograd import Sample
from custom_autograd.registration.registry import OpRecord, all_records
from custom_autograd.schema.samples import TensorFactory
from custom_autograd.values.tensors import tensors_in
from custom_autograd.verification.harness.targets import target_of
from gallery_values import GALLERY, load

for file in sorted(GALLERY.glob("*.py")):
    if "custom_op(" in file.read_text():
        load(file.stem)

OPS = {
    record.declaration.name.name: record
    for record in sorted(all_records(), key=lambda record: record.name)  # whichever test loaded the gallery first
    if record.declaration.name.namespace == "gallery" and record.reference() is not None
}
ops = each("op", OPS.values())


def samples_of(op: OpRecord) -> list[Sample]:
    """The samples of an op, whose tensors require gradients if it may be given such."""
    target = target_of(op.handle)
    assert target.samples is not None
    made = target.samples(TensorFactory(dtype=torch.float64, device=torch.device("cpu"), seed=0))
    return [sample.map(lambda x: fresh(x, not target.is_mutating)) for sample in made if sample.error is None]


def fresh(tensor: Tensor, wants_gradient: bool) -> Tensor:
    return tensor.detach().clone().requires_grad_(wants_gradient and tensor.is_floating_point())


def counted(call: Callable[[], object]) -> tuple[int, object]:
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


def forward(function: Callable[..., object], sample: Sample) -> int:
    """The FLOPs of a call on copies of a sample: the op may write to them."""
    copies = sample.map(lambda x: x.detach().clone())
    return counted(lambda: function(*copies.args, **copies.kwargs))[0]


def backward(function: Callable[..., object], sample: Sample) -> int:
    """The FLOPs of the gradients; the calls before are counted too, or not at all if they are compiled."""
    inputs = [tensor for tensor in sample.tensors() if tensor.requires_grad]
    _, result = counted(lambda: function(*sample.args, **sample.kwargs))
    return gradients(result, inputs)


def gradients(result: object, inputs: list[Tensor]) -> int:
    outputs = [tensor for tensor in tensors_in([result]) if tensor.requires_grad]
    if not outputs or not inputs:
        return 0
    ones = [torch.ones_like(output) for output in outputs]
    return counted(lambda: torch.autograd.grad(outputs, inputs, ones, allow_unused=True))[0]


@ops
def test_a_call_counts_as_the_reference_does(op):
    for sample in samples_of(op):
        assert forward(op.reference(), sample) == forward(op.handle, sample), sample


# What differs: an op without rules computes its reference again and differentiates that; other rules are written
# differently on purpose, as the reasons say.
REASONS = {
    "flash_attention": "recomputes the scores, once for the gradients of q, k and v, and once for that of bias",
    "flash_attention_varlen": "recomputes the scores",
    "flash_attention_grad": "derived: recomputes its reference",
    "flash_attention_bias_grad": "derived: recomputes its reference",
    "flash_attention_varlen_grad": "derived: recomputes its reference",
    "fused_linear_cross_entropy": "computes the gradients in the forward",
    "fixed_point": "solves one linear system, in place of a backward through every step",
    "linear_fixed_point": "multiplies matrices; the reference solves, which torch counts as 0",
    "pair_distances": "multiplies with the inverse of the cell, for all points at once",
    "pair_forces": "needs fewer products than the reference",
}


def differing(of: Callable[[OpRecord, Sample], tuple[int, int]]) -> str:
    """A line for each sample where two numbers differ."""
    rows = [(name, sample, *of(op, sample)) for name, op in OPS.items() for sample in samples_of(op)]
    return "\n".join(f"{name}: {one} / {other}, {REASONS[name]}" for name, _, one, other in rows if one != other)


def test_a_backward_counts_as_that_of_the_reference_but_for_reasons():
    """What it counts / what the reference does."""

    def of(op, sample):
        visible = target_of(op.handle).visible_reference
        return backward(op.handle, sample), backward(visible, sample)

    assert_expected_inline(
        differing(of),
        """\
fixed_point: 96 / 3456, solves one linear system, in place of a backward through every step
fixed_point: 72 / 2304, solves one linear system, in place of a backward through every step
flash_attention: 2160 / 1680, recomputes the scores, once for the gradients of q, k and v, and once for that of bias
flash_attention: 3360 / 1920, recomputes the scores, once for the gradients of q, k and v, and once for that of bias
flash_attention: 480 / 384, recomputes the scores, once for the gradients of q, k and v, and once for that of bias
flash_attention_bias_grad: 1260 / 840, derived: recomputes its reference
flash_attention_bias_grad: 1260 / 840, derived: recomputes its reference
flash_attention_grad: 3240 / 2160, derived: recomputes its reference
flash_attention_grad: 3240 / 2160, derived: recomputes its reference
flash_attention_varlen: 1040 / 800, recomputes the scores
flash_attention_varlen: 1040 / 800, recomputes the scores
flash_attention_varlen_grad: 2880 / 1920, derived: recomputes its reference
fused_linear_cross_entropy: 0 / 240, computes the gradients in the forward
fused_linear_cross_entropy: 0 / 456, computes the gradients in the forward
fused_linear_cross_entropy: 144 / 96, computes the gradients in the forward
fused_linear_cross_entropy: 0 / 4, computes the gradients in the forward
linear_fixed_point: 288 / 96, multiplies matrices; the reference solves, which torch counts as 0
pair_distances: 270 / 90, multiplies with the inverse of the cell, for all points at once
pair_forces: 360 / 450, needs fewer products than the reference""",
    )


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.filterwarnings("ignore")  # of PyTorch, about what it does not compile
def test_a_compiled_backward_counts_as_the_eager_one_but_for_what_is_left_out():
    """What it counts / what eager mode does: a graph leaves out what the recomputation of a reference has in excess.

    PyTorch does not compile while a mode is on: the forward runs before.
    """

    def of(op, sample):
        inputs = [tensor for tensor in sample.tensors() if tensor.requires_grad]
        torch._dynamo.reset()
        result = torch.compile(op.handle, backend="aot_eager")(*sample.args, **sample.kwargs)
        return gradients(result, inputs), backward(op.handle, sample)

    counting = {name: [s for s in samples_of(op) if backward(op.handle, s)] for name, op in OPS.items()}
    del counting["pair_distances"]  # its graph checks that a matrix is regular, which the counter cannot run
    rows = [(name, *of(OPS[name], samples[0])) for name, samples in counting.items() if samples]

    assert_expected_inline(
        "\n".join(f"{name}: {one} / {other}" for name, one, other in rows),
        """\
fixed_point: 96 / 96
flash_attention: 2160 / 2160
flash_attention_bias_grad: 1020 / 1260
flash_attention_grad: 2580 / 3240
flash_attention_varlen: 1040 / 1040
flash_attention_varlen_grad: 2320 / 2880
fused_linear_cross_entropy: 144 / 144
grouped_mm: 1260 / 1260
grouped_mm_list: 156 / 156
grouped_outer: 1260 / 1260
linear_fixed_point: 288 / 288
pair_forces: 360 / 360
pair_forces_grad: 540 / 630""",
    )
