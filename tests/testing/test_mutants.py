"""The corpus is what it says: every mutant can be made and called, names its check, and is made of honest ops."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from corpus import CORRECT, MUTANTS
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.check import check
from custom_autograd.verification.harness.targets import call_on, target_of
from slow_cases import nightly_but

CHECKS = """
    schema reference kernels determinism special_values uninitialised bounds layouts sizes cotangents contract
    directional gradcheck linearity reference_gradients adjoint second_order complex reuse low_precision
    non_differentiable forward_mode fake symbolic vmap nesting opcheck compile recompilation export
    compiled_autograd compiled_transforms cache saved needs leaks saved_hooks autocast threads profiler subclasses
    errors parity shared_inputs process_state side_effects shapes
"""
FAMILIES = """
    sign; factor; missing term; transposed; missing reduction; wrong axis; wrong broadcast; off by one; tail;
    ignores eps; ignores a needed subset; wrong conj; second order only; one output only; only for one layout;
    only in one dtype; only under vmap; only for size 0; only for sizes above a block; shape of a fake;
    stride of a fake; dtype of a fake; aliasing; in-place write to input; incoming gradient written to;
    saved written to; hidden state; nondeterminism; race; leak; unneeded save; wrong hidden output; wrong jvp only;
    wrong vmap only; wrong autocast; stale cache; undeclared RNG; unwritten memory; out of bounds; special values;
    bad input; low-precision accumulation; symbolic specialisation; data-dependent branch in the backward;
    recompiles on every int; tensor kept on ctx; reference cycle; subclass unwrapping;
    mode-dependent result; misaligned; channels last; conj view; incoming gradient misread; undefined gradient;
    gradient dtype; gradient shape; number of gradients; non-differentiable output; not linear;
    variant of an op; side effect; false line
