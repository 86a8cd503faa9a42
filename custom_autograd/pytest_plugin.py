"""pytest --custom-ops TARGET: one test item per op, check and part of a check, such as rms_norm-gradcheck-x_weight.

Every pytest run loads this file, so nothing heavy is imported before the option is given.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from custom_autograd.core.groups import GROUPS, group_or_other

if TYPE_CHECKING:
    from custom_autograd.testing import CheckCase


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --custom-ops, --custom-ops-checks and --custom-ops-device."""
    group = parser.getgroup("custom_autograd", "custom operators")
    group.addoption(
        "--custom-ops",
        action="append",
        default=[],
        metavar="TARGET",
        help="verify the ops of a module, file, folder or module:attribute; one item per op, check and part of a check",
    )
    group.addoption(
        "--custom-ops-checks",
        metavar="NAMES",
        help="the checks to run, by name, code or group, separated by commas, such as quick; all by default",
    )
    group.addoption(
        "--custom-ops-device", metavar="DEVICE", help="the device of the samples, such as cuda; the CPU by default"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers, so that --strict-markers accepts them."""
    config.addinivalue_line("markers", "custom_op: a check of a custom operator")
    for group in GROUPS:
        config.addinivalue_line("markers", f"{group}: a check of a custom operator, of the group {group}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the items of every TARGET after those that pytest collected itself; -k and -m choose among them later."""
    targets: list[str] = config.getoption("--custom-ops") or []
    if not targets:
        return
    from custom_autograd.core.errors import CheckError  # imports torch

    try:
        items.extend(_items(session, targets))
    except CheckError as error:
        raise pytest.UsageError(f"--custom-ops {error}") from error


def _items(session: pytest.Session, targets: list[str]) -> Iterator[pytest.Item]:
    from custom_autograd.testing import cases_of  # imports torch
    from custom_autograd.verification.check import accepted_failures  # imports torch
    from custom_autograd.verification.harness.op_files import (  # imports torch
        device_of,  # imports torch
        is_whole,
        load,
        names_of_all,
    )
    from custom_autograd.verification.harness.targets import target_of  # imports torch
    from custom_autograd.verification.report import acceptance  # imports torch

    loaded = [row for text in targets for row in load(text)]
    accepted = accepted_failures()
    if all(map(is_whole, targets)):
        acceptance.require_known(accepted, names_of_all() | {target_of(row.value).name for row in loaded})
    texts = {id(row.value): row.text for row in loaded}
    checks: str | None = session.config.getoption("--custom-ops-checks")
    names = None if checks is None else [name.strip() for name in checks.split(",") if name.strip()]
    text: str | None = session.config.getoption("--custom-ops-device")
    device = None if text is None else device_of(text)
    for case in cases_of(*(row.value for row in loaded), checks=names, device=device):
        nodeid = f"{texts[id(case.op)]}::{case}"
        item: OpItem = OpItem.from_parent(session, name=str(case), nodeid=nodeid, case=case)
        yield item


class OpItem(pytest.Item):
    """One check of one op, or a part of it."""

    def __init__(self, *, case: "CheckCase", name: str, parent: pytest.Session, nodeid: str) -> None:
        super().__init__(name, parent, nodeid=nodeid)
        from custom_autograd.verification.check import select_checks  # imports torch

        self.case = case
        (check,) = select_checks([case.check])
        self.add_marker("custom_op")
        self.add_marker(group_or_other(check.group))
        self.user_properties += [("check", check.name), ("code", check.code), ("seed", case.seed)]

    def runtest(self) -> None:
        """Run the check; it skips itself where there is nothing to look at."""
        from custom_autograd.verification.harness.targets import target_of  # imports torch

        if target_of(self.case.op).samples is None:
            pytest.skip("no samples are registered (register_samples)")
        report = self.case.report()
        for result in report.results:
            self.user_properties += [(f"{result.sample}: {name}", value) for name, value in result.measures.items()]
        report.raise_for_failures()
        if all(result.status == "skipped" for result in report.results):
            pytest.skip("; ".join(dict.fromkeys(result.message for result in report.results)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """Return the report's own text for a finding; it has more than a traceback through this package."""
        del style
        from custom_autograd.core.errors import CheckError  # imports torch

        if isinstance(excinfo.value, CheckError):
            return str(excinfo.value)
        return str(excinfo.getrepr(style="short"))

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the item is, for pytest's output."""
        return Path(self.nodeid.split("::", 1)[0]), None, self.name
