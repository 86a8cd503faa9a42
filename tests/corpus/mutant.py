"""A mutant is an op that is wrong on purpose, with the check that has to notice; an honest op is what it is made of."""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from corpus.forms import ArgumentTree
from custom_autograd.verification.harness.targets import SamplesRule


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted fault.

    Args:
        name: its own, and that of its op in the namespace `mutants`.
        family: the kind of fault.
        purpose: what is wrong, in one sentence.
        check: the name of the check that has to notice.
        make: gives the op; it is declared at the first call, and the same op ever after.
        samples: the calls to verify it on.
    """

    name: str
    family: str
    purpose: str
    check: str
    make: Callable[[], object]
    samples: SamplesRule


@dataclass(frozen=True, slots=True)
class Honest:
    """One op without a fault: no check may fail it.

    Args:
        name: its own, and that of its op in the namespace `mutants`.
        purpose: what it stands for, in one sentence.
        make: gives the op; it is declared at the first call, and the same op ever after.
        samples: the calls to verify it on.
    """

    name: str
    purpose: str
    make: Callable[[], object]
    samples: SamplesRule


def plant(name: str, family: str, check: str, purpose: str, form: ArgumentTree) -> Mutant:
    """A mutant of pieces."""
    return Mutant(name, family, purpose, check, _once(functools.partial(form.declare, name)), form.samples)


def honest(name: str, purpose: str, form: ArgumentTree) -> Honest:
    """An honest op of pieces."""
    return Honest(name, purpose, _once(functools.partial(form.declare, name)), form.samples)


def _once(make: Callable[[], object]) -> Callable[[], object]:
    """The same object at every call, whichever threads call; functools.cache alone may make it twice."""
    lock, cached = threading.RLock(), functools.cache(make)

    def locked() -> object:
        with lock:
            return cached()

    return locked
