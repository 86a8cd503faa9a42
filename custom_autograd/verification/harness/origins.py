"""Which registered rule an exception left: read from the mark that the rule's call sets, never from words.

A rule that torch calls (of a torch.autograd.Function, or of a torch.library op) bears no mark; it is in the traceback.
"""

import traceback
import types
from pathlib import Path

import torch

from custom_autograd.core.locations import format_location
from custom_autograd.values.user_code import rule_left_by

PACKAGE = str(Path(__file__).parents[2])
TORCH = str(Path(torch.__file__).parent)
GENERATED = "<custom_autograd "
"""How the file names of generated source begin."""

METHODS = {"backward", "vjp", "jvp", "vmap", "setup_context"}
"""The rules of a torch.autograd.Function."""

LIBRARY = str(Path(TORCH, "_library", "autograd.py"))
"""The file whose `backward` calls the rule of a torch.library op."""


def rule_behind(error: BaseException) -> str | None:
    """Return file:line of the rule that an exception left, or one of those that led to it; None if none did."""
    seen: BaseException | None = error
    while seen is not None:
        found = rule_left_by(seen) or _in_traceback(seen)
        if found:
            return found
        seen = seen.__cause__
    return None


def _in_traceback(error: BaseException) -> str:
    """Return file:line of the innermost frame of the author's in a rule that torch called; empty if there is none."""
    is_in_rule, found = False, ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        is_in_rule = is_in_rule or _calls_rules(code)
        if is_in_rule and _is_authors(code):
            found = format_location(code.co_filename, line)
    return found


def _calls_rules(code: types.CodeType) -> bool:
    if code.co_filename == LIBRARY:
        return code.co_name == "backward"
    return code.co_name in METHODS and _is_authors(code)


def _is_authors(code: types.CodeType) -> bool:
    return not code.co_filename.startswith((PACKAGE, TORCH, GENERATED))
