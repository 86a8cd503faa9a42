"""A check of gradients, part by part: which subsets of the inputs there are, and the one that a part looks at."""

import re
from collections.abc import Iterator, Sequence

from custom_autograd.schema.samples import Sample
from custom_autograd.verification.harness.base import NothingToCheckError
from custom_autograd.verification.harness.differentiable import TensorFunction, differentiable_positions
from custom_autograd.verification.harness.sweeps import subsets
from custom_autograd.verification.harness.targets import Target


def parts_by_inputs(target: Target, samples: Sequence[Sample]) -> dict[str, tuple[str, ...]]:
    """Return every subset of the sample inputs that can have a gradient, by its label: "x_weight" -> (x, weight)."""
    found: dict[str, tuple[str, ...]] = {}
    for sample in samples:
        names = _names(target, sample)
        for chosen in subsets(len(names)) if names else ():
            part = tuple(names[i] for i in chosen)
            found.setdefault("_".join(re.sub(r"\W+", "", name) for name in part), part)
    return found


def chosen_subsets(function: TensorFunction, only: tuple[str, ...] | None) -> Iterator[tuple[int, ...]]:
    """Yield every subset of a function's arguments, or the one with these names.

    Raises:
        NothingToCheckError: there is none with these names.
    """
    found = list(subsets(len(function.positions)))
    if only is not None:
        found = [chosen for chosen in found if tuple(function.names[i] for i in chosen) == only]
        if not found:
            raise NothingToCheckError(f"the sample has no gradient for {', '.join(only)} together")
    yield from found


def _names(target: Target, sample: Sample) -> list[str]:
    leaves = sample.leaves()
    try:
        return [target.name_of(leaves[position]) for position in differentiable_positions(target, sample)]
    except NothingToCheckError:
        return []