"""


def samples_of(op, seed=0):
    return [sample for sample in op.samples(TensorFactory(seed=seed)) if sample.error is None]


def values_of(op, sample):
    copies = sample.map(lambda tensor: tensor.detach().clone())
    return call_on(target_of(op.make()).call, copies)


def runs(op, sample):
    """Whether it returns tensors, or writes to one."""
    target = target_of(op.make())
    return target.is_mutating or bool(values_of(op, sample))


def test_there_are_enough_mutants():
    assert len(MUTANTS) >= 120
    assert len({mutant.family for mutant in MUTANTS}) >= 30


def test_names_are_unique():
    names = [op.name for op in (*MUTANTS, *CORRECT)]

    assert len(set(names)) == len(names)


def test_no_family_of_the_corpus_is_missing():
    wanted = {family.strip() for family in FAMILIES.split(";")}

    assert set() == wanted - {mutant.family for mutant in MUTANTS}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_names_a_check_and_says_what_is_wrong(mutant):
    assert mutant.check in CHECKS.split()
    assert mutant.purpose.endswith(".")
    assert mutant.purpose[0].isupper()


RUNNING = [op for op in (*MUTANTS, *CORRECT) if op.name != "shapes_dtype"]  # whose calls say what is wrong with it


@pytest.mark.parametrize("op", RUNNING, ids=lambda op: op.name)
def test_an_op_runs_on_its_samples(op):
    samples = [sample for sample in samples_of(op) if op.name != "size_empty" or sample.tensors()[0].numel()]

    assert samples
    assert all(runs(op, sample) for sample in samples)


@pytest.mark.parametrize("op", [MUTANTS[0], CORRECT[0]], ids=lambda op: op.name)
def test_an_op_is_made_once(op):
    assert op.make() is op.make()


@pytest.mark.parametrize(
    "op", [*CORRECT[:1], *nightly_but(CORRECT[::5].__contains__, CORRECT[1:])], ids=lambda op: op.name
)
def test_no_check_fails_an_honest_op(op, fresh_compiler):
    report = check(op.make(), op.samples)

    assert report.ok, str(report)


def test_importing_the_corpus_declares_nothing():
    program = "import corpus, torch; print(hasattr(torch.ops.mutants, 'scaled_square'))"

    assert "False\n" == run_python(program)


def run_python(program):
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    finished = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env=environment
    )
    return finished.stdout


def differs(name, sample, *, base):
    """Whether a mutant and the op it is made of give different numbers."""
    found, expected = (call_on(target_of(by_name(op).make()).call, sample) for op in (name, base))
    return any(not torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def by_name(name):
    (op,) = (row for row in (*MUTANTS, *CORRECT) if row.name == name)
    return op


WRONG_VALUES = {
    "value_rare_branch": (Sample(torch.full((3,), 9.0)), "cube"),
    "value_overflow": (Sample(torch.tensor([1000.0, 0.0])), "softmax"),
    "value_index": (Sample(torch.randn(4, 3), torch.tensor([3])), "pick"),
    "size_past_block": (Sample(torch.ones(257)), "cube"),
    "size_past_block_copied": (Sample(torch.arange(300.0), torch.ones(300)), "scaled_square"),
    "size_vector_tail": (Sample(torch.full((5,), 2.0)), "cube"),
    "size_one": (Sample(torch.full((2, 1), 3.0)), "softmax"),
    "special_nan_swallowed": (Sample(torch.tensor([torch.nan])), "cube"),
    "special_inf_clipped": (Sample(torch.tensor([1e4]), torch.ones(1)), "growth"),
    "special_nan_ignored": (Sample(torch.tensor([[1.0, torch.nan]])), "peak"),
    "special_inf_in_sum": (Sample(torch.tensor([[1.0, torch.inf]]), torch.ones(2)), "rms"),
    "layout_strides": (Sample(torch.arange(6.0).reshape(2, 3).mT), "cube"),
    "layout_offset": (Sample(torch.arange(6.0)[2:]), "cube"),
    "layout_offset_of_weight": (Sample(torch.ones(2, 3), torch.arange(6.0)[3:]), "scaled_square"),
    "layout_misaligned": (Sample(torch.arange(9.0)[1:]), "cube"),
    "layout_expanded": (Sample(torch.ones(1, 3).expand(4, 3)), "cube"),
    "layout_channels_last": (
        Sample(torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last), torch.ones(3)),
        "channels",
    ),
    "layout_conj": (Sample(torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 1j])), "complex_product"),
    "dtype_only_bfloat16": (Sample(torch.ones(2).bfloat16(), torch.ones(2).bfloat16(), 1.7), "scaled_square"),
    "dtype_accumulates_forward": (
        Sample(torch.ones(2, 4096, dtype=torch.bfloat16), torch.ones(4096).bfloat16()),
        "rms",
    ),
    "dtype_float16_overflow": (Sample(torch.full((2, 4096), 6.0).half(), torch.ones(4096).half()), "rms"),
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_mutant_that_its_samples_may_not_show_is_wrong_where_it_says(name):
    sample, base = WRONG_VALUES[name]

    assert differs(name, sample, base=base)


@pytest.mark.parametrize(
    ("name", "place"), {"bounds_past_end": 5, "bounds_before_start": 0, "bounds_past_weight": 5}.items()
)
def test_a_write_out_of_bounds_happens_where_there_is_room(name, place):
    memory = torch.ones(6)
    inside = memory[1:5]
    sample = Sample(torch.ones(4), inside) if name == "bounds_past_weight" else Sample(inside)

    call_on(target_of(by_name(name).make()).call, sample)

    assert -7 == memory[place]
    assert torch.equal(torch.ones(4), inside)


@pytest.mark.parametrize("name", ["bounds_past_end", "bounds_before_start", "bounds_past_weight"])
def test_a_write_out_of_bounds_is_left_out_where_there_is_no_room(name):
    (sample, *_) = samples_of(by_name(name))
    before = [tensor.detach().clone() for tensor in sample.tensors()]

    with torch.no_grad():
        call_on(target_of(by_name(name).make()).call, sample)

    assert all(torch.equal(one, other) for one, other in zip(before, sample.tensors(), strict=True))
