"""Which calls are drawn: each change alone, then each two typical ones in few calls, then several at random.

What only shows together mostly takes two changes: a call with four of them looks at six pairs.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence, Set

from custom_autograd.verification.calls.backward_ways import PLAIN
from custom_autograd.verification.calls.call import Way
from custom_autograd.verification.calls.case import Case
from custom_autograd.verification.calls.changes import COTANGENTS, NEEDS, SCALARS, SIZES, VALUES, Change
from custom_autograd.verification.calls.numbers import NOT_FINITE, SMALL, TIES, ZEROS
from custom_autograd.verification.calls.sizes import LONG
from custom_autograd.verification.calls.ways import WAYS

OF_FAKES = {SIZES, SCALARS}
"""The changes that a fake kernel sees."""

TYPICAL = (
    "-> 1",
    "-> 257",
    "in front",
    "with size 1 in dimension 0",
    "1000 times as large",
    "rounded, with ties",
    "with a row of -inf",
    "in bfloat16",
    "transposed",
    "a transposed cotangent",
    "rows apart",
    "expanded along its first dimension",
    "as sum() sends",
)
"""How the texts of changes end that stand for the others of their key."""

ROUNDS = 3
"""How many times each pair of changes meets, each time among others: one change may hide what another shows."""

MOST = 4
"""Changes of one case."""


def singles(changes: Sequence[Change]) -> Iterator[Case]:
    """Yield every change and every way alone, and some changes in pairs, in turns of one of each kind."""
    ways = [Case((), way) for way in (PLAIN, *WAYS)]
    kinds: dict[object, list[Case]] = {"way": ways, "pair": list(switched(changes))}
    for change in changes:
        kinds.setdefault(change.stage, []).append(Case((change,)))
    for row in itertools.zip_longest(*kinds.values()):
        yield from (case for case in row if case is not None)


def switched(changes: Sequence[Change]) -> Iterator[Case]:
    """Yield what shows only together: two switches, ties with a bound of 0, long windows, zeros in derivatives."""
    switches = itertools.combinations([change for change in changes if change.is_switch], 2)
    ties = [change for change in changes if change.stage == VALUES and change.text.endswith(TIES)]
    bounds = [change for change in changes if change.stage == SCALARS and change.text.endswith("=0.0")]
    for one, other in itertools.chain(switches, itertools.product(ties, bounds)):
        if one.key != other.key:
            yield Case((one, other))
    wide = [change for change in changes if change.stage == SCALARS and change.text.endswith(f"={LONG}")]
    long = [change for change in changes if change.stage == SIZES and change.text.endswith(f"-> {LONG}")]
    yield from (Case(pair) for pair in itertools.product(long, wide))
    zeros = [change for change in changes if change.stage == VALUES and change.text.endswith(ZEROS)]
    special = [change for change in changes if change.stage == SCALARS and change.text.endswith(("=0.0", "=1.0"))]
    for change, way in itertools.product([*special, *zeros], [way for way in WAYS if way.is_derivative]):
        yield Case((change,), way)  # a division that a mask hides from a first derivative, or a branch of one rule


def paired(
    changes: Sequence[Change], unfit: Set[str], draw: random.Random, is_judged: Callable[[], bool]
) -> Iterator[Case]:
    """Yield cases until each two typical changes have met three times; of one that is not judged, each two once alone.

    Args:
        changes: those that may be made.
        unfit: the texts of those that do not fit the sample alone; they may fit tensors of other shapes.
        draw: gives every second case a way, and each round other changes.
        is_judged: says of the case before whether something could be said of it.
    """
    alone: set[frozenset[str]] = set()
    for chosen in itertools.chain.from_iterable(_groups(typical(changes, draw), unfit) for _ in range(ROUNDS)):
        yield Case(chosen, _way(draw))
        for pair in itertools.combinations(chosen, 2) if not is_judged() else ():
            texts = frozenset(change.text for change in pair)
            if texts not in alone:
                alone.add(texts)
                yield Case(pair)


def rows_of(case: Case) -> Set[str]:
    """Return the checks that together look at the values and gradients of a plain call with one change, if any do."""
    change = case.changes[0] if len(case.changes) == 1 and case.way is PLAIN else None
    if change is None or change.is_of_dtype or change.key == "shapes":
        return set()
    if change.stage == SCALARS or change.text.endswith(SMALL):
        return {"reference", "reference_gradients"}
    return {change.check} if change.stage != VALUES or change.text.endswith(NOT_FINITE) else set()


def typical(changes: Sequence[Change], draw: random.Random) -> list[Change]:
    """Return changes that stand for all of their keys, in any order: the typical ones, and one other of each key."""
    found = [change for change in changes if change.text.endswith(TYPICAL)]
    others: dict[str, list[Change]] = {}
    for change in changes:
        if change not in found:
            others.setdefault(change.key, []).append(change)
    found += map(draw.choice, others.values())
    draw.shuffle(found)
    return found


def _groups(changes: Sequence[Change], unfit: Set[str]) -> Iterator[tuple[Change, ...]]:
    """Yield changes, up to four at once, until each two that go together have been together."""
    numbers = range(len(changes))
    pairs = itertools.combinations(numbers, 2)
    fitting = {(i, other) for i, other in pairs if _go_together(changes[i], changes[other], unfit)}
    left = set(fitting)
    while left:
        chosen = list(min(left))
        while len(chosen) < MOST:
            meetings = {i: {(min(i, other), max(i, other)) for other in chosen} for i in numbers if i not in chosen}
            gains = {i: len(left & pairs) for i, pairs in meetings.items() if pairs <= fitting}
            best = max(gains, key=gains.__getitem__, default=None)
            if best is None or not gains[best]:
                break
            chosen.append(best)
        left.difference_update(itertools.combinations(sorted(chosen), 2))
        yield tuple(changes[i] for i in chosen)


def _go_together(one: Change, other: Change, unfit: Set[str]) -> bool:
    """Return True if a call with both says something of each: some changes are of gradients, some leave none."""
    if not unfit.isdisjoint((one.text, other.text)) and "shapes" not in (one.key, other.key):
        return False
    is_without = any(change.is_large or not change.has_gradients for change in (one, other))
    is_of_gradients = any(change.stage in (NEEDS, COTANGENTS) for change in (one, other))
    return one.key != other.key and not (is_without and is_of_gradients)


def drawn(changes: Sequence[Change], draw: random.Random) -> Iterator[Case]:
    """Yield two to four changes of different keys, and for every second case a way, without end."""
    stages = sorted({change.stage for change in changes})
    while stages:
        chosen: dict[str, Change] = {}
        for _ in range(draw.randint(2, MOST)):
            stage = draw.choice(stages)
            change = draw.choice([change for change in changes if change.stage == stage])
            chosen.setdefault(change.key, change)
        yield Case(tuple(chosen.values()), _way(draw))


def _way(draw: random.Random) -> Way:
    return draw.choice(WAYS) if draw.random() < 0.5 else PLAIN


def named(changes: Sequence[Change], texts: Sequence[str]) -> Case | None:
    """Return the case whose changes and way have these texts; None if a text belongs to neither."""
    by_text = {change.text: change for change in reversed(changes)}
    ways = {way.text: way for way in WAYS}
    if not set(texts) <= by_text.keys() | ways.keys():
        return None
    way = next((ways[text] for text in texts if text in ways), PLAIN)
    return Case(tuple(by_text[text] for text in texts if text in by_text), way)
