"""Ops that are wrong on purpose, each with the check that has to notice, and the honest ops that they are made of.

for mutant in MUTANTS:
    report = check(mutant.make(), mutant.samples, checks=[mutant.check])     # has a failed result
for op in CORRECT:
    report = check(op.make(), op.samples)                                   # has none
"""

from corpus.batching import BATCHING
from corpus.branches import BRANCHES
from corpus.containers import CONTAINERS
from corpus.contracts import CONTRACTS
from corpus.correct import CORRECT
from corpus.effects import EFFECTS
from corpus.false_lines import FALSE_LINES
from corpus.formulas import FORMULAS
from corpus.incoming import INCOMING
from corpus.keeping import KEEPING
from corpus.layouts import LAYOUTS
from corpus.leaving import LEAVING
from corpus.memory import MEMORY
from corpus.mutant import Honest, Mutant
from corpus.orders import ORDERS
from corpus.reductions import REDUCTIONS
from corpus.siblings import SIBLINGS
from corpus.sizes import SIZES
from corpus.states import STATES
from corpus.systems import SYSTEMS
from corpus.values import VALUES

__all__ = ["CORRECT", "MUTANTS", "Honest", "Mutant"]

MUTANTS: tuple[Mutant, ...] = (
    *VALUES,
    *SIZES,
    *FORMULAS,
    *REDUCTIONS,
    *INCOMING,
    *CONTRACTS,
    *LAYOUTS,
    *ORDERS,
    *BATCHING,
    *MEMORY,
    *STATES,
    *KEEPING,
    *SYSTEMS,
    *SIBLINGS,
    *CONTAINERS,
    *BRANCHES,
    *LEAVING,
    *EFFECTS,
    *FALSE_LINES,
)
