"""Ops that are wrong on purpose, each with the check that has to notice, and the honest ops that they are made of.

for mutant in MUTANTS:
    report = check(mutant.make(), mutant.samples, checks=[mutant.check])     # has a failed result
for op in CORRECT:
    report = check(op.make(), op.samples)                                   # has none
"""

from custom_autograd.testing.mutants.batching import BATCHING
from custom_autograd.testing.mutants.branches import BRANCHES
from custom_autograd.testing.mutants.containers import CONTAINERS
from custom_autograd.testing.mutants.contracts import CONTRACTS
from custom_autograd.testing.mutants.correct import CORRECT
from custom_autograd.testing.mutants.formulas import FORMULAS
from custom_autograd.testing.mutants.incoming import INCOMING
from custom_autograd.testing.mutants.keeping import KEEPING
from custom_autograd.testing.mutants.layouts import LAYOUTS
from custom_autograd.testing.mutants.leaving import LEAVING
from custom_autograd.testing.mutants.memory import MEMORY
from custom_autograd.testing.mutants.mutant import Honest, Mutant
from custom_autograd.testing.mutants.orders import ORDERS
from custom_autograd.testing.mutants.reductions import REDUCTIONS
from custom_autograd.testing.mutants.siblings import SIBLINGS
from custom_autograd.testing.mutants.sizes import SIZES
from custom_autograd.testing.mutants.states import STATES
from custom_autograd.testing.mutants.systems import SYSTEMS
from custom_autograd.testing.mutants.values import VALUES

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
)
