"""pytest --custom-ops TARGET: one test item per op and check.

Every pytest run loads this file, so nothing heavy is imported before the option is given.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from custom_autograd.testing import CheckCase


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --custom-ops."""
    group = parser.getgroup("custom_autograd", "custom operators")
    group.addoption(
        "--custom-ops",
        action="append",
        default=[],
        metavar="TARGET",
        help="verify the ops of a module, file, folder or module:attribute; one item per op and check",
    )


def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Adds the items of every TARGET after those that pytest collected itself."""
    targets: list[str] = config.getoption("--custom-ops") or []
    for text in targets:
        items.extend(_items(session, text))


def _items(session: pytest.Session, text: str) -> Iterator[pytest.Item]:
    from custom_autograd.checks.loading import load  # imports torch
    from custom_autograd.core.errors import CheckError  # imports torch
    from custom_autograd.testing import cases_of  # imports torch

    try:
        cases = cases_of(*(loaded.value for loaded in load(text)))
    except CheckError as error:
        raise pytest.UsageError(f"--custom-ops {error}") from error
    for case in cases:
        item: OpItem = OpItem.from_parent(session, name=str(case), nodeid=f"{text}::{case}", case=case)
        yield item


class OpItem(pytest.Item):
    """One check of one op."""

    def __init__(self, *, case: "CheckCase", name: str, parent: pytest.Session, nodeid: str) -> None:
        super().__init__(name, parent, nodeid=nodeid)
        self.case = case
        self.user_properties.append(("check", case.check))

    def runtest(self) -> None:
        """Runs the check; it skips itself where there is nothing to look at."""
        from custom_autograd.checks.targets import target_of  # imports torch

        if target_of(self.case.op).samples is None:
            pytest.skip("no samples are registered (register_samples)")
        self.case()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """The report's own text for a finding; it says more than a traceback through this package."""
        del style
        from custom_autograd.core.errors import CheckError  # imports torch

        if isinstance(excinfo.value, CheckError):
            return str(excinfo.value)
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Where the item is, for pytest's output."""
        return Path(self.nodeid.split("::", 1)[0]), None, self.name
