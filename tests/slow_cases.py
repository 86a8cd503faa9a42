"""Marks the cases of a parametrized test that not every run needs, where a few of them show as much."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest


def slow_but_every(
    number: int, cases: Iterable[Any], *, keep: Callable[[Any], bool] = lambda case: False
) -> Sequence[Any]:
    """Return cases with all marked slow but the first, every `number`-th after it, and those to keep."""
    return [
        case if place % number == 0 or keep(case) else pytest.param(case, marks=pytest.mark.slow)
        for place, case in enumerate(cases)
    ]


def nightly_but(kept: Callable[[Any], bool], cases: Iterable[Any]) -> Sequence[Any]:
    """Return cases with those to keep in every `.ci/run` marked slow, and all others nightly."""
    return [pytest.param(case, marks=pytest.mark.slow if kept(case) else pytest.mark.nightly) for case in cases]
