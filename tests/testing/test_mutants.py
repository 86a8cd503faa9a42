"""The corpus is what it says: its table is whole, and its honest ops run and pass.

That a mutant is wrong, and where, is what test_mutants_are_caught.py shows.
"""

import os
import re
from pathlib import Path

import pytest
import torch

from corpus import CORRECT, MUTANTS
from custom_autograd.schema.samples import Sample, TensorFactory
from custom_autograd.verification.check import all_checks, check
from custom_autograd.verification.harness.targets import call_on, target_of
from python_server import run_python
from slow_cases import nightly_but

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


def test_the_table_is_whole():
    """Names are unique, no family is missing, and every mutant names a check and says what is wrong."""
    names = [op.name for op in (*MUTANTS, *CORRECT)]
    wanted, checks = {family.strip() for family in FAMILIES.split(";")}, {check.name for check in all_checks()}

    assert len(set(names)) == len(names)
    assert set() == wanted - {mutant.family for mutant in MUTANTS}
    assert set() == {mutant.check for mutant in MUTANTS} - checks
    assert [] == [mutant.name for mutant in MUTANTS if not re.fullmatch(r"[A-Z].*\.", mutant.purpose)]


def test_an_honest_op_runs_on_its_samples():
    for op in CORRECT:
        target = target_of(op.make())
        assert samples_of(op), op.name
        assert all(call_on(target.call, copied(sample)) or target.is_mutating for sample in samples_of(op)), op.name


def copied(sample):
    return sample.map(lambda tensor: tensor.detach().clone())


@pytest.mark.parametrize("op", [MUTANTS[0], CORRECT[0]], ids=lambda op: op.name)
def test_an_op_is_made_once(op):
    assert op.make() is op.make()


@pytest.mark.parametrize("op", nightly_but(CORRECT[::5].__contains__, CORRECT), ids=lambda op: op.name)
def test_no_check_fails_an_honest_op(op, fresh_compiler):
    report = check(op.make(), op.samples)

    assert report.ok, str(report)


def test_importing_the_corpus_declares_nothing():
    program = "import corpus, torch; print(hasattr(torch.ops.mutants, 'scaled_square'))"

    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    finished = run_python("-c", program, env={**os.environ, "PYTHONPATH": path})

    assert "False\n" == finished.stdout, finished.stderr


def by_name(name):
    (op,) = (row for row in (*MUTANTS, *CORRECT) if row.name == name)
    return op


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
