"""The figures to reach on a GPU, and which of the recorded figures reach them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MODES = ("no grad", "forward", "forward + backward")


@dataclass(frozen=True)
class Target:
    """A limit on one fact of the results whose other facts are given.

    Attributes:
        about: what it speaks of.
        fact: the name of the figure, such as "op / it".
        limit: what it must not exceed, or must reach if `is_least`.
        where: facts that a line has to have.
        is_least: the figure is to be at least the limit.
    """

    about: str
    fact: str
    limit: float
    where: dict[str, str]
    is_least: bool = False

    def holds(self, figure: float) -> bool:
        """Return True if a figure reaches it."""
        return figure >= self.limit if self.is_least else figure <= self.limit


def of_calls() -> Iterator[Target]:
    """Yield those of the stage `calls`."""
    for name in ("by name", "drop-in", "by name, C++ kernel", "by name, C++ kernel and rule"):
        for mode, limit in zip(MODES, (1.1, 1.1, 1.05), strict=True):
            where = {"stage": "calls", "name": f"cuda: {name} | {mode}"}
            if "C++" not in name:
                yield Target(f"{name} / torch.mul, {mode}", "/ torch.mul", limit, where)
            yield Target(f"{name} / C++ op, {mode}", "/ C++", 1.0, where)
    for mode in MODES:
        where = {"stage": "calls", "name": f"cpu: by name, C++ kernel and rule | {mode}"}
        yield Target(f"on the CPU: C++ kernel and rule / C++ op, {mode}", "/ C++", 1.0, where)


def of_the_gallery() -> Iterator[Target]:
    """Yield those of the stage `gallery`."""
    for mode in ("forward", "backward"):
        for family in ("norm", "gate", "rope", "dropout", "cross entropy"):
            where = {"stage": "gallery", "family": family, "mode": mode}
            yield Target(f"{family}, {mode}, of a copy", "of a copy", 0.85, {**where, "callable": "op"}, is_least=True)
            yield Target(f"{family}, {mode} / compiled", "op / it", 1.0, {**where, "callable": "compiled"})
        where = {"stage": "gallery", "family": "attention", "mode": mode, "callable": "SDPA, flash"}
        yield Target(f"attention, {mode} / SDPA, flash", "op / it", 1.2, where)
        where = {"stage": "gallery", "family": "grouped products", "mode": mode, "callable": "built-in"}
        yield Target(f"grouped products, {mode} / torch._grouped_mm", "op / it", 1.2, where)


TARGETS = (*of_calls(), *of_the_gallery())


def judged(lines: list[dict[str, Any]]) -> Iterator[tuple[Target, list[tuple[dict[str, Any], bool]]]]:
    """Yield each target with the lines it speaks of, and whether each holds."""
    for target in TARGETS:
        found = [line for line in lines if is_meant(target, line)]
        yield target, [(line, target.holds(line[target.fact])) for line in found]


def is_meant(target: Target, line: dict[str, Any]) -> bool:
    """Return True if a target speaks of a line."""
    return target.fact in line and all(line.get(name) == value for name, value in target.where.items())
