"""The text of an error as a reader sees it, with places that do not change from line to line."""

import re
from collections.abc import Callable

from custom_autograd import CustomAutogradError


def message(call: Callable[[], object], error: type[Exception] = CustomAutogradError) -> str:
    """The class and the text of the error that a call raises."""
    try:
        call()
    except error as caught:
        text = f"{type(caught).__name__}: {caught}"
        return re.sub(r"test_\w+\.py:\d+", "FILE.py:LINE", text)
    raise AssertionError("nothing was raised")


def on_lines(*texts: str) -> str:
    """Each message on a line, without its class and the places: for those that differ from a pinned one a little."""
    kept = [[line.strip() for line in text.splitlines() if not re.match("  (rule|declared) ", line)] for text in texts]
    return "\n".join(re.sub("  +", " ", " | ".join(lines)).partition(": ")[2] for lines in kept)
