"""Random numbers in checks: seeded for each of them, and whether a call draws any.

isolated(seed)              within, every generator starts from the seed; afterwards all are as they were
is_random(target, sample)   whether a call draws random numbers
move_on(devices)            what is drawn next is not what was drawn before
outside_torch()             the state of generators that torch's seed does not reach
"""

import contextlib
import pickle
import random
import sys
from collections.abc import Iterator, Set

import torch

from custom_autograd.schema.samples import Sample
from custom_autograd.values.random_state import RandomState, kept_random_state
from custom_autograd.verification.harness.dispatching import has_generator
from custom_autograd.verification.harness.sweeps import copy
from custom_autograd.verification.harness.targets import Target, call_on


@contextlib.contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed random numbers within, of every device, of Python and of NumPy, and restore the generators afterwards."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")  # a kernel may draw from it, where it is in use
    numpy_state = None if numpy is None else numpy.random.get_state()
    with kept_random_state():
        RandomState.seeded(seed).restore()
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(state)
            if numpy is not None:
                numpy.random.set_state(numpy_state)


def is_random(target: Target, sample: Sample) -> bool:
    """Return True if a call draws random numbers, or is given a generator; nothing is drawn or written afterwards."""
    if has_generator(sample):
        return True
    with kept_random_state(), torch.no_grad():
        before = RandomState.current()
        call_on(target.call, copy(sample))
        return before.has_moved()


def move_on(devices: Set[torch.device]) -> None:
    """Draw numbers on the CPU and on other devices, so that what is drawn next is not what was drawn before."""
    for device in {torch.device("cpu"), *devices}:
        torch.rand(97, device=device)


def outside_torch() -> dict[str, object]:
    """Return the state of each random generator of the process that torch's seed does not reach, by its owner."""
    found: dict[str, object] = {"Python": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["NumPy"] = pickle.dumps(numpy.random.get_state(legacy=False))
    return found
