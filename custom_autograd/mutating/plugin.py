"""The pytest plugin of a mutated run: puts the mutant in its place once its op is declared, and notes what fails.

Tests may declare an op when they are collected, or import it when they run: so it looks again before each of them.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest

from custom_autograd.mutating.operators import mutants_of
from custom_autograd.mutating.sites import find_sites
from custom_autograd.mutating.suites import LOG, MUTANT


class Activation:
    """Waits for the op of a mutant, and changes it."""

    def __init__(self, path: str) -> None:
        self.op, self.rule, self.label = path.split("/", 2)
        self.stack = contextlib.ExitStack()
        self.is_done = False

    def attempt(self) -> None:
        """Changes the op, if it is declared by now and has not been changed."""
        if self.is_done:
            return
        mutants = [row for site in find_sites(self.op) if site.rule == self.rule for row in mutants_of(site)]
        for mutant in mutants:
            if mutant.label == self.label:
                self.stack.enter_context(mutant.site.exchange(mutant.function()))
                self.is_done = True
        if self.is_done:
            _log(applied=f"{self.op}/{self.rule}/{self.label}")


def pytest_configure(config: pytest.Config) -> None:
    """Waits for the op, where a mutant is named."""
    path = os.environ.get(MUTANT)
    if path:
        config.pluginmanager.register(_Hooks(Activation(path)), "custom_autograd mutant")


class _Hooks:
    def __init__(self, activation: Activation) -> None:
        self.activation = activation

    def pytest_collection_finish(self) -> None:
        self.activation.attempt()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        self.activation.attempt()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_call(self) -> None:
        self.activation.attempt()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            _log(failed=report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.activation.stack.close()


def _log(**event: str) -> None:
    path = os.environ.get(LOG)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")
