"""Reads TOML, for which Python 3.10 has no module."""

import importlib
import sys
from typing import Any

from custom_autograd.core.errors import CustomAutogradError


def parse_toml(text: str, file: str, table: str, error_type: type[CustomAutogradError]) -> dict[str, Any]:
    """Return what a TOML text holds (Any: whatever TOML can).

    Args:
        text: the text.
        file: the name of its file, for messages.
        table: the table that is wanted of it, for messages.
        error_type: the class of the error.

    Raises:
        CustomAutogradError: the text is not TOML, or there is no module that reads it.
    """
    reader = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        found: dict[str, Any] = importlib.import_module(reader).loads(text)
    except ModuleNotFoundError as error:
        problem = f"[{table}] cannot be read on Python 3.10 without tomli"
        raise error_type(file, problem, do="pip install tomli; pytest brings it") from error
    except ValueError as error:
        raise error_type(file, f"this is not TOML: {error}", do="correct that line") from error
    return found
