"""Commands print no lines of progress, which depend on how busy the machine is; test_cli_custom_ops.py tests those."""

import pytest

from custom_autograd.cli import terminal


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
    monkeypatch.setattr(terminal, "SECONDS", 3600.0)
