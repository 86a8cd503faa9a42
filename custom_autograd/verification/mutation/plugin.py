"""The pytest plugin of a mutated run: installs the mutant once its op is declared, and notes what fails.

Tests may import an op when they are collected, or when they run: so it looks whenever a module has been imported.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from custom_autograd.verification.mutation.engine import Equivalence
from custom_autograd.verification.mutation.operators import mutants_of
from custom_autograd.verification.mutation.points import find_points
from custom_autograd.verification.mutation.suites import LOG, MUTANT, WATCH


class Activation:
    """Waits for the op of a mutant, and changes it."""

    def __init__(self, path: str, *, is_watched: bool) -> None:
        self.op, self.rule, self.label = path.split("/", 2)
        self.is_watched = is_watched
        self.stack = contextlib.ExitStack()
        self.equivalence: Equivalence | None = None

    def attempt(self) -> None:
        """Change the op, if it is declared by now and has not been changed."""
        if self.equivalence is not None:
            return
        mutants = [row for point in find_points(self.op) if point.rule == self.rule for row in mutants_of(point)]
        for mutant in mutants:
            if mutant.label == self.label:
                self.equivalence = self.equivalence or Equivalence()
                wrong = mutant.function()
                watched = self.equivalence.paired(mutant.point.function, wrong) if self.is_watched else wrong
                self.stack.enter_context(mutant.point.exchange(watched))

    def pytest_collection_finish(self) -> None:
        """Attempt it once all tests are imported."""
        self.attempt()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        """Attempt it before each test."""
        self.attempt()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what fails."""
        if report.failed:
            _log(failed=report.nodeid)

    def pytest_unconfigure(self) -> None:
        """Put the right function back, and note what became of the wrong one."""
        self.stack.close()
        if self.equivalence is not None:
            _log(status=self.equivalence.status if self.is_watched else "survived")


def pytest_configure(config: pytest.Config) -> None:
    """Wait for the op, where a mutant is named."""
    path = os.environ.get(MUTANT)
    if path:
        activation = Activation(path, is_watched=WATCH in os.environ)
        _after_each_import(activation.attempt)
        config.pluginmanager.register(activation, "custom_autograd mutant")


def _after_each_import(look: Callable[[], None]) -> None:
    """Look after each module of source, in the rest of this process, which lasts as long as its tests."""
    execute = SourceFileLoader.exec_module

    def exec_module(loader: SourceFileLoader, module: ModuleType) -> None:
        execute(loader, module)
        look()

    setattr(SourceFileLoader, "exec_module", exec_module)  # noqa: B010 - no hook says that an import is over


def _log(**event: str) -> None:
    path = os.environ.get(LOG)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
