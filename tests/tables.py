"""Tests over a table: `each` runs all rows in one test, where `pytest.mark.parametrize` makes a test of each row."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

ROW = type(pytest.param())


def seed() -> None:
    """Begin with the same random numbers; without an accelerator, a hundredth of what `torch.manual_seed` takes."""
    (torch if torch.accelerator.is_available() else torch.default_generator).manual_seed(0)


def each(names: str | tuple[str, ...], rows: Iterable[Any], ids: Iterable[Any] | None = None) -> Callable[..., Any]:
    """Return a decorator that calls a test with every row, and names the first row that fails.

    A row begins as a test does: with the same random numbers, and without compiled code. Other fixtures serve all rows.
    """
    names = tuple(names.split(", ")) if isinstance(names, str) else names
    table = [row if isinstance(row, ROW) else pytest.param(*(row if len(names) > 1 else (row,))) for row in rows]
    named = [row.id or ", ".join(map(str, row.values)) for row in table] if ids is None else list(map(str, ids))
    assert table, "without rows a test would look at nothing"
    assert not any(row.marks for row in table), "a row with marks is for pytest.mark.parametrize"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def over_all_rows(*args: Any, **fixtures: Any) -> None:
            for name, row in zip(named, table, strict=True):
                seed()
                torch.compiler.reset()
                try:
                    test(*args, **fixtures, **dict(zip(names, row.values, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    raise AssertionError(f"{test.__name__}[{name}]: {error}") from error

        kept = [one for one in inspect.signature(test).parameters.values() if one.name not in names]
        over_all_rows.__signature__ = inspect.Signature(kept)
        return over_all_rows

    return decorate
