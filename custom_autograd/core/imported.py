"""What a text "module:name" names, in modules that this process has imported: a text never decides what is imported.

Functions and classes travel through the dispatcher by name, and exported programs hold such names as plain text, which
whoever edits the file chooses.
"""

from __future__ import annotations

import sys
from typing import Any


def find_imported(path: str) -> Any:  # Any: whatever has that name
    """Return what has a path in this process, or None; nothing is imported."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def reason_and_advice(path: str) -> tuple[str, str]:
    """Return why nothing is found at a path, and what to do."""
    module = path.partition(":")[0]
    if module in sys.modules:
        return f"{path!r}: its module has nothing of that name", f"keep the name in {module}"
    advice = f"import {module} first, if you trust what holds the name: a text does not decide what is imported"
    return f"{path!r}: its module is not imported in this process", advice
